"""Waits of several hosts never close a ring. Rule: DELEG-10."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aalis_plugin_tool_session.presence import TTL_MS
from aalis_plugin_tool_session.shared import HOSTS, WAITS
from tests.cluster import each_back_end
from tests.tool_session.kit import Chats, Held, group, until
from tests.tool_session.pair import (
    HERE,
    HERE_TOO,
    START,
    THERE,
    THERE_TOO,
    Clock,
    Pair,
    assert_nothing_left,
    calling,
    delegate,
    expire,
    host,
    kill,
    met,
    own_message,
    pair,
    pick_up,
    stored,
    until_stored,
)

REFUSED = "The target is itself waiting, directly or through others, for this session, so waiting would never end."


@pytest.fixture
async def p(tmp_path: Path, db: str) -> AsyncIterator[Pair]:
    """Two hosts, nothing left of any delegation at the end."""
    async with pair(tmp_path, db) as made:
        yield made
        await assert_nothing_left(made.a, made.b)


@each_back_end
@pytest.mark.rule("DELEG-10")
async def test_both_directions_at_once(p: Pair) -> None:
    """One of two that start together in two hosts is refused, never both, and nobody hangs."""
    for _ in range(5):
        await until_stored(p.a, lambda all: not all, WAITS)
        async with asyncio.timeout(20):
            answers = await asyncio.gather(calling(p.a, HERE, THERE), calling(p.b, THERE, HERE))
        assert sorted(answer["status"] for answer in answers) == ["answered", "not_admitted"]
        (refused,) = (answer for answer in answers if answer["status"] == "not_admitted")
        assert refused["error"].startswith(REFUSED)


@each_back_end
@pytest.mark.rule("DELEG-10")
async def test_a_ring_over_three_sessions_and_two_hosts(p: Pair) -> None:
    """Refused at once wherever it would close; what waits isn't disturbed, and not waiting is admitted."""
    there, back = Held("there"), Held("back")
    p.b.model.answers["hold there"] = there
    p.a.model.answers["hold back"] = back
    waiting = [calling(p.a, HERE, THERE, "hold there")]
    await there.started.wait()
    await own_message(p.b, THERE)
    waiting.append(calling(p.b, THERE, HERE_TOO, "hold back"))
    await back.started.wait()
    await own_message(p.a, HERE_TOO)
    answer = await delegate(p.a, HERE_TOO, HERE)
    assert (answer["status"], answer["error"].startswith(REFUSED)) == ("not_admitted", True)
    sent = await delegate(p.a, HERE_TOO, HERE, "quick", wait_for_result=False)
    assert sent["status"] == "running"
    assert len((await stored(p.a, WAITS))["all"]["edges"]) == 2
    there.released.set()
    back.released.set()
    assert [answer["reply"] for answer in await asyncio.gather(*waiting)] == ["there", "back"]
    assert (await pick_up(p.a, sent, HERE_TOO))["status"] == "answered"
    await until_stored(p.a, lambda all: not all, WAITS)
    assert (await delegate(p.a, HERE_TOO, HERE))["status"] == "answered"


@pytest.mark.rule("DELEG-10", "DELEG-9")
async def test_picking_up_from_another_host_doesnt_close_a_ring_either(p: Pair) -> None:
    """It says so and keeps the answer."""
    there, back = Held("there"), Held("back")
    p.b.model.answers["hold there"] = there
    p.a.model.answers["hold back"] = back
    sent = await delegate(p.a, HERE, THERE, "hold there", wait_for_result=False)
    await there.started.wait()
    await own_message(p.b, THERE)
    waiting = calling(p.b, THERE, HERE, "hold back")
    await back.started.wait()
    answer = await pick_up(p.a, sent)
    assert "ask for the delegation_id again later" in answer["error"] and answer["status"] == "running"
    back.released.set()
    await waiting
    await until_stored(p.a, lambda all: not all, WAITS)
    there.released.set()
    assert (await pick_up(p.a, sent))["reply"] == "there"


@pytest.mark.rule("DELEG-10")
async def test_alone_a_wait_is_in_memory_and_is_shown_when_another_host_comes(tmp_path: Path, db: str) -> None:
    """The newcomer's wait that would close a ring with it is refused."""
    clock = Clock()
    async with host(tmp_path, db, clock, Chats("web")) as a:
        for session_id in (HERE, HERE_TOO):
            await a.save(session_id, "hello", start=START, platform="web")
        held = a.model.answers["hold"] = Held()
        waiting = calling(a, HERE, HERE_TOO, "hold")
        await held.started.wait()
        assert await stored(a, WAITS) == {}
        async with host(tmp_path, db, clock, Chats("onebot")) as b:
            await until_stored(b, lambda all: all, WAITS)
            ((edge,),) = (record["edges"].values() for record in (await stored(b, WAITS)).values())
            assert (edge["source"], edge["target"], edge["host"]) == (HERE, HERE_TOO, a.delegate._shared.host_id)
            assert len(edge["delegationId"]) == 32 and edge["expiresAt"] > clock.ms
            assert (await delegate(b, HERE_TOO, HERE))["error"].startswith(REFUSED)
            held.released.set()
            assert (await waiting)["status"] == "answered"
            await assert_nothing_left(a, b)


