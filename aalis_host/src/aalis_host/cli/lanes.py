"""Work in lanes: begun one after another in a lane, lanes side by side, and never too much at once."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

import attrs

__all__ = ["Lanes", "LetNext"]

T = TypeVar("T")
LetNext = Callable[[], None]


@attrs.define(eq=False)
class _Lane(Generic[T]):
    queue: deque[T] = attrs.field(factory=deque)
    running: set[asyncio.Task[None]] = attrs.field(factory=set)
    attended: bool = False


class Lanes(Generic[T]):
    """`async with Lanes(work, alone, at_once=16, waiting=1000) as lanes: await lanes.put("room", item)`.

    `work(item, let_next)` does one item. The lane's next begins when it has ended, or earlier, when it calls
    `let_next`; one that is `alone` also waits until all before it have ended. So many lanes wait for an item's
    `let_next` or end `at_once`, and so many items are `waiting` or under way. Leaving waits until all is done; what
    `work` raises ends everything.
    """

    def __init__(
        self,
        work: Callable[[T, LetNext], Awaitable[None]],
        alone: Callable[[T], bool],
        *,
        at_once: int,
        waiting: int,
    ) -> None:
        self._work = work
        self._alone = alone
        self._at_once = asyncio.Semaphore(at_once)
        self._room = asyncio.Semaphore(waiting)
        self._lanes: dict[str, _Lane[T]] = {}
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.__aexit__(kind, error, trace)

    async def put(self, name: str, item: T) -> None:
        """Add work to a lane; waits while too much is waiting already."""
        await self._room.acquire()
        lane = self._lanes.setdefault(name, _Lane())
        lane.queue.append(item)
        if not lane.attended:
            lane.attended = True
            self._tasks.create_task(self._attend(name, lane))

    async def _attend(self, name: str, lane: _Lane[T]) -> None:
        while lane.queue:
            async with self._at_once:
                item = lane.queue.popleft()
                if lane.running and self._alone(item):
                    await asyncio.wait(lane.running)
                passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                task = self._tasks.create_task(self._do(item, passed))
                lane.running.add(task)
                task.add_done_callback(lane.running.discard)
                await passed
        lane.attended = False
        if lane.running:
            await asyncio.wait(lane.running)
        if self._lanes.get(name) is lane and not (lane.attended or lane.queue or lane.running):
            del self._lanes[name]

    async def _do(self, item: T, passed: asyncio.Future[None]) -> None:
        def let_next() -> None:
            if not passed.done():
                passed.set_result(None)

        try:
            await self._work(item, let_next)
        finally:
            self._room.release()
            let_next()
