"""The writer thread: everything that waits is committed together, and nothing that was accepted gets lost.

Callers queue a job and await its future. One thread takes all jobs that wait, does them in one transaction and
reports them in one call to the event loop. When the transaction fails, each piece of work is tried again in a
transaction of its own, so that one that the back end refuses never rejects its neighbours.
"""

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal, Protocol, TypeVar

from attrs import define, field, frozen

from aalis_api_session_manager.errors import OutcomeUnknown, StorageError
from aalis_api_session_manager.memory import Changeset, Outcome, SaveResult
from aalis_api_session_manager.message import Message
from aalis_host.words import said_by

__all__ = ["CLOSE_SECONDS", "REMEMBER_MS", "Archive", "Clear", "CommitUnknown", "Job", "Save", "WriteStore", "Writer"]

_log = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 10.0
"""How long closing waits for what is queued."""

REMEMBER_MS: Final = 24 * 3600 * 1000
"""How long a removed record is remembered, for processes that were cut off meanwhile."""

ANSWER_SECONDS: Final = 15.0
"""How long a caller waits. What wasn't begun by then is dropped; what was goes on without the caller."""

MAX_WAITING: Final = 10_000
"""More jobs than these are not taken in; their callers wait."""

MAX_GROUP: Final = 1_000
"""Jobs that share one transaction."""

Kind = Literal["save", "archive", "clear", "commit"]

T = TypeVar("T")


@frozen
class Save:
    """Store a message; `generation` None means the stored one."""

    session_id: str
    message: Message
    generation: int | None


@frozen
class Archive:
    """Archive all but the newest `keep` shown messages."""

    session_id: str
    keep: int


@frozen
class Clear:
    """Remove messages: of one session or (None) of all, of lower generations or (None) of every one."""

    session_id: str | None
    below_generation: int | None


class CommitUnknown(Exception):
    """The connection was lost in the commit, and the back end couldn't be asked what became of it until the end."""


class WriteStore(Protocol):
    """The back end's side, used by the writer thread alone. Each kind of work takes a list of pieces and answers
    a result for each; an exception means that the transaction has to be rolled back."""

    @property
    def revision(self) -> int:
        """The counter's value, as far as this store has committed or read it."""
        ...

    def begin(self) -> None:
        """Start a transaction that nobody else's write can come between."""
        ...

    def end(self) -> None:
        """Commit, durably; takes as long as it takes to tell whether it was done. Raises CommitUnknown after
        `give_up`."""
        ...

    def give_up(self) -> None:
        """Called in another thread: don't wait any longer."""
        ...

    def undo(self) -> None:
        """Roll back, whatever state the transaction is in. Never raises."""
        ...

    def save(self, pieces: Sequence[Save]) -> list[SaveResult]: ...
    def archive(self, pieces: Sequence[Archive]) -> list[int]: ...
    def clear(self, pieces: Sequence[Clear]) -> list[int]: ...
    def commit(self, pieces: Sequence[Changeset]) -> list[Outcome]: ...

    def close(self) -> None: ...


@define(eq=False)
class Job:
    """Work that one caller awaits: pieces of one kind, a result or an exception for each."""

    kind: Kind
    pieces: Sequence[Any]
    deadline: float
    """By the loop's clock."""
    answer: asyncio.Future[list[Any] | None]
    """For its caller; None when the deadline was reached."""
    results: list[Any] = field(factory=list)
    begun: bool = False
    dropped: bool = False
    late: asyncio.Future[list[Any]] | None = None
    """The results of one that was begun and not done at its deadline."""

    def ended(self, error: StorageError | None = None) -> None:
        """Tell whoever waits for the results."""
        waits: list[asyncio.Future[Any] | None] = [self.answer, self.late]
        for waiting in waits:
            if waiting is not None and not waiting.done():
                if error is None:
                    waiting.set_result(self.results)
                else:
                    waiting.set_exception(error)
                    waiting.exception()  # it was looked at: perhaps nobody waits any more

    @property
    def names(self) -> list[str]:
        """What the work is about, for the log."""
        return [_name(piece) for piece in self.pieces]


def _name(piece: Any) -> str:
    match piece:
        case Save():
            return f"a message of session {piece.session_id!r}"
        case Archive():
            return f"archiving session {piece.session_id!r}"
        case Clear():
            return "clearing all" if piece.session_id is None else f"clearing session {piece.session_id!r}"
        case _:
            return " + ".join(f"{change.namespace}/{change.key}" for change in piece.changes)


