"""What a wait that ended leaves in the store. Rule: DELEG-9."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aalis_api_session_manager.errors import StorageError
from aalis_api_session_manager.message import ClearRequest
from aalis_plugin_tool_session.dispatches import KEPT_MS
from aalis_plugin_tool_session.presence import TTL_MS
from aalis_plugin_tool_session.shared import DELEGATIONS, HOSTS, WAITS
from tests.cluster import each_back_end
from tests.tool_session.kit import Chats, Held, Stack, until
from tests.tool_session.pair import (
    HERE,
    HERE_TOO,
    START,
    Clock,
    delegate,
    expire,
    host,
    kill,
    pick_up,
    stored,
    until_stored,
)


@pytest.fixture
def clock() -> Clock:
    """Moved by hand."""
    return Clock()


@pytest.fixture
async def s(tmp_path: Path, db: str, clock: Clock) -> AsyncIterator[Stack]:
    """One host alone."""
    async with host(tmp_path, db, clock, Chats("web")) as made:
        for session_id in (HERE, HERE_TOO):
            await made.save(session_id, "hello", start=START, platform="web")
        await until_stored(made, lambda all: all, HOSTS)
        yield made


class Counted:
    """Counts what is committed to metadata, by namespace."""

    def __init__(self, s: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: list[tuple[str, str]] = []
        commit = s.host.memory.commit_metadata

        async def counting(changesets: Any) -> Any:
            self.keys += [(change.namespace, change.key) for one in changesets for change in one.changes]
            return await commit(changesets)

        monkeypatch.setattr(s.host.memory, "commit_metadata", counting)

    def of(self, *namespaces: str) -> int:
        """How many changes of these."""
        return sum(namespace in namespaces for namespace, _ in self.keys)


@pytest.mark.rule("DELEG-7", "DELEG-9")
async def test_an_answer_in_time_costs_no_commit(s: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """One host alone, waiting and answered: nothing of the delegation is ever stored."""
    counted = Counted(s, monkeypatch)
    for _ in range(20):
        assert (await delegate(s, HERE, HERE_TOO))["reply"] == "ok"
    assert counted.of(DELEGATIONS, WAITS) == 0


@pytest.mark.rule("DELEG-9")
async def test_what_isnt_waited_for_is_written_three_times(s: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is sent, when it has ended, when it is picked up; and then it is gone."""
    counted = Counted(s, monkeypatch)
    sent = await delegate(s, HERE, HERE_TOO, wait_for_result=False)
    await until_stored(s, lambda all: all[sent["delegation_id"]]["state"] == "answered")
    assert (await pick_up(s, sent))["reply"] == "ok"
    assert counted.of(DELEGATIONS) == 3 and await stored(s) == {}


@each_back_end
@pytest.mark.rule("DELEG-9")
async def test_an_answer_outlives_its_host(tmp_path: Path, db: str, clock: Clock) -> None:
    """Stopped or killed after it was there: the next host returns it, to the session that asked alone, once."""
    async with host(tmp_path, db, clock, Chats("web")) as s:
        await s.save(HERE_TOO, "hello", start=START, platform="web")
        s.model.answers["task"] = "x" * 2500
        sent = await delegate(s, HERE, HERE_TOO, wait_for_result=False)
        await until_stored(s, lambda all: all[sent["delegation_id"]]["state"] == "answered")
    async with host(tmp_path, db, clock, Chats("web")) as again:
        assert "no open delegation" in (await pick_up(again, sent, HERE_TOO))["error"]
        answer = await pick_up(again, sent)
        assert (answer["reply"], answer["reply_characters_not_shown"]) == ("x" * 2000, 500)
        assert "no open delegation" in (await pick_up(again, sent))["error"]
        assert await stored(again) == {}


