"""Delegations between hosts on one database: taking, refusing, waiting, dying."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aalis_api_session_manager.message import ToolCall
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_host.models.base import ModelError, ModelReply
from aalis_plugin_tool_session import remote
from aalis_plugin_tool_session.shared import DELEGATIONS, HOSTS
from tests.cluster import each_back_end
from tests.tool_session.kit import DELEGATE, Chats, Held, Limited, until
from tests.tool_session.pair import (
    HERE,
    HERE_TOO,
    NOBODYS,
    THERE,
    THERE_TOO,
    Pair,
    assert_nothing_left,
    calling,
    delegate,
    expire,
    host,
    kill,
    met,
    pair,
    pick_up,
    stored,
    until_stored,
)


@pytest.fixture
async def p(tmp_path: Path, db: str) -> AsyncIterator[Pair]:
    """Two hosts, nothing left of any delegation at the end."""
    async with pair(tmp_path, db) as made:
        yield made
        await assert_nothing_left(made.a, made.b)


# --- reached


@each_back_end
@pytest.mark.rule("DELEG-2", "DELEG-7", "DELEG-8")
async def test_a_target_whose_adapter_lives_in_another_host_is_reached(p: Pair) -> None:
    """Its agent runs the turn there, its audience hears it, and the reply comes back."""
    p.b.model.answers["greet"] = "Hello, room." + "x" * 2000
    answer = await delegate(p.a, HERE, THERE, "greet them")
    assert (answer["status"], answer["outcome"], answer["target_session_id"]) == ("answered", "replied", THERE)
    assert answer["reply"].startswith("Hello, room.") and answer["reply_characters_not_shown"] == 12
    assert [sent.session_id for sent in p.b.chats.sent] == [THERE]
    assert not p.a.chats.sent and not p.a.model.asked
    question, reply = (await p.a.host.memory.history(THERE, 2)).messages
    assert (question.content, question.metadata) == (
        "greet them",
        {"source": f"delegation:{answer['delegation_id']}", "triggerType": "proactive"},
    )
    assert reply.content.startswith("Hello, room.") and question.platform == "onebot"


@pytest.mark.rule("DELEG-3")
async def test_the_lock_holds_where_the_turn_runs(p: Pair) -> None:
    """A turn that another host delegated can't delegate on, neither here nor there."""

    async def on(_: str) -> ModelReply:
        arguments = json.dumps({"target_session_id": HERE_TOO, "task": "further"})
        return ModelReply(tool_calls=(ToolCall(id="1", name=DELEGATE, arguments=arguments),))

    p.b.model.answers["pass it on"] = on
    assert (await delegate(p.a, HERE, THERE, "pass it on"))["outcome"] == "replied"
    assert "This turn is driven by a delegation" in p.b.model.asked[-1][-1].content
    assert not p.a.model.asked


@each_back_end
@pytest.mark.rule("DELEG-5")
async def test_the_platform_there_is_asked_once_and_its_reason_is_passed_on(tmp_path: Path, db: str) -> None:
    """Waiting or not; nothing of a refused one is left."""
    chats = Limited(None, "at most one an hour.", "no.", None)
    async with pair(tmp_path, db, chats=chats) as p:
        assert (await delegate(p.a, HERE, THERE))["outcome"] == "replied"
        assert await delegate(p.a, HERE, THERE) == {
            "error": "The target's platform doesn't admit the task now: at most one an hour. "
            "Don't repeat it at once; tell the person.",
            "status": "not_admitted",
        }
        refused = await delegate(p.a, HERE, THERE, wait_for_result=False)
        assert "doesn't admit the task now: no." in refused["error"] and "delegation_id" not in refused
        sent = await delegate(p.a, HERE, THERE, wait_for_result=False)
        assert (await pick_up(p.a, sent))["reply"] == "ok"
        assert chats.asked == [THERE] * 4 and len(chats.sent) == 2
        await assert_nothing_left(p.a, p.b)


