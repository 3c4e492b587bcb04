"""The one door for changes: table, then group commit, then event, then return.

A change is a fold, a pure function (record or None) -> record or None. It shows in memory at once; the
committer stores everything that waits in one call; the dispatcher tells what was stored, in the order of
commits. The caller's await ends after its event; inside a listener it ends when durable, or a listener
that changes something would wait for itself. Rules: STORE-1, STORE-2, STORE-3, EVENT-1.
"""

import asyncio
import gc
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

from attrs import define, field, frozen

from aalis_api_session_manager.errors import InvalidSession, StorageError
from aalis_api_session_manager.memory import Change, Changeset, MemoryService, MetadataRow, Outcome
from aalis_api_session_manager.service import ServiceSelection
from aalis_plugin_session_manager.collection import Collection
from aalis_plugin_session_manager.grouping import Cluster, clusters_of
from aalis_plugin_session_manager.records import Damaged

__all__ = ["Edit", "Event", "Job", "RecordStore", "in_listener"]

log = logging.getLogger(__name__)

SLICE = 1000
"""Records read at a time while loading."""
GROUP = 2000
"""Changes committed in one call at the most."""
USAGE_DELAY = 0.1
"""Seconds that `soon` gathers changes of one record. Rule: USAGE-1, issue of cost: one write per record."""
GATHER_FOREIGN = 0.02
"""Seconds between hearing that something was committed and reading it, so that a busy store is read in slices."""
FIRST_RETRY, LAST_RETRY = 0.05, 2.0
"""Seconds between tries while the back end refuses."""
STOP_LIMIT = 10.0
"""Seconds that stopping may take to store what waits."""

in_listener: ContextVar[bool] = ContextVar("in_listener", default=False)
"""True in what a listener of this store's events runs."""


@frozen
class Edit:
    """One record's part of a change."""

    collection: Collection[Any]
    key: str
    fold: Callable[[Any], Any]

    @property
    def address(self) -> tuple[str, str]:
        """Where the record is stored."""
        return (self.collection.namespace, self.key)


@frozen
class Event:
    """A record was committed: `old` and `new` as stored, None for absent. `foreign`: by another process."""

    collection: Collection[Any]
    key: str
    old: Any
    new: Any
    foreign: bool = False


@define(eq=False)
class Job:
    """A change on its way: its edits are stored together or not at all."""

    edits: tuple[Edit, ...]
    generations: Mapping[str, int]
    subject: str
    alone: bool = False
    durable: bool = False
    told: bool = False
    rejected: Exception | None = None
    committed_generations: Mapping[str, int] = field(factory=dict)
    durable_waiters: list[asyncio.Future[None]] = field(factory=list)
    told_waiters: list[asyncio.Future[None]] = field(factory=list)

    def refuse(self, error: Exception) -> None:
        """End every wait with an error."""
        for waiter in self.durable_waiters + self.told_waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self.durable_waiters, self.told_waiters = [], []


_Telling = tuple[str, Callable[[], Awaitable[None]]]
"""What is told, in words for the log, and how."""


@frozen
class _Write:
    """What a group stores of one record: the change, or None where the folds change nothing."""

    edits: list[Edit]
    record: Any
    change: Change | None


