"""Deleting a session: the order of things, who waits for whom, and what a crash or a refusing store leaves."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aalis_api_session_manager.errors import InvalidSession, SessionNotFound, StorageError
from aalis_api_session_manager.message import TurnEnd
from aalis_api_session_manager.model import SessionDraft, SessionUpdates
from aalis_api_session_manager.service import AUTHORITY, MEMORY
from aalis_host.app import CONTEXT_ID
from aalis_plugin_session_manager import deletion, manager
from tests.session_manager.kit import Adapter, Clock, Model, Recorder, Stack, group_message, running
from tests.session_manager.memories import copy_database, rows, watched_memory
from tests.session_manager.trees import TREE, Keeper, history, settled, tree, write

rule = pytest.mark.rule


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion that failed is tried again at once."""
    monkeypatch.setattr(deletion, "FIRST_RETRY", 0.01)
    monkeypatch.setattr(deletion, "LAST_RETRY", 0.02)


# --- DELETE-1: the order


@rule("DELETE-1")
async def test_deepest_first_and_each_is_told_before_it_is_cleared(db: str) -> None:
    keeper = Keeper()
    async with running(db, keeper) as stack:
        await tree(stack.sessions)
        await stack.sessions.delete_session("root")
    for session_id in TREE:
        mine = [what for what, which in keeper.steps if which == session_id]
        assert mine == ["told", "returned", "cleared"], session_id
    at = {step: number for number, step in enumerate(keeper.steps)}
    assert at["cleared", "a1"] < at["told", "a"]
    assert at["cleared", "a"] < at["told", "root"]
    assert at["cleared", "b"] < at["told", "root"]


@rule("DELETE-1", "EVENT-1")
async def test_listeners_see_no_record_and_the_whole_history(db: str) -> None:
    """While listeners of `session_deleted` run the tree is out of the table and the history is still there."""
    keeper = Keeper()
    seen: dict[str, tuple[bool, list[str]]] = {}
    async with running(db, keeper) as stack:
        await tree(stack.sessions)
        for session_id in TREE:
            await write(stack, session_id, f"said in {session_id}")

        async def look(session_id: str) -> None:
            await asyncio.sleep(0.005)
            gone = all(stack.sessions.get_session(one) is None for one in TREE)
            seen[session_id] = (gone, await history(stack, session_id))

        keeper.on_deleted = look
        await stack.sessions.delete_session("root")
        assert seen == {session_id: (True, [f"said in {session_id}"]) for session_id in TREE}
        assert [await history(stack, session_id) for session_id in TREE] == [[]] * 4
        assert stack.sessions.list_sessions() == []
    assert rows(db, "sessions") == {}


@rule("DELETE-1", "GEN-1")
async def test_the_tree_leaves_the_table_with_new_generations_in_one_step(stack: Stack) -> None:
    await tree(stack.sessions)
    before = {session_id: stack.sessions.generation_of(session_id) for session_id in TREE}
    step = stack.sessions.delete_session("root").__await__()
    waits_for = next(step)
    assert before == dict.fromkeys(TREE, 0)
    assert all(stack.sessions.get_session(session_id) is None for session_id in TREE)
    assert all(stack.sessions.generation_of(session_id) != 0 for session_id in TREE)
    waiting = [asyncio.ensure_future(stack.sessions.ensure_session(session_id)) for session_id in TREE]
    await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)
    assert waits_for is not None
    step.close()
    await asyncio.gather(*waiting)


@rule("DELETE-1")
async def test_an_unknown_id_is_a_no_op(db: str) -> None:
    with watched_memory() as memories:
        async with running(db) as stack:
            memories[0].forget()
            await stack.sessions.delete_session("nobody")
            assert stack.sessions.generation_of("nobody") == 0
            assert memories[0].commits == []
            assert stack.recorder.events == []