@pytest.mark.rule("DELEG-7", "DELEG-9")
async def test_the_failure_there_is_told_in_words(p: Pair) -> None:
    async def fail(_: str) -> str:
        raise ModelError("the server answered 503: overloaded")

    p.b.model.answers["task"] = fail
    answer = await delegate(p.a, HERE, THERE)
    assert (answer["status"], answer["outcome"]) == ("answered", "error")
    assert "the server answered 503: overloaded" in answer["note"]


@pytest.mark.rule("DELEG-7")
async def test_a_turn_that_is_stopped_there_is_aborted(p: Pair) -> None:
    held = p.b.model.answers["task"] = Held()
    waiting = calling(p.a, HERE, THERE)
    await held.started.wait()
    p.b.host.agent.abort(THERE)
    assert (await waiting)["note"].startswith("The turn there was stopped before it ended.")


@pytest.mark.rule("DELEG-6")
async def test_the_reminder_counts_what_reached_the_target_from_every_host(p: Pair) -> None:
    """Its own host knows of all that were delegated to it."""
    async with p.another() as c:
        await delegate(p.b, THERE_TOO, THERE, "one")
        await delegate(c, HERE_TOO, THERE, "two")
        p.clock.ms += 5000
        await delegate(p.a, HERE, THERE, "three")
    assert p.b.model.asked[-1][-1].content == (
        "[delegation META]\n"
        "Tasks delegated to this session in the 60 seconds before this one: 2.\n"
        f'- 5 s ago, from "{HERE_TOO}": replied\n'
        f'- 5 s ago, from "{THERE_TOO}": replied\n'
        "Don't do or announce the same thing twice. The task follows.\n"
        "[/delegation META]\n"
        "three"
    )


@each_back_end
@pytest.mark.rule("DELEG-7", "DELEG-9", "DELEG-10")
async def test_a_hundred_at_once(p: Pair) -> None:
    """Each gets its own answer, and each runs once."""

    async def echo(text: str) -> str:
        return "reply " + text.rsplit(" ", 1)[1]

    p.b.model.answers["task "] = echo
    answers = await asyncio.gather(
        *(calling(p.a, f"web:{i}", (THERE, THERE_TOO)[i % 2], f"task {i}", timeout_seconds=60) for i in range(100))
    )
    assert [answer.get("reply") for answer in answers] == [f"reply {i}" for i in range(100)]
    assert len(p.b.chats.sent) == 100 and not p.a.model.asked


@pytest.mark.rule("DELEG-7")
async def test_a_claimed_target_stays_at_home(p: Pair) -> None:
    """The adapter of the own host comes first, and nothing is written for the others but the wait."""
    assert (await delegate(p.a, HERE, HERE_TOO))["outcome"] == "replied"
    assert len(p.a.model.asked) == 1 and not p.b.model.asked


# --- nobody takes it


@each_back_end
@pytest.mark.rule("DELEG-1", "DELEG-7")
async def test_what_nobody_claims_runs_where_it_was_sent(p: Pair) -> None:
    """As it would without others; the other host hears of it once and declines."""
    assert (await delegate(p.a, HERE, NOBODYS))["outcome"] == "replied"
    assert len(p.a.model.asked) == 1 and not p.b.model.asked
    sent = await delegate(p.b, THERE, NOBODYS, wait_for_result=False)
    assert (await pick_up(p.b, sent, THERE))["outcome"] == "replied"


@pytest.mark.rule("DELEG-7")
async def test_an_adapter_that_never_answers_holds_nothing_up(tmp_path: Path, db: str) -> None:
    class Hanging(Chats):
        async def claims(self, session_id: str) -> bool:
            return await asyncio.Event().wait() if session_id == NOBODYS else await super().claims(session_id)

    async with pair(tmp_path, db, chats=Hanging()) as p:
        async with asyncio.timeout(10):
            assert (await delegate(p.a, HERE, NOBODYS))["outcome"] == "replied"
        await assert_nothing_left(p.a, p.b)


