"""`aalis config` and `aalis plugins`."""

import json
from pathlib import Path

import pytest

from tests.host.cli.conftest import Run, Terminal


def test_every_setting(run: Run, tmp_path: Path) -> None:
    """Each setting, the plugins' too, with value, default and source."""
    (tmp_path / "aalis.toml").write_text('trigger = "always"\n[plugins.aalis-plugin-tool-session]\nmaxLimit = 50\n')
    rows = {row["key"]: row for row in json.loads(run("config", "--db", "x.db", "--json").stdout)}
    assert rows["trigger"] == {
        "key": "trigger",
        "value": "always",
        "default": "mentioned",
        "source": "file",
        "help": rows["trigger"]["help"],
    }
    assert (rows["db"]["value"], rows["db"]["source"]) == ("x.db", "command line")
    assert (rows["model.kind"]["value"], rows["model.kind"]["source"]) == ("offline", "default")
    tool = rows["plugins.aalis-plugin-tool-session.maxLimit"]
    assert (tool["value"], tool["default"], tool["source"]) == (50, 100, "file")
    assert rows["plugins.aalis-plugin-session-manager.takeScope"]["value"] == "platform"
    assert all(row["help"] for row in rows.values())


def test_the_environment_is_a_source(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting from the environment says so."""
    monkeypatch.setenv("AALIS_AGENT_HISTORY_MESSAGES", "7")
    line = next(line for line in run("config").stdout.splitlines() if line.startswith("agent.history_messages"))
    assert line.split() == ["agent.history_messages", "7", "40", "environment"]


@pytest.mark.parametrize(
    ("db", "setting"),
    [("sqlite:///x.db", "--db"), (":memory:", "--db"), ("", "--db"), ("mysql://me:geheim@host/x", "")],
)
def test_no_such_database(run: Run, tmp_path: Path, db: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another kind of address is refused with what is possible; no file of that name is made."""
    if not setting:
        monkeypatch.setenv("AALIS_DB", db)
    result = run("sessions", "create", *((setting, db) if setting else ()))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "db: must be the path of a file" in result.stderr.lower().replace("aalis_db", "db")
    assert "postgresql://" in result.stderr
    assert "geheim" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_variable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`aalis config check` finds it, with the nearest name."""
    monkeypatch.setenv("AALIS_MODLE_KIND", "foo")
    result = run("config", "check")
    assert result.exit_code == 2
    assert result.stderr == "aalis: environment: AALIS_MODLE_KIND: no such setting; did you mean 'AALIS_MODEL_KIND'?\n"


def test_a_password_is_not_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address is shown without its secret."""
    shown = run("config", "--db", "postgresql://me:secret@host/db").stdout
    assert "postgresql://me:***@host/db" in shown
    assert "secret" not in shown


def test_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are whole, folded where they are long, on 40 columns too."""
    monkeypatch.setenv("COLUMNS", "40")
    address = "postgresql://me@a-rather-long-host-name.example.org/and_a_database"
    for command, words in (
        (("config", "--db", address), ["db", address, "offline", "gpt-4o-mini", "crossSessionDefaultTimeoutSec", "60"]),
        (("plugins",), ["aalis-plugin-session-manager", "session-manager", "session-history", "runs", "0.1.0"]),
    ):
        terminal = Terminal(*command)
        try:
            shown = terminal.rest()
        finally:
            terminal.close()
        assert max(map(len, map(str.rstrip, shown.splitlines()))) <= 40
        joined = "".join(shown.split())
        assert all(word in joined for word in words)
        assert all(word in shown for word in words if word != address)


def test_right(run: Run, tmp_path: Path) -> None:
    """A right configuration is said to be, with its file."""
    assert run("config", "check").stdout == "the configuration is right (no file, defaults only)\n"
    (tmp_path / "mine.toml").write_text('[model]\nkind = "offline"\n')
    assert run("config", "check", "--config", "mine.toml").stdout == "the configuration is right (mine.toml)\n"
    assert list(tmp_path.glob("*.db")) == []


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('triger = "always"', ["triger", "trigger"]),
        ('[model]\nknd = "offline"', ["model.knd", "model.kind"]),
        ('[model]\nkind = "opnai"', ["model.kind", "'offline' or 'openai'"]),
        ("[agent]\nhistory_messages = true", ["agent.history_messages", "a whole number"]),
        ("[model", ["mine.toml"]),
        ("[plugins.aalis-plugin-tool-sesion]\nx = 1", ["aalis-plugin-tool-sesion", "aalis-plugin-tool-session"]),
        ("[plugins.aalis-plugin-tool-session]\nmaxLimt = 5", ["maxLimt", "maxLimit"]),
        ("[plugins.aalis-plugin-tool-session]\nmaxLimit = 5", ["maxLimit", "defaultLimit"]),
        ('[plugins.aalis-plugin-session-manager]\ntakeScope = "everything"', ["takeScope", "platform"]),
    ],
)
@pytest.mark.rule("CFG-1")
def test_wrong(run: Run, tmp_path: Path, toml: str, words: list[str]) -> None:
    """A wrong key or value is one line that names it and what is allowed; exit status 2."""
    (tmp_path / "mine.toml").write_text(toml)
    result = run("config", "check", "--config", "mine.toml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert all(word in result.stderr for word in words)


def test_a_configuration_that_is_not_there(run: Run) -> None:
    """Named, whatever the command."""
    result = run("sessions", "list", "--config", "nope.toml")
    assert (result.exit_code, result.stderr) == (2, "aalis: nope.toml: No such file or directory\n")


def test_plugins(run: Run) -> None:
    """Name, version, what they provide; nothing is left behind."""
    found = {plugin["name"]: plugin for plugin in json.loads(run("plugins", "--json").stdout)}
    assert found["aalis-plugin-session-manager"]["provides"] == ["session-manager"]
    assert found["aalis-plugin-tool-session"]["provides"] == ["session-history"]
    assert all(plugin["version"] and "error" not in plugin for plugin in found.values())
    assert all("runs" in line for line in run("plugins").stdout.splitlines()[1:])


def test_a_plugin_that_fails(run: Run, tmp_path: Path) -> None:
    """It is named with the reason; the others run; the command itself succeeds."""
    (tmp_path / "aalis.toml").write_text("[plugins.aalis-plugin-tool-session]\nmaxLimt = 5\n")
    result = run("plugins", "--json")
    failed = {plugin["name"]: plugin.get("error") for plugin in json.loads(result.stdout)}
    assert result.exit_code == 0
    assert failed["aalis-plugin-session-manager"] is None
    assert "maxLimt" in str(failed["aalis-plugin-tool-session"])
    assert result.stderr == ""


def test_help(run: Run) -> None:
    """Every command has help that begins with a sentence; -h is the same."""
    for command in ([], ["sessions"], ["sessions", "list"], ["tools", "call"], ["config"], ["import"], ["replay"]):
        shown = run(*command, "--help")
        assert shown.exit_code == 0
        assert shown.stdout.startswith("Usage: ")
        assert run(*command, "-h").stdout == shown.stdout
    assert run("--version").stdout.startswith("aalis 0.")
