"""What only the PostgreSQL back end promises: the server's mistakes, restarts, lost connections, notifications."""

import asyncio
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from aalis_api_session_manager.errors import AalisError, ConfigError, OutcomeUnknown, StorageError
from aalis_api_session_manager.memory import Changeset, Position
from aalis_host.memory import Memory, open_memory, postgres, postgres_pool, postgres_writes, readers, writer
from tests.cluster import PORT, Cluster
from tests.host.memory.cutter import Cutter
from tests.host.memory.kit import HOUR, Clock, add, by_key, change, contents, put, text


async def test_the_extra_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psycopg a PostgreSQL URL is a mistake that says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for name in [name for name in sys.modules if name.startswith("aalis_host.memory.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"aalis-host\[postgres\]"):
        open_memory("postgresql:///x", now=Clock())


async def test_mistakes_in_the_url(cluster: Cluster, url: str) -> None:
    """A URL that can't be read, a database without our tables for reading, one that isn't there: one clear line."""
    with pytest.raises(ConfigError, match="URL"):
        open_memory("postgresql://%zz/x", now=Clock())
    with pytest.raises(ConfigError, match="holds nothing"):
        await open_memory(url, read_only=True, now=Clock()).open()
    for unreachable in (cluster.url("nothing"), cluster.url("postgres", Path("/nowhere"))):
        with pytest.raises(StorageError, match=r"can't be opened: .*(does not exist|No such file)") as caught:
            await open_memory(unreachable, now=Clock()).open()
        assert "\n" not in str(caught.value)
    with cluster.database("ENCODING 'SQL_ASCII' TEMPLATE template0") as ascii_url:
        memory = open_memory(ascii_url, now=Clock())
        with pytest.raises(ConfigError, match="UTF8"):
            await memory.open()


async def test_a_newer_schema_is_refused(url: str) -> None:
    """One line that says what to do; an older one isn't read half."""
    async with open_memory(url, now=Clock()):
        pass
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE aalis.schema_version SET version = 99")
    for read_only in (False, True):
        with pytest.raises(ConfigError, match=r"newer version.*\(its schema is 99.*update"):
            await open_memory(url, read_only=read_only, now=Clock()).open()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE aalis.schema_version SET version = 0")
    with pytest.raises(ConfigError, match="holds nothing"):
        await open_memory(url, read_only=True, now=Clock()).open()


async def test_read_only(url: str) -> None:
    """It reads what others write, and hears of it."""
    async with open_memory(url, now=Clock()) as memory, open_memory(url, read_only=True, now=Clock()) as reading:
        await memory.save_message("s", text("hello"))
        assert contents((await reading.history("s", 5)).messages) == ["hello"]
        with pytest.raises(StorageError, match="reading only"):
            await reading.save_message("s", text())
        waiting = asyncio.create_task(reading.wait_for_changes(0, 10))
        await asyncio.sleep(0)
        await memory.commit_metadata([put("k", {})])
        assert await asyncio.wait_for(waiting, 5)


@pytest.mark.rule("STORE-2")
async def test_an_answer_means_durable(cluster: Cluster, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the server's default is to answer before the disk has it."""
    name = url.split("/")[-1].split("?")[0]
    with cluster.connect() as db:
        db.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    shown: list[Any] = []
    execute = psycopg.Connection.execute

    def look(db: Any, query: Any, *args: Any, **options: Any) -> Any:
        if isinstance(query, str) and query.startswith("BEGIN;"):
            shown.append(execute(db, "SHOW synchronous_commit").fetchone())
        return execute(db, query, *args, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", look)
    async with open_memory(url, now=Clock()) as memory:
        await memory.commit_metadata([put("k", {})])
        assert shown == [("on",)]


async def test_others_are_heard_without_asking(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notification wakes the waiter; after the listening connection was cut it catches up."""
    monkeypatch.setattr(postgres.PostgresBackend, "poll_seconds", 3600.0)
    async with open_memory(url, now=Clock()) as memory, open_memory(url, now=Clock()) as other:
        waiting = asyncio.create_task(memory.wait_for_changes(0, 30))
        await asyncio.sleep(0.2)
        await other.commit_metadata([put("a", {})])
        assert await asyncio.wait_for(waiting, 5)
        known = (await memory.changes(0)).revision
        waiting = asyncio.create_task(memory.wait_for_changes(known, 30))
        await asyncio.sleep(0.1)
        with psycopg.connect(url, autocommit=True) as db:
            (cut,) = db.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            ).fetchone() or (0,)
        assert cut == 1
        await other.commit_metadata([put("b", {})])
        assert await asyncio.wait_for(waiting, 10)


@pytest.fixture
def cutter(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cutter]:
    """Between the memory and the server; it can cut a connection at a commit."""
    with Cutter(cluster.folder / f".s.PGSQL.{PORT}") as made:
        yield made


@pytest.mark.rule("STORE-3")
@pytest.mark.parametrize("arrives", [True, False])
async def test_a_connection_that_is_lost_in_the_commit(
    cluster: Cluster, url: str, cutter: Cutter, arrives: bool
) -> None:
    """Whether the server got the commit or not: what is answered is stored exactly once, and nobody is refused."""
    name = url.split("/")[-1].split("?")[0]
    async with open_memory(cluster.url(name, cutter.folder), now=Clock()) as memory:
        await memory.commit_metadata([put("k", {"n": 1}, fold=add())])
        cutter.cut_at(b"COMMIT", arrives)
        outcomes, saved = await asyncio.gather(
            memory.commit_metadata([put("k", {"n": 1}, fold=add()), put("k", {"n": 1}, fold=add())]),
            memory.save_message("s", text("once")),
        )
        assert cutter.cuts == 1
        assert [outcome.records[0].data for outcome in outcomes] == [{"n": 2}, {"n": 3}]
        assert saved.status == "saved"
        row = await memory.get_metadata("things", "k")
        assert row == outcomes[-1].records[0]
        assert contents((await memory.history("s", 5)).messages) == ["once"]


@pytest.mark.rule("STORE-3")
@pytest.mark.parametrize("arrives", [True, False])
async def test_a_commit_that_nobody_can_tell_of(
    cluster: Cluster, url: str, cutter: Cutter, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the server can't be asked, nothing is done a second time, and what comes later isn't done at all: the
    callers are told so. When it can, the change is there once."""
    monkeypatch.setattr(writer, "ANSWER_SECONDS", 0.5)
    name = url.split("/")[-1].split("?")[0]
    async with open_memory(cluster.url(name, cutter.folder), now=Clock()) as memory:
        await memory.commit_metadata([put("k", {"n": 1}, fold=add())])
        cutter.refuse()
        cutter.cut_at(b"UPDATE aalis.state", arrives)
        with pytest.raises(OutcomeUnknown, match="isn't known") as unknown:
            await memory.commit_metadata([put("k", {}, 0, fold=add())])
        with pytest.raises(StorageError, match="doesn't answer") as later:
            await memory.save_message("s", text("later"))
        assert not isinstance(later.value, OutcomeUnknown)
        cutter.accept()
        async with asyncio.timeout(10):
            (outcome,) = await unknown.value.settled()
        assert outcome.records[0].data == {"n": 2}
        assert await memory.get_metadata("things", "k") == outcome.records[0]
        assert (await memory.save_message("s", text("again"))).status == "saved"
        assert contents((await memory.history("s", 5)).messages) == ["again"]


@pytest.mark.rule("STORE-3")
@pytest.mark.parametrize("arrives", [True, False])
async def test_closing_while_nobody_can_tell_of_a_commit(
    cluster: Cluster, url: str, cutter: Cutter, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its callers are told when the memory is closed, and it is stored once or not at all."""
    monkeypatch.setattr(writer, "CLOSE_SECONDS", 0.5)
    name = url.split("/")[-1].split("?")[0]
    async with open_memory(cluster.url(name, cutter.folder), now=Clock()) as memory:
        await memory.commit_metadata([put("k", {"n": 1}, fold=add())])
        cutter.refuse()
        cutter.cut_at(b"UPDATE aalis.state", arrives)
        committing = asyncio.create_task(memory.commit_metadata([put("k", {}, 0, fold=add())]))
        await asyncio.sleep(0.2)
    with pytest.raises(StorageError, match="closing"):
        await asyncio.wait_for(committing, 5)
    async with open_memory(url, now=Clock()) as memory:
        assert by_key(await memory.list_metadata("things")) == {"k": {"n": 2 if arrives else 1}}


@pytest.mark.rule("STORE-3")
async def test_a_connection_that_is_lost_before(url: str) -> None:
    """Between two transactions, and between two reads, it isn't noticed."""
    async with open_memory(url, now=Clock()) as memory:
        await memory.commit_metadata([put("k", {"n": 1})])
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        (outcome,) = await memory.commit_metadata([put("k", {}, 0, add())])
        assert outcome.records[0].data == {"n": 2}
        assert all([(await memory.get_metadata("things", "k")) is not None for _ in range(8)])


@pytest.mark.rule("STORE-3")
async def test_a_writer_that_hangs_doesnt_stop_the_others(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its transaction is ended by the server, theirs go on, and its own work is done again."""
    monkeypatch.setattr(postgres, "_SETTINGS", tuple(s.replace("'5s'", "'300ms'") for s in postgres._SETTINGS))
    go_on = threading.Event()

    def hang(stored: dict[str, Any] | None) -> dict[str, Any] | None:
        go_on.wait(20)
        return add(10)(stored)

    async with open_memory(url, now=Clock()) as memory, open_memory(url, now=Clock()) as other:
        await memory.commit_metadata([put("k", {"n": 1})])
        hanging = asyncio.create_task(memory.commit_metadata([put("k", {}, 0, hang)]))
        await asyncio.sleep(0.1)
        (outcome,) = await asyncio.wait_for(other.commit_metadata([put("k", {}, 0, add())]), 6)
        assert outcome.records[0].data == {"n": 2}
        go_on.set()
        assert (await asyncio.wait_for(hanging, 10))[0].records[0].data == {"n": 12}


@pytest.mark.rule("STORE-3")
async def test_the_counter_held_by_another_is_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short time costs time, a long one a StorageError for everybody who waits; reading never waits."""
    async with open_memory(url, now=Clock()) as memory:
        await memory.commit_metadata([put("k", {"n": 1})])
        with psycopg.connect(url) as other:
            other.execute("SELECT * FROM aalis.state FOR UPDATE")
            waiting = asyncio.create_task(memory.commit_metadata([put("k", {}, 0, add())]))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            assert await memory.get_metadata("things", "k") is not None
            other.rollback()
            assert (await waiting)[0].records[0].data == {"n": 2}
    monkeypatch.setattr(postgres, "_SETTINGS", (*postgres._SETTINGS, "SET lock_timeout = '100ms'"))
    async with open_memory(url, now=Clock()) as memory:
        with psycopg.connect(url) as other:
            other.execute("SELECT * FROM aalis.state FOR UPDATE")
            outcomes = await memory.commit_metadata([put(str(n), {}) for n in range(100)])
            assert {type(outcome.error) for outcome in outcomes} == {StorageError}
            with pytest.raises(StorageError, match="lock timeout"):
                await memory.save_message("s", text())
            other.rollback()
        assert (await memory.save_message("s", text())).status == "saved"


async def test_every_connection_is_in_use(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that wait for a table hold all that the pool has: the others are told in time, writing elsewhere goes on,
    and when the table is free everything does."""
    monkeypatch.setattr(readers, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr(postgres, "_SETTINGS", (*postgres._SETTINGS, "SET lock_timeout = '1s'"))
    async with open_memory(url, now=Clock()) as memory:
        await memory.save_message("s", text("hello"))
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE aalis.messages")
            async with asyncio.timeout(10):
                reading = [asyncio.create_task(memory.history("s", 5)) for _ in range(50)]
                (outcome,) = await memory.commit_metadata([put("k", {"n": 1})])
                assert outcome.error is None
                answers = await asyncio.gather(*reading, return_exceptions=True)
            assert {type(answer) for answer in answers} == {StorageError}
            said = [str(answer) for answer in answers]
            assert sum("lock timeout" in words for words in said) == postgres.READERS
            assert sum("no reader was free" in words for words in said) == 50 - postgres.READERS
            other.rollback()
        pages = await asyncio.gather(*(memory.history("s", 5) for _ in range(50)))
        assert {contents(page.messages)[0] for page in pages} == {"hello"}


async def test_connections_that_nobody_needs_are_closed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What many reads at once opened is closed again: an idle memory keeps one to write and one to read."""
    monkeypatch.setattr(postgres_pool, "IDLE_SECONDS", 0.2)
    count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    async with open_memory(url, now=Clock()) as memory:
        with psycopg.connect(url, autocommit=True) as db:
            most = 0
            while most < 1 + postgres.READERS:
                await asyncio.gather(*(memory.history("s", 5) for _ in range(50)))
                most = (db.execute(count).fetchone() or (0,))[0]
            async with asyncio.timeout(10):
                while db.execute(count).fetchone() != (2,):
                    await asyncio.sleep(0.05)


@pytest.mark.rule("STORE-2", "STORE-3")
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_under_load_loses_nothing(cluster: Cluster, url: str, mode: str) -> None:
    """The server is stopped and started while two memories write: whatever was answered is there, exactly once, and
    what got an error may be there or not, whole."""
    answered, refused = 0, 0
    saved: list[str] = []
    stop = asyncio.Event()

    async def count(memory: Memory) -> None:
        nonlocal answered, refused
        while not stop.is_set():
            (outcome,) = await memory.commit_metadata([put("k", {"n": 1}, 0, add())])
            answered += outcome.error is None
            refused += outcome.error is not None

    async def save(memory: Memory, name: str) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                await memory.save_message("s", text(f"{name}{number}", message_id=f"{name}{number}"))
            except StorageError:
                continue
            saved.append(f"{name}{number}")

    async with open_memory(url, now=Clock()) as one, open_memory(url, now=Clock()) as two:
        tasks = [asyncio.create_task(work) for work in (count(one), count(two), save(one, "a"), save(two, "b"))]
        await asyncio.sleep(0.5)
        before = answered
        await asyncio.to_thread(cluster.restart, mode)
        async with asyncio.timeout(20):
            while answered < before + 20:
                await asyncio.sleep(0.05)
        stop.set()
        await asyncio.gather(*tasks)
        row = await one.get_metadata("things", "k")
        assert row is not None
        assert row.data is not None
        assert answered <= row.data["n"] <= answered + refused
        page = await two.history("s", 1_000_000)
        assert set(saved) <= set(contents(page.messages))


async def test_a_server_that_is_gone_is_an_error_in_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Writing and reading say so, nothing hangs; the log says once why, in a line; when it is back all goes on."""
    monkeypatch.setattr(postgres_pool, "RETRY_SECONDS", 0.1)
    for module in (postgres_pool, postgres_writes):
        monkeypatch.setattr(module, "WAIT_SECONDS", 0.2)
    with cluster.database() as url:
        async with open_memory(url, now=Clock()) as memory:
            await memory.commit_metadata([put("k", {"n": 1})])
            await asyncio.to_thread(cluster.stop)
            try:
                async with asyncio.timeout(15):
                    outcomes = await memory.commit_metadata([put(str(n), {}) for n in range(50)])
                    assert {type(outcome.error) for outcome in outcomes} == {StorageError}
                    with pytest.raises(StorageError):
                        await memory.get_metadata("things", "k")
            finally:
                await asyncio.to_thread(cluster.start)
            assert (await memory.commit_metadata([put("k", {}, 0, add())]))[0].records[0].data == {"n": 2}
            assert await memory.get_metadata("things", "k") is not None
    said = [record.getMessage() for record in caplog.records if record.name == "psycopg.pool"]
    assert 1 <= len(said) == len(set(said)) <= 4
    assert all(words.startswith("error connecting") and "\n" not in words for words in said)


@pytest.mark.rule("STORE-4")
async def test_damaged_records_are_kept(url: str) -> None:
    """An unreadable text is reported as it is, doesn't hide others, and no fold replaces it."""
    async with open_memory(url, now=Clock()) as memory:
        await memory.commit_metadata([put(key, {"n": 1}) for key in ("bad", "good")])
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("UPDATE aalis.metadata SET data = '{\"n\": 1, \"cut' WHERE key = 'bad'")
        assert {row.key: row.damaged for row in await memory.list_metadata("things")} == {
            "bad": '{"n": 1, "cut',
            "good": None,
        }
        outcomes = await memory.commit_metadata([put(key, {}, 0, add()) for key in ("bad", "good")])
        assert isinstance(outcomes[0].error, AalisError)
        assert outcomes[1].error is None
        row = await memory.get_metadata("things", "bad")
        assert row is not None
        assert row.damaged == '{"n": 1, "cut'


async def test_a_closed_memory_leaves_no_trace(url: str) -> None:
    """No connection, and no row of its writer."""
    async with open_memory(url, now=Clock()) as memory:
        await memory.wait_for_changes(0, 0.05)
        await memory.commit_metadata([put("k", {})])
    with psycopg.connect(url, autocommit=True) as db:
        assert db.execute("SELECT count(*) FROM aalis.writers").fetchone() == (0,)
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        async with asyncio.timeout(5):
            while db.execute(others).fetchone() != (0,):  # a server's process needs a moment to end
                await asyncio.sleep(0.01)


@pytest.mark.rule("LIST-3")
async def test_every_query_is_a_range_of_an_index(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No table but the one-row ones is read whole, and nothing is sorted."""
    ran: dict[str, Any] = {}

    execute = psycopg.Connection.execute

    def record(db: Any, query: Any, params: Any = None, **options: Any) -> Any:
        if re.match("SELECT|WITH|DELETE|UPDATE|INSERT", query) and "aalis." in query:
            ran[query] = params
        return execute(db, query, params, **options)

    clock = Clock()
    async with open_memory(url, now=clock) as memory:
        await asyncio.gather(*(memory.save_message(f"s{n % 40}", text("x", n, message_id=str(n))) for n in range(4000)))
        await memory.commit_metadata([put(str(n), {"n": n}) for n in range(4000)])
        await memory.commit_metadata([Changeset(changes=(), generations={f"s{n}": 1 for n in range(900)})])
    monkeypatch.setattr(psycopg.Connection, "execute", record)
    async with open_memory(url, now=clock) as memory:
        ran.clear()
        for archived in (False, True):
            for tools in (False, True):
                options: Any = {"include_archived": archived, "include_tools": tools}
                await memory.history("s1", 5, before=Position(3000, 0), since_ts=10, **options)
                await memory.history("s1", 5, after=Position(100, 0), until_ts=3900, **options)
        for platform in (None, "cli"):
            await memory.recent_sessions(5, since_ts=0, platform=platform, before=Position(5000, 0), exclude=["x"])
        await memory.save_message("s1", text(message_id="new"))
        await memory.archive("s1", 20)
        await memory.clear_session("s1", 1)
        await memory.commit_metadata([Changeset(changes=(change("5", {}, 0, add()),), generations={"s1": 1})])
        await memory.commit_metadata([put("6", None, 0, lambda _: None)])
        clock.now += 25 * HOUR
        await memory.commit_metadata([put("7", None, 0, lambda _: None)])
        await memory.get_metadata("things", "k")
        await memory.list_metadata("things", after_key="a", limit=5)
        await memory.changes((await memory.changes(0)).revision)
    monkeypatch.undo()
    ran.pop("SELECT session_id, generation FROM aalis.generations")
    assert len(ran) > 25
    bad = {}
    with psycopg.connect(url, autocommit=True) as db:
        for setting in postgres._SETTINGS:
            db.execute(setting)
        for query, params in ran.items():
            plan = "\n".join(row[0] for row in db.execute(f"EXPLAIN {query}", params))
            scans = re.findall(r"Seq Scan on (\w+)", plan)
            if set(scans) - {"state", "writers", "schema_version"} or re.search(r"\bSort\b", plan):
                bad[query] = plan
    assert bad == {}
