"""Telling what was committed, one after the other, in the order of commits. Rule: EVENT-1."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
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
    """One at a time. `tell` must end: a host leaves a listener behind that takes too long."""

    def __init__(self, tell: Callable[[Event], Awaitable[None]]) -> None:
        self._tell = tell
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
            for telling in tellings:
                await _tell_one(telling)
            for job in jobs:
                job.was_told()
            self._waiting.task_done()


async def _tell_one(telling: _Telling) -> None:
    try:
        await telling.tell()
    except Exception:
        log.exception("%s: telling of a change failed", telling.what)
