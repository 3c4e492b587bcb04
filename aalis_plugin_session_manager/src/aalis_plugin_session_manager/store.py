"""The one door for changes: table, then group commit, then event, then return.

A change shows in memory at once; the committer stores everything that waits in one call; the dispatcher
tells what was stored, in the order of commits. The caller's await ends after its event; inside a listener it
ends when durable, or a listener that changes something would wait for itself. Rules: STORE-1 to -4, EVENT-1.
"""

import asyncio
import gc
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import islice
from typing import Any

from attrs import frozen

from aalis_api_session_manager.errors import InvalidSession, OutcomeUnknown, StorageError
from aalis_api_session_manager.memory import Change, Changeset, MemoryService, MetadataRow, Outcome
from aalis_api_session_manager.service import ServiceSelection
from aalis_plugin_session_manager.change import Edit, Event, Job, in_listener
from aalis_plugin_session_manager.collection import Collection
from aalis_plugin_session_manager.following import Follower
from aalis_plugin_session_manager.grouping import Cluster, clusters_of
from aalis_plugin_session_manager.records import Damaged
from aalis_plugin_session_manager.telling import Dispatcher

__all__ = ["STOP_LIMIT", "RecordStore"]

log = logging.getLogger(__name__)

SLICE = 1000
"""Records read at a time while loading."""
GROUP = 2000
"""Changes committed in one call at the most; more after each call that was refused, so that every one is tried."""
GATHER_DELAY = 0.1
"""Seconds that `soon` gathers changes of one record. Rule: USAGE-1."""
FIRST_RETRY, LAST_RETRY = 0.05, 2.0
"""Seconds between tries while the back end refuses."""
TELL_SECONDS = 5.0
"""How long a caller waits while it isn't known what became of an earlier change."""
STOP_LIMIT = 10.0
"""Seconds that stopping may take to store what waits."""


@frozen
class _Write:
    """What a group stores of one record: the change, or None where the folds change nothing."""

    edits: list[Edit]
    record: Any
    change: Change | None


