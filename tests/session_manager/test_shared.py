"""Two hosts on one database see one truth."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest
from attrs import evolve

from aalis_api_session_manager.errors import SessionNotFound, StorageError
from aalis_api_session_manager.memory import Changes
from aalis_api_session_manager.message import LlmUsage, Message, TurnEnd, TurnStart
from aalis_api_session_manager.model import SessionDraft, SessionUpdates
from tests.cluster import each_back_end
from tests.session_manager.kit import Adapter, Model, Stack, group_message, running
from tests.session_manager.memories import rows, watched_memory


@pytest.fixture
async def other(db: str, stack: Stack) -> AsyncIterator[Stack]:
    """A second host on the database of `stack`."""
    async with running(db, clock=stack.clock) as made:
        yield made


async def seen(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait until it is true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@each_back_end
@pytest.mark.rule("STORE-1", "EVENT-1")
async def test_a_change_arrives_in_the_other_host_with_its_event(stack: Stack, other: Stack) -> None:
    """Created, updated, completed and deleted are seen by the other host's readers and plugins, once each."""
    made = await stack.sessions.ensure_session("shared", SessionDraft(name="one"))
    await seen(lambda: other.sessions.get_session("shared") == made)
    await stack.sessions.update_session("shared", SessionUpdates(title="t"))
    await stack.sessions.complete_session("shared", "done")
    await seen(lambda: "completed" in other.recorder.names("shared"))
    await stack.sessions.delete_session("shared")
    await seen(lambda: "deleted" in other.recorder.names("shared"))
    assert other.sessions.get_session("shared") is None
    names = other.recorder.names("shared")
    assert names[0] == "created" and names[-1] == "deleted"
    assert names.count("created") == names.count("completed") == names.count("deleted") == 1
    assert stack.recorder.names("shared").count("deleted") == 1


@each_back_end
@pytest.mark.rule("STORE-3", "USAGE-1", "CREATE-7")
async def test_changes_of_both_hosts_add_up(stack: Stack, other: Stack) -> None:
    """Tokens and metadata keys written by two hosts at once are all there: no update is lost."""
    await stack.sessions.ensure_session("hot")
    await seen(lambda: other.sessions.get_session("hot"))

    async def work(host: Stack, name: str) -> None:
        for number in range(25):
            await host.sessions.update_session("hot", SessionUpdates(metadata={f"{name}{number}": number}))
            await host.host.emit("aalis_llm_usage", usage=LlmUsage(session_id="hot", input_tokens=1, output_tokens=2))

    await asyncio.gather(work(stack, "a"), work(other, "b"))

    def whole(host: Stack) -> bool:
        info = host.sessions.get_session("hot")
        assert info is not None
        tokens = info.tokens
        return len(info.metadata or {}) == 50 and tokens is not None and (tokens.input, tokens.output) == (50, 100)

    await seen(lambda: whole(stack) and whole(other))


@each_back_end
@pytest.mark.rule("STORE-3")
async def test_changing_what_the_other_host_has_deleted(stack: Stack, other: Stack) -> None:
    """A change that was made before the deletion was heard of is rejected as one of a session that isn't there."""
    await stack.sessions.ensure_session("gone")
    await seen(lambda: other.sessions.get_session("gone"))
    await stack.sessions.delete_session("gone")
    if other.sessions.get_session("gone") is not None:
        with pytest.raises(SessionNotFound):
            await other.sessions.update_session("gone", SessionUpdates(title="late"))
    await seen(lambda: other.sessions.get_session("gone") is None)
    assert stack.sessions.get_session("gone") is None