class Writer:
    """Owns the write store and its thread. All methods belong to the event loop it was made in."""

    def __init__(self, store: WriteStore, committed: Callable[[int], None]) -> None:
        """`committed` is called in the event loop with the counter's value after each group."""
        self._store = store
        self._committed = committed
        self._loop = asyncio.get_running_loop()
        self._free = asyncio.Semaphore(MAX_WAITING)
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._pending: dict[Job, None] = {}
        self._closed = False
        self._beginning = threading.Lock()
        self._watching: asyncio.TimerHandle | None = None
        self._ended = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="aalis-memory-writer", daemon=True)
        self._thread.start()

    async def submit(self, kind: Kind, pieces: Sequence[Any], finish: Callable[[list[Any]], T]) -> T:
        """Do the work durably; `finish` of a result or an exception for each piece.

        A caller that is cancelled loses only its waiting. Raises StorageError when the memory is closed or the work
        wasn't begun in time, and OutcomeUnknown when it was.
        """
        deadline = self._loop.time() + ANSWER_SECONDS
        try:
            async with asyncio.timeout_at(deadline) if self._free.locked() else nullcontext():
                await self._free.acquire()
        except TimeoutError:
            raise StorageError("the database doesn't answer, and too much waits for it") from None
        if self._closed:
            self._free.release()
            raise StorageError("the memory is closed")
        job = Job(kind, pieces, deadline, self._loop.create_future())
        self._pending[job] = None
        self._queue.put(job)
        if self._watching is None:
            self._watching = self._loop.call_at(deadline, self._watch)
        results = await job.answer
        if results is not None:
            return finish(results)
        if job.late is None:
            raise StorageError("the database doesn't answer")
        raise OutcomeUnknown(
            "the database doesn't answer, and it isn't known whether this was stored",
            settled=partial(_settled, job.late, finish),
        )

    def _watch(self) -> None:
        """Tell the callers whose deadline is reached; the pending jobs are in the order of their deadlines."""
        self._watching = None
        for job in self._pending:
            if job.answer.done():
                continue
            if job.deadline > self._loop.time():
                self._watching = self._loop.call_at(job.deadline, self._watch)
                break
            with self._beginning:
                job.dropped = not job.begun
            if not job.dropped:
                job.late = self._loop.create_future()
            job.answer.set_result(None)

    def _begin(self, job: Job) -> bool:
        with self._beginning:
            job.begun = not job.dropped
        return job.begun

    async def close(self) -> None:
        """Flush what is queued, for at most CLOSE_SECONDS; then say what could not be stored."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        await asyncio.wait((self._ended,), timeout=CLOSE_SECONDS)
        self._store.give_up()
        lost = [name for job in self._pending for name in job.names]
        if lost:
            more = f" and {len(lost) - 20} more" if len(lost) > 20 else ""
            _log.error("closing: %d changes could not be stored in time: %s%s", len(lost), "; ".join(lost[:20]), more)
        for job in self._pending:
            job.ended(StorageError("closing: the change could not be stored in time"))
        if self._watching is not None:
            self._watching.cancel()
        self._free.release()  # callers that wait for room are woken, each by the one before

    def _run(self) -> None:
        stopping = False
        while not stopping:
            group, stopping = self._next_group()
            try:
                self._do([job for job in group if self._begin(job)])
            except BaseException as error:  # the thread must outlive whatever happens in a group
                _log.exception("the writer failed")
                for job in group:
                    job.results = [_storage_error(error)] * len(job.pieces)
            self._report(self._deliver, group, self._store.revision)
        try:
            self._store.close()
        except Exception:
            _log.exception("the database could not be closed")
        self._report(self._end)

    def _next_group(self) -> tuple[list[Job], bool]:
        group: list[Job] = []
        job = self._queue.get()
        while job is not None:
            group.append(job)
            if len(group) == MAX_GROUP:
                return group, False
            try:
                job = self._queue.get_nowait()
            except Empty:
                return group, False
        return group, True

    def _do(self, group: list[Job]) -> None:
        if not group:
            return
        try:
            self._store.begin()
        except Exception as error:
            self._store.undo()
            for job in group:
                job.results = [_storage_error(error)] * len(job.pieces)
            return
        try:
            for kind, same in itertools.groupby(group, key=lambda job: job.kind):
                jobs = list(same)
                results = iter(getattr(self._store, kind)([piece for job in jobs for piece in job.pieces]))
                for job in jobs:
                    job.results = list(itertools.islice(results, len(job.pieces)))
            self._store.end()
        except CommitUnknown as error:
            self._store.undo()
            for job in group:
                job.results = [_storage_error(error)] * len(job.pieces)
        except Exception as error:
            self._store.undo()
            _log.warning("a group of %d changes failed, trying each alone: %s", len(group), said_by(error))
            self._do_each_alone(group)

    def _do_each_alone(self, group: list[Job]) -> None:
        unreachable: StorageError | None = None
        for job in group:
            job.results = []
            for piece in job.pieces:
                if unreachable is None:
                    try:
                        self._store.begin()
                    except Exception as error:
                        self._store.undo()
                        unreachable = _storage_error(error)  # it would be the same for every other, one wait each
                job.results.append(unreachable or self._finish_alone(job.kind, piece))

    def _finish_alone(self, kind: Kind, piece: Any) -> Any:
        try:
            (result,) = getattr(self._store, kind)([piece])
            self._store.end()
        except Exception as error:
            self._store.undo()
            return _storage_error(error)
        return result

    def _report(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            _log.debug("nobody waits any more: the event loop is closed")

    def _deliver(self, group: list[Job], revision: int) -> None:
        self._committed(revision)
        for job in group:
            self._free.release()
            self._pending.pop(job, None)
            job.ended()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


async def _settled(future: asyncio.Future[list[Any]], finish: Callable[[list[Any]], T]) -> T:
    await asyncio.wait((future,))
    return finish(future.result())


def _storage_error(error: BaseException) -> StorageError:
    if isinstance(error, StorageError):
        return error
    made = StorageError(f"the database refused: {said_by(error)}")
    made.__cause__ = error
    return made
