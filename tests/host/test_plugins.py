"""Plugins are found by entry point, each on its own, and started in the order of what they need."""

import asyncio
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from aalis_api_session_manager.errors import ConfigError
from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import Host, Inject, PluginMeta, ToolRegistry
from aalis_api_session_manager.service import ServiceKey
from aalis_host import plugins
from aalis_host.app import AalisHost
from aalis_host.config import Settings
from aalis_host.hooks import Hooks
from aalis_host.plugins import HostParts, Plugins, find_plugins, given
from aalis_host.services import ServiceRegistry
from aalis_host.tools import Tools
from tests.host.kit import ScriptedModel, message, tool


class Parts:
    """The parts of a host that starts plugins, and the order in which they did."""

    def __init__(self) -> None:
        self.services, self.hooks, self.tools = ServiceRegistry(), Hooks(), Tools()
        self.order: list[str] = []
        self.plugins = Plugins(
            HostParts(
                services=self.services,
                hooks=self.hooks,
                tools=self.tools,
                now=lambda: 5,
                instance_id="here",
                read_only=False,
                tables={"b": {"limit": 3}},
            )
        )

    def plugin(
        self,
        name: str,
        *,
        provides: tuple[str, ...] = (),
        required: tuple[str, ...] = (),
        optional: tuple[str, ...] = (),
        on_activate: Callable[[Host], None] = lambda host: None,
        on_stop: Callable[[], Any] = lambda: None,
        on_tools: Callable[[ToolRegistry], None] = lambda registry: None,
    ) -> object:
        order = self.order

        class Plugin:
            meta: ClassVar = PluginMeta(
                name=name, provides=provides, inject=Inject(required=required, optional=optional)
            )

            @hookimpl
            async def aalis_activate(self, host: Host) -> None:
                order.append(f"+{name}")
                for service in provides:
                    host.provide(ServiceKey(service), self)
                on_activate(host)

            @hookimpl
            async def aalis_deactivate(self) -> None:
                order.append(f"-{name}")
                result = on_stop()
                if result is not None:
                    await result

            @hookimpl
            def aalis_register_tools(self, registry: ToolRegistry) -> None:
                on_tools(registry)

            @hookimpl
            def aalis_inbound(self) -> str:
                return name

        return Plugin()

    async def start(self, *started: object) -> dict[str, str | None]:
        await self.plugins.start(map(given, started))
        return {report.name: report.error for report in self.plugins.report}


@pytest.fixture
def parts() -> Parts:
    return Parts()


def entry_points(folder: Path, monkeypatch: pytest.MonkeyPatch, **sources: str) -> list[EntryPoint]:
    """Entry points of the plugin group; each names `Plugin` of a module with this source."""
    monkeypatch.syspath_prepend(str(folder))
    for name, source in sources.items():
        (folder / f"{folder.name}_{name}.py").write_text(source)
    return [EntryPoint(name, f"{folder.name}_{name}:Plugin", plugins.GROUP) for name in reversed(sources)]


GOOD = """
from aalis_api_session_manager.host import PluginMeta
class Plugin:
    meta = PluginMeta(name="a-good-plugin", provides=("thing",))
"""


def test_each_entry_point_on_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is data with the plugin's name and the reason, whatever kind it is, and the others load."""
    points = entry_points(
        tmp_path,
        monkeypatch,
        bad_syntax="class Plugin(:\n",
        exits="raise SystemExit(3)",
        good=GOOD,
        instance=GOOD + "Plugin = Plugin()",
        missing="x = 1",
        no_meta="class Plugin: pass",
        raises="1 / 0",
    )
    found = {plugin.report.name: plugin.report for plugin in find_plugins(points)}
    assert list(found) == ["bad_syntax", "exits", "a-good-plugin", "instance", "missing", "no_meta", "raises"]
    assert found["a-good-plugin"].error is None
    assert found["a-good-plugin"].provides == ("thing",)
    reasons = {name: report.error or "" for name, report in found.items()}
    assert "SyntaxError: invalid syntax" in reasons["bad_syntax"]
    assert "line 1" in reasons["bad_syntax"]
    assert "SystemExit: 3" in reasons["exits"]
    assert "isn't a class with a `meta: PluginMeta`" in reasons["instance"]
    assert "Plugin" in reasons["missing"]
    assert "isn't a class with a `meta: PluginMeta`" in reasons["no_meta"]
    assert "ZeroDivisionError: division by zero" in reasons["raises"]


def test_the_end_of_the_program_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a plugin is imported ends the program."""
    with pytest.raises(KeyboardInterrupt):
        find_plugins(entry_points(tmp_path, monkeypatch, stopped="raise KeyboardInterrupt"))


async def test_order(parts: Parts) -> None:
    """By what is injected, required or optional, then by name; stopped in reverse."""
    report = await parts.start(
        parts.plugin("a", required=("z-service",)),
        parts.plugin("b"),
        parts.plugin("c", optional=("d-service", "nobody's")),
        parts.plugin("d", provides=("d-service",)),
        parts.plugin("z", provides=("z-service",)),
    )
    assert set(report.values()) == {None}
    await parts.plugins.stop()
    assert parts.order == ["+b", "+d", "+c", "+z", "+a", "-a", "-z", "-c", "-d", "-b"]


async def test_missing_service(parts: Parts) -> None:
    """A plugin whose required service nobody provides isn't activated; the reason names the service."""
    report = await parts.start(parts.plugin("a", required=("memory", "moon")), parts.plugin("b"))
    assert parts.order == ["+b"]
    assert report["a"] == "requires the service 'memory', 'moon', which nobody provides"
    assert report["b"] is None


