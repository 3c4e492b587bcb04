"""A process is killed at any moment: what it was told stays, and nothing is left half done."""

import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from tests.session_manager.kit import Clock, Stack, running
from tests.session_manager.memories import rows
from tests.session_manager.trees import history, settled
from tests.session_manager.victim import WORKERS, applied

KILLS = int(os.environ.get("TESTS_KILLS", "200"))
"""How often; fewer by the environment variable TESTS_KILLS."""
ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def forking() -> AsyncIterator[asyncio.subprocess.Process]:
    """The process that forks victims."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from tests.session_manager.victim import main; main()",
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def killed(process: asyncio.subprocess.Process, asked: dict[str, Any], chance: random.Random) -> list[str]:
    """Let a victim work and kill it; the lines that it wrote until then."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(asked).encode() + b"\n")
    lines: list[str] = []
    pid, told, killing = 0, 0, None
    patience = chance.choice([0, chance.randrange(60), chance.randrange(60), chance.randrange(400)])
    """Lines that it may write first: so, at its own pace, the moment is anywhere in its work, or in its start."""
    delay = chance.uniform(0, 0.02 if patience else 0.06)
    while (line := (await process.stdout.readline()).decode().strip()) != "dead":
        assert line, "the forking process is gone"
        if line.startswith("pid "):
            pid = int(line.removeprefix("pid "))
        else:
            lines.append(line)
            told += 1
        if pid and killing is None and told >= patience:
            killing = asyncio.get_running_loop().call_later(delay, os.kill, pid, signal.SIGKILL)
    return lines


def outcomes(trees: list[dict[str, Any]], lines: list[str]) -> list[list[dict[str, Any]]]:
    """Of each worker the states that there may be: with all that was acknowledged, and with the last change that
    was begun and not acknowledged."""
    begun: list[dict[str, Any] | None] = [None] * WORKERS
    for line in lines:
        what, _, rest = line.partition(" ")
        if what == "try":
            change = json.loads(rest)
            begun[change["worker"]] = change
        elif what == "ok":
            worker = int(rest)
            change = begun[worker]
            assert change is not None
            trees[worker], begun[worker] = applied(trees[worker], change), None
    return [
        [tree] if change is None else [tree, applied(tree, change)] for tree, change in zip(trees, begun, strict=True)
    ]


async def found(stack: Stack, possible: list[dict[str, Any]]) -> dict[str, Any]:
    """What there is of a worker's sessions, as a state."""
    ever = {session_id for tree in possible for name in tree for session_id in tree[name]}
    infos = [info for session_id in ever if (info := stack.sessions.get_session(session_id)) is not None]
    generations = {session_id: stack.sessions.generation_of(session_id) for session_id in ever}
    return {
        "parents": {info.id: info.parent_id for info in infos},
        "numbers": {info.id: (info.metadata or {})["number"] for info in infos},
        "words": {info.id: await history(stack, info.id) for info in infos},
        "generations": {session_id: number for session_id, number in generations.items() if number},
    }


def spoken_of(db: str) -> set[str]:
    """The sessions that have a history."""
    with closing(sqlite3.connect(db)) as file:
        return {session_id for (session_id,) in file.execute("SELECT DISTINCT session_id FROM messages")}


@pytest.mark.rule("STORE-2", "DELETE-4", "TURN-6", "GEN-5", "GEN-1")
@pytest.mark.timeout(300)
async def test_a_kill_at_any_moment(db: str) -> None:
    """Nothing acknowledged is missing, no deletion is half done, nothing stays `active` for ever.

    The victims work on one database, one after the other, so each also starts on what the one before it left.
    """
    seed = int(os.environ.get("TESTS_SEED", random.randrange(10**6)))
    print(f"TESTS_SEED={seed}")
    chance = random.Random(seed)
    empty: dict[str, Any] = {"parents": {}, "numbers": {}, "words": {}, "generations": {}}
    trees, clock, changes = [empty] * WORKERS, Clock(), 0
    async with forking() as process:
        for number in range(1, KILLS + 1):
            asked = {"db": str(db), "clock": clock.ms, "seed": number, "trees": trees}
            lines = await killed(process, asked, chance)
            changes += sum(line.startswith("ok") for line in lines)
            possible = outcomes(trees, lines)
            clock.ms += 60_000
            async with running(db, clock=clock) as stack:
                await settled(lambda: not rows(db, "deletions"))
                await settled(lambda: not rows(db, "turns"))
                trees = [await found(stack, states) for states in possible]
                for tree, states in zip(trees, possible, strict=True):
                    assert tree in states, f"kill {number}"
                infos = stack.sessions.list_sessions()
                assert {info.id for info in infos} == {one for tree in trees for one in tree["parents"]}
                assert {info.status for info in infos} <= {"waiting", "completed"}
                assert spoken_of(db) <= {info.id for info in infos}
            assert set(rows(db, "sessions")) == {info.id for info in infos}
            clock.ms += 60_000
    assert changes > KILLS
