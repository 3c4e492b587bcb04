"""`aalis tools` and `aalis delegate`: what a model is given, and what it would be answered."""

import json
import shlex
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.host.cli.conftest import Process, Run, query

ROOM, OTHER, PEER = "onebot:10:group:700", "onebot:10:group:701", "onebot:10:private:42"
NAMES = ["delegate_to_session", "list_known_sessions", "session_get_history"]


def test_list(run: Run) -> None:
    """Every tool as a model is given it, without a database too."""
    tools = json.loads(run("tools", "--json").stdout)
    assert [tool["function"]["name"] for tool in tools] == NAMES
    assert all(tool["function"]["parameters"]["type"] == "object" for tool in tools)
    assert [line.split()[0] for line in run("tools").stdout.splitlines()] == ["name", *NAMES]
    assert run("tools", "list").stdout == run("tools").stdout


def test_call(run: Run, db: Path) -> None:
    """The tool's answer alone is on standard output."""
    result = run("tools", "call", "list_known_sessions", '{"limit": 1}', "--session", ROOM, "--db", db)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["count"] == 1
    assert result.stdout.count("\n") == 1


def test_call_with_a_models_mistakes(run: Run, db: Path) -> None:
    """Arguments that a model gets wrong are answered as the model is answered; that is no error of the command."""
    for arguments in ("{", "[]", '{"limit": "many"}', '{"lmit": 5}'):
        result = run("tools", "call", "list_known_sessions", arguments, "--session", ROOM, "--db", db)
        assert result.exit_code == 0
        assert "error" in json.loads(result.stdout)


@pytest.mark.rule("TAKE-8")
def test_call_for_somebody(run: Run, db: Path) -> None:
    """A refusal is explained as the model sees it; `--as` says for whom is called, and all of them must be allowed."""
    arguments = (
        "tools",
        "call",
        "session_get_history",
        json.dumps({"session_id": PEER}),
        "--session",
        ROOM,
        "--db",
        db,
    )
    assert "takeOtherPrivates" in json.loads(run(*arguments).stdout)["error"]
    assert "takeOtherPrivates" in json.loads(run(*arguments, "--as", "onebot:7").stdout)["error"]
    assert "error" in json.loads(run(*arguments, "--as", "onebot:42", "--as", "onebot:7").stdout)
    assert json.loads(run(*arguments, "--as", "onebot:42").stdout)["messages"][0]["content"] == "hello you"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("list_known_session", "{}", "--session", ROOM), "there is no tool list_known_session; did you mean"),
        (("list_known_sessions", "{}", "--session", "nobody"), "no session nobody"),
        (("list_known_sessions", "{}"), "Missing option '--session'"),
        (("list_known_sessions", "{}", "--session", ROOM, "--as", "mia"), "mia is no account"),
    ],
)
def test_a_persons_mistakes(run: Run, db: Path, arguments: tuple[str, ...], words: str) -> None:
    """A tool or a session that isn't there is the person's mistake."""
    result = run("tools", "call", *arguments, "--db", db)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_a_tool_that_acts(run: Run, db: Path) -> None:
    """A tool that changes something does so."""
    arguments = {"target_session_id": OTHER, "task": "say hello"}
    result = run("tools", "call", "delegate_to_session", json.dumps(arguments), "--session", PEER, "--db", db)
    answer = json.loads(result.stdout)
    assert (answer["status"], answer["outcome"]) == ("answered", "replied")
    assert query(db, f"SELECT count(*) FROM messages WHERE session_id = '{OTHER}'") == [(3,)]


@pytest.mark.rule("DELEG-7")
def test_delegate(run: Run, db: Path) -> None:
    """The reply of the other session is printed; it is in that session's history."""
    result = run("delegate", PEER, OTHER, "say hello", "--db", db)
    assert result.exit_code == 0
    assert "say hello" in result.stdout
    assert query(db, f"SELECT count(*) FROM messages WHERE session_id = '{OTHER}'") == [(3,)]
    answer = json.loads(run("delegate", PEER, OTHER, "say it again", "--wait", "30", "--db", db, "--json").stdout)
    assert answer["outcome"] == "replied"


def test_delegate_without_a_reply(run: Run, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why there is none is said on standard error; exit status 1."""
    monkeypatch.setenv("AALIS_MODEL_KIND", "openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = run("delegate", PEER, OTHER, "x", "--db", db)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "OPENAI_API_KEY" in result.stderr


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("nobody", OTHER, "no session nobody"),
        (PEER, "nobody", "no session nobody"),
        (PEER, PEER, f"{PEER} can't delegate to itself; give another session as TO"),
    ],
)
def test_delegate_between_what_is_not_there(run: Run, db: Path, source: str, target: str, words: str) -> None:
    """A session that isn't there, on either side, is the person's mistake, and nothing is sent."""
    before = query(db, "SELECT count(*) FROM messages")
    result = run("delegate", source, target, "x", "--db", db)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"aalis: {words}\n")
    assert query(db, "SELECT count(*) FROM messages") == before


def test_delegate_to_an_unfiled_session(run: Run, db: Path) -> None:
    """Messages alone make a session that can be delegated to."""
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("UPDATE messages SET session_id = 'old talk' WHERE session_id = ?", (OTHER,))
    assert run("delegate", PEER, "old talk", "say hello", "--db", db).exit_code == 0


@pytest.fixture
def slow_model(tmp_path: Path) -> Iterator[None]:
    """The configuration names a model that takes its time to answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        (tmp_path / "aalis.toml").write_text(
            f'[model]\nkind = "openai"\nname = "x"\nbase_url = "http://127.0.0.1:{port}/v1"\napi_key_env = ""\n'
        )
        yield


def test_delegate_without_an_answer_in_time(run: Run, db: Path, slow_model: None) -> None:
    """What was begun here stops with the command: it says so, and where to look; the target's turn is over."""
    for wait in ("0.001", "0.5"):
        result = run("delegate", PEER, OTHER, "say hello", "--wait", wait, "--db", db)
        assert (result.exit_code, result.stdout) == (1, "")
        words, _, command = result.stderr.partition("; see: ")
        assert words == f"no answer within {wait} s: the work was done in this process and is stopped now"
        assert command == f"aalis sessions history {OTHER} --db {db}\n"
        assert run(*shlex.split(command)[1:]).exit_code == 0
    shown = json.loads(run("sessions", "show", OTHER, "--db", db, "--json").stdout)
    assert shown["lastTurn"]["outcome"] == "aborted"


def test_no_delegation_where_it_is_switched_off(run: Run, db: Path, tmp_path: Path) -> None:
    """The configuration took the tool away: that is said."""
    (tmp_path / "aalis.toml").write_text("[plugins.aalis-plugin-tool-session]\ncrossSessionEnabled = false\n")
    result = run("delegate", PEER, OTHER, "x", "--db", db)
    assert (result.exit_code, result.stderr) == (2, "aalis: there is no tool delegate_to_session\n")


def test_logs_never_mix_with_the_answer(process: Process, db: Path, tmp_path: Path) -> None:
    """Whatever is logged goes to standard error."""
    (tmp_path / "aalis.toml").write_text("[plugins.aalis-plugin-tool-session]\nenabled = 1\n")
    result = process("sessions", "list", "--db", db, "--json")
    assert len(json.loads(result.stdout)) == 4
    assert "aalis-plugin-tool-session" in result.stderr
    assert "Traceback" not in result.stderr
