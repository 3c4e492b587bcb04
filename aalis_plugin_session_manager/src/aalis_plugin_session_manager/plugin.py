"""The plugin's face: hooks handed on to the session manager."""

from collections.abc import Sequence
from typing import ClassVar

from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import Host, Inject, PluginMeta
from aalis_api_session_manager.message import ClearRequest, ClearRow, IncomingMessage, LlmUsage, TurnEnd, TurnStart
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_plugin_session_manager.config import SessionManagerConfig, read_config
from aalis_plugin_session_manager.manager import SessionManager

__all__ = ["SessionManagerPlugin"]


class SessionManagerPlugin:
    """Provides `session-manager`. Rule: META-1."""

    meta: ClassVar[PluginMeta] = PluginMeta(
        name="aalis-plugin-session-manager",
        subsystem="session",
        provides=("session-manager",),
        inject=Inject(required=("memory",), optional=("agent", "authority", "platform")),
        config=SessionManagerConfig,
    )
    manager: SessionManager

    @hookimpl
    async def aalis_activate(self, host: Host) -> None:
        self.manager = SessionManager(host, read_config(host.config))
        await self.manager.start()
        host.provide(SESSION_MANAGER, self.manager)

    @hookimpl
    async def aalis_deactivate(self) -> None:
        await self.manager.stop()

    @hookimpl(tryfirst=True)
    async def aalis_inbound(self, message: IncomingMessage) -> int | None:
        await self.manager.record_inbound(message)
        return self.manager.generation_of(message.session_id) if message.session_id else None

    @hookimpl
    def aalis_turn_before(self, turn: TurnStart) -> None:
        self.manager.turns.started(turn)

    @hookimpl
    def aalis_turn_after(self, turn: TurnEnd) -> None:
        self.manager.turns.ended(turn)

    @hookimpl
    def aalis_llm_usage(self, usage: LlmUsage) -> None:
        self.manager.turns.used(usage)

    @hookimpl
    async def aalis_memory_cleared(self, request: ClearRequest, rows: Sequence[ClearRow]) -> None:
        await self.manager.deletions.memory_cleared(request, rows)
