"""What only the SQLite back end promises: durability, its query plans, its file."""

import asyncio
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aalis_api_session_manager.errors import AalisError, ConfigError, StorageError
from aalis_api_session_manager.memory import Changeset, Position
from aalis_host.memory import open_memory, sqlite_writes
from tests.host.memory.kit import HOUR, Clock, add, by_key, change, contents, mark, put, text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Every statement that goes to SQLite, with the number of its connection."""
    statements: list[tuple[int, str]] = []
    connect = sqlite3.connect

    def tracing(*args: Any, **options: Any) -> sqlite3.Connection:
        db = connect(*args, **options)
        db.set_trace_callback(lambda statement: statements.append((id(db), statement)))
        return db

    monkeypatch.setattr(sqlite3, "connect", tracing)
    return statements


@pytest.mark.rule("STORE-2")
async def test_the_writer_syncs_before_it_answers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that writes has WAL and synchronous=FULL."""
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **o: made.append(connect(*a, **o)) or made[-1])
    async with open_memory(path, now=Clock()):
        writer = made[0]
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert writer.execute("PRAGMA synchronous").fetchone() == (2,)
        assert [db.execute("PRAGMA query_only").fetchone() for db in made] == [(0,), (1,), (1,)]


@pytest.mark.rule("STORE-2")
async def test_waiting_changes_share_a_commit(path: Path, traced: list[tuple[int, str]]) -> None:
    """A hundred callers at once are two transactions at most, and one alone is one; each writes its own record."""
    async with open_memory(path, now=Clock()) as memory:
        traced.clear()
        await memory.commit_metadata([put("one", {})])
        assert [statement for _, statement in traced if statement == "COMMIT"] == ["COMMIT"]
        traced.clear()
        await asyncio.gather(
            *(memory.commit_metadata([put(str(n), {})]) for n in range(50)),
            *(memory.save_message(str(n), text()) for n in range(50)),
        )
        assert 1 <= [statement for _, statement in traced].count("COMMIT") <= 2
        written = [statement for _, statement in traced if statement.startswith("INSERT INTO metadata")]
        assert len(written) == 50


async def test_a_hot_key_is_written_once_per_group(path: Path, traced: list[tuple[int, str]]) -> None:
    """Fifty changesets on one record: read once, written once."""
    async with open_memory(path, now=Clock()) as memory:
        traced.clear()
        await memory.commit_metadata([put("hot", {"n": 1}, fold=add()) for _ in range(50)])
        assert len([s for _, s in traced if s.startswith("INSERT INTO metadata")]) == 1
        assert by_key(await memory.list_metadata("things")) == {"hot": {"n": 50}}


@pytest.mark.rule("LIST-3")
async def test_every_query_is_a_range_of_an_index(path: Path, traced: list[tuple[int, str]]) -> None:
    """Nothing is scanned but the one-row table, the whole list of generations, and what is cleared entirely;
    nothing is sorted."""
    clock = Clock()
    async with open_memory(path, now=clock) as memory:
        for number in range(300):
            await memory.save_message("s", text(str(number), number, message_id=str(number), platform="cli"))
        await memory.save_message("s", mark(400))
        traced.clear()
        for archived in (False, True):
            for tools in (False, True):
                options: Any = {"include_archived": archived, "include_tools": tools}
                await memory.history("s", 5, **options)
                await memory.history("s", 5, before=Position(200, 0), since_ts=10, **options)
                await memory.history("s", 5, after=Position(100, 0), until_ts=290, **options)
        for platform in (None, "cli"):
            await memory.recent_sessions(5, since_ts=0, platform=platform, before=Position(500, 0))
        await memory.archive("s", 20)
        await memory.clear_session("s", 1)
        await memory.clear_session("s")
        await memory.commit_metadata([Changeset(changes=(change("k", {"n": 1}),), generations={"s": 1})])
        await memory.commit_metadata([put("k", None, 0, lambda _: None)])
        clock.now += 25 * HOUR
        await memory.commit_metadata([put("l", {}), put("l", None, 0, lambda _: None)])
        await memory.get_metadata("things", "k")
        await memory.list_metadata("things")
        await memory.list_metadata("things", after_key="a", limit=5)
        await memory.changes((await memory.changes(0)).revision)
    statements = {
        re.sub(r"\d+", "0", s): s for _, s in traced if s.split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE")
    }
    assert len(statements) > 40
    db = sqlite3.connect(path)
    try:
        steps = {s: [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {s}")] for s in statements.values()}
    finally:
        db.close()
    allowed = re.compile(r"SEARCH |SCAN (state\b|generations\b|\(subquery-\d+\))|CO-ROUTINE ")
    bad = {s: plan for s, plan in steps.items() if not all(allowed.match(step) for step in plan)}
    assert bad == {}


async def test_many_control_marks_are_not_read(path: Path, traced: list[tuple[int, str]]) -> None:
    """Marks aren't in the index that a page is read by."""
    async with open_memory(path, now=Clock()) as memory:
        await asyncio.gather(*(memory.save_message("s", text(str(n), n)) for n in range(5)))
        await asyncio.gather(*(memory.save_message("s", mark(10 + n)) for n in range(300)))
        traced.clear()
        page = await memory.history("s", 3)
    assert (contents(page.messages), page.older) == (["2", "3", "4"], 2)
    (statement,) = [s for _, s in traced if "LIMIT 3" in s]
    db = sqlite3.connect(path)
    try:
        (made,) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'live'").fetchone()
        assert "WHERE shown > 0 AND archived = 0" in made
        assert "INDEX live" in db.execute(f"EXPLAIN QUERY PLAN {statement}").fetchone()[3]
    finally:
        db.close()


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[sqlite3.Connection]]:
    """The connections that a memory opens; the first is the writer's."""
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **o: made.append(connect(*a, **o)) or made[-1])
    yield made


