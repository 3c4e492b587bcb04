"""Many host processes on one session: no update is lost, and nobody starves."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.cluster import each_back_end
from tests.session_manager.adder import TIMES
from tests.session_manager.kit import running

ADD = "from tests.session_manager.adder import main; main()"


async def adding(db: str, count: int) -> None:
    """So many processes at once."""
    root = Path(__file__).parents[2]
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", ADD, db, f"p{number}", cwd=root, stderr=asyncio.subprocess.PIPE
        )
        for number in range(count)
    ]
    for process in processes:
        _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()


@pytest.mark.rule("STORE-3", "USAGE-1", "CREATE-7", "TURN-1")
@pytest.mark.parametrize("count", [2, 8])
@each_back_end
async def test_the_sums_are_exact(db: str, count: int) -> None:
    """Tokens, metadata keys, children and turns of all processes are there, and the last turn closed the session."""
    async with running(db) as stack:
        await stack.sessions.ensure_session("hot")
    await adding(db, count)
    async with running(db) as stack:
        hot = stack.sessions.get_session("hot")
        assert hot is not None and hot.tokens is not None
        assert (hot.tokens.input, hot.tokens.output) == (count * TIMES, 2 * count * TIMES)
        turns = {f"p{process}-{number}" for process in range(count) for number in range(TIMES)}
        assert set(hot.metadata or {}) == turns
        assert {child.name for child in stack.sessions.get_children("hot")} == turns
        assert hot.last_turn is not None and hot.last_turn.outcome == "replied"
        assert hot.status == "completed"
        assert stack.plugin.manager.turns.lease_count == 0
