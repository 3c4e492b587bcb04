"""`aalis import`: a database of the TypeScript Aalis comes in as it is, once."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.host.cli.conftest import TIME, Run, as_lines, contents, group_event, query

SCHEMA = """
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, sessionId TEXT NOT NULL, role TEXT NOT NULL, kind TEXT, content TEXT,
    toolCalls TEXT, toolCallId TEXT, name TEXT, timestamp INTEGER NOT NULL, archived INTEGER NOT NULL DEFAULT 0,
    metadata TEXT, createdAt TEXT NOT NULL DEFAULT (datetime('now')), reasoningContent TEXT, segments TEXT
);
CREATE TABLE metadata (
    namespace TEXT NOT NULL, key TEXT NOT NULL, data TEXT NOT NULL, updatedAt TEXT NOT NULL DEFAULT (datetime('now')),
    PRIMARY KEY (namespace, key)
);
"""
ROOM = "onebot:10:group:700"


class Theirs:
    """A database as the TypeScript Aalis writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.execute(SCHEMA, script=True)

    def execute(self, statement: str, *values: Any, script: bool = False) -> None:
        with closing(sqlite3.connect(self.path)) as db, db:
            db.executescript(statement) if script else db.execute(statement, values)

    def session(self, key: str, data: Any = None, **fields: Any) -> None:
        record = {
            "id": key,
            "children": [],
            "status": "completed",
            "config": {"model": "m"},
            "createdAt": 1_700_000_000_000,
            "updatedAt": 1_700_000_001_000,
            "createdBy": "webui",
        } | fields
        text = json.dumps(record) if data is None else data
        self.execute("INSERT INTO metadata (namespace, key, data) VALUES ('sessions', ?, ?)", key, text)

    def message(self, session: str, role: str, content: Any, **columns: Any) -> None:
        values = {"sessionId": session, "role": role, "content": content, "timestamp": 1_700_000_000_000} | columns
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        self.execute(f"INSERT INTO messages ({names}) VALUES ({marks})", *values.values())


@pytest.fixture
def theirs(tmp_path: Path) -> Theirs:
    """Two sessions, a subtask, and every kind of message."""
    made = Theirs(tmp_path / "theirs.db")
    made.session(ROOM, name="厨房", metadata={"note": 1})
    made.session("web", title="Plans", children=["kid"])
    made.session("kid", parentId="web", inputContext="count", result="7", status="error")
    who = json.dumps({"platform": "onebot", "userId": "42", "nickname": "Mia", "messageId": "5"})
    for number in range(3):
        made.message(ROOM, "user", f"said {number}", metadata=who)
    made.message(ROOM, "user", "long ago", archived=1, timestamp=1_600_000_000_000)
    calls = json.dumps([{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}])
    made.message("web", "assistant", None, toolCalls=calls, reasoningContent="hm", segments='[{"type":"text"}]')
    made.message("web", "tool", "found", toolCallId="c1", name="look")
    made.message("web", "system", "-- compressed --", kind="event-marker")
    made.message("web", "notice", "poked", kind="poke")
    made.message("nowhere", "user", "without a session record")
    return made


