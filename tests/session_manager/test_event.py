"""Lifecycle events: what they carry, in which order they come, and listeners that fail, change things or hang."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import define, evolve
from structlog.testing import capture_logs

from aalis_api_session_manager.errors import InvalidSession
from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import PluginMeta
from aalis_api_session_manager.message import LlmUsage
from aalis_api_session_manager.model import SessionDraft, SessionInfo, SessionUpdates
from tests.session_manager.kit import Adapter, Recorder, group_message, running
from tests.session_manager.memories import rows, watched_memory
from tests.session_manager.probes import end_turn, start_turn
from tests.session_manager.trees import history, place, settled, write

rule = pytest.mark.rule


@pytest.fixture(autouse=True)
def unformatted() -> Iterator[None]:
    """A traceback takes longer to draw than everything else here."""
    with capture_logs():
        yield


def named(name: str) -> Recorder:
    """A recording plugin of this name; what is registered later (the later name) is called first."""
    made: Recorder = type("Named", (Recorder,), {"meta": PluginMeta(name=name)})()
    return made


# --- EVENT-1: what they carry


@rule("EVENT-1")
async def test_events_carry_the_session_as_it_was_stored(db: str) -> None:
    async with running(db) as stack:
        made = await stack.sessions.ensure_session("one", SessionDraft(title="T", metadata={"a": 1}))
        changed = await stack.sessions.update_session("one", SessionUpdates(name="N"))
        await stack.sessions.complete_session("one", "done")
        completed = stack.sessions.get_session("one")
        await stack.sessions.delete_session("one")
        events = stack.recorder.events
        assert events[0] == ("created", made)
        assert events[1] == ("updated", changed)
        assert ("completed", completed) in events
        assert completed is not None and (completed.status, completed.result) == ("completed", "done")
        assert events[-1] == ("deleted", "one")
        assert [name for name, _ in events] in (
            ["created", "updated", "completed", "deleted"],
            ["created", "updated", "updated", "completed", "deleted"],
        )


@rule("EVENT-1", "STORE-2")
async def test_what_changes_nothing_tells_nothing(db: str) -> None:
    """Neither a write nor an event."""
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("one", SessionDraft(title="T"))
            stack.recorder.events.clear()
            memories[0].forget()
            await stack.sessions.ensure_session("one", SessionDraft(title="T"))
            await stack.host.emit("aalis_llm_usage", usage=LlmUsage(session_id="one"))
            await asyncio.sleep(0.15)
            assert stack.recorder.events == []
            assert memories[0].records() == []


@rule("EVENT-1", "USAGE-1", "TURN-2")
async def test_what_hooks_change_is_told_too(db: str) -> None:
    async with running(db) as stack:
        await stack.sessions.ensure_session("one")
        stack.recorder.events.clear()
        await end_turn(stack, await start_turn(stack, "one", "t1"), outcome="replied")
        await settled(lambda: stack.recorder.events != [])
        name, info = stack.recorder.events[-1]
        assert (name, info.status, info.last_turn.outcome) == ("updated", "completed", "replied")
        stack.recorder.events.clear()
        await stack.host.emit("aalis_llm_usage", usage=LlmUsage(session_id="one", input_tokens=3))
        await settled(lambda: stack.recorder.events != [])
        assert [(name, what.tokens.input) for name, what in stack.recorder.events] == [("updated", 3)]
        assert stack.recorder.events[-1][1].updated_at == info.updated_at


@rule("EVENT-1")
async def test_nothing_is_told_again_after_a_restart(db: str) -> None:
    async with running(db) as stack:
        await stack.sessions.ensure_session("one")
        await place(stack.sessions, "child", "one")
        await stack.sessions.complete_session("one")
    async with running(db) as stack:
        await asyncio.sleep(0.05)
        assert stack.recorder.events == []


# --- the order


@rule("EVENT-1", "STORE-2")
async def test_events_come_in_the_order_of_commits(db: str) -> None:
    """Many changes of many sessions at once, slow listeners: nobody hears of an older state after a newer one, and
    the last that is heard is what is stored."""
    recorder = Recorder()
    async with running(db, recorder=recorder) as stack:

        async def slowly(name: str, what: Any) -> None:
            await asyncio.sleep(0.0005 * (len(recorder.events) % 3))

        recorder.listener = slowly

        async def work(session_id: str) -> None:
            await stack.sessions.ensure_session(session_id)
            for number in range(15):
                updates = SessionUpdates(metadata={"number": number})
                await stack.sessions.update_session(session_id, updates)

        ids = [f"s{number}" for number in range(6)]
        await asyncio.gather(*map(work, ids))
        for session_id in ids:
            heard = [what for name, what in recorder.events if what.id == session_id]
            assert recorder.names(session_id) == ["created"] + ["updated"] * 15
            assert [(info.metadata or {}).get("number", -1) for info in heard] == list(range(-1, 15))
            assert heard[-1] == stack.sessions.get_session(session_id)


@rule("EVENT-1", "STORE-2")
async def test_changes_that_share_a_commit_are_told_in_their_order(db: str) -> None:
    with watched_memory() as memories:
        async with running(db) as stack:
            memories[0].pass_commits.clear()
            blocker = asyncio.create_task(stack.sessions.ensure_session("blocker"))
            await memories[0].waiting.wait()
            order = ["c", "a", "b"]
            waiting = []
            for session_id in order:
                waiting.append(asyncio.create_task(stack.sessions.ensure_session(session_id)))
                await asyncio.sleep(0)
            memories[0].pass_commits.set()
            await asyncio.gather(blocker, *waiting)
            assert [what.id for _, what in stack.recorder.events] == ["blocker", *order]


# --- failing listeners


@rule("EVENT-1")
@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, TimeoutError, InvalidSession])
@pytest.mark.parametrize("names", [("a", "z"), ("z", "a")], ids=["called last", "called first"])
async def test_a_failing_listener_breaks_neither_another_nor_the_caller(
    db: str, error: type[BaseException], names: tuple[str, str]
) -> None:
    failing, hearing = named(names[0]), named(names[1])

    async def fail(name: str, what: Any) -> None:
        raise InvalidSession("one", "broken") if error is InvalidSession else error("broken")

    failing.listener = fail
    async with running(db, failing, hearing) as stack:
        await stack.sessions.ensure_session("one")
        await write(stack, "one")
        await stack.sessions.update_session_title("one", "T")
        await stack.sessions.complete_session("one")
        await stack.sessions.delete_session("one")
        assert await history(stack, "one") == []
        for name in ("created", "updated", "completed", "deleted"):
            assert name in hearing.names("one")
            assert name in failing.names("one")


@rule("EVENT-1")
async def test_a_failing_synchronous_listener_breaks_nobody(db: str) -> None:
    @define(eq=False)
    class Broken:
        meta = PluginMeta(name="broken")

        @hookimpl
        def aalis_session_created(self, session: SessionInfo) -> None:
            raise ValueError("broken")

    async with running(db, Broken()) as stack:
        made = await stack.sessions.ensure_session("one")
        assert stack.recorder.events == [("created", made)]


# --- listeners that change things


@rule("EVENT-1", "STORE-2")
async def test_a_listener_changes_sessions_and_awaits_it(db: str) -> None:
    """Inside a listener a change returns when it is durable; its own event comes afterwards, and nothing hangs."""
    recorder = Recorder()
    async with running(db, recorder=recorder) as stack:
        stack.host.add_platform(Adapter())
        steps: list[str] = []

        async def change(name: str, what: Any) -> None:
            if name == "created" and what.id == "one":
                async with asyncio.timeout(5):
                    await stack.sessions.update_session("one", SessionUpdates(title="from a listener"))
                    assert '"from a listener"' in rows(db, "sessions")["one"]
                    await stack.sessions.ensure_session("two")
                    await stack.sessions.create_child_session("two")
                    await stack.sessions.complete_session("two", "done")
                    await stack.sessions.record_inbound(group_message("room"))
                    await stack.sessions.add_workspace("/srv/code")
                    await stack.sessions.delete_session("two")
                steps.append("the listener ended")
            elif name == "updated" and what.id == "one":
                steps.append("told of its change")

        recorder.listener = change
        async with asyncio.timeout(10):
            await stack.sessions.ensure_session("one")
        await settled(lambda: "told of its change" in steps)
        assert steps == ["the listener ended", "told of its change"]
        await settled(lambda: recorder.names("two")[-1:] == ["deleted"])
        info = stack.sessions.get_session("one")
        assert info is not None and info.title == "from a listener"
        assert stack.sessions.get_session("room") is not None


@rule("EVENT-1", "STORE-2")
async def test_listeners_that_answer_each_other_end(db: str) -> None:
    """A change for each event, a bounded number of times: every one is told, the caller isn't kept for all of them."""
    recorder = Recorder()
    async with running(db, recorder=recorder) as stack:

        async def answer(name: str, what: Any) -> None:
            number = (what.metadata or {}).get("number", 0) if not isinstance(what, str) else 20
            if number < 20:
                updates = SessionUpdates(metadata={"number": number + 1})
                await stack.sessions.update_session("one", updates)

        recorder.listener = answer
        async with asyncio.timeout(5):
            await stack.sessions.ensure_session("one")
        await settled(lambda: recorder.names("one") == ["created"] + ["updated"] * 20)