@pytest.mark.rule("DELEG-7", "DELEG-9")
async def test_a_host_that_doesnt_answer_is_waited_for_two_seconds(p: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the offer is taken back; who comes too late finds none, and nothing runs twice."""
    offers: list[Any] = []
    monkeypatch.setattr(p.b.delegate.following, "_on_offer", offers.append)
    assert (await delegate(p.a, HERE, THERE))["outcome"] == "replied"
    assert len(p.a.model.asked) == 1 and remote.OFFER_SECONDS == 2
    await p.b.delegate.remote._consider(offers[0])
    await until(lambda: not p.b.delegate.background.tasks)
    assert not p.b.model.asked


@pytest.mark.rule("DELEG-7")
async def test_the_offer_of_a_dead_host_is_nobodys(p: Pair) -> None:
    """What a host left open when it was killed is never run."""
    memory = p.a.host.memory
    record = {"id": "x", "source": HERE, "target": THERE, "at": p.clock.ms, "generation": 0, "sourceGeneration": 0}
    dead = {**record, "host": "gone", "state": "open", "task": "never"}
    await p.a.delegate._shared.change((DELEGATIONS, "x", lambda stored: dead))
    await asyncio.sleep(0.3)
    assert not p.b.model.asked
    answer = await pick_up(p.a, {"delegation_id": "x"})
    assert answer["outcome"] == "aborted" and await memory.get_metadata(DELEGATIONS, "x") is None


# --- late


@each_back_end
@pytest.mark.rule("DELEG-9")
async def test_after_a_time_out_the_answer_from_there_is_picked_up(p: Pair) -> None:
    """Waited for further, or found; once, and nothing is sent twice."""
    held = p.b.model.answers["task"] = Held("late")
    sent = await delegate(p.a, HERE, THERE, timeout_seconds=0.1)
    assert (sent["status"], sent["waited_seconds"]) == ("running", 0.1)
    assert (await pick_up(p.a, sent, timeout_seconds=0.1))["status"] == "running"
    assert (await pick_up(p.a, sent, wait_for_result=False))["status"] == "running"
    waiting = asyncio.create_task(pick_up(p.a, sent))
    await until(lambda: len(p.a.delegate.following) == 1)
    held.released.set()
    assert (await waiting)["reply"] == "late"
    assert "no open delegation with this id" in (await pick_up(p.a, sent))["error"]
    assert len(p.b.chats.sent) == 1


@pytest.mark.rule("DELEG-9")
async def test_a_stored_answer_in_camel_case(p: Pair) -> None:
    """The record that a pick-up from any host removes."""
    sent = await delegate(p.a, HERE, THERE, wait_for_result=False)
    await until_stored(p.a, lambda all: all[sent["delegation_id"]]["state"] == "answered")
    assert (await stored(p.a))[sent["delegation_id"]] == {
        "id": sent["delegation_id"],
        "source": HERE,
        "target": THERE,
        "at": p.clock.ms,
        "generation": 0,
        "sourceGeneration": 0,
        "host": p.b.delegate._shared.host_id,
        "state": "answered",
        "declined": [],
        "outcome": "replied",
        "reply": "ok",
        "replyLeftOut": 0,
        "endedAt": p.clock.ms,
    }
    assert (await pick_up(p.b, sent))["reply"] == "ok"


@each_back_end
@pytest.mark.rule("DELEG-9")
async def test_the_host_that_sent_it_starts_anew(tmp_path: Path, db: str) -> None:
    """Its answer is found by the next host of the same session: that came meanwhile, or comes while it waits."""
    async with pair(tmp_path, db) as p:
        held = p.b.model.answers["hold"] = Held("there all the time")
        done = await delegate(p.a, HERE, THERE, wait_for_result=False)
        running = await delegate(p.a, HERE, THERE, "hold", timeout_seconds=0.1)
        await held.started.wait()
        await p.a.host.__aexit__(None, None, None)
        async with host(tmp_path, db, p.clock, Chats("web")) as again:
            await met(again, p.b)
            assert (await pick_up(again, done))["reply"] == "ok"
            waiting = asyncio.create_task(pick_up(again, running))
            await until(lambda: len(again.delegate.following) == 1)
            held.released.set()
            assert (await waiting)["reply"] == "there all the time"
            await assert_nothing_left(again, p.b)


@pytest.mark.rule("DELEG-9")
async def test_only_its_source_may_ask_in_every_host(p: Pair) -> None:
    sent = await delegate(p.a, HERE, THERE, wait_for_result=False)
    for one in (p.a, p.b):
        for other in (HERE_TOO, THERE):
            assert "no open delegation" in (await pick_up(one, sent, other))["error"]
    assert (await pick_up(p.a, sent))["status"] == "answered"


@each_back_end
@pytest.mark.rule("DELEG-9")
async def test_two_hosts_ask_at_once_and_one_gets_it(p: Pair) -> None:
    """An answer is handed over once."""
    async with p.another() as c:
        sent = await delegate(p.a, HERE, THERE, wait_for_result=False)
        await until_stored(p.a, lambda all: all[sent["delegation_id"]]["state"] == "answered")
        answers = await asyncio.gather(*(pick_up(one, sent) for one in (p.a, p.b, c)))
    assert sorted("reply" in answer for answer in answers) == [False, False, True]
    assert sum("no open delegation" in answer.get("error", "") for answer in answers) == 2


@pytest.mark.rule("DELEG-9")
async def test_picking_up_in_one_host_ends_the_wait_in_another(p: Pair) -> None:
    async with p.another() as c:
        held = p.b.model.answers["task"] = Held("once")
        sent = await delegate(p.a, HERE, THERE, timeout_seconds=0.1)
        waiting = [asyncio.create_task(pick_up(one, sent)) for one in (p.a, c)]
        await until(lambda: len(p.a.delegate.following) == len(c.delegate.following) == 1)
        held.released.set()
        answers = await asyncio.gather(*waiting)
    assert sorted("reply" in answer for answer in answers) == [False, True]


@pytest.mark.rule("DELEG-9")
async def test_what_runs_here_is_waited_for_from_there(p: Pair) -> None:
    """A delegation of this host alone, asked for in another one."""
    held = p.a.model.answers["task"] = Held("from here")
    sent = await delegate(p.a, HERE, HERE_TOO, timeout_seconds=0.1)
    waiting = asyncio.create_task(pick_up(p.b, sent))
    await until(lambda: len(p.b.delegate.following) == 1)
    held.released.set()
    assert (await waiting)["reply"] == "from here"


# --- cancelled


@pytest.mark.rule("DELEG-7", "DELEG-9")
async def test_cancelling_the_caller_leaves_the_work_there_alone(p: Pair) -> None:
    """And its answer can be picked up."""
    held = p.b.model.answers["task"] = Held("still done")
    waiting = calling(p.a, HERE, THERE)
    await held.started.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert len(p.a.delegate.waits) == len(p.a.delegate.following) == 0
    held.released.set()
    (delegation_id,) = await stored(p.a)
    assert (await pick_up(p.a, {"delegation_id": delegation_id}))["reply"] == "still done"


@pytest.mark.rule("DELEG-7")
async def test_cancelling_before_anybody_took_it_withdraws_the_offer(p: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    offers: list[Any] = []
    monkeypatch.setattr(p.b.delegate.following, "_on_offer", offers.append)
    waiting = calling(p.a, HERE, THERE)
    await until(lambda: offers)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until_stored(p.a, lambda all: not all)
    await p.b.delegate.remote._consider(offers[0])
    assert not p.a.model.asked and not p.b.model.asked


# --- hosts that go away


@each_back_end
@pytest.mark.rule("DELEG-9", "DELEG-7")
async def test_a_host_that_is_killed_while_it_works(p: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits is told in words that it was interrupted, who asks later too; what the dead one still does is void."""
    held = p.b.model.answers["task"] = Held()
    later = await delegate(p.a, HERE, THERE, wait_for_result=False)
    await held.started.wait()
    waiting = calling(p.a, HERE, THERE)
    await until(lambda: p.b.delegate.sending.dispatches.running == 2)
    kill(p.b, monkeypatch)
    expire(p.clock, p.a)
    for answer in (await waiting, await pick_up(p.a, later)):
        assert (answer["status"], answer["outcome"]) == ("answered", "aborted")
        assert answer["note"].startswith("The host that ran the turn there went away before it ended")
    assert await stored(p.a) == {}
    monkeypatch.undo()
    held.released.set()
    await until(lambda: not p.b.delegate.sending.dispatches.held())
    assert await stored(p.a) == {}
    p.b.delegate.following.start()
    await met(p.a, p.b)


@pytest.mark.rule("DELEG-9")
async def test_a_host_that_stops_while_it_works(tmp_path: Path, db: str) -> None:
    """Its turn ends as aborted, and that is what the waiter gets."""
    async with pair(tmp_path, db) as p:
        held = p.b.model.answers["task"] = Held()
        waiting = calling(p.a, HERE, THERE)
        await held.started.wait()
        await p.b.host.__aexit__(None, None, None)
        answer = await waiting
        assert (answer["outcome"], answer["status"]) == ("aborted", "answered")
        await assert_nothing_left(p.a)
        assert list(await stored(p.a, HOSTS)) == [p.a.delegate._shared.host_id]


@pytest.mark.rule("DELEG-9", "DELEG-7")
async def test_a_host_that_was_taken_for_dead_comes_back(p: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asleep; it is there again for the others, and takes what they offer."""
    following = p.b.delegate.following._task
    assert following is not None
    following.cancel()
    expire(p.clock, p.a)
    await until(lambda: not p.a.delegate.presence.others)
    assert (await delegate(p.a, HERE, THERE))["outcome"] == "replied" and len(p.a.model.asked) == 1
    p.b.delegate.following.start()
    await met(p.a, p.b)
    assert (await delegate(p.a, HERE, THERE))["outcome"] == "replied" and len(p.b.model.asked) == 1


@pytest.mark.rule("DELEG-7")
async def test_stopping_takes_offers_back(tmp_path: Path, db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the stopped host is left, and its caller is told that nobody took it up."""
    async with pair(tmp_path, db) as p:
        offers: list[Any] = []
        monkeypatch.setattr(p.b.delegate.following, "_on_offer", offers.append)
        waiting = calling(p.a, HERE, THERE)
        await until(lambda: offers)
        await p.a.delegate.stop()
        assert (await waiting)["error"].startswith("The message was sent but no turn took it up there")
        assert await stored(p.b) == {}
        await until_stored(p.b, lambda all: list(all) == [p.b.delegate._shared.host_id], HOSTS)


# --- deletion


@each_back_end
@pytest.mark.rule("DELEG-9", "DELETE-1")
async def test_what_a_deleted_session_sent_is_nobodys_in_every_host(p: Pair) -> None:
    """Deleted in another host than the one that works for it: nothing stored is left, and no answer comes back."""
    sessions = p.b.host.select(SESSION_MANAGER).use()
    await sessions.ensure_session(HERE)
    await until(lambda: p.a.host.select(SESSION_MANAGER).use().get_session(HERE))
    held = p.b.model.answers["hold"] = Held()
    done = await delegate(p.a, HERE, THERE, wait_for_result=False)
    running = await delegate(p.a, HERE, THERE, "hold", wait_for_result=False)
    await held.started.wait()
    await until_stored(p.a, lambda all: all[done["delegation_id"]]["state"] == "answered")
    await p.a.host.select(SESSION_MANAGER).use().delete_session(HERE)
    assert await stored(p.a) == {}
    for sent in (done, running):
        assert "no open delegation with this id" in (await pick_up(p.a, sent))["error"]
    held.released.set()
    await until(lambda: not p.b.delegate.sending.dispatches.held())


@pytest.mark.rule("DELEG-9")
async def test_a_target_that_is_deleted_while_another_host_works_on_it(p: Pair) -> None:
    held = p.b.model.answers["task"] = Held()
    waiting = calling(p.a, HERE, THERE)
    await held.started.wait()
    await p.a.host.select(SESSION_MANAGER).use().delete_session(THERE)
    answer = await waiting
    assert (answer["status"], answer["outcome"]) == ("answered", "aborted")
    assert answer["note"] == "The target session was deleted meanwhile. Don't send the task again: tell the person."
