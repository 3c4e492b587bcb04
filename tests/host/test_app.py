"""The host as a whole: opened, its services provided, stopped in reverse."""

from pathlib import Path

import pytest

from aalis_api_session_manager.errors import ConfigError, StorageError
from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import Host, Inject, PluginMeta
from aalis_api_session_manager.message import Message
from aalis_api_session_manager.service import AGENT, AUTHORITY, GATEWAY, MEMORY, PLATFORM, TOOLS, ServiceSelection
from aalis_host.app import CONTEXT_ID, AalisHost
from aalis_host.config import ModelSettings, Settings
from tests.host.kit import Adapter, Recorder, ScriptedModel, history, message, running


class Needy:
    """A plugin that requires all that a host provides, and stores something when it stops."""

    meta = PluginMeta(
        name="needy",
        inject=Inject(required=("memory", "authority", "agent", "gateway", "tools"), optional=("platform",)),
    )

    def __init__(self) -> None:
        self.host: Host | None = None

    @hookimpl
    def aalis_activate(self, host: Host) -> None:
        self.host = host

    @hookimpl
    async def aalis_deactivate(self) -> None:
        assert self.host is not None
        farewell = Message(session_id="s", role="system", content="flushed", timestamp=self.host.now())
        await self.host.select(MEMORY).use().save_message("s", farewell)


async def test_services(tmp_path: Path) -> None:
    """A plugin finds what the host provides, under the host's own name."""
    plugin, adapter = Needy(), Adapter()
    async with running(tmp_path, plugin) as host:
        host.add_platform(adapter)
        seen = plugin.host
        assert seen is not None
        assert seen.select(MEMORY).use() is host.memory
        assert seen.select(AUTHORITY).use() is host.authority
        assert seen.select(AGENT).use() is host.agent
        assert seen.select(GATEWAY).use() is host.gateway
        assert seen.select(TOOLS).use() is host.tools
        assert [(one.instance, one.context_id) for one in seen.all(PLATFORM)] == [(adapter, "onebot")]
        assert {one.context_id for one in seen.all(MEMORY)} == {CONTEXT_ID}
        assert seen.instance_id


async def test_a_plugin_stores_what_it_holds(tmp_path: Path) -> None:
    """The memory is open until the last plugin has stopped; what it wrote then is there at the next start."""
    async with running(tmp_path, Needy()):
        pass
    async with running(tmp_path) as host:
        assert [one.content for one in await history(host)] == ["flushed"]


async def test_two_hosts_have_different_names(tmp_path: Path) -> None:
    """No two running hosts are the same instance."""
    one, two = Needy(), Needy()
    async with running(tmp_path, one), running(tmp_path, two):
        assert one.host is not None
        assert two.host is not None
        assert one.host.instance_id != two.host.instance_id


async def test_read_only(tmp_path: Path) -> None:
    """A host that only reads answers nothing and makes nothing; its plugins know."""
    async with running(tmp_path) as host:
        await host.gateway.ingress(message("before"))
    plugin = Recorder()
    settings = Settings(db=str(tmp_path / "aalis.db"))
    async with AalisHost(settings, read_only=True, plugins=[plugin], model=ScriptedModel()) as host:
        with pytest.raises(StorageError):
            await host.gateway.ingress(message("after"))
        assert [one.content for one in await history(host)] == ["before", "ok"]
        assert plugin.turns == []


async def test_the_model_is_opened_when_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without a key starts (its sessions can be listed); whoever needs the model is told in one line."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    recorder = Recorder()
    settings = Settings(db=str(tmp_path / "aalis.db"), model=ModelSettings(kind="openai"))
    async with AalisHost(settings, plugins=[recorder]) as host:
        with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
            _ = host.model
        await host.gateway.ingress(message())
        assert recorder.outcomes == ["error"]


async def test_the_model_is_closed(tmp_path: Path) -> None:
    """With the host."""
    model = ScriptedModel()
    async with running(tmp_path, model=model):
        assert not model.closed
    assert model.closed


async def test_offline_is_the_default(tmp_path: Path) -> None:
    """Without a setting, a key or a network a message is answered."""
    async with AalisHost(Settings(db=str(tmp_path / "aalis.db")), plugins=[]) as host:
        await host.gateway.ingress(message("hello"))
        assert "hello" in (await history(host))[-1].content


async def test_a_selection_of_the_host(tmp_path: Path) -> None:
    """`host.select` finds services as a plugin does."""
    async with running(tmp_path) as host:
        selection: ServiceSelection[object] = host.select(AGENT)
        assert selection.use() is host.agent
