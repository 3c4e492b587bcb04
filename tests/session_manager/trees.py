"""Trees of sessions with chosen ids, what is said in them, and a plugin that keeps data by session."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar

import pytest
from attrs import define, field

from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import PluginMeta
from aalis_api_session_manager.message import ClearRequest, ClearRow, Message, TurnEnd
from aalis_api_session_manager.service import SessionManagerService
from tests.session_manager.kit import Stack

__all__ = ["TREE", "Keeper", "history", "place", "settled", "tree", "write"]

Step = tuple[str, str]
TREE = ("root", "a", "a1", "b")


@define(eq=False)
class Keeper:
    """A plugin that keeps data by session: notes each step of a deletion, and does as it is told meanwhile."""

    meta: ClassVar[PluginMeta] = PluginMeta(name="keeper")
    steps: list[Step] = field(factory=list)
    on_deleted: Callable[[str], Awaitable[None]] | None = None
    on_clear: Callable[[str], Awaitable[None]] | None = None
    ends: list[TurnEnd] = field(factory=list)
    on_turn_end: Callable[[TurnEnd], Awaitable[None]] | None = None

    @hookimpl
    async def aalis_session_deleted(self, session_id: str) -> None:
        self.steps.append(("told", session_id))
        if self.on_deleted is not None:
            await self.on_deleted(session_id)
        self.steps.append(("returned", session_id))

    @hookimpl
    async def aalis_memory_clear(self, request: ClearRequest) -> ClearRow | None:
        assert request.session_id is not None
        self.steps.append(("cleared", request.session_id))
        if self.on_clear is not None:
            await self.on_clear(request.session_id)
        return ClearRow(source="keeper", success=True)

    @hookimpl
    async def aalis_turn_after(self, turn: TurnEnd) -> None:
        if self.on_turn_end is not None:
            await self.on_turn_end(turn)
        self.ends.append(turn)


async def tree(sessions: SessionManagerService) -> None:
    """root -> a -> a1, root -> b."""
    for session_id, parent in (("root", None), ("a", "root"), ("a1", "a"), ("b", "root")):
        await place(sessions, session_id, parent)


async def place(sessions: SessionManagerService, session_id: str, parent: str | None) -> None:
    """A session with a chosen id, below a parent: the records of an older program have such ids."""
    if parent is None:
        await sessions.ensure_session(session_id)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aalis_plugin_session_manager.manager.new_session_id", lambda: session_id)
        await sessions.create_child_session(parent)


async def write(stack: Stack, session_id: str, text: str = "kept", generation: int | None = None) -> str:
    message = Message(session_id=session_id, role="user", content=text, timestamp=stack.clock())
    return (await stack.host.memory.save_message(session_id, message, generation)).status


async def history(stack: Stack, session_id: str) -> list[str]:
    return [message.content for message in (await stack.host.memory.history(session_id, 100)).messages]


async def settled(condition: Callable[[], bool]) -> None:
    """Wait until something has become true; the test's own time limit ends it otherwise."""
    while not condition():
        await asyncio.sleep(0.001)