async def test_circle(parts: Parts) -> None:
    """Plugins that require each other are named, those behind them too; a circle of optional services is none."""
    report = await parts.start(
        parts.plugin("a", required=("c-service",)),
        parts.plugin("b", required=("c-service",), provides=("b-service",)),
        parts.plugin("c", required=("b-service",), provides=("c-service",)),
        parts.plugin("d", optional=("e-service",), provides=("d-service",)),
        parts.plugin("e", optional=("d-service",), provides=("e-service",)),
    )
    assert parts.order == ["+d", "+e"]
    assert report["b"] == report["c"]
    assert report["b"] in ("plugins require each other: b -> c -> b", "plugins require each other: c -> b -> c")
    assert report["a"] == "requires the service 'c-service', which nobody provides"


async def test_failing_activation(parts: Parts) -> None:
    """A plugin that fails to activate goes with its services and hooks, and who needs it doesn't start."""

    def fail(host: Host) -> None:
        raise ConfigError("maxLimit: must be at least 1")

    report = await parts.start(
        parts.plugin("a", provides=("a-service",), on_activate=fail), parts.plugin("b", required=("a-service",))
    )
    assert report["a"] == "can't be activated: ConfigError: maxLimit: must be at least 1"
    assert report["b"] == "requires the service 'a-service', which nobody provides"
    assert not parts.services.has("a-service")
    assert await parts.hooks.call("aalis_inbound", message=message()) == []


async def test_misspelt_hook_is_that_plugins_failure(parts: Parts) -> None:
    """The others start."""

    class Misspelt:
        meta: ClassVar = PluginMeta(name="misspelt")

        @hookimpl
        def aalis_turn_befor(self, turn: Any) -> None: ...

    report = await parts.start(Misspelt(), parts.plugin("b"))
    assert report == {
        "b": None,
        "misspelt": "there is no hook 'aalis_turn_befor'; did you mean 'aalis_turn_before'?",
    }


async def test_same_name_twice(parts: Parts) -> None:
    """The second of two plugins with one name is refused."""
    await parts.start(parts.plugin("a"), parts.plugin("a"))
    assert sorted(str(report.error) for report in parts.plugins.report) == ["None", "another plugin has the same name"]
    assert parts.order == ["+a"]


async def test_tools(parts: Parts) -> None:
    """Tools are registered once all are active; a plugin whose registration fails goes as a whole, tools too."""

    def halfway(registry: ToolRegistry) -> None:
        registry.register(tool("half"))
        registry.register(tool("b_tool"))

    report = await parts.start(
        parts.plugin("b", on_tools=lambda registry: registry.register(tool("b_tool")) and None),
        parts.plugin("c", on_tools=halfway, provides=("c-service",)),
    )
    assert report["b"] is None
    assert report["c"] == "can't register its tools: ValueError: a tool 'b_tool' is registered already"
    assert parts.tools.names() == ["b_tool"]
    assert parts.order == ["+b", "+c", "-c"]
    assert not parts.services.has("c-service")
    await parts.plugins.stop()
    assert parts.tools.names() == []


async def test_the_host_a_plugin_sees(parts: Parts) -> None:
    """Its own table, the clock, the instance, its provided services in its own name, and every plugin's hooks."""
    seen: list[Host] = []
    await parts.start(parts.plugin("b", on_activate=seen.append, provides=("thing",)), parts.plugin("c"))
    (host,) = seen
    key: ServiceKey[object] = ServiceKey("thing")
    assert (dict(host.config), host.now(), host.instance_id, host.read_only) == ({"limit": 3}, 5, "here", False)
    assert [one.context_id for one in host.all(key)] == ["b"]
    assert host.select(key).present
    assert await host.emit("aalis_inbound", message=message()) == ["c", "b"]


async def test_tables_that_nobody_reads(parts: Parts) -> None:
    """A misspelt table of the configuration is named, with the nearest plugin."""
    with capture_logs() as logs:
        await parts.start(parts.plugin("bb"))
    assert [entry["event"] for entry in logs] == [
        "nobody reads plugins.b of the configuration; did you mean 'bb'?",
    ]


async def test_stopping(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that fails to stop, or doesn't stop in time, is named, and the others stop."""
    monkeypatch.setattr(plugins, "STOP_SECONDS", 0.01)

    def fail() -> None:
        raise ValueError("broken")

    await parts.start(
        parts.plugin("a"),
        parts.plugin("b", on_stop=fail, provides=("b-service",)),
        parts.plugin("c", on_stop=lambda: asyncio.sleep(60)),
    )
    with capture_logs() as logs:
        await parts.plugins.stop()
    assert parts.order[-3:] == ["-c", "-b", "-a"]
    assert [entry["plugin"] for entry in logs] == ["c", "b"]
    assert not parts.services.has("b-service")


async def test_a_host_goes_on_with_a_failing_plugin(tmp_path: Path, parts: Parts) -> None:
    """The report tells; messages are answered."""
    failing = parts.plugin("failing", required=("moon",))
    model = ScriptedModel()
    async with AalisHost(Settings(db=str(tmp_path / "x.db")), plugins=[failing], model=model) as host:
        assert [(report.name, report.error is None) for report in host.plugin_report] == [("failing", False)]
        await host.gateway.ingress(message())
    assert len(model.asked) == 1


def test_an_instance_without_meta() -> None:
    """Handing in what isn't a plugin is a mistake of the program."""
    with pytest.raises(TypeError, match="has no `meta: PluginMeta`"):
        given(object())
