"""The memory service: the contract's async face over a back end's writer and readers."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self

from aalis_api_session_manager.errors import StorageError
from aalis_api_session_manager.memory import (
    Changes,
    Changeset,
    MetadataRow,
    Outcome,
    Page,
    Position,
    RecentSession,
    SaveResult,
)
from aalis_api_session_manager.message import Message
from aalis_host.memory.readers import PageRequest, Readers, ReadStore, RecentRequest
from aalis_host.memory.writer import Archive, Clear, Kind, Save, Writer, WriteStore

__all__ = ["Backend", "Memory"]


class Backend(Protocol):
    """How a database is opened. Every method may block and raises ConfigError for a person's mistake, StorageError
    when the database fails."""

    read_only: bool
    poll_seconds: float

    def open_writer(self) -> WriteStore:
        """The one write store, its schema brought up to date."""
        ...

    def open_readers(self) -> list[ReadStore]: ...

    def listen(self, news: Callable[[], None]) -> Callable[[], None] | None:
        """Call `news`, in any thread, when something may have been committed; the answer stops that. None: there is
        nothing to hear, and asking each `poll_seconds` is enough."""
        ...


class Memory:
    """A `MemoryService`; `async with` opens and closes it.

    Raises, beside StorageError, ConfigError when it is opened on what is no database of ours, or of a newer program.
    `saves` counts how saving messages ended.
    """

    def __init__(self, backend: Backend) -> None:
        self.saves: Counter[str] = Counter()
        self._backend = backend
        self._writer: Writer | None = None
        self._readers: Readers | None = None
        self._revision = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._stop_listening: Callable[[], None] | None = None
        self._listening = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the database, bringing its schema up to date unless it is only read."""
        store = None if self._backend.read_only else await asyncio.to_thread(self._backend.open_writer)
        if store is not None:
            self._writer = Writer(store, self._committed)
        try:
            self._readers = Readers(await asyncio.to_thread(self._backend.open_readers))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Store what is queued, for at most 10 seconds; what could not be stored is named in the log, and its
        callers get StorageError."""
        if self._stop_listening is not None:
            await asyncio.to_thread(self._stop_listening)
            self._stop_listening = None
        if self._writer is not None:
            await self._writer.close()
        if self._readers is not None:
            await self._readers.close()

    async def save_message(self, session_id: str, message: Message, generation: int | None = None) -> SaveResult:
        """See `MemoryService.save_message`."""
        saved: SaveResult = await self._write("save", Save(session_id, message, generation))
        self.saves[saved.status] += 1
        return saved

    async def history(
        self,
        session_id: str,
        limit: int,
        *,
        include_archived: bool = False,
        before: Position | None = None,
        after: Position | None = None,
        since_ts: int | None = None,
        until_ts: int | None = None,
        include_tools: bool = True,
    ) -> Page:
        """See `MemoryService.history`."""
        request = PageRequest(
            session_id=session_id,
            limit=limit,
            include_archived=include_archived,
            include_tools=include_tools,
            before=before,
            after=after,
            since_ts=since_ts,
            until_ts=until_ts,
        )
        return await self._reading().read(lambda store: store.page(request))

    async def recent_sessions(
        self,
        limit: int,
        *,
        since_ts: int,
        platform: str | None = None,
        exclude: Sequence[str] = (),
        before: Position | None = None,
    ) -> list[RecentSession]:
        """See `MemoryService.recent_sessions`."""
        request = RecentRequest(
            limit=limit, since_ts=since_ts, platform=platform, exclude=frozenset(exclude), before=before
        )
        return await self._reading().read(lambda store: store.recent(request))

    async def archive(self, session_id: str, keep: int) -> int:
        """See `MemoryService.archive`."""
        archived: int = await self._write("archive", Archive(session_id, keep))
        return archived

    async def clear_session(self, session_id: str, below_generation: int | None = None) -> int:
        """See `MemoryService.clear_session`."""
        removed: int = await self._write("clear", Clear(session_id, below_generation))
        return removed

    async def clear_all(self) -> int:
        """See `MemoryService.clear_all`."""
        removed: int = await self._write("clear", Clear(None, None))
        return removed

    async def get_metadata(self, namespace: str, key: str) -> MetadataRow | None:
        """See `MemoryService.get_metadata`."""
        return await self._reading().read(lambda store: store.record(namespace, key))

    async def list_metadata(
        self, namespace: str, *, after_key: str | None = None, limit: int | None = None
    ) -> list[MetadataRow]:
        """See `MemoryService.list_metadata`."""
        return await self._reading().read(lambda store: store.records(namespace, after_key, limit))

    async def commit_metadata(self, changesets: Sequence[Changeset]) -> tuple[Outcome, ...]:
        """See `MemoryService.commit_metadata`."""
        return await self._writing().submit("commit", tuple(changesets), _outcomes) if changesets else ()

    async def generations(self) -> Mapping[str, int]:
        """See `MemoryService.generations`."""
        return await self._reading().read(lambda store: store.generations())

    async def changes(self, after_revision: int) -> Changes:
        """See `MemoryService.changes`."""
        return await self._reading().read(lambda store: store.changes(after_revision))

    async def wait_for_changes(self, after_revision: int, timeout: float) -> bool:
        """See `MemoryService.wait_for_changes`."""
        loop = asyncio.get_running_loop()
        if not self._listening:
            self._listening = True
            self._stop_listening = self._backend.listen(lambda: _call_in(loop, self._wake))
        deadline = loop.time() + timeout
        while self._revision <= after_revision:
            self._committed(await self._reading().read(lambda store: store.revision()))
            left = deadline - loop.time()
            if self._revision > after_revision or left <= 0:
                break
            waiter = loop.create_future()
            self._waiting.add(waiter)
            try:
                await asyncio.wait((waiter,), timeout=min(left, self._backend.poll_seconds))
            finally:
                self._waiting.discard(waiter)
        return self._revision > after_revision

    def _committed(self, revision: int) -> None:
        if revision > self._revision:
            self._revision = revision
            self._wake()

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def _write(self, kind: Kind, piece: Any) -> Any:
        return await self._writing().submit(kind, (piece,), _only)

    def _writing(self) -> Writer:
        if self._writer is None:
            raise StorageError("the memory is opened for reading only" if self._readers else "the memory isn't open")
        return self._writer

    def _reading(self) -> Readers:
        if self._readers is None:
            raise StorageError("the memory isn't open")
        return self._readers


def _only(results: list[Any]) -> Any:
    (result,) = results
    if isinstance(result, Exception):
        raise result
    return result


def _outcomes(results: list[Any]) -> tuple[Outcome, ...]:
    return tuple(Outcome(error=result) if isinstance(result, Exception) else result for result in results)


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(call)