@pytest.mark.rule("DELEG-10", "DELEG-9")
async def test_a_ring_that_closed_before_the_hosts_knew_each_other(
    tmp_path: Path, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait that couldn't be seen in time ends at once; its work goes on and is picked up later."""
    clock = Clock()
    async with host(tmp_path, db, clock, Chats("web")) as a:
        for session_id in (HERE, HERE_TOO):
            await a.save(session_id, "hello", start=START, platform="web")
        held = a.model.answers["hold"] = Held("done after all")
        waiting = calling(a, HERE, HERE_TOO, "hold")
        await held.started.wait()
        await own_message(a, HERE_TOO)
        look = a.delegate.presence.look
        looked = asyncio.Event()

        async def later() -> bool:
            await looked.wait()
            itself: bool = await look()
            return itself

        monkeypatch.setattr(a.delegate.presence, "look", later)
        async with host(tmp_path, db, clock, Chats("onebot")) as b:
            back = b.model.answers["hold back"] = Held()
            monkeypatch.setattr("aalis_plugin_tool_session.remote.OFFER_SECONDS", 0.2)
            other = calling(b, HERE_TOO, HERE, "hold back")
            await back.started.wait()
            looked.set()
            answer = await waiting
            assert "ask for the delegation_id again later" in answer["error"] and answer["status"] == "running"
            back.released.set()
            await other
            await until_stored(a, lambda all: not all, WAITS)
            held.released.set()
            assert (await pick_up(a, answer))["reply"] == "done after all"
            await assert_nothing_left(a, b)


@pytest.mark.rule("DELEG-10")
async def test_the_waits_of_a_dead_host_are_buried_with_it(p: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is refused because of a wait that nobody waits any more."""
    held = p.a.model.answers["hold"] = Held()
    waiting = calling(p.b, THERE, HERE, "hold")
    await held.started.wait()
    await own_message(p.a, HERE)
    assert (await delegate(p.a, HERE, THERE))["error"].startswith(REFUSED)
    kill(p.b, monkeypatch)
    expire(p.clock, p.a)
    await until_stored(p.a, lambda all: not all, WAITS)
    assert (await delegate(p.a, HERE, THERE))["status"] == "answered"
    held.released.set()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    monkeypatch.undo()
    await until_stored(p.a, lambda all: len(all) == 1)
    (delegation_id,) = await stored(p.a)
    assert (await pick_up(p.a, {"delegation_id": delegation_id}, THERE))["reply"] == "done"
    p.b.delegate.following.start()
    await met(p.a, p.b)


@pytest.mark.rule("DELEG-10")
@pytest.mark.parametrize("beat_is_due", [True, False])
async def test_waits_are_shown_again_after_a_sleep(p: Pair, beat_is_due: bool) -> None:
    """A host that the others took for dead and buried shows its waits anew, whatever it does first."""
    held = p.a.model.answers["task"] = Held()
    waiting = calling(p.b, THERE, HERE)
    await held.started.wait()
    await own_message(p.a, HERE)
    following = p.b.delegate.following._task
    assert following is not None
    following.cancel()
    expire(p.clock, p.a)
    await until_stored(p.a, lambda all: not all, WAITS)
    await until_stored(p.a, lambda all: all[p.a.delegate._shared.host_id]["expiresAt"] > p.clock.ms, HOSTS)
    p.b.delegate.presence._next_beat = 0 if beat_is_due else float("inf")
    p.b.delegate.following.start()
    await until_stored(p.a, lambda all: all, WAITS)
    await met(p.a, p.b)
    assert (await delegate(p.a, HERE, THERE))["error"].startswith(REFUSED)
    held.released.set()
    assert (await waiting)["status"] == "answered"


@pytest.mark.rule("DELEG-10")
async def test_many_waits_at_once_leave_no_edge(p: Pair) -> None:
    """Of two hosts, ended and cancelled ones."""
    await p.b.ingress(group("3"))
    held = p.b.model.answers["hold"] = Held()
    waiting = [calling(p.a, f"web:{i}", THERE, "hold") for i in range(20)]
    waiting += [calling(p.b, THERE_TOO, "onebot:100:group:3", "hold") for _ in range(20)]
    async with asyncio.timeout(20):
        while len((await stored(p.a, WAITS)).get("all", {}).get("edges", ())) < 40:
            await asyncio.sleep(0.01)
    for one in waiting[::2]:
        one.cancel()
    held.released.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(answer, dict) and answer["status"] == "answered" for answer in answers) == 20
    await until(lambda: not p.b.delegate.sending.dispatches.held())
    await until_stored(p.a, lambda all: all and all.keys() and all_ended(all))
    for key, record in (await stored(p.a)).items():
        assert (await pick_up(p.a, {"delegation_id": key}, record["source"]))["status"] == "answered"


def all_ended(records: dict[str, dict[str, object]]) -> bool:
    """Every stored delegation has its answer."""
    return all(record["state"] == "answered" for record in records.values())


@pytest.mark.rule("DELEG-10", "DELEG-7")
async def test_a_machine_that_was_suspended_kills_nobody(p: Pair) -> None:
    """All hosts slept: whoever wakes first gives the others time to say that they live."""
    held = p.a.model.answers["task"] = Held()
    waiting = calling(p.b, THERE, HERE)
    await held.started.wait()
    following = p.a.delegate.following._task
    assert following is not None
    following.cancel()
    p.clock.ms += 10 * TTL_MS
    mine = p.b.delegate._shared.host_id
    await until_stored(p.b, lambda all: all[mine]["expiresAt"] > p.clock.ms, HOSTS)
    assert p.b.delegate.presence.others and not waiting.done()
    p.a.delegate.following.start()
    await met(p.a, p.b)
    held.released.set()
    assert (await waiting)["reply"] == "done"
