"""Finding plugins by entry point, starting and stopping them. A plugin that fails is data, never the end of the host."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

import structlog
from attrs import define, evolve, field, frozen

from aalis_api_session_manager.host import Host, PluginMeta, Provided, ToolRegistry, ToolSpec
from aalis_api_session_manager.service import TOOLS, ServiceKey, ServiceSelection
from aalis_host.hooks import Hooks
from aalis_host.services import ServiceRegistry

__all__ = ["GROUP", "STOP_SECONDS", "FoundPlugin", "HostParts", "PluginReport", "Plugins", "find_plugins"]

T = TypeVar("T")
GROUP = "aalis.plugins"
STOP_SECONDS = 12.0
"""What stopping one plugin may take: its own flush has 10 seconds, and then it must still say what is lost."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@frozen(kw_only=True)
class PluginReport:
    """What became of a plugin: `error` None means that it runs (or, before a start, that it can be loaded)."""

    name: str
    version: str | None = None
    provides: tuple[str, ...] = ()
    error: str | None = None


@frozen(kw_only=True)
class FoundPlugin:
    """An entry point and what it gave: a plugin's class (or a ready instance), or the reason why there is none."""

    report: PluginReport
    meta: PluginMeta | None = None
    make: Callable[[], object] | None = None


def find_plugins(points: Iterable[EntryPoint] | None = None) -> list[FoundPlugin]:
    """Load every entry point of the group on its own, by name."""
    found = entry_points(group=GROUP) if points is None else points
    return [_load(point) for point in sorted(found, key=lambda point: (point.name, point.value))]


def _load(point: EntryPoint) -> FoundPlugin:
    dist = point.dist
    report = PluginReport(name=point.name if dist is None else dist.name, version=None if dist is None else dist.version)
    try:
        plugin = point.load()
    except (Exception, SystemExit) as error:
        return FoundPlugin(report=evolve(report, error=f"{point.value} can't be loaded: {_in_words(error)}"))
    meta = getattr(plugin, "meta", None)
    if not isinstance(plugin, type) or not isinstance(meta, PluginMeta):
        reason = f"{point.value} isn't a class with a `meta: PluginMeta`"
        return FoundPlugin(report=evolve(report, error=reason))
    return FoundPlugin(report=evolve(report, name=meta.name, provides=meta.provides), meta=meta, make=plugin)


def _given(plugin: object) -> FoundPlugin:
    meta = getattr(plugin, "meta", None)
    if not isinstance(meta, PluginMeta):
        raise TypeError(f"{plugin!r} has no `meta: PluginMeta`")
    return FoundPlugin(report=PluginReport(name=meta.name, provides=meta.provides), meta=meta, make=lambda: plugin)


def _in_words(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@frozen(kw_only=True)
class HostParts:
    """What every plugin is given the same of."""

    services: ServiceRegistry
    hooks: Hooks
    now: Callable[[], int]
    instance_id: str
    read_only: bool
    tables: Mapping[str, Mapping[str, Any]]
