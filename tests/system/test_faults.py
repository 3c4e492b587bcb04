"""Whole hosts while the server stops and starts, connections are cut, none is left, and a file is locked by others.

What was acknowledged is there, once; what was accepted gets there; everybody else is told; nothing hangs.
"""

import asyncio
import os
import signal
import sqlite3
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from aalis_api_session_manager.errors import StorageError
from aalis_api_session_manager.message import LlmUsage
from aalis_api_session_manager.model import SessionUpdates
from aalis_host.memory import writer
from aalis_plugin_session_manager import store
from tests.cluster import PORT, Cluster, each_back_end
from tests.host.memory.cutter import Cutter
from tests.session_manager.kit import Stack, running
from tests.system.conftest import Aalis, finished
from tests.system.worker import ROOM, WallClock, work

FOLDER = Path(__file__).parents[2]


class Told:
    """What a worker said, by what it says of it: `made`, `later`, `said`."""

    def __init__(self, process: Process | None = None) -> None:
        self.process = process
        self.names: dict[str, list[str]] = {"ready": [], "made": [], "later": [], "said": []}

    def hear(self, line: str) -> None:
        what, _, name = line.partition(" ")
        self.names[what].append(name)

    def counts(self, room: str = "") -> tuple[int, int]:
        """How many children were made, and how many messages said, in all rooms or one."""
        return len(self.names["made"]), sum(name.startswith(room) for name in self.names["said"])

    async def goes_on(self, room: str = "") -> None:
        """Children are made and messages answered from now on, too."""
        made, said = self.counts(room)
        async with asyncio.timeout(40):
            while min(map(int.__sub__, self.counts(room), (made, said))) < 10:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def worker(db: str, name: str, *, killed: bool = False) -> AsyncIterator[Told]:
    """A host process at work; at the end it is killed, or asked to stop: it does so in time and without an error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from tests.system.worker import main; main()",
        db,
        name,
        cwd=FOLDER,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), *sys.path])},
        stdin=PIPE,
        stdout=PIPE,
    )
    told = Told(process)
    listening = asyncio.create_task(_listen(process, told))
    try:
        yield told
        assert process.stdin is not None
        if killed:
            process.kill()
        process.stdin.close()
        async with asyncio.timeout(40):
            await listening
            assert await process.wait() == (-signal.SIGKILL if killed else 0)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        listening.cancel()


async def _listen(process: Process, told: Told) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        told.hear(line.decode().strip())


@asynccontextmanager
async def at_work(stack: Stack) -> AsyncIterator[Told]:
    """The same in this process."""
    told, stopped = Told(), asyncio.Event()
    working = asyncio.create_task(work(stack, "a", stopped, told.hear))
    try:
        yield told
        stopped.set()
        async with asyncio.timeout(40):
            await working
    finally:
        working.cancel()


async def is_all_there(db: str, *workers: Told) -> None:
    """What was acknowledged or accepted is stored once; no session waits for a turn that nobody runs."""
    async with running(db, clock=WallClock()) as stack:
        async with asyncio.timeout(30):
            while any(info.kind == "room" and info.status == "active" for info in stack.sessions.list_sessions()):
                await asyncio.sleep(0.05)
        children = [child.name for child in stack.sessions.get_children(ROOM)]
        said = [
            message.message_id
            for info in stack.sessions.list_sessions()
            for message in (await stack.host.memory.history(info.id, 1_000_000)).messages
            if message.role == "user"
        ]
    assert len(children) == len(set(children))
    assert len(said) == len(set(said))
    for told in workers:
        assert {*told.names["made"], *told.names["later"]} <= set(children)
        assert set(told.names["said"]) <= set(said)


@pytest.mark.rule("STORE-2", "STORE-3")
@pytest.mark.timeout(200)
async def test_the_server_stops_and_starts(cluster: Cluster, url: str) -> None:
    """Two host processes are at work: after each start both go on, and nothing that they were told is missing. Of two
    seconds without a server no caller is told."""
    async with worker(url, "a") as one, worker(url, "b") as two:
        for mode, seconds in (("fast", 1.5), ("immediate", 0.0), ("immediate", 6.0)):
            await asyncio.gather(one.goes_on(), two.goes_on())
            assert one.names["later"] == two.names["later"] == []
            await asyncio.to_thread(cluster.stop, mode)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(cluster.start)
        await asyncio.gather(one.goes_on(), two.goes_on())
    await is_all_there(url, one, two)


@pytest.mark.rule("STORE-2", "STORE-3")
@pytest.mark.timeout(120)
async def test_connections_are_cut_in_the_middle_of_commits(cluster: Cluster, url: str) -> None:
    """Whether or not the server got the commit: nobody is told of an error, and all is stored once."""
    name = url.split("/")[-1].split("?")[0]
    with Cutter(cluster.folder / f".s.PGSQL.{PORT}") as cutter:
        async with running(cluster.url(name, cutter.folder), clock=WallClock()) as stack, at_work(stack) as told:
            for number in range(20):
                await told.goes_on()
                cutter.cut_at(b"UPDATE aalis.state SET revision", arrives=bool(number % 2))
                async with asyncio.timeout(20):
                    while cutter.cuts == number:
                        await asyncio.sleep(0.001)
            await told.goes_on()
    assert told.names["later"] == []
    await is_all_there(url, told)


@pytest.mark.rule("STORE-3", "USAGE-1", "CREATE-7")
@pytest.mark.parametrize("arrives", [True, False])
async def test_a_commit_that_nobody_can_tell_of_counts_once(
    cluster: Cluster, url: str, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is away when it should say whether it stored a change: who waits is told, who comes later too, and
    when it is back every token and key is there once."""
    monkeypatch.setattr(writer, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(store, "TELL_SECONDS", 0.5)
    name = url.split("/")[-1].split("?")[0]
    with Cutter(cluster.folder / f".s.PGSQL.{PORT}") as cutter:
        async with running(cluster.url(name, cutter.folder), clock=WallClock()) as stack:
            await stack.sessions.ensure_session(ROOM)
            usage = LlmUsage(session_id=ROOM, input_tokens=1, output_tokens=2)
            cutter.refuse()
            cutter.cut_at(b"UPDATE aalis.state SET revision", arrives)
            async with asyncio.timeout(20):
                await stack.host.emit("aalis_llm_usage", usage=usage)
                for key in ("first", "second"):
                    with pytest.raises(StorageError) as refused:
                        await stack.sessions.update_session(ROOM, SessionUpdates(metadata={key: 1}))
                    assert refused.value.pending
                    await stack.host.emit("aalis_llm_usage", usage=usage)
            cutter.accept()
            with suppress(StorageError):
                await stack.sessions.update_session(ROOM, SessionUpdates(metadata={"third": 1}))
        assert cutter.cuts == 1
    async with running(url) as stack:
        session = stack.sessions.get_session(ROOM)
        assert session is not None and session.tokens is not None
        assert (session.tokens.input, session.tokens.output) == (3, 6)
        assert session.metadata == {"first": 1, "second": 1, "third": 1}


@pytest.mark.rule("STORE-3")
@pytest.mark.timeout(120)
async def test_no_connection_is_left(cluster: Cluster, url: str) -> None:
    """Others hold what the server has to give: the host shares what it has; with none it says so, and goes on later."""
    with psycopg.connect(url, autocommit=True) as db:
        name = db.info.dbname
        db.execute(f"CREATE ROLE few LOGIN; GRANT CREATE ON DATABASE {name} TO few")
        try:
            async with running(url.replace("tests@", "few@"), clock=WallClock()) as stack, at_work(stack) as told:
                await told.goes_on()
                db.execute("ALTER ROLE few CONNECTION LIMIT 3")
                memory = stack.host.memory
                pages = await asyncio.gather(*(memory.history(ROOM, 5) for _ in range(500)))
                assert all(page.messages for page in pages)
                await told.goes_on()
                db.execute("ALTER ROLE few CONNECTION LIMIT 0")
                db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'few'")
                async with asyncio.timeout(30):
                    with pytest.raises(StorageError, match="connection"):
                        await memory.history(ROOM, 5)
                    with pytest.raises(StorageError) as refused:
                        await stack.sessions.update_session(ROOM, SessionUpdates(title="later"))
                assert refused.value.pending
                db.execute("ALTER ROLE few CONNECTION LIMIT -1")
                await told.goes_on()
                session = stack.sessions.get_session(ROOM)
                assert session is not None and session.title == "later"
            await is_all_there(url, told)
        finally:
            db.execute("DROP OWNED BY few; DROP ROLE few")


@each_back_end
@pytest.mark.rule("TURN-6", "STORE-2")
@pytest.mark.timeout(120)
async def test_a_host_is_killed_beside_another(db: str) -> None:
    """Within seconds the other goes on in the room that both spoke in; what the dead one was told is there, and its
    turns are closed."""
    async with worker(db, "a") as one:
        async with worker(db, "b", killed=True) as two:
            await asyncio.gather(one.goes_on(ROOM), two.goes_on(ROOM))
        await one.goes_on(ROOM)
    await is_all_there(db, one, two)


@each_back_end
@pytest.mark.rule("STORE-2", "TURN-6")
@pytest.mark.timeout(120)
async def test_a_host_sleeps_beside_another(db: str) -> None:
    """Asleep for longer than a claim holds: the other goes on, except where the sleeper has the file's lock. Awake
    again, it catches up and goes on, too, and neither overwrites what the other did."""
    async with worker(db, "a") as one, worker(db, "b") as two:
        await asyncio.gather(one.goes_on(ROOM), two.goes_on(ROOM))
        assert two.process is not None
        two.process.send_signal(signal.SIGSTOP)
        try:
            if db.startswith("postgresql:"):
                await one.goes_on(ROOM)
            await asyncio.sleep(12)
        finally:
            two.process.send_signal(signal.SIGCONT)
        await asyncio.gather(one.goes_on(ROOM), two.goes_on(ROOM))
    await is_all_there(db, one, two)


@each_back_end
@pytest.mark.rule("DELETE-1", "DELETE-2", "GEN-1")
@pytest.mark.timeout(120)
async def test_a_command_deletes_a_busy_room(db: str, aalis: Aalis) -> None:
    """Another process speaks in it and gives it children meanwhile: nothing from before stays, and it lives again."""
    async with worker(db, "a") as told:
        await told.goes_on(ROOM)
        before = {*told.names["made"], *told.names["said"]}
        status, _, err = await asyncio.to_thread(finished, aalis("sessions", "delete", ROOM, "--yes", "--db", db))
        assert status == 0, err
        await told.goes_on(ROOM)
    async with running(db, clock=WallClock()) as stack:
        assert stack.sessions.generation_of(ROOM) == 1
        children = {child.name for child in stack.sessions.get_children(ROOM)}
        page = await stack.host.memory.history(ROOM, 1_000_000)
        assert children and page.messages
        assert before.isdisjoint({*children, *(message.message_id for message in page.messages)})


@contextmanager
def locking(db: Path, held: float, free: float) -> Iterator[None]:
    """Another program that has the file's write lock most of the time."""

    def hold() -> None:
        with closing(sqlite3.connect(db, timeout=20, isolation_level=None)) as file:
            while not stopped.wait(free):
                file.execute("BEGIN IMMEDIATE")
                time.sleep(held)
                file.execute("COMMIT")

    stopped = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@pytest.mark.rule("STORE-2", "STORE-3")
@pytest.mark.timeout(200)
async def test_two_commands_and_a_host_on_a_file_that_others_lock(aalis: Aalis, tmp_path: Path) -> None:
    """The host goes on; each command does what it was asked, or says why not, also while the lock is held for longer
    than a transaction waits."""
    db = tmp_path / "x.db"

    def make(name: str, times: int) -> list[str]:
        """The ids that it was told."""
        made = []
        for number in range(times):
            status, out, err = finished(aalis("sessions", "create", "--name", f"{name}-{number}", "--db", db))
            if status == 0:
                made.append(out.strip())
            else:
                assert "locked" in err.splitlines()[-1] and "Traceback" not in err, err
        return made

    async def two_commands(times: int) -> list[str]:
        made = await asyncio.gather(*(asyncio.to_thread(make, name, times) for name in ("b", "c")))
        return made[0] + made[1]

    async with worker(str(db), "a") as told:
        await told.goes_on()
        with locking(db, 0.8, 0.4):
            made = await two_commands(5)
            assert len(made) == 10
            await told.goes_on()
        with locking(db, 7.0, 0.1):
            await asyncio.sleep(0.5)
            made += await two_commands(1)
        await told.goes_on()
    await is_all_there(str(db), told)
    async with running(db, clock=WallClock()) as stack:
        assert all(stack.sessions.get_session(session_id) for session_id in made)
