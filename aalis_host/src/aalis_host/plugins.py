"""Plugins: found by entry point, started, stopped. One that fails is data, never the end of the host."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

import structlog
from attrs import evolve, frozen

from aalis_api_session_manager.host import PluginMeta, Provided, ToolRegistry, ToolSpec
from aalis_api_session_manager.service import ServiceKey, ServiceSelection
from aalis_host.hooks import HookError, Hooks
from aalis_host.services import ServiceRegistry
from aalis_host.words import did_you_mean

__all__ = ["GROUP", "STOP_SECONDS", "FoundPlugin", "HostParts", "PluginReport", "Plugins", "find_plugins", "given"]

T = TypeVar("T")
GROUP = "aalis.plugins"
STOP_SECONDS = 12.0
"""What stopping one plugin may take: its own flush has 10 seconds, and then it must still say what is lost."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@frozen(kw_only=True)
class PluginReport:
    """What became of a plugin: `error` None means that it runs (before a start: that it can be loaded)."""

    name: str
    version: str | None = None
    provides: tuple[str, ...] = ()
    error: str | None = None


@frozen(kw_only=True)
class FoundPlugin:
    """A plugin that can be started: `make` gives a new instance. Without `meta` it can't be; the report says why."""

    report: PluginReport
    meta: PluginMeta | None = None
    make: Callable[[], object] = object


def find_plugins(points: Iterable[EntryPoint] | None = None) -> list[FoundPlugin]:
    """Load every entry point of the group, each on its own, sorted by name."""
    found = entry_points(group=GROUP) if points is None else points
    return [_load(point) for point in sorted(found, key=lambda point: (point.name, point.value))]


def given(plugin: object) -> FoundPlugin:
    """A ready instance as a found plugin. Raises TypeError when it has no `meta`."""
    meta = getattr(plugin, "meta", None)
    if not isinstance(meta, PluginMeta):
        raise TypeError(f"{plugin!r} has no `meta: PluginMeta`")
    return FoundPlugin(report=PluginReport(name=meta.name, provides=meta.provides), meta=meta, make=lambda: plugin)


def _load(point: EntryPoint) -> FoundPlugin:
    dist = point.dist
    report = PluginReport(name=dist.name if dist else point.name, version=dist.version if dist else None)
    try:
        plugin = point.load()
    except (Exception, SystemExit) as error:
        return FoundPlugin(report=evolve(report, error=f"{point.value} can't be loaded: {_in_words(error)}"))
    meta = getattr(plugin, "meta", None)
    if not isinstance(plugin, type) or not isinstance(meta, PluginMeta):
        reason = f"{point.value} isn't a class with a `meta: PluginMeta`"
        return FoundPlugin(report=evolve(report, error=reason))
    return FoundPlugin(report=evolve(report, name=meta.name, provides=meta.provides), meta=meta, make=plugin)


