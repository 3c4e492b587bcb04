"""Several processes on one database, and processes that are killed. On every back end."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aalis_host.memory import open_memory
from tests.host.memory.kit import Clock, by_key

ROOT = Path(__file__).parents[3]

CHILD = """
import asyncio, sys
from tests.host.memory.kit import add, put, text
from aalis_host.memory import open_memory

async def main(database, what, times):
    async with open_memory(database, now=lambda: 0) as memory:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(times):
            if what == "count":
                (outcome,) = await memory.commit_metadata([put("k", {"n": 1}, 0, add())])
                assert outcome.error is None, outcome.error
            else:
                outcomes = await asyncio.gather(
                    *(memory.commit_metadata([put(f"{number}.{each}", {"n": each})]) for each in range(5)),
                    memory.save_message("s", text(str(number), number)),
                )
                print(number, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def start(database: str | Path, what: str, times: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(database), what, str(times)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def told(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line)
    process.stdin.flush()


@pytest.mark.rule("STORE-2")
@pytest.mark.parametrize("processes", [2, 8])
async def test_processes_on_one_database_lose_no_update(database: str | Path, processes: int) -> None:
    """Each adds to the same record by folds; they open the new database at the same moment; the sum is exact."""
    times = 400 // processes
    children = [start(database, "count", times) for _ in range(processes)]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            told(child, "go\n")
        for child in children:
            await asyncio.to_thread(child.wait, 50)
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert [child.returncode for child in children] == [0] * processes
    async with open_memory(database, now=Clock()) as memory:
        assert by_key(await memory.list_metadata("things")) == {"k": {"n": processes * times}}


@pytest.mark.rule("STORE-2")
async def test_a_kill_loses_nothing_that_was_answered(database: str | Path) -> None:
    """A process killed in the middle: all that it was told is stored, and the database opens as if nothing was."""
    child = start(database, "write", 100_000)
    try:
        told(child, "go\n")
        assert child.stdout is not None
        answered = [child.stdout.readline() for _ in range(40)]
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
    finally:
        child.kill()
    last = int((answered + rest.split("\n")[:-1])[-1])
    async with open_memory(database, now=Clock()) as memory:
        rows = by_key(await memory.list_metadata("things"))
        assert {f"{number}.{each}" for number in range(last + 1) for each in range(5)} <= set(rows)
        page = await memory.history("s", 1)
        assert int(page.messages[0].content) >= last
        assert page.older == int(page.messages[0].content)
