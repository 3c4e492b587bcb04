"""Two hosts on one database, in one process: each with a platform of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import define, field

from aalis_api_session_manager.errors import StorageError
from aalis_api_session_manager.message import IncomingMessage
from aalis_plugin_tool_session.presence import TTL_MS
from aalis_plugin_tool_session.shared import DELEGATIONS, HOSTS, WAITS
from tests.tool_session.kit import DELEGATE, Chats, Stack, group, stack, until

HERE, HERE_TOO = "web:1", "web:2"
"""Sessions of the first host's platform."""
THERE, THERE_TOO = "onebot:100:group:1", "onebot:100:group:2"
"""Sessions of the second host's."""
NOBODYS = "nobodys"
"""A session that no adapter claims."""
START = 1_796_000_000_000


@define
class Clock:
    """Milliseconds since the epoch, moved by hand."""

    ms: int = START

    def __call__(self) -> int:
        return self.ms


@define
class Pair:
    """`a` serves the web, `b` a chat platform; they know each other."""

    a: Stack
    b: Stack
    folder: Path
    db: str
    clock: Clock
    others: list[Stack] = field(factory=list)

    @asynccontextmanager
    async def another(self, platform: str = "web") -> AsyncIterator[Stack]:
        """One more host, known to the others."""
        async with host(self.folder, self.db, self.clock, Chats(platform)) as made:
            await met(made, self.b)
            yield made


def host(folder: Path, db: str, clock: Callable[[], int], chats: Chats, **more: Any) -> Any:
    """A host on the database."""
    return stack(folder, db=db, now=clock, chats=chats, **more)


@asynccontextmanager
async def pair(folder: Path, db: str, *, chats: Chats | None = None) -> AsyncIterator[Pair]:
    """Both hosts, their sessions known to both."""
    clock = Clock()
    async with (
        host(folder, db, clock, Chats("web")) as a,
        host(folder, db, clock, chats or Chats("onebot")) as b,
    ):
        await b.ingress(group("1"), group("2"))
        for session_id in (HERE, HERE_TOO, NOBODYS):
            await a.save(session_id, "hello", start=START, platform="web")
        b.chats.sent.clear()
        b.model.asked.clear()
        await met(a, b)
        yield Pair(a, b, folder, db, clock)


async def met(*stacks: Stack) -> None:
    """Each knows the others, and what they serve."""

    def known(one: Stack, other: Stack) -> bool:
        host_id = other.delegate._shared.host_id
        return one.delegate.presence.others.get(host_id) == (other.chats.platform,)

    await until(lambda: all(known(one, other) for one in stacks for other in stacks if one is not other))


def kill(one: Stack, monkeypatch: Any) -> None:
    """The host is gone for the others: its session tools write nothing any more, not even that they stop."""

    async def dead(groups: Any) -> Any:
        raise StorageError("killed")

    following = one.delegate.following._task
    assert following is not None
    following.cancel()
    monkeypatch.setattr(one.delegate._shared, "change_each", dead)


def expire(clock: Clock, *awake: Stack) -> None:
    """So much time passes that a host is dead which said nothing meanwhile; those that are awake do."""
    clock.ms += TTL_MS
    for one in awake:
        one.delegate.presence._next_beat = 0


def calling(one: Stack, source: str, target: str, task: str = "task", **more: Any) -> "asyncio.Task[Any]":
    """A delegation under way."""
    return asyncio.create_task(delegate(one, source, target, task, **more))


async def delegate(one: Stack, source: str, target: str, task: str = "task", **more: Any) -> Any:
    """A delegation's answer."""
    return await one.call(DELEGATE, {"target_session_id": target, "task": task, **more}, source, platform="web")


async def pick_up(one: Stack, sent: Any, source: str = HERE, **more: Any) -> Any:
    """What became of an earlier delegation."""
    return await one.call(DELEGATE, {"delegation_id": sent["delegation_id"], **more}, source)


async def own_message(one: Stack, session_id: str) -> None:
    """The session has a turn of its own, so that it isn't driven by a delegation any more."""
    await one.ingress(IncomingMessage(session_id=session_id, platform="x", content="own", source="x"))


async def stored(one: Stack, namespace: str = DELEGATIONS) -> dict[str, Any]:
    """The records of a namespace."""
    return {row.key: row.data for row in await one.host.memory.list_metadata(namespace)}


async def until_stored(one: Stack, condition: Callable[[dict[str, Any]], object], namespace: str = DELEGATIONS) -> None:
    """Wait until the records of a namespace are so."""
    async with asyncio.timeout(20):
        while not condition(await stored(one, namespace)):
            await asyncio.sleep(0.01)


async def assert_nothing_left(*stacks: Stack) -> None:
    """No waiter, edge, record, running dispatch, lock or task is left, in memory or stored."""
    for one in stacks:
        d = one.delegate
        await until(lambda d=d: not d.background.tasks)
        held = d.sending.dispatches
        assert (len(d.waits), held.running, held.answered, len(d.lock), len(d.following)) == (0, 0, 0, 0, 0)
        assert not d.remote._offered
    assert await stored(stacks[0]) == {} and await stored(stacks[0], WAITS) == {}
    assert set(await stored(stacks[0], HOSTS)) >= {one.delegate._shared.host_id for one in stacks}