def imported(run: Run, *options: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(run("import", "theirs.db", "--db", "x.db", "--json", *options).stdout)
    return figures


def exported(run: Run, session: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(run("sessions", "export", session, "--db", "x.db").stdout)
    return value


@pytest.mark.rule("STORE-5", "ORIGIN-3")
def test_sessions(run: Run, theirs: Theirs) -> None:
    """Sessions come with all they had; what has no field any more stands in the metadata; no origin is guessed."""
    imported(run)
    room = exported(run, ROOM)["session"]
    assert (room["name"], room["kind"], room["createdAt"]) == ("厨房", "owner", 1_700_000_000_000)
    assert room["metadata"] == {"note": 1, "config": {"model": "m"}, "createdBy": "webui"}
    assert not {"originPlatform", "originChat", "createdFrom"} & set(room)
    web = exported(run, "web")
    assert web["session"]["title"] == "Plans"
    kid = web["below"][0]["session"]
    assert (kid["parentId"], kid["inputContext"], kid["result"], kid["status"]) == ("web", "count", "7", "error")


@pytest.mark.rule("STORE-5")
def test_messages(run: Run, theirs: Theirs) -> None:
    """Messages come in order, with who said them, their tool calls, marks and archive; nothing is left behind."""
    imported(run)
    room = exported(run, ROOM)["messages"]
    assert [message["content"] for message in room] == ["long ago", "said 0", "said 1", "said 2"]
    assert [message["archived"] for message in room] == [True, False, False, False]
    first = room[1]
    assert (first["platform"], first["userId"], first["userName"]) == ("onebot", "42", "Mia")
    assert first["messageId"] == "aalis-ts:1"
    assert first["metadata"]["messageId"] == "5"
    calling, result, notice = exported(run, "web")["messages"]
    assert calling["toolCalls"] == [{"id": "c1", "name": "look", "arguments": '{"a":1}'}]
    assert calling["metadata"] == {"reasoningContent": "hm", "segments": [{"type": "text"}]}
    assert (result["role"], result["toolCallId"], result["name"]) == ("tool", "c1", "look")
    assert (notice["role"], notice["metadata"]) == ("system", {"role": "notice", "kind": "poke"})
    assert query(Path("x.db"), "SELECT session_id, content FROM messages WHERE session_id = 'nowhere'") == [
        ("nowhere", "without a session record")
    ]
    assert query(Path("x.db"), "SELECT shown FROM messages WHERE content = '-- compressed --'") == [(0,)]


@pytest.mark.rule("STORE-5")
def test_again(run: Run, theirs: Theirs) -> None:
    """A second import changes nothing here, not even what was changed since; what is new there comes in."""
    first = imported(run)
    assert (first["sessionsNew"], first["messagesNew"]) == (3, 9)
    run("sessions", "title", ROOM, "our own title", "--db", "x.db")
    theirs.message(ROOM, "user", "new")
    again = imported(run)
    assert (again["sessionsNew"], again["sessionsThere"]) == (0, 3)
    assert (again["messagesNew"], again["messagesThere"]) == (1, 9)
    assert exported(run, ROOM)["session"]["title"] == "our own title"
    assert len(exported(run, ROOM)["messages"]) == 5


@pytest.mark.rule("STORE-5")
def test_their_file_stays_as_it_is(run: Run, theirs: Theirs) -> None:
    """Byte for byte, with nothing put beside it."""
    before = contents(theirs.path)
    imported(run)
    assert contents(theirs.path) == before


def test_a_file_that_is_in_use(run: Run, theirs: Theirs) -> None:
    """What stands only in the log of a running Aalis comes in too, and its files stay as they are."""
    with closing(sqlite3.connect(theirs.path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        with db:
            db.execute("INSERT INTO messages (sessionId, role, content, timestamp) VALUES ('web', 'user', 'late', 1)")
        before = contents(theirs.path)
        assert f"{theirs.path.name}-wal" in before
        assert imported(run)["messagesNew"] == 10
        assert contents(theirs.path) == before


def test_dry_run(run: Run, theirs: Theirs, tmp_path: Path) -> None:
    """It says what would be done, and does nothing: no database is made, an existing one isn't changed."""
    figures = imported(run, "--dry-run")
    assert (figures["sessionsNew"], figures["messages"], figures["dryRun"]) == (3, 9, True)
    assert not (tmp_path / "x.db").exists()
    imported(run)
    before = contents(tmp_path / "x.db")
    assert imported(run, "--dry-run")["sessionsThere"] == 3
    assert contents(tmp_path / "x.db") == before


@pytest.mark.rule("INTAKE-4")
def test_a_room_gets_its_origin_back(run: Run, theirs: Theirs, tmp_path: Path) -> None:
    """The next message of the room files it; its old messages stay its own."""
    imported(run)
    (tmp_path / "e.jsonl").write_text(as_lines(group_event(1)))
    assert run("replay", "e.jsonl", "--db", "x.db").exit_code == 0
    room = exported(run, ROOM)
    assert (room["session"]["kind"], room["session"]["originPlatform"]) == ("room", "onebot")
    assert room["session"]["originChat"]["targetId"] == "700"
    assert room["session"]["name"] == "厨房"
    assert len(room["messages"]) == 5


def test_damaged_rows(run: Run, theirs: Theirs) -> None:
    """What can't be read is named with the reason, and keeps nothing else out."""
    theirs.session("torn", '{"id": "torn", ')
    theirs.session("list", "[]")
    theirs.session("other", json.dumps({"id": "another"}))
    theirs.message("web", "user", "when?", timestamp="yesterday", createdAt="then")
    theirs.message("web", "assistant", "odd", toolCalls='{"not": "a list"}', metadata="{", segments="[")
    theirs.message("web", "user", b"caf\xe9")
    result = run("import", "theirs.db", "--db", "x.db", "--json")
    figures = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (figures["sessionsNew"], figures["sessionsSkipped"]) == (3, 3)
    assert (figures["messagesNew"], figures["messagesSkipped"]) == (11, 1)
    assert [line.split(" isn't")[0] for line in result.stderr.splitlines()] == [
        "session list",
        "session other",
        "session torn",
        "message 10",
    ]
    odd, text = exported(run, "web")["messages"][-2:]
    assert odd["metadata"] == {"toolCalls": {"not": "a list"}, "metadata": "{", "segments": "["}
    assert text["content"] == "caf\ufffd"


def test_older_versions(run: Run, tmp_path: Path) -> None:
    """Columns that came later may be missing."""
    with closing(sqlite3.connect(tmp_path / "theirs.db")) as db, db:
        db.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, sessionId, role, content, timestamp)")
        db.execute("CREATE TABLE metadata (namespace, key, data)")
        db.execute("INSERT INTO messages VALUES (1, 'a', 'user', 'old', 5)")
    assert imported(run)["messagesNew"] == 1


def test_newer_versions(run: Run, theirs: Theirs) -> None:
    """A field that is the same here, or unknown, comes along; a session that was filed there stays filed."""
    chat = {"type": "private", "multiParty": False, "targetId": "42"}
    theirs.session("filed", originPlatform="onebot", originChat=chat, tokens={"input": 3, "output": 4}, mood="good")
    imported(run)
    filed = exported(run, "filed")["session"]
    assert (filed["kind"], filed["originChat"], filed["tokens"]) == ("room", chat, {"input": 3, "output": 4})
    ((data,),) = query(Path("x.db"), "SELECT data FROM metadata WHERE key = 'filed'")
    assert json.loads(data)["mood"] == "good"


def test_after_a_deletion(run: Run, theirs: Theirs) -> None:
    """A session that was deleted here can be brought in again, with its messages."""
    imported(run)
    run("sessions", "delete", ROOM, "--db", "x.db")
    again = imported(run)
    assert (again["sessionsNew"], again["messagesNew"]) == (1, 4)
    assert len(exported(run, ROOM)["messages"]) == 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nope.db", "nope.db: No such file or directory"),
        (".", "Is a directory"),
        ("text.db", "no database of the TypeScript Aalis: file is not a database"),
        ("other.db", "no database of the TypeScript Aalis: messages lacks content, id, role, sessionId, timestamp"),
    ],
)
def test_what_is_not_theirs(run: Run, tmp_path: Path, name: str, words: str) -> None:
    """Anything else is one clear line, and no database is made."""
    (tmp_path / "text.db").write_text("hello " * 500)
    with closing(sqlite3.connect(tmp_path / "other.db")) as db, db:
        db.execute("CREATE TABLE t (a)")
    result = run("import", name, "--db", "x.db")
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert not (tmp_path / "x.db").exists()


def test_our_own_database_is_not_theirs(run: Run, db: Path) -> None:
    """Importing a database of this program is refused."""
    result = run("import", db, "--db", "x.db")
    assert result.exit_code == 2
    assert "no database of the TypeScript Aalis" in result.stderr


def test_many(run: Run, theirs: Theirs) -> None:
    """More than a slice of each, with equal times: all come, in order."""
    with closing(sqlite3.connect(theirs.path)) as connection, connection:
        connection.executemany(
            "INSERT INTO messages (sessionId, role, content, timestamp) VALUES ('many', 'user', ?, ?)",
            [(str(number), TIME + number // 100) for number in range(1_200)],
        )
        connection.executemany(
            "INSERT INTO metadata (namespace, key, data) VALUES ('sessions', ?, ?)",
            [(f"s{number}", json.dumps({"id": f"s{number}"})) for number in range(1_100)],
        )
    figures = imported(run)
    assert (figures["sessionsNew"], figures["messagesNew"]) == (1_103, 1_209)
    rows = query(Path("x.db"), "SELECT content FROM messages WHERE session_id = 'many' ORDER BY timestamp, id")
    assert [int(content) for (content,) in rows] == list(range(1_200))