@rule("DELETE-1")
async def test_a_second_call_awaits_the_first(db: str) -> None:
    """Also one for a session below: it returns when the whole deletion has ended, and nothing is told twice."""
    keeper, go = Keeper(), asyncio.Event()
    keeper.on_deleted = lambda session_id: go.wait()  # type: ignore[assignment,return-value]
    async with running(db, keeper) as stack:
        await tree(stack.sessions)
        first = asyncio.create_task(stack.sessions.delete_session("root"))
        await settled(lambda: bool(keeper.steps))
        others = [asyncio.create_task(stack.sessions.delete_session(one)) for one in ("root", "a", "a1")]
        await asyncio.sleep(0.01)
        assert not first.done() and not any(one.done() for one in others)
        go.set()
        await asyncio.gather(first, *others)
        assert sorted(step for step in keeper.steps if step[0] == "told") == [
            ("told", session_id) for session_id in sorted(TREE)
        ]
        assert [stack.sessions.generation_of(session_id) for session_id in TREE] == [1, 1, 1, 1]


@rule("DELETE-1")
@pytest.mark.parametrize("session_id", ["root", "a"])
async def test_making_an_id_that_is_being_deleted_waits_for_the_end(db: str, session_id: str) -> None:
    """`ensure_session` and `create_child_session` wait until everything is cleared; then the id is new."""
    keeper, go = Keeper(), asyncio.Event()
    keeper.on_clear = lambda one: go.wait()  # type: ignore[assignment,return-value]
    async with running(db, keeper) as stack:
        await tree(stack.sessions)
        await stack.sessions.update_session(session_id, SessionUpdates(title="old"))
        deleting = asyncio.create_task(stack.sessions.delete_session("root"))
        await settled(lambda: ("cleared", "a1") in keeper.steps)
        ensured = asyncio.create_task(stack.sessions.ensure_session(session_id))
        child = asyncio.create_task(stack.sessions.create_child_session(session_id))
        await asyncio.sleep(0.01)
        assert not ensured.done() and not child.done()
        go.set()
        made, below = await asyncio.gather(ensured, child)
        assert keeper.steps[-1] == ("cleared", "root")
        await deleting
        assert (made.title, made.parent_id, made.status) == (None, None, "active")
        assert below.parent_id == session_id
        assert stack.sessions.get_session(session_id) is not None


@rule("DELETE-1")
async def test_a_session_with_a_parent_that_is_being_deleted_waits_too(db: str) -> None:
    """`create_session` below it finds no parent when the deletion has ended."""
    keeper, go = Keeper(), asyncio.Event()
    keeper.on_clear = lambda one: go.wait()  # type: ignore[assignment,return-value]
    async with running(db, keeper) as stack:
        await stack.sessions.ensure_session("root")
        deleting = asyncio.create_task(stack.sessions.delete_session("root"))
        await settled(lambda: bool(keeper.steps))
        child = asyncio.create_task(stack.sessions.create_session(SessionDraft(parent_id="root")))
        await asyncio.sleep(0.01)
        assert not child.done()
        go.set()
        await deleting
        with pytest.raises(SessionNotFound):
            await child
        assert stack.sessions.list_sessions() == []


@rule("DELETE-1")
async def test_deleting_a_parent_while_its_child_is_being_deleted(db: str) -> None:
    """The parent is told and cleared after its child, whichever deletion began first."""
    keeper, go = Keeper(), asyncio.Event()
    async with running(db, keeper) as stack:
        await tree(stack.sessions)
        for session_id in TREE:
            await write(stack, session_id)

        async def hold_child(session_id: str) -> None:
            if session_id == "a":
                await go.wait()

        keeper.on_clear = hold_child
        child = asyncio.create_task(stack.sessions.delete_session("a"))
        await settled(lambda: ("cleared", "a") in keeper.steps)
        parent = asyncio.create_task(stack.sessions.delete_session("root"))
        await asyncio.sleep(0.02)
        assert ("told", "root") not in keeper.steps
        go.set()
        await asyncio.gather(child, parent)
        assert [await history(stack, session_id) for session_id in TREE] == [[]] * 4
        assert rows(db, "deletions") == {}


# --- DELETE-2: through the agent