def _finish(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


class RecordStore:
    """Collections kept in step with the memory service.

    `tell(event)` turns one committed change into hook calls; `adopt(generations, foreign)` hears committed
    generations. Nothing here knows what a session is.
    """

    def __init__(
        self,
        memory: ServiceSelection[MemoryService],
        collections: Sequence[Collection[Any]],
        tell: Callable[[Event], Awaitable[None]],
        adopt: Callable[[Mapping[str, int]], None],
        listener_timeout: float,
    ) -> None:
        self._memory = memory
        self._collections = {collection.namespace: collection for collection in collections}
        self._tell = tell
        self._adopt = adopt
        self._listener_timeout = listener_timeout
        self._queue: deque[Job] = deque()
        self._gathering: dict[tuple[str, str], Edit] = {}
        self._wake = asyncio.Event()
        self._commit_lock = asyncio.Lock()
        self._events: asyncio.Queue[tuple[list[_Telling], list[Job]]] = asyncio.Queue()
        self._revision = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self.read_only = False

    # --- loading and stopping

    async def load(self, *, read_only: bool) -> None:
        """Read every collection, then start to commit and to follow what other processes commit."""
        self.read_only = read_only
        memory = self._memory.use()
        self._revision = (await memory.changes(2**62)).revision
        self._adopt(await memory.generations())
        collecting = gc.isenabled()
        gc.disable()
        try:
            for collection in self._collections.values():
                after: str | None = None
                while rows := await memory.list_metadata(collection.namespace, after_key=after, limit=SLICE):
                    for row in rows:
                        self._load_row(collection, row)
                    after = rows[-1].key
        finally:
            if collecting:
                gc.enable()
        gc.freeze()
        if not read_only:
            loops = (self._commit_loop, self._dispatch_loop, self._follow_loop)
            self._tasks = [asyncio.create_task(loop(), name=f"session store {loop.__name__}") for loop in loops]

    def _load_row(self, collection: Collection[Any], row: MetadataRow) -> bool:
        """Take a stored record over; a damaged one is named and left alone. Rule: STORE-4."""
        entry = collection.entry(row.key)
        try:
            if row.damaged is not None:
                raise Damaged("it isn't JSON")
            record = None
            if row.data is not None:
                record, dropped = collection.decode(row.key, row.data)
                if dropped:
                    log.warning("%s %r: dropped %s, of a wrong type", row.namespace, row.key, ", ".join(dropped))
            collection.damaged.pop(row.key, None)
        except Damaged as error:
            log.warning("%s %r is damaged and kept as it is: %s", row.namespace, row.key, error)
            collection.damaged[row.key] = str(error)
            collection.drop_if_empty(row.key)
            return False
        entry.revision, entry.committed = row.revision, record
        self._show_current(collection, row.key)
        return True

    async def stop(self) -> None:
        """Store what waits, for at most `STOP_LIMIT` seconds. Raises StorageError naming what couldn't be."""
        if not self._tasks:
            return
        try:
            async with asyncio.timeout(STOP_LIMIT):
                self._flush_gathering()
                self._wake.set()
                await self._idle.wait()
                await self._events.join()
        except TimeoutError:
            pass
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        lost = sorted({job.subject for job in self._queue})
        for job in self._queue:
            job.refuse(StorageError("stopped before it could be stored", session_id=job.subject))
        if lost:
            raise StorageError(f"could not be stored before stopping: {', '.join(lost)}")

    # --- changing

    def change(self, subject: str, *edits: Edit, generations: Mapping[str, int] | None = None) -> Job:
        """Apply the folds in memory, all or none, and queue them. What a fold raises, this raises."""
        if self.read_only:
            raise StorageError("the store is opened for reading only", session_id=subject)
        for edit in edits:
            if edit.key in edit.collection.damaged:
                raise InvalidSession(edit.key, "the stored record is damaged and kept as it is")
            self._flush_gathering(edit.address)
        shown = [edit.fold(edit.collection.get(edit.key)) for edit in edits]
        job = Job(edits, generations or {}, subject)
        self._enqueue(job)
        for edit, record in zip(edits, shown, strict=True):
            edit.collection.show(edit.key, record)
        return job

    def soon(self, edit: Edit) -> None:
        """Apply a fold in memory at once, and store it with others of the same record within `USAGE_DELAY`."""
        if self.read_only:
            return
        earlier = self._gathering.get(edit.address)
        edit.collection.show(edit.key, edit.fold(edit.collection.get(edit.key)))
        if earlier is None:
            asyncio.get_running_loop().call_later(USAGE_DELAY, self._flush_gathering, edit.address)
            self._gathering[edit.address] = edit
        else:
            first, then = earlier.fold, edit.fold
            self._gathering[edit.address] = Edit(edit.collection, edit.key, lambda record: then(first(record)))

    def _flush_gathering(self, address: tuple[str, str] | None = None) -> None:
        for key in [address] if address is not None else list(self._gathering):
            edit = self._gathering.pop(key, None)
            if edit is not None:
                self._enqueue(Job((edit,), {}, edit.key))

    def _enqueue(self, job: Job) -> None:
        for edit in job.edits:
            edit.collection.entry(edit.key).waiting += 1
        self._queue.append(job)
        self._idle.clear()
        self._wake.set()

    async def settled(self, job: Job, *, durable: bool | None = None) -> None:
        """Wait until the change is durable and its event was handled (only durable: inside a listener, or
        when asked). Raises StorageError with `pending` when the back end refuses it, or what a fold raised.

        Cancelling the caller cancels neither the change nor its event.
        """
        if job.rejected is not None:
            raise job.rejected
        only_durable = in_listener.get() if durable is None else durable
        if job.told or (only_durable and job.durable):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (job.durable_waiters if only_durable else job.told_waiters).append(waiter)
        await waiter

    async def apply(self, subject: str, *edits: Edit) -> None:
        """`change` and `settled`."""
        await self.settled(self.change(subject, *edits))

    async def stored(self, collection: Collection[Any], key: str) -> None:
        """Wait until everything that waits for one record is durable."""
        address = (collection.namespace, key)
        for job in reversed(self._queue):
            if any(edit.address == address for edit in job.edits):
                return await self.settled(job, durable=True)

    # --- committing

    async def _commit_loop(self) -> None:
        delay = FIRST_RETRY
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                refused = await self._commit_guarded()
                if not refused:
                    delay = FIRST_RETRY
                    continue
                try:
                    async with asyncio.timeout(delay):
                        await self._wake.wait()
                    self._wake.clear()
                except TimeoutError:
                    pass
                delay = min(delay * 2, LAST_RETRY)
            if not self._gathering:
                self._idle.set()

    async def _commit_guarded(self) -> bool:
        try:
            async with self._commit_lock:
                return await self._commit_group()
        except Exception:
            log.exception("committing failed in an unforeseen way, trying again")
            return True

    async def _commit_group(self) -> bool:
        """Commit what waits; True when the back end refused some of it, which stays in the queue."""
        prepared: list[tuple[Cluster[Job], list[_Write], Changeset | None]] = []
        for cluster in clusters_of(list(self._queue)[:GROUP]):
            try:
                writes = [self._write(edits) for edits in cluster.edits.values()]
            except Exception as error:
                self._reject(cluster, error)
                continue
            changes = tuple(write.change for write in writes if write.change is not None)
            generations = cluster.generations
            changeset = Changeset(changes=changes, generations=generations) if changes or generations else None
            prepared.append((cluster, writes, changeset))
        changesets = [changeset for _, _, changeset in prepared if changeset is not None]
        outcomes: Sequence[Outcome] = ()
        if changesets:
            try:
                outcomes = await self._memory.use().commit_metadata(changesets)
            except Exception as error:
                outcomes = [Outcome(error=StorageError(str(error)))] * len(changesets)
        by_changeset = iter(outcomes)
        refused = False
        events: list[Event] = []
        done: list[Job] = []
        for cluster, writes, changeset in prepared:
            outcome = Outcome() if changeset is None else next(by_changeset)
            if outcome.error is None:
                events += self._committed(cluster, writes, outcome)
                done += cluster.jobs
            elif isinstance(outcome.error, StorageError):
                refused = True
                self._refused(cluster, outcome.error)
            else:
                self._reject(cluster, outcome.error)
        if done:
            gone = set(map(id, done))
            self._queue = deque(job for job in self._queue if id(job) not in gone)
            self._follow_own(outcomes)
            for job in done:
                job.durable = True
                _finish(job.durable_waiters)
            self._events.put_nowait((self._tellings(events), done))
        return refused

    def _write(self, edits: list[Edit]) -> _Write:
        collection, key = edits[0].collection, edits[0].key
        entry = collection.entry(key)
        record = entry.committed
        for edit in edits:
            record = edit.fold(record)
        if record is entry.committed:
            return _Write(edits, record, None)
        if record == entry.current:
            record = entry.current
        change = Change(
            namespace=collection.namespace,
            key=key,
            base=entry.revision,
            data=collection.encoded(record),
            fold=_json_fold(collection, key, [edit.fold for edit in edits]),
        )
        return _Write(edits, record, change)

    def _committed(self, cluster: Cluster[Job], writes: list[_Write], outcome: Outcome) -> list[Event]:
        events = []
        leaving = set(map(id, cluster.jobs))
        rows = iter(outcome.records)
        for write in writes:
            collection, key, record = write.edits[0].collection, write.edits[0].key, write.record
            entry = collection.entry(key)
            entry.waiting -= len(write.edits)
            if write.change is not None:
                row = next(rows)
                if row.data != write.change.data:
                    record = collection.decoded(key, row.data)
                if row.revision > entry.revision:
                    if entry.committed != record:
                        events.append(Event(collection, key, entry.committed, record))
                    entry.revision, entry.committed = row.revision, record
            self._show_current(collection, key, leaving)
        for job in cluster.jobs:
            job.committed_generations = outcome.generations
        self._adopt(outcome.generations)
        return events

    def _refused(self, cluster: Cluster[Job], error: StorageError) -> None:
        for job in cluster.jobs:
            if not job.durable_waiters and not job.told_waiters:
                log.warning("session %r: a change waits, the store refuses it: %s", job.subject, error)
            job.refuse(StorageError(str(error), session_id=job.subject, pending=True))

    def _reject(self, cluster: Cluster[Job], error: Exception) -> None:
        """A fold refuses the record that is stored by now: split what shares records, or drop the one job."""
        if len(cluster.jobs) > 1:
            for job in cluster.jobs:
                job.alone = True
            return
        (job,) = cluster.jobs
        self._queue.remove(job)
        job.rejected = error
        if not job.durable_waiters and not job.told_waiters:
            log.warning("session %r: a change was rejected: %s", job.subject, error)
        job.refuse(error)
        for edit in job.edits:
            edit.collection.entry(edit.key).waiting -= 1
            self._show_current(edit.collection, edit.key)

    def _show_current(self, collection: Collection[Any], key: str, leaving: set[int] | None = None) -> None:
        """Let readers see what is committed with everything on top that waits."""
        entry = collection.entry(key)
        record = entry.committed
        address = (collection.namespace, key)
        waiting = [
            edit
            for job in (self._queue if entry.waiting else ())
            if leaving is None or id(job) not in leaving
            for edit in job.edits
            if edit.address == address
        ]
        if address in self._gathering:
            waiting.append(self._gathering[address])
        for edit in waiting:
            try:
                record = edit.fold(record)
            except Exception as error:
                log.debug("%s %r: a waiting change doesn't fit any more: %s", *address, error)
        collection.show(key, record)

    # --- telling

    def _tellings(self, events: Sequence[Event]) -> list[_Telling]:
        return [(f"{e.collection.namespace} {e.key!r}", partial(self._tell, e)) for e in events]

    async def in_turn(self, what: str, tell: Callable[[], Awaitable[None]]) -> None:
        """Tell something in its place behind everything that was committed before; returns when it was told."""
        told = asyncio.Event()

        async def tell_and_say_so() -> None:
            try:
                await tell()
            finally:
                told.set()

        self._events.put_nowait(([(what, tell_and_say_so)], []))
        await told.wait()

    async def _dispatch_loop(self) -> None:
        while True:
            tellings, jobs = await self._events.get()
            for what, tell in tellings:
                await self._tell_one(what, tell)
            for job in jobs:
                job.told = True
                _finish(job.told_waiters)
            self._events.task_done()

    async def _tell_one(self, what: str, tell: Callable[[], Awaitable[None]]) -> None:
        token = in_listener.set(True)
        try:
            async with asyncio.timeout(self._listener_timeout):
                await tell()
        except TimeoutError:
            log.error("%s: a listener took too long, going on", what)
        except Exception:
            log.exception("%s: telling of a change failed", what)
        finally:
            in_listener.reset(token)

    # --- following other processes

    def _follow_own(self, outcomes: Sequence[Outcome]) -> None:
        """Own commits that come right behind what is known need no reading back."""
        revisions = sorted({row.revision for outcome in outcomes for row in outcome.records})
        for revision in revisions:
            if revision == self._revision + 1:
                self._revision = revision

    async def _follow_loop(self) -> None:
        delay = FIRST_RETRY
        while True:
            try:
                if await self._memory.use().wait_for_changes(self._revision, 5.0):
                    await asyncio.sleep(GATHER_FOREIGN)
                    async with self._commit_lock:
                        await self._catch_up()
                delay = FIRST_RETRY
            except Exception as error:
                log.warning("can't follow the store: %s", error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, LAST_RETRY)

    async def _catch_up(self) -> None:
        memory = self._memory.use()
        changes = await memory.changes(self._revision)
        rows: list[MetadataRow] = list(changes.rows)
        if not changes.complete:
            rows = await self._everything(memory)
        self._adopt(changes.generations)
        events = []
        for row in rows:
            collection = self._collections.get(row.namespace)
            if collection is not None:
                entry = collection.entry(row.key)
                old = entry.committed
                if row.revision > entry.revision and self._load_row(collection, row) and old != entry.committed:
                    events.append(Event(collection, row.key, old, entry.committed, foreign=True))
                collection.drop_if_empty(row.key)
        self._revision = max(self._revision, changes.revision)
        if events:
            self._events.put_nowait((self._tellings(events), []))

    async def _everything(self, memory: MemoryService) -> list[MetadataRow]:
        """Every stored record, and a removal for each that is known here and stored no more."""
        rows = []
        for namespace, collection in self._collections.items():
            stored = await memory.list_metadata(namespace)
            rows += stored
            present = {row.key for row in stored}
            for key in collection.committed_keys():
                if key not in present:
                    gone = collection.entry(key).revision + 1
                    rows.append(MetadataRow(namespace=namespace, key=key, revision=gone, data=None))
        return rows


def _json_fold(
    collection: Collection[Any], key: str, folds: Sequence[Callable[[Any], Any]]
) -> Callable[[dict[str, Any] | None], dict[str, Any] | None]:
    """The folds on plain JSON, for a record that another process changed meanwhile."""

    def fold(data: dict[str, Any] | None) -> dict[str, Any] | None:
        record = collection.decoded(key, data)
        for one in folds:
            record = one(record)
        return collection.encoded(record)

    return fold
