"""Work in lanes: one after another in a lane, lanes side by side, and never too much at once."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

__all__ = ["Lanes"]

T = TypeVar("T")


class Lanes(Generic[T]):
    """`async with Lanes(run, at_once=16, waiting=2000) as lanes: await lanes.put("room", item)`.

    Leaving waits until all is done. What `run` raises ends everything.
    """

    def __init__(self, run: Callable[[T], Awaitable[None]], *, at_once: int, waiting: int) -> None:
        self._run = run
        self._at_once = asyncio.Semaphore(at_once)
        self._room = asyncio.Semaphore(waiting)
        self._lanes: dict[str, deque[T]] = {}
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.__aexit__(kind, error, trace)

    async def put(self, lane: str, item: T) -> None:
        """Add work to a lane; waits while too much is waiting already."""
        await self._room.acquire()
        queue = self._lanes.get(lane)
        if queue is None:
            self._lanes[lane] = deque([item])
            self._tasks.create_task(self._work(lane))
        else:
            queue.append(item)

    async def _work(self, lane: str) -> None:
        queue = self._lanes[lane]
        while queue:
            async with self._at_once:
                await self._run(queue.popleft())
            self._room.release()
        del self._lanes[lane]