@rule("DELETE-2")
async def test_a_running_turn_is_stopped_and_the_session_held_until_it_is_cleared(db: str) -> None:
    keeper, go = Keeper(), asyncio.Event()
    model = Model(hold=asyncio.Event())
    async with running(db, keeper, model=model) as stack:
        stack.host.add_platform(Adapter())
        turn = asyncio.create_task(stack.say("room"))
        await model.asked.wait()
        keeper.on_clear = lambda one: go.wait()  # type: ignore[assignment,return-value]
        deleting = asyncio.create_task(stack.sessions.delete_session("room"))
        await settled(lambda: ("cleared", "room") in keeper.steps)
        assert [end.outcome for end in keeper.ends] == ["aborted"]
        await turn

        model.asked.clear()
        generation = stack.sessions.generation_of("room")
        late = group_message("room", "new", source="schedule")
        held = asyncio.create_task(stack.host.agent.handle_message(late, generation))
        await asyncio.sleep(0.01)
        assert not model.asked.is_set()
        go.set()
        await deleting
        await model.asked.wait()
        assert model.hold is not None
        model.hold.set()
        await held
        assert await history(stack, "room") == ["new", "ok"]


@rule("DELETE-2")
async def test_turns_of_the_sessions_below_are_stopped_too(db: str) -> None:
    keeper, model = Keeper(), Model(hold=asyncio.Event())
    async with running(db, keeper, model=model) as stack:
        await tree(stack.sessions)
        turns = []
        for session_id in TREE:
            model.asked.clear()
            message = group_message(session_id, source="task")
            turns.append(asyncio.create_task(stack.host.gateway.ingress(message)))
            await model.asked.wait()
        await stack.sessions.delete_session("root")
        assert {end.session_id: end.outcome for end in keeper.ends} == dict.fromkeys(TREE, "aborted")
        await asyncio.gather(*turns)
        assert [await history(stack, session_id) for session_id in TREE] == [[]] * 4


@rule("DELETE-2", "DELETE-1")
async def test_without_an_agent_the_order_is_the_same(db: str) -> None:
    keeper = Keeper()
    async with running(db, keeper) as stack:
        stack.host.services.withdraw(CONTEXT_ID)
        stack.host.services.provide(MEMORY, stack.host.memory, CONTEXT_ID)
        stack.host.services.provide(AUTHORITY, stack.host.authority, CONTEXT_ID)
        await tree(stack.sessions)
        await write(stack, "a")
        await stack.sessions.delete_session("a")
        assert keeper.steps == [(what, which) for which in ("a1", "a") for what in ("told", "returned", "cleared")]
        assert await history(stack, "a") == []


@rule("DELETE-2")
async def test_a_turn_deletes_its_own_session(db: str) -> None:
    """A listener in the turn asks for the deletion of the session it runs in: everything is cleared, nobody hangs."""
    keeper = Keeper()
    async with running(db, keeper) as stack:
        stack.host.add_platform(Adapter())

        class Suicidal(Model):
            async def complete(self, messages: Any, tools: Any) -> Any:
                await stack.sessions.delete_session("room")
                return await super().complete(messages, tools)

        stack.host._model = Suicidal()
        await stack.say("room")
        await settled(lambda: ("cleared", "room") in keeper.steps and not rows(db, "deletions"))
        assert await history(stack, "room") == []
        assert stack.sessions.get_session("room") is None
        assert [end.outcome for end in keeper.ends] == ["aborted"]


# --- DELETE-3: the parent


@rule("DELETE-3")
async def test_the_parent_hears_of_a_new_child_once_afterwards(stack: Stack) -> None:
    await stack.sessions.ensure_session("root")
    child = await stack.sessions.create_child_session("root")
    told = [(name, what.id) for name, what in stack.recorder.events]
    assert told == [("created", "root"), ("created", child.id), ("updated", "root")]
    assert stack.recorder.events[-1][1].children == (child.id,)


@rule("DELETE-3")
async def test_the_parent_hears_of_a_deleted_child_once_afterwards(db: str) -> None:
    """One `session_updated` for the whole subtree, after its last `session_deleted`; then the call returns."""
    async with running(db) as stack:
        await tree(stack.sessions)
        stack.recorder.events.clear()
        await stack.sessions.delete_session("a")
        told = [(name, what if isinstance(what, str) else what.id) for name, what in stack.recorder.events]
        assert told == [("deleted", "a1"), ("deleted", "a"), ("updated", "root")]
        assert stack.recorder.events[-1][1].children == ("b",)
        stack.recorder.events.clear()
        await stack.sessions.delete_session("root")
        assert [name for name, _ in stack.recorder.events] == ["deleted", "deleted"]


