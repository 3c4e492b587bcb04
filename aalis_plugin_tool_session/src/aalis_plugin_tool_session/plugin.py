"""The plugin's face: it builds the parts and hands the hooks on. Rules: HIST-1, CFG-2, META-1."""

from attrs import frozen

from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import Host, Inject, PluginMeta, ToolRegistry
from aalis_api_session_manager.message import ClearRequest, ClearRow, TurnEnd, TurnStart
from aalis_api_session_manager.service import MEMORY, SESSION_HISTORY, SESSION_MANAGER
from aalis_plugin_tool_session.access import Access
from aalis_plugin_tool_session.config import ToolSessionConfig, read_config
from aalis_plugin_tool_session.delegation import DelegateTool
from aalis_plugin_tool_session.history import SessionHistory
from aalis_plugin_tool_session.history_tool import HistoryTool
from aalis_plugin_tool_session.listing import ListTool
from aalis_plugin_tool_session.schemas import delegate_spec, history_spec, list_spec

__all__ = ["ToolSessionPlugin"]


@frozen
class _Parts:
    config: ToolSessionConfig
    history: HistoryTool
    listing: ListTool
    delegate: DelegateTool


class ToolSessionPlugin:
    """The session tools. One instance serves one activation."""

    meta = PluginMeta(
        name="aalis-plugin-tool-session",
        subsystem="session",
        provides=("session-history",),
        inject=Inject(optional=("memory",)),
        config=ToolSessionConfig,
    )

    def __init__(self) -> None:
        self._parts: _Parts | None = None

    @hookimpl
    def aalis_activate(self, host: Host) -> None:
        """Read the settings and provide `session-history`; nothing at all when not enabled."""
        config = read_config(host.config)
        if not config.enabled:
            return
        access = Access(host.select(SESSION_MANAGER), config.scope)
        history = SessionHistory(host.select(MEMORY), access, config)
        self._parts = _Parts(
            config,
            HistoryTool(history, config.per_message_max_chars, host.now),
            ListTool(host, access),
            DelegateTool(host, access, config),
        )
        host.provide(SESSION_HISTORY, history)
        if config.cross_session_enabled:
            self._parts.delegate.start()

    @hookimpl
    async def aalis_deactivate(self) -> None:
        """Stop the delegations that are on their way, and store the answers that wait to be picked up."""
        if self._parts is not None:
            await self._parts.delegate.stop()

    @hookimpl
    def aalis_register_tools(self, registry: ToolRegistry) -> None:
        """Register what the settings allow."""
        if self._parts is None:
            return
        registry.register(history_spec(self._parts.history, self._parts.config))
        if self._parts.config.cross_session_enabled:
            registry.register(list_spec(self._parts.listing))
            registry.register(delegate_spec(self._parts.delegate, self._parts.config))

    @hookimpl(tryfirst=True)
    def aalis_turn_before(self, turn: TurnStart) -> None:
        """Before any other plugin can act in the turn."""
        if self._parts is not None:
            self._parts.delegate.lock.begin(turn)

    @hookimpl(trylast=True)
    def aalis_turn_after(self, turn: TurnEnd) -> None:
        """After the others, so that who waits sees what they recorded of the turn."""
        if self._parts is not None:
            self._parts.delegate.turn_ended(turn)

    @hookimpl
    async def aalis_memory_clear(self, request: ClearRequest) -> ClearRow | None:
        """Remove the answers that a session's delegations brought and that nobody picked up."""
        if self._parts is None or (request.types and "delegations" not in request.types):
            return None
        removed = await self._parts.delegate.clear(request)
        return ClearRow(source="delegations", success=True, message=f"{removed} answers removed") if removed else None
