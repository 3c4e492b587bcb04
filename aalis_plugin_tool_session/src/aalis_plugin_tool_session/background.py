"""Work that goes on behind the call that started it."""

import asyncio
import contextvars
import logging
from collections.abc import Coroutine
from typing import Any

__all__ = ["Background"]

log = logging.getLogger(__name__)


class Background:
    """Tasks that a cancelled caller doesn't take along."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it, in an empty context: what the calling turn carries in its own isn't the work's."""
        task = asyncio.create_task(work, context=contextvars.Context())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def settled(self, seconds: float) -> None:
        """Wait until nothing runs, at most so long; what still runs then is cancelled and named in the log."""
        try:
            async with asyncio.timeout(seconds):
                while self.tasks:
                    await asyncio.wait(self.tasks)
        except TimeoutError:
            log.warning("stopping: %d delegations could not be brought to an end in time", len(self.tasks))
            for task in self.tasks:
                task.cancel()