# --- DELETE-5: inside its own listeners


@rule("DELETE-5")
@pytest.mark.parametrize("moment", ["on_deleted", "on_clear"])
@pytest.mark.parametrize("make", ["ensure", "child", "create"])
@pytest.mark.parametrize("about", ["a1", "root"])
async def test_making_it_again_inside_its_own_deletion_is_an_error(db: str, moment: str, make: str, about: str) -> None:
    """Any session of the tree, from the listener of any other: waiting would be for itself."""
    keeper = Keeper()
    caught: list[InvalidSession] = []
    async with running(db, keeper) as stack:
        await tree(stack.sessions)

        async def make_again(session_id: str) -> None:
            if session_id != "a":
                return
            with pytest.raises(InvalidSession) as raised:
                async with asyncio.timeout(5):
                    if make == "ensure":
                        await stack.sessions.ensure_session(about)
                    elif make == "child":
                        await stack.sessions.create_child_session(about)
                    else:
                        await stack.sessions.create_session(SessionDraft(parent_id=about))
            caught.append(raised.value)

        setattr(keeper, moment, make_again)
        await stack.sessions.delete_session("root")
        assert [error.session_id for error in caught] == [about]
        assert stack.sessions.list_sessions() == []


@rule("DELETE-5")
async def test_a_listener_of_another_session_waits_like_anybody_else(db: str) -> None:
    """Only that deletion's own listeners are refused: one of another deletion waits for the end."""
    keeper, go = Keeper(), asyncio.Event()
    made = []
    async with running(db, keeper) as stack:
        await stack.sessions.ensure_session("one")
        await stack.sessions.ensure_session("two")

        async def on_clear(session_id: str) -> None:
            if session_id == "one":
                await go.wait()
            else:
                go.set()
                made.append(await stack.sessions.ensure_session("one"))

        keeper.on_clear = on_clear
        first = asyncio.create_task(stack.sessions.delete_session("one"))
        await settled(lambda: ("cleared", "one") in keeper.steps)
        await stack.sessions.delete_session("two")
        await first
        assert [info.id for info in made] == ["one"]


# --- deleting from inside listeners


@rule("DELETE-1", "STORE-2")
async def test_a_listener_may_delete_what_it_hears_of(db: str) -> None:
    recorder = Recorder()
    async with running(db, recorder=recorder) as stack:

        async def delete_it(name: str, what: Any) -> None:
            if name == "created":
                await stack.sessions.delete_session(what.id)
                assert stack.sessions.get_session(what.id) is None

        recorder.listener = delete_it
        await stack.sessions.ensure_session("short-lived")
        await settled(lambda: recorder.names("short-lived") == ["created", "deleted"])
        await settled(lambda: not rows(db, "deletions"))
        assert rows(db, "sessions") == {}


@rule("DELETE-1")
@pytest.mark.parametrize("moment", ["on_deleted", "on_clear"])
@pytest.mark.parametrize("other", ["a", "a1", "root", "b", "other"])
async def test_a_listener_of_a_deletion_may_delete(db: str, moment: str, other: str) -> None:
    """Itself, its own tree, its parent, a stranger: nobody waits for itself, everything ends."""
    keeper = Keeper()
    async with running(db, keeper) as stack:
        await tree(stack.sessions)
        await stack.sessions.ensure_session("other")
        for session_id in (*TREE, "other"):
            await write(stack, session_id)

        async def delete_more(session_id: str) -> None:
            if session_id == "a":
                async with asyncio.timeout(5):
                    await stack.sessions.delete_session(other)

        setattr(keeper, moment, delete_more)
        await stack.sessions.delete_session("a")
        gone = {"a", "a1"} | {"root": set(TREE), "b": {"b"}, "other": {"other"}}.get(other, set())
        await settled(lambda: not rows(db, "deletions"))
        assert {info.id for info in stack.sessions.list_sessions()} == {*TREE, "other"} - gone
        for session_id in (*TREE, "other"):
            assert await history(stack, session_id) == ([] if session_id in gone else ["kept"])
        told = [which for what, which in keeper.steps if what == "told"]
        assert sorted(told) == sorted(gone)


