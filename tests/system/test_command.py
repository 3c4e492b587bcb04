"""The command in the world: pipes that break, Ctrl-C, plugins that don't load."""

import json
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.system.conftest import EXAMPLE, Aalis, environment, finished

Shell = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Run a line of shell in which `aalis` is the command."""
    command = f'aalis() {{ "{sys.executable}" -c "from aalis_host.cli import main; main()" "$@"; }}'

    def run(line: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["sh", "-c", f"{command}\n{line}"],
            cwd=tmp_path,
            env=environment(tmp_path, **variables),
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    return run


def test_both_lines_are_answered(aalis: Aalis) -> None:
    """What the issue shows: a greeting and a tool call, piped in."""
    status, out, _ = finished(aalis("chat", "--db", "x.db"), "hello\n/list_known_sessions {}\n")
    assert status == 0
    assert "hello" in out.splitlines()[0]
    assert json.loads(out.splitlines()[-1])["sessions"] == []


@pytest.mark.parametrize("ctype", [{}, {"LC_CTYPE": "C.UTF-8"}])
def test_the_language_of_the_environment(aalis: Aalis, ctype: dict[str, str]) -> None:
    """LANG decides it, whatever the characters' locale is, which Python sets itself in the C locale."""
    assert finished(aalis("sessions", "create", "--db", "x.db"))[0] == 0
    chinese = finished(aalis("sessions", "show", "x", "--db", "x.db", LC_ALL="", LANG="zh_CN.UTF-8", **ctype))
    assert chinese == (2, "", "aalis: 没有会话 x\n")


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
@pytest.mark.parametrize(("stop", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_a_replay(aalis: Aalis, tmp_path: Path, stop: signal.Signals, status: int) -> None:
    """Ctrl-C and SIGTERM stop it with their status, without a traceback; no session stays active, and the next run
    does the rest."""
    lines = EXAMPLE.read_text("utf-8").splitlines(keepends=True)
    process = aalis("replay", "-", "--as-recorded", "--db", "x.db")
    assert process.stdin is not None
    assert process.stderr is not None
    with process.stdin, process.stderr:
        process.stdin.write("".join(lines[:700]))
        process.stdin.flush()
        while count(tmp_path / "x.db") < 100:
            time.sleep(0.02)
        process.send_signal(stop)
        assert process.wait(30) == status
        assert "Traceback" not in process.stderr.read()
    sessions = json.loads(finished(aalis("sessions", "list", "--db", "x.db", "--json"))[1])
    assert all(session["status"] != "active" for session in sessions if "lastTurn" in session)
    with closing(sqlite3.connect(tmp_path / "x.db")) as db:
        assert db.execute("SELECT count(*) FROM metadata WHERE namespace = 'turns' AND data <> 'null'").fetchall() == [
            (0,)
        ]
    assert process.stdout is not None
    process.stdout.close()
    done, _, _ = finished(aalis("replay", EXAMPLE, "--as-recorded", "--db", "x.db", "--json"))
    assert done == 0
    with closing(sqlite3.connect(tmp_path / "x.db")) as db:
        ((stored,),) = db.execute("SELECT count(*) FROM messages WHERE message_id IS NOT NULL").fetchall()
    assert stored == 1_892
    sessions = json.loads(finished(aalis("sessions", "list", "--db", "x.db", "--json"))[1])
    assert all(session["status"] != "active" for session in sessions if "lastTurn" in session)


def test_sigterm_in_the_background_of_a_script(aalis: Aalis, tmp_path: Path) -> None:
    """Where a shell has it ignore Ctrl-C, SIGTERM stops it all the same."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = aalis("replay", "-", "--as-recorded", "--db", "x.db")
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdin is not None
    process.stdin.write("".join(EXAMPLE.read_text("utf-8").splitlines(keepends=True)[:100]))
    process.stdin.flush()
    while count(tmp_path / "x.db") < 50:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    _, err = process.communicate()
    assert "Traceback" not in err


def test_ctrl_c_at_once(tmp_path: Path) -> None:
    """While the command is still being imported, Ctrl-C ends it without a word."""
    program = """
import signal, sys
class CtrlC:
    def find_spec(self, name, path, target=None):
        if name == "rich":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, CtrlC())
from aalis_host.cli import main
main()
"""
    command = [sys.executable, "-c", program, "sessions", "create", "--db", "x.db"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    "command",
    [
        "aalis sessions list --db x.db > /dev/full",
        "aalis sessions list --db x.db --json > /dev/full",
        "aalis sessions export hall --db x.db > /dev/full",
        "aalis sessions export hall --db x.db --output /dev/full",
    ],
)
def test_no_room_for_the_output(shell: Shell, command: str) -> None:
    """Output that can't be written is one line and exit status 1."""
    assert shell("echo hello | aalis chat --session hall --db x.db").returncode == 0
    done = shell(command)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "aalis: No space left on device\n")


def test_closed_streams(shell: Shell) -> None:
    """A standard stream that is closed is as good as one that nobody reads."""
    assert shell("aalis sessions create --db x.db >&-").returncode == 0
    for command in ("sessions list --db x.db", "config", "plugins", "chat --db x.db"):
        done = shell(f"aalis {command} >&- <&-")
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert "Traceback" not in done.stderr
    assert shell("aalis sessions list --db nothing.db 2>&-").returncode == 2


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


def test_a_task_goes_on_in_the_host_that_serves_its_session(aalis: Aalis, tmp_path: Path) -> None:
    """Who gives a task and doesn't wait long is told that the work goes on there; it ends with that host."""
    event = {
        "time": int(time.time()),
        "self_id": 10,
        "post_type": "message",
        "message_type": "group",
        "message_id": 1,
        "group_id": 700,
        "user_id": 42,
        "message": "hello all",
    }
    room = "onebot:10:group:700"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow = {"AALIS_MODEL_KIND": "openai", "AALIS_MODEL_API_KEY_ENV": ""}
        slow["AALIS_MODEL_BASE_URL"] = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        live = aalis("replay", "-", "--as-recorded", "--db", "x.db", "--actions", "said.jsonl", **slow)
        assert live.stdin is not None
        live.stdin.write(json.dumps(event) + "\n")
        live.stdin.flush()
        while count(tmp_path / "x.db") < 1:
            time.sleep(0.02)
        source = finished(aalis("sessions", "create", "--db", "x.db"))[1].strip()
        status, out, err = finished(aalis("delegate", source, room, "say hello", "--wait", "0.5", "--db", "x.db"))
        assert (status, out) == (1, "")
        words = f"no answer within 0.5 s: the host that serves {room} goes on with it"
        assert err == f"{words}; see: aalis sessions history {room} --db x.db\n"
        assert json.loads(finished(aalis("sessions", "show", room, "--db", "x.db", "--json"))[1])["status"] == "active"
        live.send_signal(signal.SIGTERM)
        assert finished(live)[0] == 143
    assert json.loads(finished(aalis("sessions", "show", room, "--db", "x.db", "--json"))[1])["status"] != "active"
