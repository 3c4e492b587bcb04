"""The command in the world: pipes that break, Ctrl-C, plugins that don't load."""

import json
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.system.conftest import EXAMPLE, Aalis, finished


def test_both_lines_are_answered(aalis: Aalis) -> None:
    """What the issue shows: a greeting and a tool call, piped in."""
    status, out, _ = finished(aalis("chat", "--db", "x.db"), "hello\n/list_known_sessions {}\n")
    assert status == 0
    assert "hello" in out.splitlines()[0]
    assert json.loads(out.splitlines()[-1])["sessions"] == []


def test_a_plugin_with_a_syntax_error(aalis: Aalis, tmp_path: Path) -> None:
    """It doesn't stop the host; `aalis plugins` names it with the place of the error."""
    site = tmp_path / "site"
    (site / "broken_plugin-1.2.dist-info").mkdir(parents=True)
    (site / "broken_plugin.py").write_text("class Plugin\n")
    metadata = site / "broken_plugin-1.2.dist-info"
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text("[aalis.plugins]\nbroken = broken_plugin:Plugin\n")
    status, out, err = finished(aalis("plugins", "--json", PYTHONPATH=str(site)))
    plugins = {plugin["name"]: plugin for plugin in json.loads(out)}
    assert (status, err) == (0, "")
    assert plugins["broken-plugin"]["version"] == "1.2"
    assert "SyntaxError" in plugins["broken-plugin"]["error"]
    assert "broken_plugin.py, line 1" in plugins["broken-plugin"]["error"]
    assert all("error" not in plugin for name, plugin in plugins.items() if name != "broken-plugin")
    status, out, err = finished(aalis("chat", "--db", "x.db", PYTHONPATH=str(site)), "hello\n")
    assert (status, out.splitlines()[0]) == (0, "You wrote: hello")
    assert "broken-plugin" in err
    assert "Traceback" not in err


def test_nobody_reads_on(aalis: Aalis, tmp_path: Path) -> None:
    """A reader that closes its pipe ends the command without a word."""
    assert finished(aalis("replay", EXAMPLE, "--db", "x.db"))[0] == 0
    for command in (("sessions", "export", "onebot:100010:group:700001"), ("sessions", "list"), ("tools", "--json")):
        process = aalis(*command, "--db", "x.db")
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdin, process.stderr:
            process.stdout.close()
            assert process.stderr.read() == ""
        assert process.wait(30) != 0


@pytest.mark.rule("TURN-6")
def test_ctrl_c_in_a_replay(aalis: Aalis, tmp_path: Path) -> None:
    """It stops with 130, without a traceback; no session stays active for ever, and the next run does the rest."""
    lines = EXAMPLE.read_text("utf-8").splitlines(keepends=True)
    process = aalis("replay", "-", "--as-recorded", "--db", "x.db")
    assert process.stdin is not None
    assert process.stderr is not None
    with process.stdin, process.stderr:
        process.stdin.write("".join(lines[:700]))
        process.stdin.flush()
        while count(tmp_path / "x.db") < 100:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert "Traceback" not in process.stderr.read()
    assert process.stdout is not None
    process.stdout.close()
    status, _, _ = finished(aalis("replay", EXAMPLE, "--as-recorded", "--db", "x.db", "--json"))
    assert status == 0
    with closing(sqlite3.connect(tmp_path / "x.db")) as db:
        ((stored,),) = db.execute("SELECT count(*) FROM messages WHERE message_id IS NOT NULL").fetchall()
    assert stored == 1_892
    sessions = json.loads(finished(aalis("sessions", "list", "--db", "x.db", "--json"))[1])
    assert all(session["status"] != "active" for session in sessions if "lastTurn" in session)


def count(db: Path) -> int:
    """How many messages are stored so far."""
    if not db.exists():
        return 0
    try:
        with closing(sqlite3.connect(db)) as connection:
            found: int = connection.execute("SELECT count(*) FROM messages").fetchone()[0]
            return found
    except sqlite3.OperationalError:
        return 0


def test_a_live_connection(aalis: Aalis, tmp_path: Path) -> None:
    """With --as-recorded a line is taken in when it comes, and answered before the next one is there."""
    process = aalis("replay", "-", "--as-recorded", "--db", "x.db", "--actions", "said.jsonl")
    event = {
        "time": int(time.time()),
        "self_id": 10,
        "post_type": "message",
        "message_type": "private",
        "user_id": 42,
        "message": "hi",
    }
    assert process.stdin is not None
    for number in (1, 2):
        process.stdin.write(json.dumps(event | {"message_id": number}) + "\n")
        process.stdin.flush()
        deadline = time.monotonic() + 30
        while not (tmp_path / "said.jsonl").exists() or (tmp_path / "said.jsonl").read_bytes().count(b"\n") < number:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    status, out, err = finished(process)
    assert (status, err) == (0, "")
    assert "messages" in out