@rule("DELETE-1", "DELETE-2")
async def test_a_listener_deletes_a_session_whose_turn_end_waits_for_an_event(db: str) -> None:
    """The turn's end changes a session and waits for that event, which comes behind the listener that deletes.

    The listener goes on when the removal is durable, so nobody waits for anybody.
    """
    keeper, recorder, model = Keeper(), Recorder(), Model(hold=asyncio.Event())
    async with running(db, keeper, recorder=recorder, model=model) as stack:
        stack.host.add_platform(Adapter())
        await stack.sessions.ensure_session("log")
        turn = asyncio.create_task(stack.say("room"))
        await model.asked.wait()

        async def write_down(end: TurnEnd) -> None:
            await stack.sessions.update_session("log", SessionUpdates(result="a turn ended"))

        async def delete_room(name: str, what: Any) -> None:
            if name == "created":
                async with asyncio.timeout(5):
                    await stack.sessions.delete_session("room")

        keeper.on_turn_end, recorder.listener = write_down, delete_room
        async with asyncio.timeout(8):
            await stack.sessions.ensure_session("trigger")
            await turn
        await settled(lambda: ("cleared", "room") in keeper.steps)
        log = stack.sessions.get_session("log")
        assert log is not None and log.result == "a turn ended"


# --- DELETE-5: the store refuses


@rule("DELETE-5", "STORE-3")
async def test_when_the_removal_is_refused_arrivals_are_let_in_and_it_is_tried_again(db: str) -> None:
    with watched_memory() as memories:
        async with running(db) as stack:
            await tree(stack.sessions)
            await write(stack, "root", "old")
            memories[0].refuse = float("inf")
            with pytest.raises(StorageError) as raised:
                await stack.sessions.delete_session("root")
            assert (raised.value.session_id, raised.value.pending) == ("root", True)
            arrival = asyncio.create_task(stack.sessions.record_inbound(group_message("root")))
            async with asyncio.timeout(5):
                await arrival
            memories[0].refuse = 0
            await settled(lambda: set(rows(db, "sessions")) == {"root"} and not rows(db, "deletions"))
            assert stack.recorder.names("root")[-1] == "created"
            info = stack.sessions.get_session("root")
            assert info is not None and info.origin_platform == "onebot"
            await settled(
                lambda: sorted(what for name, what in stack.recorder.events if name == "deleted") == sorted(TREE)
            )
            assert await history(stack, "root") == []


@rule("DELETE-5", "GEN-5")
async def test_when_clearing_fails_arrivals_are_let_in_and_it_is_tried_again(db: str) -> None:
    """What the arrivals say stays; the old history goes when the store works again. Nothing is told twice."""
    with watched_memory() as memories:
        async with running(db) as stack:
            stack.host.add_platform(Adapter())
            await stack.say("room", "old")
            assert await history(stack, "room") == ["old", "ok"]
            memories[0].refuse_clearing = float("inf")
            with pytest.raises(StorageError) as raised:
                await stack.sessions.delete_session("room")
            assert (raised.value.session_id, raised.value.pending) == ("room", True)
            async with asyncio.timeout(5):
                await stack.say("room", "new")
            memories[0].refuse_clearing = 0
            await settled(lambda: not rows(db, "deletions"))
            assert await history(stack, "room") == ["new", "ok"]
            assert stack.sessions.get_session("room") is not None
            names = [name for name in stack.recorder.names("room") if name != "updated"]
            assert names == ["created", "deleted", "created"]


@rule("DELETE-5", "EVENT-1")
async def test_an_id_that_is_made_again_while_its_removal_waits_is_deleted_and_created(db: str) -> None:
    """Both wait for the same success: listeners hear that the old one is gone, then that there is a new one."""
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("again", SessionDraft(title="old"))
            await write(stack, "again", "old")
            memories[0].refuse = float("inf")
            with pytest.raises(StorageError):
                await stack.sessions.delete_session("again")
            with pytest.raises(StorageError) as raised:
                await stack.sessions.ensure_session("again", SessionDraft(title="new"))
            assert raised.value.pending
            memories[0].refuse = 0
            await settled(lambda: stack.recorder.names("again") == ["created", "deleted", "created"])
            await settled(lambda: not rows(db, "deletions"))
            assert stack.recorder.events[-1][1].title == "new"
            assert await history(stack, "again") == []


