"""`aalis chat`: a conversation of the owner's, typed or piped in."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.cli.conftest import Process, Run, Terminal, query


@pytest.mark.rule("CREATE-11")
def test_piped_lines(process: Process, run: Run) -> None:
    """Each line is answered on standard output, which has nothing else; the session is the terminal's."""
    result = process("chat", "--db", "x.db", input='hello\n\n/list_known_sessions {"limit": 1}\n')
    assert result.returncode == 0
    first, *_, last = result.stdout.splitlines()
    assert first == "You wrote: hello"
    assert json.loads(last)["count"] == 0
    (session,) = json.loads(run("sessions", "list", "--db", "x.db", "--json").stdout)
    assert (session["createdFrom"], session["kind"]) == ("cli", "owner")
    assert session["id"] in result.stderr


def test_going_on(process: Process, tmp_path: Path) -> None:
    """A named session is gone on in; one that isn't there is made with exactly that id."""
    for line in ("one", "two"):
        assert process("chat", "--session", "my plans", "--db", "x.db", input=line).returncode == 0
    said = query(tmp_path / "x.db", "SELECT content FROM messages WHERE role = 'user' ORDER BY id")
    assert said == [("one",), ("two",)]
    assert query(tmp_path / "x.db", "SELECT DISTINCT session_id FROM messages") == [("my plans",)]


@pytest.mark.parametrize("named", [(), ("--session", "plans")])
def test_nothing_typed(process: Process, run: Run, named: tuple[str, ...]) -> None:
    """Who says nothing leaves no session behind."""
    result = process("chat", "--db", "x.db", *named, input="\n \n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert json.loads(run("sessions", "list", "--db", "x.db", "--json").stdout) == []


def test_looking_in(process: Process, db: Path) -> None:
    """A session that is there is named at once."""
    result = process("chat", "--db", db, "--session", "onebot:10:private:42", input="")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr.startswith("session onebot:10:private:42; come back with: ")


def test_a_model_that_cannot_answer(process: Process) -> None:
    """Why there is no answer is one line on standard error; the other lines go on; exit status 1 for a script."""
    result = process(
        "chat",
        "--db",
        "x.db",
        input="hello\nagain\n",
        env={**os.environ, "AALIS_MODEL_KIND": "openai", "OPENAI_API_KEY": ""},
    )
    assert (result.returncode, result.stdout) == (1, "")
    _, first, second = result.stderr.splitlines()
    assert "OPENAI_API_KEY" in first
    assert second == first


def test_what_cannot_be_decoded(process: Process, tmp_path: Path) -> None:
    """Bytes that are no text become a mark; the line isn't lost."""
    command = [sys.executable, "-c", "from aalis_host.cli import main; main()", "chat", "--db", "x.db"]
    done = subprocess.run(
        command, input=b"caf\xe9\x00 \xf0\x9f\x91\x8b\r\n", capture_output=True, timeout=50, check=True
    )
    assert "You wrote: caf\ufffd\ufffd 👋".encode() in done.stdout


@pytest.mark.parametrize("secret", ["password=geheim", "sslpassword=geheim"])
def test_a_password_is_not_said_again(process: Process, url: str, secret: str) -> None:
    """How to come back is said without an address that holds a password."""
    result = process("chat", "--db", f"{url}{'&' if '?' in url else '?'}{secret}", input="hello\n")
    assert result.returncode == 0, result.stderr
    assert "come back with: aalis chat --session" in result.stderr
    assert "geheim" not in result.stdout + result.stderr


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal("chat", "--db", "x.db")
    yield made
    made.close()


def test_on_a_terminal(terminal: Terminal) -> None:
    """A prompt, an answer, and Ctrl-D leaves with 0."""
    terminal.wait_for(">")
    terminal.type("hello 你好\r")
    terminal.wait_for("You wrote: hello 你好")
    terminal.wait_for(">")
    terminal.type("\x04")
    assert terminal.process.wait(20) == 0


def test_leaving_without_a_word(terminal: Terminal, run: Run) -> None:
    """Ctrl-D at once: no session was made."""
    terminal.wait_for(">")
    terminal.type("\x04")
    assert terminal.process.wait(20) == 0
    assert json.loads(run("sessions", "list", "--db", "x.db", "--json").stdout) == []


@pytest.mark.parametrize(("stop", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_being_stopped_at_the_prompt(terminal: Terminal, stop: signal.Signals, status: int) -> None:
    """A signal leaves as Ctrl-C does, with its own status."""
    terminal.wait_for(">")
    terminal.process.send_signal(stop)
    assert terminal.process.wait(20) == status
    assert "Traceback" not in terminal.rest()


def test_sigterm_while_it_answers(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Ctrl-C stops the answer alone; SIGTERM ends the conversation, and its turn is over."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AALIS_MODEL_KIND", "openai")
        monkeypatch.setenv("AALIS_MODEL_API_KEY_ENV", "")
        monkeypatch.setenv("AALIS_MODEL_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
        terminal = Terminal("chat", "--session", "s", "--db", "x.db")
        connections: list[socket.socket] = []
        try:
            for stop in (signal.SIGINT, signal.SIGTERM):
                terminal.wait_for(">")
                terminal.type("hello\r")
                connections.append(silent.accept()[0])
                terminal.process.send_signal(stop)
            assert terminal.process.wait(20) == 143
            assert "Traceback" not in terminal.rest()
        finally:
            terminal.close()
            for connection in connections:
                connection.close()
    (session,) = json.loads(run("sessions", "list", "--db", "x.db", "--json").stdout)
    assert session["lastTurn"]["outcome"] == "aborted"


def test_ctrl_c_at_the_prompt_leaves(terminal: Terminal, tmp_path: Path) -> None:
    """Exit status 130, no traceback, and what was said is stored."""
    terminal.wait_for(">")
    terminal.type("remember this\r")
    terminal.wait_for("You wrote: remember this")
    terminal.wait_for(">")
    terminal.type("\x03")
    assert terminal.process.wait(20) == 130
    assert "Traceback" not in terminal.shown
    assert query(tmp_path / "x.db", "SELECT count(*) FROM messages") == [(2,)]


def test_others_may_look_meanwhile(terminal: Terminal, run: Run, tmp_path: Path) -> None:
    """While a chat is open its session is listed by others, who change no row."""
    terminal.wait_for(">")
    terminal.type("hello\r")
    terminal.wait_for("You wrote: hello")
    terminal.wait_for(">")
    db = tmp_path / "x.db"
    running = "SELECT key FROM metadata WHERE namespace IN ('turns', 'claims') AND data IS NOT NULL"
    while query(db, running):
        time.sleep(0.05)
    before = rows(db)
    (session,) = json.loads(run("sessions", "list", "--db", db, "--json").stdout)
    assert session["createdFrom"] == "cli"
    assert run("sessions", "history", session["id"], "--db", db).stdout.count("hello") == 2
    assert run("sessions", "check", "--db", db).exit_code == 0
    assert rows(db) == before
    terminal.type("still here\r")
    terminal.wait_for("You wrote: still here")


def rows(db: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table, but for the sign of life that the chat itself gives every few seconds."""
    names = [name for (name,) in query(db, "SELECT name FROM sqlite_master WHERE type = 'table'") if name != "state"]
    found = {name: query(db, f"SELECT * FROM {name}") for name in names}
    return {**found, "metadata": [row for row in found["metadata"] if row[0] != "hosts"]}
