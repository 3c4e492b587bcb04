"""One turn at a time per session and source, first come first served; a session can be held as a whole."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import define, field

__all__ = ["Channels"]


@define(eq=False)
class _Session:
    holds: int = 0
    busy: set[str | None] = field(factory=set)
    waiting: dict[str | None, deque[asyncio.Future[None]]] = field(factory=dict)

    @property
    def idle(self) -> bool:
        return not (self.holds or self.busy or self.waiting)

    def wake(self, source: str | None) -> None:
        """Hand the channel to the first that waits, if it may go."""
        queue = self.waiting.get(source)
        if self.holds or source in self.busy or queue is None:
            return
        self.busy.add(source)
        queue.popleft().set_result(None)
        if not queue:
            del self.waiting[source]

    def forget(self, source: str | None, turn: asyncio.Future[None]) -> None:
        """Take one that gave up out of the queue."""
        self.waiting[source].remove(turn)
        if not self.waiting[source]:
            del self.waiting[source]


class Channels:
    """The channels of every session; one that nobody uses takes no memory."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._sessions)

    @asynccontextmanager
    async def turn(self, session_id: str, source: str | None) -> AsyncIterator[None]:
        """Have the channel of a session and source, after all that asked before."""
        session = self._session(session_id)
        turn = asyncio.get_running_loop().create_future()
        session.waiting.setdefault(source, deque()).append(turn)
        session.wake(source)
        try:
            await turn
            yield
        finally:
            if turn.cancelled():
                session.forget(source, turn)
            else:
                session.busy.discard(source)
                session.wake(source)
            self._drop(session_id, session)

    @asynccontextmanager
    async def hold(self, session_id: str) -> AsyncIterator[None]:
        """While it is held no turn of the session begins; those that run are not touched."""
        session = self._session(session_id)
        session.holds += 1
        try:
            yield
        finally:
            session.holds -= 1
            for source in list(session.waiting):
                session.wake(source)
            self._drop(session_id, session)

    async def idle(self) -> None:
        """Wait until nobody has, waits for or holds a channel."""
        await self._idle.wait()

    def _session(self, session_id: str) -> _Session:
        self._idle.clear()
        return self._sessions.setdefault(session_id, _Session())

    def _drop(self, session_id: str, session: _Session) -> None:
        if session.idle:
            self._sessions.pop(session_id, None)
        if not self._sessions:
            self._idle.set()