def _in_words(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@frozen(kw_only=True)
class HostParts:
    """What every plugin is given the same of; `tables` are the plugins' own tables of the configuration."""

    services: ServiceRegistry
    hooks: Hooks
    tools: ToolRegistry
    now: Callable[[], int]
    instance_id: str
    read_only: bool
    tables: Mapping[str, Mapping[str, Any]]


@frozen
class PluginHost:
    """The host, as one plugin sees it (`aalis_api_session_manager.host.Host`)."""

    _name: str
    _parts: HostParts

    @property
    def config(self) -> Mapping[str, Any]:
        """This plugin's own table of the configuration."""
        return self._parts.tables.get(self._name, {})

    @property
    def instance_id(self) -> str:
        """Names this running host."""
        return self._parts.instance_id

    @property
    def read_only(self) -> bool:
        """Only reading: nothing may be changed in the store."""
        return self._parts.read_only

    def select(self, key: ServiceKey[T]) -> ServiceSelection[T]:
        """A service, looked up at each use."""
        return self._parts.services.select(key)

    def all(self, key: ServiceKey[T]) -> Sequence[Provided[T]]:
        """Every provider of a service, in the order of registration."""
        return self._parts.services.all(key)

    def provide(self, key: ServiceKey[T], instance: T) -> Callable[[], None]:
        """Provide a service in this plugin's name; the answer takes it back."""
        return self._parts.services.provide(key, instance, self._name)

    async def emit(self, hook: str, *, limit: float | None = None, **kwargs: Any) -> list[Any]:
        """Call a hook of every plugin, isolated."""
        return await self._parts.hooks.call(hook, limit=limit, **kwargs)

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return self._parts.now()


class _PluginTools:
    """The tool registry, as one plugin sees it: remembers what to take back."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry
        self._removers: list[Callable[[], None]] = []

    def register(self, tool: ToolSpec) -> Callable[[], None]:
        remove = self._registry.register(tool)
        self._removers.append(remove)
        return remove

    def names(self) -> Sequence[str]:
        return self._registry.names()

    def withdraw(self) -> None:
        for remove in self._removers:
            remove()
        self._removers.clear()


def _meta(plugin: FoundPlugin) -> PluginMeta:
    assert plugin.meta is not None, "only what can be started waits"
    return plugin.meta


class Plugins:
    """The plugins of one host: started in the order of `inject`, then name; stopped in reverse.

    `report` tells of each, sorted by name.
    """

    def __init__(self, parts: HostParts) -> None:
        self._parts = parts
        self._active: dict[str, _PluginTools] = {}
        self._reports: dict[str, PluginReport] = {}
        self._failed: list[PluginReport] = []

    @property
    def report(self) -> list[PluginReport]:
        """One for each plugin that was found."""
        return sorted([*self._reports.values(), *self._failed], key=lambda report: report.name)

    async def start(self, found: Iterable[FoundPlugin]) -> None:
        """Activate each plugin whose required services are there, then let all register their tools."""
        waiting: dict[str, FoundPlugin] = {}
        found = list(found)
        names = {plugin.report.name for plugin in found}
        for table in sorted(set(self._parts.tables) - names):
            log.warning(f"nobody reads plugins.{table} of the configuration{did_you_mean(table, names)}")
        for plugin in found:
            if plugin.meta is None:
                self._fail(plugin.report, plugin.report.error or "")
            elif plugin.meta.name in waiting:
                self._fail(plugin.report, "another plugin has the same name")
            else:
                waiting[plugin.meta.name] = plugin
        while waiting:
            name = self._next(waiting)
            if name is None:
                circle = self._circle(waiting)
                for member in circle:
                    chain = " -> ".join([*circle, circle[0]])
                    self._fail(waiting.pop(member).report, f"plugins require each other: {chain}")
            else:
                await self._activate(name, waiting.pop(name))
        for name in list(self._active):
            await self._register_tools(name)

    def _next(self, waiting: Mapping[str, FoundPlugin]) -> str | None:
        """The plugin to activate next; None when those that wait require each other.

        A circle through optional services alone is no obstacle: its first by name starts without them.
        """
        for optional_too in (True, False):
            for name in sorted(waiting):
                if not self._waits_for(name, waiting, optional_too):
                    return name
        return None

    def _waits_for(self, name: str, waiting: Mapping[str, FoundPlugin], optional_too: bool) -> list[str]:
        """The waiting plugins that will provide what this one needs and nobody provides yet, sorted."""
        inject = _meta(waiting[name]).inject
        needed = (*inject.required, *(inject.optional if optional_too else ()))
        missing = {service for service in needed if not self._parts.services.has(service)}
        return [other for other in sorted(waiting) if other != name and missing & {*_meta(waiting[other]).provides}]

    def _circle(self, waiting: Mapping[str, FoundPlugin]) -> list[str]:
        """Plugins that wait for each other, where every one waits for another."""
        path = [min(waiting)]
        while True:
            following = self._waits_for(path[-1], waiting, optional_too=False)[0]
            if following in path:
                return path[path.index(following) :]
            path.append(following)

    async def _activate(self, name: str, plugin: FoundPlugin) -> None:
        absent = [service for service in _meta(plugin).inject.required if not self._parts.services.has(service)]
        if absent:
            self._fail(plugin.report, f"requires the service {', '.join(map(repr, absent))}, which nobody provides")
            return
        try:
            self._parts.hooks.register(plugin.make(), name)
            await self._parts.hooks.call_plugin(name, "aalis_activate", host=PluginHost(name, self._parts))
        except HookError as error:
            self._fail(plugin.report, str(error))
        except Exception as error:
            self._fail(plugin.report, f"can't be activated: {_in_words(error)}", error)
        else:
            self._active[name] = _PluginTools(self._parts.tools)
            self._reports[name] = plugin.report
            return
        self._unregister(name)

    async def _register_tools(self, name: str) -> None:
        try:
            await self._parts.hooks.call_plugin(name, "aalis_register_tools", registry=self._active[name])
        except Exception as error:
            report = self._reports.pop(name)
            self._fail(report, f"can't register its tools: {_in_words(error)}", error)
            await self._stop(name)

    async def stop(self) -> None:
        """Deactivate in reverse order of activation, each with its own time limit, and take back what it gave."""
        for name in reversed(list(self._active)):
            await self._stop(name)

    async def _stop(self, name: str) -> None:
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._parts.hooks.call_plugin(name, "aalis_deactivate")
        except TimeoutError:
            log.error("a plugin didn't stop in time; what it had not stored is lost", plugin=name, seconds=STOP_SECONDS)
        except Exception as error:
            log.error("a plugin failed to stop", plugin=name, exc_info=error)
        self._active.pop(name).withdraw()
        self._unregister(name)

    def _unregister(self, name: str) -> None:
        self._parts.hooks.unregister(name)
        self._parts.services.withdraw(name)

    def _fail(self, report: PluginReport, reason: str, error: BaseException | None = None) -> None:
        log.error("a plugin doesn't run", plugin=report.name, reason=reason, exc_info=error)
        self._failed.append(evolve(report, error=reason))