@rule("DELETE-5", "GEN-3")
@pytest.mark.parametrize("refused", ["refuse", "refuse_clearing"])
async def test_trying_again_stops_no_turn_of_the_new_generation(db: str, refused: str) -> None:
    keeper, model = Keeper(), Model()
    with watched_memory() as memories:
        async with running(db, keeper, model=model) as stack:
            stack.host.add_platform(Adapter())
            await stack.say("room", "old")
            setattr(memories[0], refused, float("inf"))
            with pytest.raises(StorageError):
                await stack.sessions.delete_session("room")
            keeper.ends.clear()
            keeper.steps.clear()
            model.hold, _ = asyncio.Event(), model.asked.clear()
            turn = asyncio.create_task(stack.say("room", "new", source="schedule"))
            await model.asked.wait()
            setattr(memories[0], refused, 0)
            await settled(lambda: ("cleared", "room") in keeper.steps and not rows(db, "deletions"))
            model.hold.set()
            await turn
            assert [end.outcome for end in keeper.ends] == ["replied"]
            assert await history(stack, "room") == ["new", "ok"]


@rule("DELETE-2", "DELETE-5")
async def test_a_refused_removal_stops_the_turns_of_the_whole_tree_before_arrivals_are_let_in(db: str) -> None:
    keeper, model = Keeper(), Model(hold=asyncio.Event())
    with watched_memory() as memories:
        async with running(db, keeper, model=model) as stack:
            await tree(stack.sessions)
            turn = asyncio.create_task(stack.host.gateway.ingress(group_message("a1", source="task")))
            await model.asked.wait()
            memories[0].refuse = float("inf")
            with pytest.raises(StorageError):
                await stack.sessions.delete_session("root")
            assert [(end.session_id, end.outcome) for end in keeper.ends] == [("a1", "aborted")]
            memories[0].refuse = 0
            await turn


@rule("DELETE-5", "STORE-2")
async def test_a_second_call_while_the_removal_waits_says_so_too(db: str) -> None:
    """The session is out of the table, but its removal isn't durable: success would be a lie."""
    with watched_memory() as memories:
        async with running(db) as stack:
            await tree(stack.sessions)
            memories[0].refuse = float("inf")
            for session_id in ("root", "root", "a1"):
                with pytest.raises(StorageError) as raised:
                    async with asyncio.timeout(5):
                        await stack.sessions.delete_session(session_id)
                assert raised.value.pending
            memories[0].refuse = 0
            await stack.sessions.delete_session("root")
            assert rows(db, "sessions") == {}


@rule("DELETE-4", "DELETE-5")
async def test_deleting_it_again_while_its_first_deletion_waits(db: str, tmp_path: Path) -> None:
    """Made again and deleted again while the first one's clearing is refused: both intents stay stored until each
    is finished, so that a crash at any of these moments leaves no history behind."""
    copies: list[Path] = []
    with watched_memory() as memories:
        async with running(db) as stack:
            await tree(stack.sessions)
            for session_id in TREE:
                await write(stack, session_id)
            memories[0].refuse_clearing = float("inf")
            with pytest.raises(StorageError):
                await stack.sessions.delete_session("root")
            await stack.sessions.ensure_session("root")
            await write(stack, "root", "second")

            def keep(what: str) -> None:
                copies.append(tmp_path / f"copy-{len(copies)}.db")
                copy_database(db, copies[-1])

            memories[0].after_write = keep
            with pytest.raises(StorageError):
                await stack.sessions.delete_session("root")
            memories[0].refuse_clearing = 0
            await settled(lambda: not rows(db, "deletions"))
            memories[0].after_write = None
            assert [await history(stack, session_id) for session_id in TREE] == [[]] * 4
            assert stack.sessions.generation_of("root") == 2
    assert copies
    for copy in copies:
        async with running(copy) as stack:
            await settled(lambda copy=copy: not rows(copy, "deletions"))  # type: ignore[misc]
            assert [await history(stack, session_id) for session_id in TREE] == [[]] * 4, copy


