"""One turn, one place: hosts on one database never run two turns of one session and source at the same time."""

import asyncio
import json

import pytest

from aalis_api_session_manager.memory import Change, Changeset
from aalis_host.claims import NAMESPACE, TTL_MS
from tests.cluster import each_back_end
from tests.session_manager.kit import Adapter, Clock, Model, Stack, group_message, running


class Counting(Model):
    """Counts how many turns run at once."""

    running = 0
    most = 0

    async def complete(self, messages: object, tools: object) -> object:  # type: ignore[override]
        Counting.running += 1
        Counting.most = max(Counting.most, Counting.running)
        await asyncio.sleep(0.02)
        Counting.running -= 1
        return await super().complete(messages, tools)


async def claims_of(stack: Stack) -> list[dict[str, object]]:
    return [row.data for row in await stack.host.memory.list_metadata(NAMESPACE) if row.data is not None]


@each_back_end
async def test_two_hosts_take_turns(db: str) -> None:
    """Messages of one session come into two hosts at once: the turns run one after the other, and all run."""
    Counting.running = Counting.most = 0
    clock = Clock()
    async with running(db, model=Counting(), clock=clock) as one, running(db, model=Counting(), clock=clock) as two:
        for stack in (one, two):
            stack.host.add_platform(Adapter())
        await asyncio.gather(
            *(stack.say("room", f"{name}{n}") for name, stack in (("a", one), ("b", two)) for n in range(5))
        )
        assert Counting.most == 1
        page = await one.host.memory.history("room", 100)
        assert len(page.messages) == 20
        assert [message.role for message in page.messages] == ["user", "assistant"] * 10


@each_back_end
async def test_neither_of_two_busy_hosts_waits_for_long(db: str) -> None:
    """Each has nearly always another message of the room: the turns go to and fro between them."""
    clock = Clock()
    async with running(db, clock=clock) as one, running(db, clock=clock) as two:
        for stack in (one, two):
            stack.host.add_platform(Adapter())
        await one.say("room", "first")

        async def busy(stack: Stack, name: str) -> None:
            for number in range(10):
                await stack.say("room", f"{name}{number}")

        await asyncio.gather(busy(one, "a"), busy(two, "b"))
        page = await one.host.memory.history("room", 100)
        said = "".join(message.content[0] for message in page.messages if message.role == "user")[1:]
        assert sorted(said) == ["a"] * 10 + ["b"] * 10
        both = said[said.index("b" if said[0] == "a" else "a") :].rstrip("ab"[said[-1] == "b"])
        assert "aaaa" not in both and "bbbb" not in both, said


@each_back_end
async def test_a_claim_goes_with_its_turn(db: str) -> None:
    """When the turn has ended and its host has stopped no claim is left."""
    async with running(db) as stack:
        await stack.say("room")
    async with running(db) as stack:
        assert await claims_of(stack) == []


@each_back_end
async def test_a_killed_holder_frees_the_session(db: str) -> None:
    """A claim whose holder doesn't renew it any more is taken over once it has expired, with a higher number."""
    clock = Clock()
    async with running(db, clock=clock) as stack:
        dead = {"host": "dead", "fence": 10**15, "expiresAt": clock.ms + TTL_MS}
        change = Change(
            namespace=NAMESPACE, key=json.dumps(["room", None]), base=0, data=dead, fold=lambda stored: dead
        )
        await stack.host.memory.commit_metadata([Changeset(changes=(change,))])
        stack.model.hold = asyncio.Event()
        turn = asyncio.create_task(stack.say("room"))
        await asyncio.sleep(0.3)
        assert not stack.model.asked.is_set()
        clock.ms += TTL_MS
        await stack.model.asked.wait()
        (claim,) = await claims_of(stack)
        assert claim["host"] != "dead" and claim["fence"] == 10**15 + 1
        stack.model.hold.set()
        await turn


@each_back_end
async def test_an_overtaken_holder_writes_nothing_more(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that was cut off, and whose claim another has by now, ends its turn as stopped and stores no reply."""
    monkeypatch.setattr("aalis_host.claims.TTL_MS", 0)
    async with running(db) as stack:
        stack.model.hold = asyncio.Event()
        turn = asyncio.create_task(stack.say("room"))
        await stack.model.asked.wait()
        other = {"host": "other", "fence": 10**15, "expiresAt": stack.clock.ms + 60_000}
        change = Change(
            namespace=NAMESPACE, key=json.dumps(["room", None]), base=-1, data=None, fold=lambda stored: other
        )
        await stack.host.memory.commit_metadata([Changeset(changes=(change,))])
        stack.model.hold.set()
        await turn
        page = await stack.host.memory.history("room", 10)
        assert [message.role for message in page.messages] == ["user"]
        assert await claims_of(stack) == [other]


@each_back_end
async def test_a_deletion_ends_the_wait_for_a_claim(db: str) -> None:
    """A message that waits for another host's turn doesn't hold up the deletion of its session."""
    clock = Clock()
    async with running(db, clock=clock) as stack:
        stack.host.add_platform(Adapter())
        await stack.sessions.record_inbound(group_message("room"))
        far = {"host": "other", "fence": 1, "expiresAt": clock.ms + 60_000}
        change = Change(namespace=NAMESPACE, key=json.dumps(["room", None]), base=0, data=far, fold=lambda stored: far)
        await stack.host.memory.commit_metadata([Changeset(changes=(change,))])
        turn = asyncio.create_task(stack.say("room"))
        await asyncio.sleep(0.2)
        async with asyncio.timeout(5):
            await stack.sessions.delete_session("room")
            await turn
        assert (await stack.host.memory.history("room", 10)).messages == ()