@each_back_end
@pytest.mark.rule("DELEG-9")
async def test_what_ran_when_its_host_was_killed_was_interrupted(
    tmp_path: Path, db: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the dead host is known to be dead it counts as running; then the next host says so in words."""
    async with host(tmp_path, db, clock, Chats("web")) as s:
        await s.save(HERE_TOO, "hello", start=START, platform="web")
        held = s.model.answers["task"] = Held()
        timed_out = await delegate(s, HERE, HERE_TOO, timeout_seconds=0.05)
        unawaited = await delegate(s, HERE, HERE_TOO, wait_for_result=False)
        await held.started.wait()
        kill(s, monkeypatch)
        async with host(tmp_path, db, clock, Chats("web")) as again:
            assert (await pick_up(again, timed_out, wait_for_result=False))["status"] == "running"
            waiting = asyncio.create_task(pick_up(again, timed_out))
            await until(lambda: len(again.delegate.following) == 1)
            expire(clock, again)
            for answer in (await waiting, await pick_up(again, unawaited)):
                assert (answer["status"], answer["outcome"]) == ("answered", "aborted")
                assert answer["note"] == (
                    "The host that ran the turn there went away before it ended, so how far it came isn't known. "
                    "Find out before you send the task again."
                )
            assert await stored(again) == {}
        held.released.set()


@pytest.mark.rule("DELEG-9")
async def test_what_ran_when_its_host_stopped_was_stopped(tmp_path: Path, db: str, clock: Clock) -> None:
    async with host(tmp_path, db, clock, Chats("web")) as s:
        await s.save(HERE_TOO, "hello", start=START, platform="web")
        held = s.model.answers["task"] = Held()
        sent = await delegate(s, HERE, HERE_TOO, timeout_seconds=0.05)
        await held.started.wait()
    async with host(tmp_path, db, clock, Chats("web")) as again:
        assert list(await stored(again)) == [sent["delegation_id"]]
        answer = await pick_up(again, sent)
        assert (answer["outcome"], answer["note"][:26]) == ("aborted", "The turn there was stopped")


@pytest.mark.rule("DELEG-9")
async def test_cancelled_callers_leave_their_answers(s: Stack) -> None:
    """Before the answer is there and at the moment when it is."""
    held = s.model.answers["hold"] = Held("later")
    waiting = asyncio.create_task(delegate(s, HERE, HERE_TOO, "hold"))
    await held.started.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until_stored(s, lambda all: [one["state"] for one in all.values()] == ["running"])
    held.released.set()
    await until_stored(s, lambda all: [one["state"] for one in all.values()] == ["answered"])
    (delegation_id,) = await stored(s)
    picking = asyncio.create_task(pick_up(s, {"delegation_id": delegation_id}))
    while not picking.done():
        await asyncio.sleep(0)
        delegation = s.delegate.sending.dispatches.find(delegation_id, 0)
        if delegation is None and len(await stored(s)) == 0:
            picking.cancel()
    await asyncio.gather(picking, return_exceptions=True)
    if picking.cancelled():
        await until_stored(s, lambda all: all)
        assert (await pick_up(s, {"delegation_id": delegation_id}))["reply"] == "later"


@pytest.mark.rule("DELEG-9")
@pytest.mark.parametrize(("later", "given"), [(KEPT_MS, True), (KEPT_MS + 1, False)])
async def test_a_day_later_in_another_host(tmp_path: Path, db: str, clock: Clock, later: int, given: bool) -> None:
    """Answers are kept for 24 hours; the next host removes older ones when it starts."""
    async with host(tmp_path, db, clock, Chats("web")) as s:
        await s.save(HERE_TOO, "hello", start=START, platform="web")
        sent = await delegate(s, HERE, HERE_TOO, wait_for_result=False)
        await until_stored(s, lambda all: all[sent["delegation_id"]]["state"] == "answered")
    clock.ms += later
    async with host(tmp_path, db, clock, Chats("web")) as again:
        if given:
            await until_stored(again, lambda all: all, HOSTS)
            assert (await pick_up(again, sent))["reply"] == "ok"
        else:
            assert "older than 24 hours" in (await pick_up(again, sent))["error"]
        await until_stored(again, lambda all: not all)


@pytest.mark.rule("DELEG-9", "CLEAR-1")
async def test_clearing_a_session_clears_what_it_was_to_pick_up(s: Stack) -> None:
    """Its answers, not those of others, and not what still runs."""
    held = s.model.answers["hold"] = Held("still there")
    done = await delegate(s, HERE, HERE_TOO, wait_for_result=False)
    other = await delegate(s, HERE_TOO, HERE, wait_for_result=False)
    running = await delegate(s, HERE, HERE_TOO, "hold", wait_for_result=False)
    await until_stored(s, lambda all: sum(one["state"] == "answered" for one in all.values()) == 2)
    await s.host.clear_memory(ClearRequest(scope="session", session_id=HERE, types=("context",)))
    assert len(await stored(s)) == 3
    rows = await s.host.clear_memory(ClearRequest(scope="session", session_id=HERE))
    assert [row.message for row in rows if row.source == "delegations"] == ["1 answers removed"]
    assert "no open delegation" in (await pick_up(s, done))["error"]
    assert (await pick_up(s, other, HERE_TOO))["reply"] == "ok"
    held.released.set()
    assert (await pick_up(s, running))["reply"] == "still there"


@pytest.mark.rule("DELEG-9")
async def test_a_store_that_fails_loses_nothing(
    s: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What couldn't be stored is held, can be picked up, and is stored when the store works again."""

    async def broken(groups: Any) -> Any:
        raise StorageError("disk full")

    monkeypatch.setattr(s.delegate._shared, "change_each", broken)
    first = await delegate(s, HERE, HERE_TOO, wait_for_result=False)
    second = await delegate(s, HERE, HERE_TOO, wait_for_result=False)
    await until(lambda: s.delegate.sending.dispatches.answered == 2)
    assert (await pick_up(s, first))["reply"] == "ok"
    assert f"delegation {second['delegation_id']} isn't stored yet: disk full" in caplog.text
    monkeypatch.undo()
    await until_stored(s, lambda all: second["delegation_id"] in all)
    assert (await pick_up(s, second))["reply"] == "ok"
    assert await stored(s) == {}


@pytest.mark.rule("DELEG-9", "STORE-4")
async def test_a_damaged_record_is_kept_and_hurts_nobody(s: Stack, clock: Clock) -> None:
    """Whoever asks for it is told that there is none."""
    damaged = {"source": HERE, "state": 5}
    await s.delegate._shared.change((DELEGATIONS, "damaged", lambda stored: damaged))
    assert "no open delegation" in (await pick_up(s, {"delegation_id": "damaged"}))["error"]
    sent = await delegate(s, HERE, HERE_TOO, wait_for_result=False)
    await until_stored(s, lambda all: all[sent["delegation_id"]]["state"] == "answered")
    clock.ms += KEPT_MS + 1
    await until_stored(s, lambda all: all == {"damaged": damaged})


@pytest.mark.rule("DELEG-9")
async def test_a_reading_host_writes_nothing(tmp_path: Path, db: str, clock: Clock) -> None:
    """Neither that it lives nor anything else; what is stored stays as it is."""
    async with host(tmp_path, db, clock, Chats("web")) as s:
        await s.save(HERE_TOO, "hello", start=START, platform="web")
        sent = await delegate(s, HERE, HERE_TOO, wait_for_result=False)
        await until_stored(s, lambda all: all[sent["delegation_id"]]["state"] == "answered")
        async with host(tmp_path, db, clock, Chats("onebot"), read_only=True) as reading:
            await asyncio.sleep(0.6)
            assert list(await stored(s, HOSTS)) == [s.delegate._shared.host_id]
            assert "no open delegation" in (await pick_up(reading, sent))["error"]
        assert (await pick_up(s, sent))["reply"] == "ok"


@pytest.mark.rule("DELEG-9", "CFG-2")
async def test_without_the_tool_a_host_isnt_there_for_others(tmp_path: Path, db: str, clock: Clock) -> None:
    settings = {"crossSessionEnabled": False}
    async with host(tmp_path, db, clock, Chats("web"), settings=settings) as s:
        await asyncio.sleep(0.3)
        assert await stored(s, HOSTS) == {}
    async with host(tmp_path, db, clock, Chats("web")) as s:
        await until_stored(s, lambda all: all, HOSTS)
        assert await stored(s, HOSTS) == {
            s.delegate._shared.host_id: {"expiresAt": clock.ms + TTL_MS, "platforms": ["web"]}
        }