@rule("DELETE-5")
async def test_clearing_that_hangs_is_a_failure(db: str) -> None:
    """A plugin's `aalis_memory_clear` never returns: arrivals are let in after the listener's time, and it is
    tried again."""
    keeper, hang = Keeper(), asyncio.Event()
    keeper.on_clear = lambda one: hang.wait()  # type: ignore[assignment,return-value]
    async with running(db, keeper, config={"listenerTimeoutSec": 1}) as stack:
        await stack.sessions.ensure_session("held")
        await write(stack, "held")
        async with asyncio.timeout(5):
            with pytest.raises(StorageError) as raised:
                await stack.sessions.delete_session("held")
            assert raised.value.pending
            await stack.sessions.ensure_session("held")
        hang.set()
        await settled(lambda: not rows(db, "deletions"))
        assert await history(stack, "held") == []


# --- DELETE-4: a crash at any point


@rule("DELETE-4", "GEN-5")
async def test_a_crash_after_any_write_leaves_the_tree_or_a_deletion_that_finishes(db: str, tmp_path: Path) -> None:
    """A copy of the file after every write of a deletion is what a crash at that moment leaves."""
    copies: list[Path] = []

    def keep(what: str) -> None:
        copies.append(tmp_path / f"copy-{len(copies)}.db")
        copy_database(db, copies[-1])

    with watched_memory() as memories:
        async with running(db) as stack:
            await tree(stack.sessions)
            await stack.sessions.ensure_session("stays")
            for session_id in (*TREE, "stays"):
                await write(stack, session_id)
            keep("before")
            memories[0].after_write = keep
            await stack.sessions.delete_session("root")
            memories[0].after_write = None
    assert len(copies) >= 1 + 1 + len(TREE) + 1
    for number, copy in enumerate(copies):
        keeper = Keeper()
        async with running(copy, keeper) as stack:
            await settled(lambda copy=copy: not rows(copy, "deletions"))  # type: ignore[misc]
            if number == 0:
                assert {info.id for info in stack.sessions.list_sessions()} == {*TREE, "stays"}
                assert [await history(stack, session_id) for session_id in TREE] == [["kept"]] * 4
                continue
            assert [info.id for info in stack.sessions.list_sessions()] == ["stays"], copy
            assert [await history(stack, session_id) for session_id in TREE] == [[]] * 4, copy
            assert await history(stack, "stays") == ["kept"]
            assert [stack.sessions.generation_of(session_id) for session_id in TREE] == [1, 1, 1, 1]
            assert await write(stack, "a1", "late", generation=0) == "refused"
            order = [which for what, which in keeper.steps if what == "told"]
            if order:
                assert order[-1] == "root" and order.index("a1") < order.index("a")


@rule("DELETE-4", "DELETE-1")
async def test_arrivals_wait_for_a_deletion_that_the_start_finishes(db: str) -> None:
    """The stopped host leaves the intent; the next one clears before anything new comes in."""
    with watched_memory() as memories:
        async with running(db) as stack:
            stack.host.add_platform(Adapter())
            await stack.say("room", "old")
            memories[0].refuse_clearing = float("inf")
            with pytest.raises(StorageError):
                await stack.sessions.delete_session("room")
        assert rows(db, "deletions")
    keeper = Keeper()
    async with running(db, keeper) as stack:
        stack.host.add_platform(Adapter())
        await stack.say("room", "new")
        assert keeper.steps == [("told", "room"), ("returned", "room"), ("cleared", "room")]
        assert await history(stack, "room") == ["new", "ok"]


@rule("DELETE-4")
async def test_a_read_only_host_finishes_nothing(db: str) -> None:
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("one")
            await write(stack, "one")
            memories[0].refuse_clearing = float("inf")
            with pytest.raises(StorageError):
                await stack.sessions.delete_session("one")
    stored = rows(db, "deletions")
    async with running(db, read_only=True) as stack:
        await asyncio.sleep(0.05)
        assert stack.sessions.list_sessions() == []
        with pytest.raises(StorageError):
            await stack.sessions.delete_session("one")
    assert rows(db, "deletions") == stored


# --- two processes