@each_back_end
@pytest.mark.rule("DELETE-2", "GEN-1", "GEN-5")
async def test_a_deletion_stops_the_turn_in_the_other_host(db: str, stack: Stack) -> None:
    """B deletes a session whose turn runs in A: A's turn stops, nothing of it stays, the generation holds in A."""
    model = Model(hold=asyncio.Event())
    async with running(db, clock=stack.clock, model=model) as runner:
        runner.host.add_platform(Adapter())
        turn = asyncio.create_task(runner.host.gateway.ingress(group_message("room")))
        await model.asked.wait()
        await seen(lambda: stack.sessions.get_session("room"))
        await stack.sessions.delete_session("room")
        async with asyncio.timeout(5):
            await turn
        await seen(lambda: runner.sessions.generation_of("room") == 1)
        late = Message(session_id="room", role="assistant", content="late", timestamp=1)
        assert (await runner.host.memory.save_message("room", late, 0)).status == "refused"
        assert (await stack.host.memory.history("room", 10)).messages == ()
        assert runner.sessions.get_session("room") is None
        await seen(lambda: not stack.plugin.manager.turns.lease_count)


@each_back_end
@pytest.mark.rule("GEN-3", "DELETE-1")
async def test_a_deleted_session_lives_again_in_the_other_host(stack: Stack, other: Stack) -> None:
    """After B's deletion a message in A files the room anew, and its history is the new one's alone."""
    for host in (stack, other):
        host.host.add_platform(Adapter())
    await stack.say("room", "old")
    await seen(lambda: other.sessions.get_session("room"))
    await other.sessions.delete_session("room")
    await seen(lambda: stack.sessions.generation_of("room") == 1)
    await stack.say("room", "new")
    page = await other.host.memory.history("room", 10)
    assert [message.content for message in page.messages] == ["new", "ok"]
    await seen(lambda: other.sessions.get_session("room"))


@each_back_end
@pytest.mark.rule("TURN-1")
async def test_two_turns_in_two_hosts_close_the_session_with_the_last(stack: Stack, other: Stack) -> None:
    """While a turn runs in the other host the session stays active; the last one to end closes it."""
    await stack.sessions.ensure_session("busy")
    await seen(lambda: other.sessions.get_session("busy"))
    message = group_message("busy")

    async def begin(host: Stack, turn_id: str) -> None:
        start = TurnStart(turn_id=turn_id, message=message, session_id="busy", started_at=host.clock())
        await host.host.emit("aalis_turn_before", turn=start)

    async def end(host: Stack, turn_id: str) -> None:
        ended = TurnEnd(
            turn_id=turn_id, message=message, session_id="busy", ended_at=host.clock(), outcome="replied", reply="x"
        )
        await host.host.emit("aalis_turn_after", turn=ended)

    await begin(stack, "t1")
    await begin(other, "t2")
    await seen(lambda: stack.plugin.manager.turns.lease_count == other.plugin.manager.turns.lease_count == 2)
    await end(stack, "t1")
    await seen(lambda: other.plugin.manager.turns.lease_count == 1)
    busy = other.sessions.get_session("busy")
    assert busy is not None and busy.status == "active"
    await end(other, "t2")
    await seen(lambda: (info := stack.sessions.get_session("busy")) and info.status == "completed")


@pytest.mark.rule("TURN-1")
async def test_the_host_that_stops_last_closes_the_session(db: str) -> None:
    """It has heard nothing of the end of the other's turn when it ends its own, and stops at once."""
    with watched_memory() as memories:
        async with running(db) as first:
            await first.sessions.ensure_session("busy")
            message = group_message("busy")
            async with running(db, clock=first.clock) as last:
                for host, turn_id in ((first, "t1"), (last, "t2")):
                    start = TurnStart(turn_id=turn_id, message=message, session_id="busy", started_at=host.clock())
                    await host.host.emit("aalis_turn_before", turn=start)
                await seen(lambda: first.plugin.manager.turns.lease_count == last.plugin.manager.turns.lease_count == 2)
                for memory in memories:
                    memory.deaf = True
                await asyncio.sleep(0.1)
                for host, turn_id in ((first, "t1"), (last, "t2")):
                    end = TurnEnd(
                        turn_id=turn_id, message=message, session_id="busy", ended_at=host.clock(), outcome="silent"
                    )
                    await host.host.emit("aalis_turn_after", turn=end)
                await seen(lambda: "t1" not in rows(db, "turns"))
                await last.plugin.manager.stop()
            assert rows(db, "turns") == {}
            assert json.loads(rows(db, "sessions")["busy"])["status"] == "completed"