@rule("EVENT-1", "STORE-2")
async def test_a_change_by_somebody_else_waits_for_its_event_while_a_listener_runs(db: str) -> None:
    """Only what a listener itself awaits returns early."""
    recorder, hold = Recorder(), asyncio.Event()
    async with running(db, recorder=recorder) as stack:

        async def wait(name: str, what: Any) -> None:
            if what.id == "slow":
                await hold.wait()

        recorder.listener = wait
        slow = asyncio.create_task(stack.sessions.ensure_session("slow"))
        await settled(lambda: recorder.names("slow") == ["created"])
        other = asyncio.create_task(stack.sessions.ensure_session("other"))
        await settled(lambda: "other" in rows(db, "sessions"))
        await asyncio.sleep(0.01)
        assert not other.done() and not slow.done()
        hold.set()
        await asyncio.gather(slow, other)
        assert recorder.names("other") == ["created"]


# --- listeners that hang


@rule("EVENT-1", "STORE-3")
@pytest.mark.parametrize("names", [("a", "z"), ("z", "a")], ids=["called last", "called first"])
async def test_a_listener_that_hangs_keeps_nobody_for_ever_and_takes_no_event_from_others(
    db: str, names: tuple[str, str]
) -> None:
    """After `listenerTimeoutSec` everything goes on: the caller, the others' listeners, a deletion, later events."""
    hanging, hearing = named(names[0]), named(names[1])
    hung = asyncio.Event()

    async def hang(name: str, what: Any) -> None:
        session_id = what if isinstance(what, str) else what.id
        if session_id == "hang" and name in ("created", "deleted"):
            await hung.wait()

    hanging.listener = hang
    async with running(db, hanging, hearing, config={"listenerTimeoutSec": 1}) as stack:
        async with asyncio.timeout(10):
            made = await stack.sessions.ensure_session("hang")
            assert hearing.events == [("created", made)]
            await write(stack, "hang")
            await stack.sessions.ensure_session("fine")
            await stack.sessions.delete_session("hang")
        assert hearing.names("hang") == ["created", "deleted"]
        assert hearing.names("fine") == ["created"]
        assert await history(stack, "hang") == []


@rule("EVENT-1", "STORE-3")
async def test_a_listener_that_clings_to_its_wait_keeps_nobody_for_ever(db: str) -> None:
    """Being cancelled doesn't end it; everybody else goes on all the same."""
    clinging, hearing = named("a"), named("z")
    free = asyncio.Event()

    async def cling(name: str, what: Any) -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    clinging.listener = cling
    async with running(db, clinging, hearing, config={"listenerTimeoutSec": 1}) as stack:
        try:
            async with asyncio.timeout(8):
                await asyncio.shield(asyncio.create_task(stack.sessions.ensure_session("one")))
                assert hearing.names("one") == ["created"]
        finally:
            free.set()


@rule("EVENT-1")
async def test_a_record_that_a_listener_holds_never_changes(db: str) -> None:
    async with running(db) as stack:
        await stack.sessions.ensure_session("one", SessionDraft(metadata={"a": {"b": [1]}}))
        _, info = stack.recorder.events[0]
        kept = evolve(info)
        with pytest.raises(TypeError):
            info.metadata["a"]["b"] = 2
        with pytest.raises(TypeError):
            info.metadata["a"]["b"][0] = 2
        await stack.sessions.update_session("one", SessionUpdates(metadata={"a": 1}))
        assert info == kept
