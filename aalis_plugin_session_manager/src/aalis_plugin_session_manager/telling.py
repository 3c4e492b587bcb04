"""Telling what was committed, one after the other, in the order of commits. Rule: EVENT-1."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from attrs import define

from aalis_plugin_session_manager.change import Event, Job, in_listener

__all__ = ["Dispatcher"]

log = logging.getLogger(__name__)


@define
class _Telling:
    """Something to tell; `what` names it in the log."""

    what: object
    tell: Callable[[], Awaitable[None]]


class Dispatcher:
    """One at a time; who takes longer than `limit` seconds is left behind and named."""

    def __init__(self, tell: Callable[[Event], Awaitable[None]], limit: float) -> None:
        self._tell = tell
        self._limit = limit
        self._waiting: asyncio.Queue[tuple[Sequence[_Telling], Sequence[Job]]] = asyncio.Queue()

    def committed(self, events: Sequence[Event], jobs: Sequence[Job]) -> None:
        """Tell the events, then let those go who wait for the jobs."""
        tellings = [_Telling(event, partial(self._tell, event)) for event in events]
        self._waiting.put_nowait((tellings, jobs))

    async def in_turn(self, what: str, tell: Callable[[], Awaitable[None]]) -> None:
        """Tell something behind everything that was committed before; returns when it was told."""
        told = asyncio.Event()

        async def tell_and_say_so() -> None:
            try:
                await tell()
            finally:
                told.set()

        self._waiting.put_nowait(((_Telling(what, tell_and_say_so),), ()))
        await told.wait()

    async def drained(self) -> None:
        """Wait until everything was told."""
        await self._waiting.join()

    async def run(self) -> None:
        """For ever."""
        in_listener.set(True)
        while True:
            tellings, jobs = await self._waiting.get()
            await self._tell_all(iter(tellings))
            for job in jobs:
                job.was_told()
            self._waiting.task_done()

    async def _tell_all(self, tellings: Iterator[_Telling]) -> None:
        clock = asyncio.get_running_loop().time
        telling: _Telling | None = next(tellings, None)
        while telling is not None:
            try:
                async with asyncio.timeout(self._limit) as patience:
                    armed = clock()
                    while telling is not None:
                        if clock() - armed > self._limit / 10:
                            armed = clock()
                            patience.reschedule(armed + self._limit)
                        await _tell_one(telling)
                        telling = next(tellings, None)
            except TimeoutError:
                log.error("%s: a listener took too long, going on without it", telling and telling.what)
                telling = next(tellings, None)


async def _tell_one(telling: _Telling) -> None:
    try:
        await telling.tell()
    except Exception:
        log.exception("%s: telling of a change failed", telling.what)
