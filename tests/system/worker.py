"""A host process that works until its input ends, and says what it was told; `main` takes the database and a name.

Its lines: `ready`; `made NAME`, a child that was acknowledged; `later NAME`, one that was accepted and not yet stored;
`said ID`, a message that was stored and had its turn.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from itertools import count

import structlog
from attrs import define

from aalis_api_session_manager.errors import StorageError
from aalis_api_session_manager.model import SessionDraft
from aalis_host.app import wall_clock
from tests.session_manager.kit import Clock, Stack, group_message, running

__all__ = ["ROOM", "WallClock", "main", "work"]

ROOM = "hot"
"""The parent of all children; each worker also speaks in it, and in three rooms of its own."""


@define(eq=False)
class WallClock(Clock):
    """The machine's."""

    def __call__(self) -> int:
        return wall_clock()


async def work(stack: Stack, name: str, stopped: asyncio.Event, say: Callable[[str], None]) -> None:
    """Make children and speak, four of each at once, until it is stopped."""

    async def make() -> None:
        while not stopped.is_set():
            child = f"{name}-{next(numbers)}"
            try:
                await stack.sessions.create_child_session(ROOM, SessionDraft(name=child, status="waiting"))
            except StorageError as error:
                if error.pending:
                    say(f"later {child}")
                await asyncio.sleep(0.05)
            else:
                say(f"made {child}")

    async def speak(room: str) -> None:
        while not stopped.is_set():
            message_id = f"{room}-{name}-{next(numbers)}"
            message = group_message(room, message_id, message_id=message_id)
            while not stopped.is_set():
                try:
                    await stack.host.gateway.ingress(message)
                except StorageError:
                    await asyncio.sleep(0.05)  # the same again: a message that is there isn't stored twice
                else:
                    say(f"said {message_id}")
                    break

    numbers = count()
    await stack.sessions.ensure_session(ROOM)
    say("ready")
    rooms = (ROOM, *(f"{name}:{lane}" for lane in range(3)))
    await asyncio.gather(*(make() for _ in rooms), *map(speak, rooms))


async def live(db: str, name: str) -> None:
    async with running(db, clock=WallClock()) as stack:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_reader(0, stopped.set)
        await work(stack, name, stopped, lambda line: print(line, flush=True))


def main() -> None:
    logging.disable(logging.CRITICAL)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    os.set_blocking(0, False)
    asyncio.run(live(sys.argv[1], sys.argv[2]))
