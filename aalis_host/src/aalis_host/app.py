"""The host: configuration -> services -> plugins -> run -> stop in reverse."""

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

from aalis_api_session_manager.errors import StorageError
from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import PlatformAdapter
from aalis_api_session_manager.memory import MemoryService
from aalis_api_session_manager.message import HISTORY_SOURCE, ClearRequest, ClearRow
from aalis_api_session_manager.service import (
    AGENT,
    AUTHORITY,
    GATEWAY,
    MEMORY,
    PLATFORM,
    TOOLS,
    ServiceKey,
    ServiceSelection,
)
from aalis_host.agent import Agent
from aalis_host.authority import Authority
from aalis_host.gateway import Gateway
from aalis_host.hooks import Hooks
from aalis_host.memory import Memory, open_memory
from aalis_host.models import Model, open_model
from aalis_host.plugins import HostParts, PluginReport, Plugins, find_plugins, given
from aalis_host.services import ServiceRegistry
from aalis_host.settings import Settings
from aalis_host.tools import Tools

__all__ = ["CONTEXT_ID", "AalisHost", "wall_clock"]

T = TypeVar("T")
CONTEXT_ID = "aalis-host"
"""The context id of what the host itself provides."""


def wall_clock() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class _HistoryClearing:
    """The message history's part in clearing. Rules: CLEAR-1, GEN-5."""

    def __init__(self, memory: MemoryService) -> None:
        self._memory = memory

    @hookimpl
    async def aalis_memory_clear(self, request: ClearRequest) -> ClearRow | None:
        if request.types and "context" not in request.types:
            return None
        try:
            if request.session_id is None:
                removed = await self._memory.clear_all()
            else:
                removed = await self._memory.clear_session(request.session_id, request.below_generation)
        except StorageError as error:
            return ClearRow(source=HISTORY_SOURCE, success=False, message=str(error))
        return ClearRow(source=HISTORY_SOURCE, success=True, message=f"{removed} messages removed")


class AalisHost:
    """A running host: `async with AalisHost(settings) as host: await host.gateway.ingress(message)`.

    Entering opens the database and starts the plugins (`plugins` None: those of the entry points; else these
    instances); leaving stops turns and plugins in reverse, letting each store what it holds. `read_only`:
    nothing in the database is made or changed. `model` None: the one of the settings, opened at its first use.

    Attributes: `settings`, `services`, `hooks`, `tools`, `authority`, `gateway`, `agent`; once entered, `memory`.
    """

    memory: Memory

    def __init__(
        self,
        settings: Settings,
        *,
        read_only: bool = False,
        plugins: Sequence[object] | None = None,
        model: Model | None = None,
        now: Callable[[], int] = wall_clock,
    ) -> None:
        self.settings = settings
        self.now = now
        instance_id = uuid4().hex
        self.services = ServiceRegistry()
        self.hooks = Hooks()
        self.tools = Tools()
        self.authority = Authority(settings.authority.owners)
        self.gateway = Gateway(self.services, self.hooks, now, settings.trigger)
        self.agent = Agent(
            services=self.services,
            hooks=self.hooks,
            tools=self.tools,
            model=lambda: self.model,
            settings=settings.agent,
            now=now,
            host_id=instance_id,
        )
        self._model = model
        self._given = plugins
        self._read_only = read_only
        self._stack = AsyncExitStack()
        self._plugins = Plugins(
            HostParts(
                services=self.services,
                hooks=self.hooks,
                tools=self.tools,
                now=now,
                instance_id=instance_id,
                read_only=read_only,
                tables=settings.plugins,
            )
        )

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.memory = await stack.enter_async_context(
                open_memory(self.settings.db, read_only=self._read_only, now=self.now)
            )
            stack.push_async_callback(self._close_model)
            self.services.provide(MEMORY, self.memory, CONTEXT_ID)
            self.services.provide(AUTHORITY, self.authority, CONTEXT_ID)
            self.services.provide(TOOLS, self.tools, CONTEXT_ID)
            self.services.provide(AGENT, self.agent, CONTEXT_ID)
            self.services.provide(GATEWAY, self.gateway, CONTEXT_ID)
            self.hooks.register(_HistoryClearing(self.memory), CONTEXT_ID)
            stack.push_async_callback(self._plugins.stop)
            await self._plugins.start(find_plugins() if self._given is None else map(given, self._given))
            stack.push_async_callback(self.agent.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def model(self) -> Model:
        """The model, opened now if it wasn't. Raises ConfigError when its package or its key is missing."""
        if self._model is None:
            self._model = open_model(self.settings.model)
        return self._model

    @property
    def plugin_report(self) -> list[PluginReport]:
        """What became of each plugin, by name."""
        return self._plugins.report

    def select(self, key: ServiceKey[T]) -> ServiceSelection[T]:
        """A service, looked up at each use."""
        return self.services.select(key)

    async def emit(self, hook: str, **kwargs: Any) -> list[Any]:
        """Call a hook of every plugin, isolated."""
        return await self.hooks.call(hook, **kwargs)

    def add_platform(self, adapter: PlatformAdapter, context_id: str | None = None) -> Callable[[], None]:
        """Let a platform in; the answer takes it out. Its context id is the platform's name unless one is given."""
        return self.services.provide(PLATFORM, adapter, context_id or adapter.platform)

    async def clear_memory(self, request: ClearRequest) -> list[ClearRow]:
        """Ask every store to clear its own, then tell all what came of it; a row for each. Rule: CLEAR-1."""
        rows: list[ClearRow] = await self.hooks.call("aalis_memory_clear", request=request)
        await self.hooks.call("aalis_memory_cleared", request=request, rows=tuple(rows))
        return rows

    async def _close_model(self) -> None:
        if self._model is not None:
            await self._model.close()