@each_back_end
@pytest.mark.rule("TURN-1")
async def test_two_turns_that_end_at_the_same_moment_close_the_session(stack: Stack, other: Stack) -> None:
    """Each host may still have seen the other's turn running; the session is closed all the same."""
    await stack.sessions.ensure_session("busy")
    await seen(lambda: other.sessions.get_session("busy"))
    message = group_message("busy")
    for host, turn_id in ((stack, "t1"), (other, "t2")):
        start = TurnStart(turn_id=turn_id, message=message, session_id="busy", started_at=host.clock())
        await host.host.emit("aalis_turn_before", turn=start)
    await seen(lambda: stack.plugin.manager.turns.lease_count == other.plugin.manager.turns.lease_count == 2)
    for host, turn_id in ((stack, "t1"), (other, "t2")):
        ended = TurnEnd(
            turn_id=turn_id, message=message, session_id="busy", ended_at=host.clock(), outcome="replied", reply="x"
        )
        await host.host.emit("aalis_turn_after", turn=ended)
    for host in (stack, other):
        await seen(lambda host=host: (info := host.sessions.get_session("busy")) and info.status == "completed")  # type: ignore[misc]


@each_back_end
@pytest.mark.rule("DELETE-4")
async def test_the_other_host_holds_what_arrives_during_a_deletion(stack: Stack, other: Stack) -> None:
    """`ensure_session` in B on an id that A is deleting waits for the end of that deletion."""
    held = asyncio.Event()

    async def slow(name: str, what: object) -> None:
        if name == "deleted":
            await held.wait()

    stack.recorder.listener = slow
    await stack.sessions.ensure_session("slow")
    await seen(lambda: other.sessions.get_session("slow"))
    deletion = asyncio.create_task(stack.sessions.delete_session("slow"))
    await seen(lambda: other.sessions.get_session("slow") is None)
    await asyncio.sleep(0.1)
    again = asyncio.create_task(other.sessions.ensure_session("slow"))
    await asyncio.sleep(0.2)
    assert not again.done()
    held.set()
    await deletion
    async with asyncio.timeout(5):
        assert (await again).id == "slow"


@each_back_end
@pytest.mark.rule("STORE-1", "EVENT-1")
async def test_a_host_that_slept_too_long_reads_everything_again(
    stack: Stack, other: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off until removals were forgotten: it takes over what is there, and tells of each difference once."""
    for session_id in ("gone", "changed"):
        await stack.sessions.ensure_session(session_id)
    await seen(lambda: other.sessions.get_session("gone") and other.sessions.get_session("changed"))
    asleep, changes = True, other.host.memory.changes

    async def pruned(after_revision: int) -> Changes:
        if asleep:
            raise StorageError("cut off")
        return evolve(await changes(after_revision), rows=(), generations={}, complete=False)

    monkeypatch.setattr(other.host.memory, "changes", pruned)
    await stack.sessions.delete_session("gone")
    await stack.sessions.update_session("changed", SessionUpdates(title="t"))
    await stack.sessions.ensure_session("new")
    asleep = False
    await seen(lambda: other.sessions.get_session("new"))
    await seen(lambda: "created" in other.recorder.names("new"))
    monkeypatch.undo()
    changed = other.sessions.get_session("changed")
    assert other.sessions.get_session("gone") is None and changed is not None and changed.title == "t"
    assert other.sessions.generation_of("gone") == 1
    assert other.recorder.names("gone") == ["created", "deleted"]
    assert other.recorder.names("changed") == ["created", "updated"]
    assert other.recorder.names("new") == ["created"]