@pytest.mark.rule("STORE-3")
async def test_a_full_disk_refuses_only_what_doesnt_fit(path: Path, limited: list[sqlite3.Connection]) -> None:
    """The big one is a StorageError, its neighbours in the same group are stored, and later all goes on."""
    async with open_memory(path, now=Clock()) as memory:
        (pages,) = limited[0].execute("PRAGMA page_count").fetchone()
        limited[0].execute(f"PRAGMA max_page_count = {pages + 12}")
        big = "x" * 200_000
        outcomes, saved, refused = await asyncio.gather(
            memory.commit_metadata([put("a", {"n": 1}), put("big", {"text": big}), put("b", {"n": 1})]),
            memory.save_message("s", text("small")),
            memory.save_message("s", text(big)),
            return_exceptions=True,
        )
        assert isinstance(outcomes, tuple)
        assert [type(outcome.error) for outcome in outcomes] == [type(None), StorageError, type(None)]
        assert not isinstance(saved, BaseException)
        assert saved.status == "saved"
        assert isinstance(refused, StorageError)
        assert by_key(await memory.list_metadata("things")) == {"a": {"n": 1}, "b": {"n": 1}}
        limited[0].execute("PRAGMA max_page_count = 1000000")
        (outcome,) = await memory.commit_metadata([put("big", {"text": big})])
        assert outcome.error is None
        page = await memory.history("s", 5)
        assert (contents(page.messages), page.older) == (["small"], 0)


@pytest.mark.rule("STORE-3")
async def test_a_locked_file_is_waited_for_then_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short lock costs time, a long one a StorageError; afterwards all goes on, and reading never waits."""
    async with open_memory(path, now=Clock()) as memory:
        await memory.commit_metadata([put("k", {"n": 1})])
        other = sqlite3.connect(path, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(memory.commit_metadata([put("k", {}, 0, add())]))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            assert await memory.get_metadata("things", "k") is not None
            other.execute("COMMIT")
            assert (await waiting)[0].records[0].data == {"n": 2}
            monkeypatch.setattr(sqlite_writes, "LOCK_SECONDS", 0.02)
            other.execute("BEGIN IMMEDIATE")
            (outcome,) = await memory.commit_metadata([put("k", {}, 0, add())])
            assert isinstance(outcome.error, StorageError)
            with pytest.raises(StorageError, match="locked"):
                await memory.save_message("s", text())
            other.execute("COMMIT")
        finally:
            other.close()
        assert (await memory.save_message("s", text())).status == "saved"
        assert by_key(await memory.list_metadata("things")) == {"k": {"n": 2}}


@pytest.mark.rule("STORE-4")
async def test_damaged_records_are_kept(path: Path) -> None:
    """An unreadable text is reported as it is, doesn't hide others, and no fold replaces it."""
    async with open_memory(path, now=Clock()) as memory:
        await memory.commit_metadata([put(key, {"n": 1}) for key in ("bad", "list", "bytes", "good")])
        db = sqlite3.connect(path)
        try:
            db.execute("UPDATE metadata SET data = '{\"n\": 1, \"cut' WHERE key = 'bad'")
            db.execute("UPDATE metadata SET data = '[1]' WHERE key = 'list'")
            db.execute("UPDATE metadata SET data = CAST(x'7bff7d' AS TEXT) WHERE key = 'bytes'")
            db.commit()
        finally:
            db.close()
        rows = await memory.list_metadata("things")
        assert {row.key: row.damaged for row in rows} == {
            "bad": '{"n": 1, "cut',
            "bytes": "{\ufffd}",
            "good": None,
            "list": "[1]",
        }
        outcomes = await memory.commit_metadata([put(key, {}, 0, add()) for key in ("bad", "good", "list")])
        assert [type(outcome.error) for outcome in outcomes] == [AalisError, type(None), AalisError]
        row = await memory.get_metadata("things", "bad")
        assert row is not None
        assert (row.data, row.damaged) == (None, '{"n": 1, "cut')


