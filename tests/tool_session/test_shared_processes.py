"""Delegations between real processes, one of which is killed."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aalis_host.app import wall_clock
from tests.cluster import each_back_end
from tests.tool_session.kit import Chats
from tests.tool_session.pair import HERE, THERE, calling, delegate, host, pick_up, stored, until_stored

ROOT = Path(__file__).parents[2]
CHILD = """
import asyncio, sys
from pathlib import Path
from aalis_host.app import wall_clock
from aalis_plugin_tool_session import presence
from tests.tool_session.kit import group
from tests.tool_session.pair import Chats, host

presence.TTL_MS, presence.BEAT_SECONDS = 2000, 0.5

async def hold(text):
    print("holding", flush=True)
    await asyncio.Event().wait()

async def main(db):
    async with host(Path(), db, wall_clock, Chats("onebot")) as there:
        there.model.answers |= {"greet": "Hello, room.", "hold": hold}
        await there.ingress(group("1"))
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


@asynccontextmanager
async def child(db: str) -> AsyncIterator[Process]:
    """A process that serves the target, until it is killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, db, cwd=ROOT, env={**os.environ, "PYTHONPATH": path()}, stdout=PIPE
    )
    try:
        assert await line(process) == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def path() -> str:
    """Where the child finds what this process found."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


async def line(process: Process) -> bytes:
    """The next that it says."""
    assert process.stdout is not None
    async with asyncio.timeout(30):
        return await process.stdout.readline()


@each_back_end
@pytest.mark.rule("DELEG-2", "DELEG-7", "DELEG-9")
async def test_another_process_answers_and_is_killed(tmp_path: Path, db: str) -> None:
    """Its reply comes back; when it is killed in the middle, the waiter and a later call are told in words."""
    async with host(tmp_path, db, wall_clock, Chats("web")) as here, child(db) as there:
        async with asyncio.timeout(10):
            while ("onebot",) not in here.delegate.presence.others.values():
                await asyncio.sleep(0.01)
        assert (await delegate(here, HERE, THERE, "greet"))["reply"] == "Hello, room."
        assert await stored(here) == {}
        later = await delegate(here, HERE, THERE, "hold", wait_for_result=False)
        assert await line(there) == b"holding\n"
        waiting = calling(here, HERE, THERE, "hold", timeout_seconds=60)
        await until_stored(here, lambda all: [one["state"] for one in all.values()] == ["running"] * 2)
        there.send_signal(signal.SIGKILL)
        for answer in (await waiting, await pick_up(here, later)):
            assert answer["outcome"] == "aborted" and "went away before it ended" in answer["note"]
        assert await stored(here) == {}
        await until_stored(here, lambda all: list(all) == [here.delegate._shared.host_id], "hosts")