@rule("DELETE-1", "GEN-5")
async def test_another_process_hears_of_a_deletion_and_holds_new_arrivals(db: str) -> None:
    keeper, go = Keeper(), asyncio.Event()
    async with running(db, keeper) as one, running(db) as other:
        await one.sessions.ensure_session("shared")
        await settled(lambda: other.sessions.get_session("shared") is not None)
        keeper.on_clear = lambda session_id: go.wait()  # type: ignore[assignment,return-value]
        deleting = asyncio.create_task(one.sessions.delete_session("shared"))
        await settled(lambda: other.sessions.get_session("shared") is None)
        await settled(lambda: "deleted" in other.recorder.names("shared"))
        assert other.sessions.generation_of("shared") == one.sessions.generation_of("shared") == 1
        arrival = asyncio.create_task(other.sessions.ensure_session("shared"))
        await asyncio.sleep(0.05)
        assert not arrival.done()
        go.set()
        await deleting
        async with asyncio.timeout(10):
            await arrival
        await settled(lambda: one.sessions.get_session("shared") is not None)


@rule("GEN-1", "GEN-5", "DELETE-4")
async def test_two_processes_delete_the_same_id_one_after_the_other_without_hearing_of_each_other(db: str) -> None:
    """The second one's commit finds a higher generation stored: it clears what was said below the number that it
    got, not below the one that it had reckoned with."""
    with watched_memory() as memories:
        async with running(db) as one, running(db) as other:
            await one.sessions.ensure_session("shared")
            await settled(lambda: other.sessions.get_session("shared") is not None)
            memories[1].pass_commits.clear()
            second = asyncio.create_task(other.sessions.delete_session("shared"))
            await memories[1].waiting.wait()
            await one.sessions.delete_session("shared")
            await one.sessions.ensure_session("shared")
            await write(one, "shared", "between", generation=1)
            memories[1].pass_commits.set()
            await second
            assert rows(db, "sessions") == {}
            assert await history(other, "shared") == []
            assert other.sessions.generation_of("shared") == 2
            await settled(lambda: one.sessions.generation_of("shared") == 2)
            await settled(lambda: one.sessions.get_session("shared") is None)


@rule("DELETE-1")
async def test_a_child_that_another_process_makes_meanwhile_goes_too(db: str) -> None:
    """Neither process knows of the other's change when it makes its own: nothing is left without a parent."""
    with watched_memory() as memories:
        async with running(db) as here, running(db) as deaf:
            await here.sessions.ensure_session("root")
            await settled(lambda: deaf.sessions.get_session("root") is not None)
            memories[1].deaf = True
            await asyncio.sleep(0.06)
            child = await here.sessions.create_child_session("root")
            grandchild = await here.sessions.create_child_session(child.id)
            await write(here, child.id)
            await write(here, grandchild.id)
            await deaf.sessions.delete_session("root")
            memories[1].deaf = False
            await settled(lambda: rows(db, "sessions") == {} and rows(db, "deletions") == {})
            await settled(lambda: here.sessions.list_sessions() == deaf.sessions.list_sessions() == [])
            assert [await history(here, one) for one in (child.id, grandchild.id)] == [[], []]


@rule("DELETE-4", "DELETE-5")
async def test_what_a_dead_process_left_is_finished_by_one_that_lives(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It held new arrivals since it heard of the deletion; when that is as old as no living process leaves it, it
    clears and lets them in."""
    monkeypatch.setattr(manager, "RENEW_MS", 20)
    clock, keeper = Clock(), Keeper()
    with watched_memory() as memories:
        async with running(db, keeper, clock=clock) as lives:
            async with running(db) as dies:
                await dies.sessions.ensure_session("one")
                await write(dies, "one", "old")
                await settled(lambda: lives.sessions.get_session("one") is not None)
                memories[1].refuse_clearing = float("inf")
                with pytest.raises(StorageError):
                    await dies.sessions.delete_session("one")
            await settled(lambda: lives.sessions.get_session("one") is None)
            arrival = asyncio.create_task(lives.sessions.ensure_session("one"))
            await asyncio.sleep(0.1)
            assert not arrival.done()
            assert rows(db, "deletions") and await history(lives, "one") == ["old"]
            clock.ms += 40_000
            await arrival
            await settled(lambda: not rows(db, "deletions"))
            assert await history(lives, "one") == []
            assert keeper.steps[-1] == ("cleared", "one")
            assert [name for name in lives.recorder.names("one") if name == "deleted"] == ["deleted"]