async def test_damaged_parts_of_a_message_are_left_out(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The message is read without them, and the log names its session."""
    async with open_memory(path, now=Clock()) as memory:
        await memory.save_message("s", text("whole", metadata={"a": 1}))
        db = sqlite3.connect(path)
        try:
            db.execute("UPDATE messages SET metadata = '{', tool_calls = '[{}]'")
            db.commit()
        finally:
            db.close()
        (message,) = (await memory.history("s", 1)).messages
    assert (message.content, message.metadata, message.tool_calls) == ("whole", None, ())
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["session 's'"] * 2


async def test_a_newer_schema_is_refused(path: Path) -> None:
    """One line that says what to do, for writing and for reading, and the file stays as it is."""
    async with open_memory(path, now=Clock()):
        pass
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(ConfigError, match=r"newer version.*\(its schema is 99.*update"):
            await open_memory(path, read_only=read_only, now=Clock()).open()
    assert path.read_bytes() == before


async def test_opening_waits_for_a_lock(path: Path) -> None:
    """Another process that is making the file, or switching it to WAL, holds all of it for a moment."""
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        memory = open_memory(path, now=Clock())
        opening = asyncio.create_task(memory.open())
        await asyncio.sleep(0.1)
        assert not opening.done()
        other.execute("ROLLBACK")
        await opening
        await memory.close()
    finally:
        other.close()


async def test_an_older_schema_isnt_read_half(path: Path) -> None:
    """Reading only doesn't upgrade, and says so."""
    async with open_memory(path, now=Clock()):
        pass
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 0")
    db.close()
    with pytest.raises(ConfigError, match=r"older version.*open it for writing once"):
        await open_memory(path, read_only=True, now=Clock()).open()


@pytest.mark.parametrize("read_only", [False, True])
async def test_mistakes_in_the_path(tmp_path: Path, read_only: bool) -> None:
    """A folder that isn't there, another program's database, what is no database: each one clear line."""
    foreign = tmp_path / "foreign.db"
    db = sqlite3.connect(foreign)
    db.execute("CREATE TABLE messages (id)")
    db.close()
    before = foreign.read_bytes()
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"not a database, but long enough to look like one" * 50)
    wrong = {tmp_path / "no" / "x.db": "no ", foreign: "isn't a database of this program", noise: "isn't a database"}
    wrong[tmp_path] = "isn't a database"
    for path, says in wrong.items():
        with pytest.raises(ConfigError, match=says) as caught:
            await open_memory(path, read_only=read_only, now=Clock()).open()
        assert "\n" not in str(caught.value)
    assert foreign.read_bytes() == before
    assert noise.read_bytes().startswith(b"not a database")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["foreign.db", "noise.db"]


async def test_read_only(path: Path) -> None:
    """A missing file isn't made; an existing one is read, also while another process has it open, and not changed."""
    with pytest.raises(ConfigError, match="no database"):
        await open_memory(path, read_only=True, now=Clock()).open()
    assert not path.exists()
    async with open_memory(path, now=Clock()) as memory:
        await memory.save_message("s", text("hello"))
        async with open_memory(path, read_only=True, now=Clock()) as reading:
            assert contents((await reading.history("s", 5)).messages) == ["hello"]
            with pytest.raises(StorageError, match="reading only"):
                await reading.save_message("s", text())
            waiting = asyncio.create_task(reading.wait_for_changes(0, 10))
            await asyncio.sleep(0)
            await memory.commit_metadata([put("k", {})])
            assert await asyncio.wait_for(waiting, 5)
    before = path.read_bytes()
    async with open_memory(path, read_only=True, now=Clock()) as reading:
        assert contents((await reading.history("s", 5)).messages) == ["hello"]
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["memory.db"]


async def test_a_file_that_cant_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said when it is opened, not at the first change; reading it is no mistake."""
    async with open_memory(path, now=Clock()):
        pass
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StorageError, match="can't be written"):
        await open_memory(path, now=Clock()).open()
    async with open_memory(path, read_only=True, now=Clock()) as memory:
        assert await memory.generations() == {}
