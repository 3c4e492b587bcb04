"""The plugin's settings, and what is registered by them."""

from pathlib import Path
from typing import Any

import pytest
from attrs import asdict, fields

from aalis_api_session_manager.errors import ConfigError
from aalis_api_session_manager.host import Inject
from aalis_api_session_manager.service import SESSION_HISTORY
from aalis_api_session_manager.wire import camel
from aalis_host.app import AalisHost
from aalis_host.config import Settings
from aalis_plugin_tool_session.config import ToolSessionConfig, read_config
from aalis_plugin_tool_session.plugin import ToolSessionPlugin
from tests.tool_session.kit import DELEGATE, HISTORY, LIST, NAME, stack

TIMEOUT = "crossSessionDefaultTimeoutSec must be a number above 0, at most 300"


@pytest.mark.rule("CFG-1", "DELEG-1", "DELEG-11")
def test_the_defaults_are_the_documents() -> None:
    assert {camel(name): value for name, value in asdict(read_config({})).items()} == {
        "enabled": True,
        "maxLimit": 100,
        "defaultLimit": 20,
        "scope": "platform",
        "includeArchivedDefault": False,
        "perMessageMaxChars": 0,
        "crossSessionEnabled": True,
        "crossSessionDefaultTimeoutSec": 60,
        "delegateReply": "always",
    }


def test_every_setting_is_explained() -> None:
    assert all(a.metadata["help"] for a in fields(ToolSessionConfig))


@pytest.mark.rule("CFG-1")
def test_every_setting_is_read_by_its_own_name() -> None:
    given = {
        "enabled": False,
        "maxLimit": 300,
        "defaultLimit": 300,
        "scope": "current",
        "includeArchivedDefault": True,
        "perMessageMaxChars": 5,
        "crossSessionEnabled": False,
        "crossSessionDefaultTimeoutSec": 0.5,
        "delegateReply": "taken",
    }
    assert {camel(name): value for name, value in asdict(read_config(given)).items()} == given


@pytest.mark.rule("CFG-1")
@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"enabled": "false"}, "enabled must be true or false, not 'false'"),
        ({"enabled": 1}, "enabled must be true or false, not 1"),
        ({"maxLimit": 0}, "maxLimit must be a whole number from 1 to 10000, not 0"),
        ({"maxLimit": 3.0}, "maxLimit must be a whole number from 1 to 10000, not 3.0"),
        ({"maxLimit": "100"}, "maxLimit must be a whole number from 1 to 10000, not '100'"),
        ({"maxLimit": None}, "maxLimit must be a whole number from 1 to 10000, not None"),
        ({"defaultLimit": True}, "defaultLimit must be a whole number from 1 to 10000, not True"),
        ({"maxLimit": 10, "defaultLimit": 11}, "defaultLimit (11) can't be above maxLimit (10)"),
        ({"maxLimit": 10}, "defaultLimit (20) can't be above maxLimit (10)"),
        ({"scope": "everything"}, "scope must be one of current, platform, all, not 'everything'"),
        ({"scope": ["all"]}, "scope must be one of current, platform, all, not ['all']"),
        ({"perMessageMaxChars": -1}, "perMessageMaxChars must be a whole number from 0 to 10000000, not -1"),
        ({"crossSessionDefaultTimeoutSec": 0}, f"{TIMEOUT}, not 0"),
        ({"crossSessionDefaultTimeoutSec": 301}, f"{TIMEOUT}, not 301"),
        ({"crossSessionDefaultTimeoutSec": "60"}, f"{TIMEOUT}, not '60'"),
        ({"crossSessionDefaultTimeoutSec": float("nan")}, f"{TIMEOUT}, not nan"),
        ({"delegateReply": "never"}, "delegateReply must be one of always, taken, not 'never'"),
        ({"maxLimits": 10}, "unknown setting 'maxLimits'; the nearest is 'maxLimit'"),
        ({"max_limit": 10}, "unknown setting 'max_limit'; the nearest is 'maxLimit'"),
        ({"crosssessionenabled": False}, "unknown setting 'crosssessionenabled'; the nearest is 'crossSessionEnabled'"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_with_what_is_allowed(table: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(table)
    assert str(caught.value) == text


@pytest.mark.rule("CFG-1")
async def test_a_wrong_setting_keeps_the_plugin_out_at_start(tmp_path: Path) -> None:
    """The host goes on, and says why."""
    settings = Settings(db=str(tmp_path / "aalis.db"), plugins={NAME: {"scop": "all"}})
    async with AalisHost(settings, plugins=[ToolSessionPlugin()]) as host:
        (report,) = host.plugin_report
        assert report.error is not None and "unknown setting 'scop'; the nearest is 'scope'" in report.error
        assert not host.tools.names() and not host.select(SESSION_HISTORY).present


@pytest.mark.rule("HIST-1", "CFG-2")
@pytest.mark.parametrize(
    ("settings", "tools", "service"),
    [
        ({}, [DELEGATE, LIST, HISTORY], True),
        ({"crossSessionEnabled": False}, [HISTORY], True),
        ({"enabled": False}, [], False),
        ({"enabled": False, "crossSessionEnabled": True}, [], False),
    ],
)
async def test_what_is_registered(tmp_path: Path, settings: dict[str, Any], tools: list[str], service: bool) -> None:
    """All; history alone; nothing at all."""
    async with stack(tmp_path, settings=settings) as s:
        assert s.host.tools.names() == tools
        assert s.host.select(SESSION_HISTORY).present is service
        groups = {spec.name: spec.group for spec in s.host.tools.specs()}
        wanted = {HISTORY: "session-history", LIST: "session-delegate", DELEGATE: "session-delegate"}
        assert groups == {name: wanted[name] for name in tools}


@pytest.mark.rule("HIST-1")
async def test_nothing_is_left_of_it_when_it_stops(tmp_path: Path) -> None:
    async with stack(tmp_path) as s:
        host = s.host
    assert not host.tools.names() and not host.select(SESSION_HISTORY).present


@pytest.mark.rule("META-1")
def test_what_the_plugin_says_of_itself() -> None:
    """Its name is the distribution's."""
    meta = ToolSessionPlugin.meta
    assert (meta.name, meta.subsystem, meta.provides) == (NAME, "session", ("session-history",))
    assert meta.inject == Inject(optional=("memory",))
    assert meta.config is ToolSessionConfig


@pytest.mark.rule("META-1")
async def test_the_host_finds_it_by_its_entry_point(tmp_path: Path) -> None:
    async with AalisHost(Settings(db=str(tmp_path / "aalis.db"))) as host:
        report = next(one for one in host.plugin_report if one.name == NAME)
        assert report.error is None and report.provides == ("session-history",)
        assert {HISTORY, LIST, DELEGATE} <= set(host.tools.names())
