"""Reader threads, with connections of their own, so that no read waits behind a write."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from attrs import define, frozen

from aalis_api_session_manager.errors import StorageError
from aalis_api_session_manager.memory import Changes, MetadataRow, Page, Position, RecentSession
from aalis_host.words import said_by

__all__ = ["PageRequest", "ReadStore", "Readers", "RecentRequest"]

_log = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 5.0

WAIT_SECONDS: Final = 10.0
"""A read that no thread could begin by then is given up."""

T = TypeVar("T")


@frozen(kw_only=True)
class PageRequest:
    """The arguments of `MemoryService.history`."""

    session_id: str
    limit: int
    include_archived: bool
    include_tools: bool
    before: Position | None
    after: Position | None
    since_ts: int | None
    until_ts: int | None


@frozen(kw_only=True)
class RecentRequest:
    """The arguments of `MemoryService.recent_sessions`."""

    limit: int
    since_ts: int
    platform: str | None
    exclude: frozenset[str]
    before: Position | None


class ReadStore(Protocol):
    """The back end's side, used by one reader thread alone."""

    def page(self, request: PageRequest) -> Page: ...
    def recent(self, request: RecentRequest) -> list[RecentSession]: ...
    def record(self, namespace: str, key: str) -> MetadataRow | None: ...
    def records(self, namespace: str, after_key: str | None, limit: int | None) -> list[MetadataRow]: ...
    def generations(self) -> dict[str, int]: ...
    def changes(self, after_revision: int) -> Changes: ...
    def revision(self) -> int: ...
    def close(self) -> None: ...


@define(eq=False)
class _Asked:
    work: Callable[[ReadStore], Any]
    future: asyncio.Future[Any]
    deadline: float


class Readers:
    """Runs reads in threads, one per store. All methods belong to the event loop it was made in."""

    def __init__(self, stores: Sequence[ReadStore]) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Asked | None] = SimpleQueue()
        self._closed = False
        self._stores = stores
        self._running = len(stores)
        self._ended = self._loop.create_future()
        for number, store in enumerate(stores):
            threading.Thread(target=self._run, args=(store,), name=f"aalis-memory-reader-{number}", daemon=True).start()

    async def read(self, work: Callable[[ReadStore], T]) -> T:
        """What `work` answers for one of the stores. Raises StorageError when the back end fails."""
        if self._closed:
            raise StorageError("the memory is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_Asked(work, future, self._loop.time() + WAIT_SECONDS))
        return await future

    async def close(self) -> None:
        """Answer what was asked, close the connections."""
        if not self._closed:
            self._closed = True
            for _ in range(self._running):
                self._queue.put(None)
        await asyncio.wait((self._ended,), timeout=CLOSE_SECONDS)
        if self._ended.done():
            await asyncio.to_thread(self._close_stores)

    def _close_stores(self) -> None:
        # Two SQLite connections that close at once each take the other for one that goes on, and the log stays.
        for store in self._stores:
            try:
                store.close()
            except Exception:
                _log.exception("a reader's connection could not be closed")

    def _run(self, store: ReadStore) -> None:
        while (asked := self._queue.get()) is not None:
            if asked.future.cancelled():
                continue
            result: Any = None
            failed: StorageError | None = None
            try:
                if self._loop.time() > asked.deadline:
                    raise TimeoutError(f"no reader was free for {WAIT_SECONDS:.0f} s")
                result = asked.work(store)
            except BaseException as error:  # the thread must outlive whatever happens in a read
                failed = StorageError(f"reading failed: {said_by(error)}")
                failed.__cause__ = error
            self._report(_deliver, asked.future, result, failed)
        self._report(self._end)

    def _report(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            _log.debug("nobody waits any more: the event loop is closed")

    def _end(self) -> None:
        self._running -= 1
        if not self._running and not self._ended.done():
            self._ended.set_result(None)


def _deliver(future: asyncio.Future[Any], result: Any, failed: StorageError | None) -> None:
    if future.done():
        return
    if failed is None:
        future.set_result(result)
    else:
        future.set_exception(failed)
