"""How many hosts one database bears: acknowledged changes a second for 1, 2 and 4 processes, and how soon others see.

    python bench/processes.py [--seconds N] [--json FILE] [--postgres URL]

Prints a table. SQLite is one file in a temporary folder; PostgreSQL is the server of --postgres, or one that this
starts for itself in a temporary folder (as the user `postgres` when it runs as root), or is left out.
"""

import argparse
import asyncio
import json
import logging
import multiprocessing
import os
import pwd
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import PluginMeta
from aalis_api_session_manager.model import SessionInfo, SessionUpdates
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_host.app import AalisHost
from aalis_host.config import Settings
from aalis_plugin_session_manager.plugin import SessionManagerPlugin

AT_ONCE = 20
"""Changes that each process has under way."""
LOOKS = 200
"""Changes whose arrival in the other process is timed."""


def worker(db: str, name: str, seconds: float, pipe: Connection) -> None:
    """One host process: says "ready", waits for "go", changes its own sessions, says how many were acknowledged."""
    logging.disable(logging.CRITICAL)

    async def work() -> None:
        async with AalisHost(Settings(db=db), plugins=(SessionManagerPlugin(),)) as host:
            sessions = host.select(SESSION_MANAGER).use()
            for number in range(AT_ONCE):
                await sessions.ensure_session(f"{name}-{number}")
            pipe.send("ready")
            await asyncio.to_thread(pipe.recv)
            end = time.monotonic() + seconds

            async def change(number: int) -> int:
                done = 0
                while time.monotonic() < end:
                    await sessions.update_session(f"{name}-{number}", SessionUpdates(title=str(done)))
                    done += 1
                return done

            pipe.send(sum(await asyncio.gather(*map(change, range(AT_ONCE)))))

    asyncio.run(work())


class Watching:
    """Says when it hears of the session `seen` changing."""

    meta = PluginMeta(name="watching")

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    @hookimpl
    def aalis_session_updated(self, session: SessionInfo) -> None:
        if session.id == "seen" and session.title is not None:
            self.pipe.send((session.title, time.monotonic()))


def watcher(db: str, pipe: Connection) -> None:
    """A host process that only listens, until it is told to end."""
    logging.disable(logging.CRITICAL)

    async def listen() -> None:
        async with AalisHost(Settings(db=db), plugins=(SessionManagerPlugin(), Watching(pipe))):
            pipe.send("ready")
            await asyncio.to_thread(pipe.recv)

    asyncio.run(listen())


def throughput(db: str, processes: int, seconds: float) -> float:
    """Acknowledged changes a second, all processes together."""
    context = multiprocessing.get_context("spawn")
    pipes, running = [], []
    for number in range(processes):
        ours, theirs = context.Pipe()
        process = context.Process(target=worker, args=(db, f"p{number}", seconds, theirs))
        process.start()
        pipes.append(ours)
        running.append(process)
    for pipe in pipes:
        assert pipe.recv() == "ready"
    for pipe in pipes:
        pipe.send("go")
    total = sum(pipe.recv() for pipe in pipes)
    for process in running:
        process.join()
    return float(total / seconds)


def arrival(db: str) -> list[float]:
    """Milliseconds from an acknowledged change here to its event in another process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=watcher, args=(db, theirs))
    process.start()
    assert ours.recv() == "ready"

    async def change() -> list[float]:
        spans = []
        async with AalisHost(Settings(db=db), plugins=(SessionManagerPlugin(),)) as host:
            sessions = host.select(SESSION_MANAGER).use()
            await sessions.ensure_session("seen")
            await asyncio.sleep(1.0)
            for number in range(LOOKS):
                await sessions.update_session("seen", SessionUpdates(title=str(number)))
                begin = time.monotonic()
                title, heard = await asyncio.to_thread(ours.recv)
                assert title == str(number)
                spans.append(max(heard - begin, 0.0) * 1e3)
                await asyncio.sleep(0.013)
        return spans

    spans = asyncio.run(change())
    ours.send("end")
    process.join()
    return spans


@contextmanager
def own_server(folder: Path) -> Iterator[str | None]:
    """A private PostgreSQL server on a socket in `folder`; None where no server is installed."""
    bins = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = shutil.which("initdb") or (str(bins[-1]) if bins else None)
    if initdb is None:
        yield None
        return
    user = "postgres" if os.geteuid() == 0 else None
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)

    def run(*command: str) -> None:
        subprocess.run(command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)

    ctl, data = str(Path(initdb).with_name("pg_ctl")), str(folder / "data")
    run(initdb, "-D", data, "-U", "bench", "--auth=trust", "--encoding=UTF8")
    run(ctl, "-D", data, "-w", "-l", str(folder / "log"), "-o", f"-k {folder} -c listen_addresses=''", "start")
    try:
        yield f"postgresql://bench@/postgres?host={folder}"
    finally:
        run(ctl, "-D", data, "-m", "immediate", "stop")


def measure(name: str, db: str, seconds: float) -> list[dict[str, Any]]:
    """The rows of one back end."""
    rows = []
    for processes in (1, 2, 4):
        rate = throughput(db, processes, seconds)
        rows.append({"back end": name, "what": f"changes a second, {processes} processes", "value": round(rate)})
    spans = arrival(db)
    rows.append({"back end": name, "what": "seen by another process, median ms", "value": statistics.median(spans)})
    rows.append(
        {"back end": name, "what": "seen by another process, 99 % ms", "value": statistics.quantiles(spans, n=100)[98]}
    )
    for row in rows:
        print(f"| {row['back end']} | {row['what']} | {row['value']:,.1f} |", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each count runs")
    parser.add_argument("--postgres", help="the URL of a server to use")
    parser.add_argument("--json", type=Path, help="write the rows as JSON lines, too")
    given = parser.parse_args()
    print("| back end | what | |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = measure("SQLite", str(folder / "aalis.db"), given.seconds)
        if given.postgres:
            rows += measure("PostgreSQL", given.postgres, given.seconds)
        else:
            folder.chmod(0o755)
            (folder / "postgres").mkdir()
            with own_server(folder / "postgres") as url:
                if url is None:
                    print("no PostgreSQL server is installed: left out", file=sys.stderr)
                else:
                    rows += measure("PostgreSQL", url, given.seconds)
    if given.json is not None:
        given.json.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


if __name__ == "__main__":
    main()
