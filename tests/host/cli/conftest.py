"""The command line in a test: its own folders, its own language, and a small recording to look at."""

import json
import os
import pty
import re
import select
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aalis_host.cli import main

Run = Callable[..., Result]
Process = Callable[..., "subprocess.CompletedProcess[str]"]

BOT = 10
TIME = 1_486_474_934
"""Seconds."""


def group_event(number: int, text: str = "hello", **changes: Any) -> dict[str, Any]:
    """What user 42 says in group 700, `number` seconds after TIME."""
    return {
        "time": TIME + number,
        "self_id": BOT,
        "post_type": "message",
        "message_type": "group",
        "message_id": number,
        "group_id": 700,
        "group_name": "厨房 👩‍🍳",
        "user_id": 42,
        "sender": {"nickname": "Mia"},
        "message": text,
    } | changes


def private_event(number: int, text: str = "hi", **changes: Any) -> dict[str, Any]:
    """What user 42 says to the bot alone."""
    event = group_event(number, text, message_type="private", **changes)
    del event["group_id"], event["group_name"]
    return event


def as_lines(*events: dict[str, Any]) -> str:
    """A recording."""
    return "".join(json.dumps(event) + "\n" for event in events)


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration, database or language of the person who runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("AALIS_") or name in ("LANGUAGE", "LC_MESSAGES")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    monkeypatch.setenv("TZ", "UTC")
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture
def run() -> Run:
    """Run a command here: `run("sessions", "list", "--db", db)`. An unexpected exception fails the test."""

    def invoke(*arguments: object, **more: Any) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments], **more)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def process() -> Process:
    """Run a command in a process of its own, with real standard streams."""

    def start(*arguments: object, **more: Any) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", "from aalis_host.cli import main; main()", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, **more)

    return start


_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        command = [sys.executable, "-c", "from aalis_host.cli import main; main()", *arguments]
        environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, text: str, seconds: float = 30) -> None:
        """Until it is on the screen; what stood there before doesn't count again."""
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.master], [], [], 0.1)[0]:
                self.shown = _ESCAPES.sub("", self.shown + os.read(self.master, 65536).decode(errors="replace"))
        self.shown = self.shown.partition(text)[2]

    def rest(self) -> str:
        """All that is shown until the process ends."""
        with suppress(OSError):
            while data := os.read(self.master, 65536):
                self.shown = _ESCAPES.sub("", self.shown + data.decode(errors="replace"))
        return self.shown.replace("\r\n", "\n")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A database of two groups, a private chat and a subtask."""
    folder = tmp_path_factory.mktemp("recorded")
    events = [group_event(number, f"said {number}") for number in range(1, 26)]
    events += [
        group_event(30, "[CQ:at,qq=10] are you there?"),
        group_event(31, "elsewhere", group_id=701, group_name="[red]other[/red]", message_id=1),
        private_event(32, "hello you"),
    ]
    (folder / "events.jsonl").write_text(as_lines(*events))
    runner, db = CliRunner(), str(folder / "small.db")
    assert runner.invoke(main, ["replay", str(folder / "events.jsonl"), "--db", db]).exit_code == 0
    child = ["sessions", "create", "--name", "count the eggs", "--parent", "onebot:10:group:700", "--db", db]
    assert runner.invoke(main, child).exit_code == 0
    yield folder / "small.db"


@pytest.fixture
def db(made_once: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copy(made_once, tmp_path / "small.db"))


def query(db: Path, statement: str) -> list[tuple[Any, ...]]:
    """What the database file holds."""
    with closing(sqlite3.connect(db)) as connection:
        return connection.execute(statement).fetchall()


def put(db: Path, key: str, data: Any, namespace: str = "sessions") -> None:
    """Write a stored record as some accident left it."""
    with closing(sqlite3.connect(db)) as connection, connection:
        (revision,) = connection.execute("UPDATE state SET revision = revision + 1 RETURNING revision").fetchone()
        text = data if isinstance(data, str) else json.dumps(data)
        values = (namespace, key, revision, text)
        connection.execute("INSERT INTO metadata VALUES (?, ?, ?, ?, NULL)", values)


def record(key: str, **fields: Any) -> dict[str, Any]:
    """A stored session that nothing is known of."""
    return {"id": key, "status": "completed", "createdAt": 1, "updatedAt": 1} | fields


def contents(db: Path) -> dict[str, bytes]:
    """The database's file, and what lies beside it, byte for byte."""
    return {path.name: path.read_bytes() for path in sorted(db.parent.glob(f"{db.name}*"))}