class RecordStore:
    """Collections kept in step with the memory service.

    `tell(event)` turns one committed change into hook calls; `adopt(generations)` hears committed
    generations. Nothing here knows what a session is.
    """

    def __init__(
        self,
        memory: ServiceSelection[MemoryService],
        collections: Sequence[Collection[Any]],
        tell: Callable[[Event], Awaitable[None]],
        adopt: Callable[[Mapping[str, int]], None],
    ) -> None:
        self.read_only = False
        self._memory = memory
        self._collections = {collection.namespace: collection for collection in collections}
        self._adopt = adopt
        self._dispatcher = Dispatcher(tell)
        self._lock = asyncio.Lock()
        self._follower = Follower(memory, self._collections, self._lock, self._take_foreign)
        self._queue: deque[Job] = deque()
        self._gathering: dict[tuple[str, str], list[Edit]] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: list[asyncio.Task[None]] = []
        self.in_turn = self._dispatcher.in_turn

    # --- loading and stopping

    async def load(self, *, read_only: bool) -> None:
        """Read every collection, then start to commit and to follow what other processes commit."""
        self.read_only = read_only
        memory = self._memory.use()
        await self._follower.begin()
        self._adopt(await memory.generations())
        collecting = gc.isenabled()
        gc.disable()
        try:
            for collection in self._collections.values():
                after: str | None = None
                while rows := await memory.list_metadata(collection.namespace, after_key=after, limit=SLICE):
                    for row in rows:
                        self._take(collection, row)
                    after = rows[-1].key
        finally:
            if collecting:
                gc.enable()
        gc.freeze()
        if not read_only:
            loops = (self._commit_loop, self._dispatcher.run, self._follower.run)
            self._tasks = [asyncio.create_task(loop(), name=f"session store: {loop.__qualname__}") for loop in loops]

    def _take(self, collection: Collection[Any], row: MetadataRow) -> bool:
        """Take a stored record over; a damaged one is named and left alone. Rule: STORE-4."""
        record = None
        try:
            if row.damaged is not None:
                raise Damaged("it isn't JSON")
            if row.data is not None:
                record, dropped = collection.decode(row.key, row.data)
                if dropped:
                    log.warning("%s %r: dropped %s, of a wrong type", row.namespace, row.key, ", ".join(dropped))
        except Damaged as error:
            log.warning("%s %r is damaged and kept as it is: %s", row.namespace, row.key, error)
            collection.damaged[row.key] = str(error)
            return False
        collection.damaged.pop(row.key, None)
        if row.key in collection:
            entry = collection.entry(row.key)
            entry.revision, entry.committed = row.revision, record
            self._show_current(collection, row.key)
        elif record is not None:
            collection.add(row.key, row.revision, record)
        return True

    def _take_foreign(self, rows: Iterable[MetadataRow], generations: Mapping[str, int]) -> None:
        """What another process committed; what is at or below the known revision is skipped."""
        self._adopt(generations)
        events = []
        for row in rows:
            collection = self._collections.get(row.namespace)
            if collection is not None:
                revision, old = collection.known(row.key)
                if row.revision > revision and self._take(collection, row):
                    new = collection.known(row.key)[1]
                    if old != new:
                        events.append(Event(collection, row.key, old, new, foreign=True))
        if events:
            self._dispatcher.committed(events, ())

    async def stop(self) -> None:
        """Store what waits, for at most `STOP_LIMIT` seconds. Raises StorageError naming what couldn't be."""
        if not self._tasks:
            return
        try:
            async with asyncio.timeout(STOP_LIMIT):
                await self._settle_all()
                # Of two processes that stop at the same moment the later one sees what the earlier one did last.
                await self._follower.catch_up()
                await self._settle_all()
        except TimeoutError:
            log.error("stopping didn't end in time")
        except StorageError as error:
            log.warning("stopping without a last look at what others did: %s", error)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for job in self._queue:
            job.refuse(StorageError("stopped before it could be stored", session_id=job.subject))
        if self._queue:
            lost = ", ".join(sorted({repr(job.subject) for job in self._queue}))
            raise StorageError(f"could not be stored before stopping: {lost}")

    async def _settle_all(self) -> None:
        """Until nothing waits: what is told may lead to further changes."""
        while True:
            for address in list(self._gathering):
                self._flush(address)
            self._wake.set()
            await self._idle.wait()
            await self._dispatcher.drained()
            if self._idle.is_set() and not self._gathering:
                return

    # --- changing

    def change(self, subject: str, *edits: Edit, generations: Mapping[str, int] | None = None) -> Job:
        """Apply the folds in memory, all or none, and queue them. What a fold raises, this raises."""
        if self.read_only:
            raise StorageError("the store is opened for reading only", session_id=subject)
        for edit in edits:
            if edit.key in edit.collection.damaged:
                raise InvalidSession(edit.key, "the stored record is damaged and kept as it is")
            self._flush(edit.address)
        shown = [edit.fold(edit.collection.get(edit.key)) for edit in edits]
        job = Job(edits, generations or {}, subject)
        self._enqueue(job)
        for edit, record in zip(edits, shown, strict=True):
            edit.collection.show(edit.key, record)
        return job

    def soon(self, edit: Edit) -> None:
        """Apply a fold in memory at once, and store it with others of the same record within `GATHER_DELAY`."""
        if self.read_only:
            return
        gathered = self._gathering.setdefault(edit.address, [])
        if not gathered:
            asyncio.get_running_loop().call_later(GATHER_DELAY, self._flush, edit.address)
        gathered.append(edit)
        edit.collection.show(edit.key, edit.fold(edit.collection.get(edit.key)))

    def _flush(self, address: tuple[str, str]) -> None:
        gathered = self._gathering.pop(address, None)
        if gathered is not None:
            collection, key = gathered[0].collection, gathered[0].key
            self._enqueue(Job((Edit(collection, key, partial(_folded, gathered)),), {}, key))

    def _enqueue(self, job: Job) -> None:
        for edit in job.edits:
            edit.collection.entry(edit.key).waiting += 1
        self._queue.append(job)
        self._idle.clear()
        self._wake.set()

    async def settled(self, job: Job, *, durable: bool | None = None) -> None:
        """Wait until the change is durable and its event was handled (only durable: inside a listener, or
        when asked). Raises StorageError with `pending` when the back end refuses it, or what a fold raised.

        Cancelling the caller cancels neither the change nor its event. Rule: STORE-3.
        """
        await job.settled(only_durable=in_listener.get() if durable is None else durable)

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
        delay, size = FIRST_RETRY, GROUP
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                if not await self._commit_guarded(size):
                    delay, size = FIRST_RETRY, GROUP
                    continue
                size *= 2
                try:
                    async with asyncio.timeout(delay):
                        await self._wake.wait()
                    self._wake.clear()
                except TimeoutError:
                    delay = min(delay * 2, LAST_RETRY)
            self._idle.set()

    async def _commit_guarded(self, size: int) -> bool:
        try:
            async with self._lock:
                return await self._commit_group(size)
        except Exception:
            log.exception("committing failed in an unforeseen way, trying again")
            return True

    async def _commit_group(self, size: int) -> bool:
        """Commit what waits; True when the back end refused some of it, which stays in the queue."""
        prepared: list[tuple[Cluster, list[_Write], Changeset | None]] = []
        for cluster in clusters_of(islice(self._queue, size)):
            try:
                writes = [self._write(edits) for edits in cluster.edits]
            except Exception as error:
                self._reject(cluster, error)
                continue
            changes = tuple(write.change for write in writes if write.change is not None)
            generations = cluster.generations
            changeset = Changeset(changes=changes, generations=generations) if changes or generations else None
            prepared.append((cluster, writes, changeset))
        changesets = [changeset for _, _, changeset in prepared if changeset is not None]
        outcomes = await self._outcomes(changesets)
        by_changeset = iter(outcomes)
        refused: StorageError | None = None
        events: list[Event] = []
        done: list[Job] = []
        for cluster, writes, changeset in prepared:
            outcome = Outcome() if changeset is None else next(by_changeset)
            if outcome.error is None:
                self._committed(cluster, writes, outcome, events)
                done += cluster.jobs
            elif isinstance(outcome.error, StorageError):
                refused = outcome.error
                self._refused(cluster.jobs, refused)
            else:
                self._reject(cluster, outcome.error)
        if done:
            self._follower.committed(outcomes)
            for job in done:
                job.was_stored()
            self._queue = deque(job for job in self._queue if not job.durable)
            self._dispatcher.committed(events, done)
        elif refused is not None:
            self._refused(self._queue, refused)  # it is away: what came meanwhile would fare the same
        return refused is not None

    async def _outcomes(self, changesets: Sequence[Changeset]) -> Sequence[Outcome]:
        if not changesets:
            return ()
        try:
            try:
                return await self._memory.use().commit_metadata(changesets)
            except OutcomeUnknown as unknown:
                return await self._settled(unknown)
        except Exception as error:
            return [Outcome(error=StorageError(str(error)))] * len(changesets)

    async def _settled(self, unknown: OutcomeUnknown) -> Sequence[Outcome]:
        """What became of the changes, however long that takes: making them again might make them twice. Whoever
        waits meanwhile, also for later changes, is told."""
        settling = asyncio.ensure_future(unknown.settled())
        try:
            while not settling.done():
                self._refused(self._queue, unknown)
                await asyncio.wait((settling,), timeout=TELL_SECONDS)
            outcomes: Sequence[Outcome] = settling.result()
            return outcomes
        finally:
            settling.cancel()

    def _write(self, edits: list[Edit]) -> _Write:
        collection, key = edits[0].collection, edits[0].key
        entry = collection.entry(key)
        record = _folded(edits, entry.committed)
        if record is entry.committed:
            return _Write(edits, record, None)
        if record == entry.current:
            record = entry.current
        change = Change(
            namespace=collection.namespace,
            key=key,
            base=entry.revision,
            data=collection.encoded(record),
            fold=_json_fold(edits),
        )
        return _Write(edits, record, change)

    def _committed(self, cluster: Cluster, writes: list[_Write], outcome: Outcome, events: list[Event]) -> None:
        rows, leaving = iter(outcome.records), frozenset(cluster.jobs)
        for write in writes:
            collection, key, record = write.edits[0].collection, write.edits[0].key, write.record
            entry = collection.entry(key)
            entry.waiting -= len(write.edits)
            if write.change is not None:
                row = next(rows)
                if row.data is not write.change.data and row.data != write.change.data:
                    record = collection.decoded(key, row.data)
                if row.revision > entry.revision:
                    if entry.committed != record:
                        events.append(Event(collection, key, entry.committed, record))
                    entry.revision, entry.committed = row.revision, record
            self._show_current(collection, key, leaving=leaving)
        if outcome.generations:
            self._adopt(outcome.generations)

    def _refused(self, jobs: Iterable[Job], error: StorageError) -> None:
        for job in jobs:
            if not job.awaited and not job.warned:
                log.warning("session %r: a change waits, the store refuses it: %s", job.subject, error)
                job.warned = True
            job.refuse(StorageError(str(error), session_id=job.subject, pending=True))

    def _reject(self, cluster: Cluster, error: Exception) -> None:
        """A fold refuses the record that is stored by now: split what shares records, or drop the one job."""
        if len(cluster.jobs) > 1:
            for job in cluster.jobs:
                job.alone = True
            return
        (job,) = cluster.jobs
        self._queue.remove(job)
        job.rejected = error
        if not job.awaited:
            log.warning("session %r: a change was rejected: %s", job.subject, error)
        job.refuse(error)
        for edit in job.edits:
            edit.collection.entry(edit.key).waiting -= 1
            self._show_current(edit.collection, edit.key)

    def _show_current(self, collection: Collection[Any], key: str, leaving: Set[Job] = frozenset()) -> None:
        """Let readers see what is committed with everything on top that waits; `leaving` waits no more."""
        entry = collection.entry(key)
        record = entry.committed
        address = (collection.namespace, key)
        waiting = []
        if entry.waiting:
            jobs = (job for job in self._queue if job not in leaving)
            waiting = [edit for job in jobs for edit in job.edits if edit.address == address]
        waiting += self._gathering.get(address, ())
        for edit in waiting:
            try:
                record = edit.fold(record)
            except Exception as error:
                log.debug("%s %r: a waiting change doesn't fit any more: %s", *address, error)
        collection.show(key, record)


def _folded(edits: Iterable[Edit], record: Any) -> Any:
    for edit in edits:
        record = edit.fold(record)
    return record


def _json_fold(edits: Sequence[Edit]) -> Callable[[dict[str, Any] | None], dict[str, Any] | None]:
    """The folds on plain JSON, for a record that another process changed meanwhile."""
    collection, key = edits[0].collection, edits[0].key

    def fold(data: dict[str, Any] | None) -> dict[str, Any] | None:
        return collection.encoded(_folded(edits, collection.decoded(key, data)))

    return fold
