"""Generations: messages before, during and after a deletion; whatever comes late changes nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest
from attrs import define, field

from aalis_api_session_manager.errors import SessionNotFound, StorageError
from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import PluginMeta
from aalis_api_session_manager.message import ClearRequest, IncomingMessage, LlmUsage, TurnEnd, TurnStart
from aalis_api_session_manager.model import SessionDraft, SessionUpdates
from aalis_host import agent
from aalis_host.app import AalisHost
from aalis_host.config import Settings
from aalis_host.models.base import ModelReply
from tests.session_manager.kit import Adapter, Model, Stack, group_message, running
from tests.session_manager.memories import rows, watched_memory
from tests.session_manager.probes import end_turn, new_turn, start_turn
from tests.session_manager.trees import TREE, Keeper, history, settled, tree, write

rule = pytest.mark.rule


@define(eq=False)
class Gate:
    """A plugin in the gate: holds messages whose text begins with "hold" until it is opened, answers what it is told,
    and runs commands."""

    meta: ClassVar[PluginMeta] = PluginMeta(name="gatekeeper")
    holding: int = 0
    opened: asyncio.Event = field(factory=asyncio.Event)
    answer: bool | None = None
    commands: list[str] = field(factory=list)

    @hookimpl
    async def aalis_inbound_gate(self, message: IncomingMessage) -> bool | None:
        if message.content.startswith("hold"):
            self.holding += 1
            await self.opened.wait()
        if message.content.endswith("command"):
            self.commands.append(message.content)
        return self.answer


@define(eq=False)
class Stubborn(Model):
    """A model that goes on when it is stopped, and answers all the same."""

    async def complete(self, messages: Any, tools: Any) -> ModelReply:
        self.asked.set()
        while self.hold is not None and not self.hold.is_set():
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                continue
        return ModelReply(content="too late", input_tokens=1000, output_tokens=1000)


# --- GEN-1


@rule("GEN-1")
async def test_it_changes_exactly_when_a_deletion_starts(stack: Stack) -> None:
    """Not when a session is made, changed, spoken to, completed, cleared, or made again."""
    stack.host.add_platform(Adapter())
    generation = stack.sessions.generation_of
    assert generation("room") == 0
    given = [0]
    for _ in range(4):
        await stack.say("room")
        await stack.sessions.update_session("room", SessionUpdates(title="T"))
        await stack.sessions.complete_session("room", "done")
        await stack.sessions.ensure_session("room")
        child = await stack.sessions.create_child_session("room")
        assert generation(child.id) == 0
        await stack.host.clear_memory(ClearRequest(scope="session", session_id="room"))
        assert generation("room") == given[-1]
        assert generation(child.id) != 0
        await stack.sessions.delete_session("room")
        assert generation("room") not in given
        given.append(generation("room"))
        await stack.sessions.delete_session("room")
        assert generation("room") == given[-1]
        await stack.sessions.ensure_session("room")
        assert generation("room") == given[-1]
    assert generation("somebody else") == 0


@rule("GEN-1")
async def test_it_changes_in_the_step_that_makes_arrivals_wait(db: str) -> None:
    """An arrival that the deletion doesn't hold never sees the new number, and one that it holds never the old."""
    keeper, go = Keeper(), asyncio.Event()
    keeper.on_clear = lambda session_id: go.wait()  # type: ignore[assignment,return-value]
    async with running(db, keeper) as stack:
        await stack.sessions.ensure_session("one")
        deleting = asyncio.create_task(stack.sessions.delete_session("one"))
        while stack.sessions.generation_of("one") == 0:
            arrival = asyncio.create_task(stack.sessions.record_inbound(group_message("one", source="x")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert arrival.done() == (stack.sessions.generation_of("one") == 0)
        assert stack.sessions.get_session("one") is None
        go.set()
        await deleting


@rule("GEN-1", "GEN-5")
async def test_it_is_stored(db: str) -> None:
    """A restart gives no number again, and what was said in a generation before is still refused."""
    async with running(db) as stack:
        await tree(stack.sessions)
        await stack.sessions.delete_session("root")
        before = {session_id: stack.sessions.generation_of(session_id) for session_id in TREE}
        assert all(before.values())
    async with running(db) as stack:
        assert {session_id: stack.sessions.generation_of(session_id) for session_id in TREE} == before
        assert await write(stack, "a1", "late", generation=0) == "refused"
        await stack.sessions.ensure_session("root")
        assert stack.sessions.generation_of("root") == before["root"]
        await stack.sessions.delete_session("root")
        assert stack.sessions.generation_of("root") not in (0, before["root"])
        second = stack.sessions.generation_of("root")
    async with running(db) as stack:
        assert stack.sessions.generation_of("root") == second
        assert await write(stack, "root", "late", generation=before["root"]) == "refused"
        assert await write(stack, "root", "now", generation=second) == "saved"


# --- GEN-2: what came before


@rule("GEN-2")
@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("source", [None, "schedule"])
async def test_a_message_that_passed_before_the_deletion_is_dropped(
    db: str, source: str | None, made_again: bool
) -> None:
    """It hung in the gate meanwhile: no turn, nothing in the history; but a command in it still runs."""
    gate, keeper = Gate(), Keeper()
    async with running(db, gate, keeper) as stack:
        stack.host.add_platform(Adapter())
        await stack.say("room", "first")
        keeper.ends.clear()
        old = asyncio.create_task(stack.say("room", "hold command", source=source))
        await settled(lambda: gate.holding == 1)
        await stack.sessions.delete_session("room")
        if made_again:
            await stack.say("room", "new")
        gate.opened.set()
        await old
        assert gate.commands == ["hold command"]
        assert await history(stack, "room") == (["new", "ok"] if made_again else [])
        assert [end.message.content for end in keeper.ends] == (["new"] if made_again else [])


@rule("GEN-2")
async def test_a_message_that_comes_out_of_the_gate_during_the_deletion_is_dropped(db: str) -> None:
    gate, keeper, go = Gate(), Keeper(), asyncio.Event()
    async with running(db, gate, keeper) as stack:
        stack.host.add_platform(Adapter())
        await stack.say("room", "first")
        keeper.ends.clear()
        old = asyncio.create_task(stack.say("room", "hold"))
        await settled(lambda: gate.holding == 1)
        keeper.on_clear = lambda session_id: go.wait()  # type: ignore[assignment,return-value]
        deleting = asyncio.create_task(stack.sessions.delete_session("room"))
        await settled(lambda: ("cleared", "room") in keeper.steps)
        gate.opened.set()
        async with asyncio.timeout(5):
            await old
        go.set()
        await deleting
        assert await history(stack, "room") == []
        assert keeper.ends == []


@rule("GEN-2")
async def test_a_message_that_waits_for_the_agents_channel_is_dropped(db: str) -> None:
    """Behind a running turn, which is stopped; neither of the two is archived."""
    keeper, model = Keeper(), Model(hold=asyncio.Event())
    async with running(db, keeper, model=model) as stack:
        stack.host.add_platform(Adapter())
        turn = asyncio.create_task(stack.say("room", "running"))
        await model.asked.wait()
        queued = [asyncio.create_task(stack.say("room", f"queued {number}")) for number in range(3)]
        await asyncio.sleep(0.02)
        await stack.sessions.delete_session("room")
        await asyncio.gather(turn, *queued)
        assert [(end.message.content, end.outcome) for end in keeper.ends] == [("running", "aborted")]
        assert await history(stack, "room") == []


@rule("GEN-2")
@pytest.mark.parametrize("made_again", [False, True])
async def test_a_message_that_the_gate_swallowed_is_still_put_into_the_history(db: str, made_again: bool) -> None:
    """Of the room's next record: it is kept with the generation that is current when it is swallowed."""
    gate = Gate(answer=True)
    async with running(db, gate) as stack:
        stack.host.add_platform(Adapter())
        await stack.sessions.record_inbound(group_message("room"))
        old = asyncio.create_task(stack.say("room", "hold and swallow"))
        await settled(lambda: gate.holding == 1)
        await stack.sessions.delete_session("room")
        if made_again:
            await stack.sessions.record_inbound(group_message("room"))
        gate.opened.set()
        await old
        assert await history(stack, "room") == ["hold and swallow"]
        assert (stack.sessions.get_session("room") is not None) == made_again
        await stack.sessions.record_inbound(group_message("room"))
        assert await history(stack, "room") == ["hold and swallow"]


# --- GEN-3: what comes afterwards


@rule("GEN-3", "INTAKE-1")
@pytest.mark.parametrize("session_id", ["room", "child"])
@pytest.mark.parametrize("source", [None, "schedule"])
async def test_a_message_that_arrives_after_the_deletion_began_is_of_the_new_generation(
    db: str, source: str | None, session_id: str
) -> None:
    """It waits until everything is cleared; its turn isn't stopped, its archive isn't cleared."""
    keeper, go = Keeper(), asyncio.Event()
    async with running(db, keeper) as stack:
        stack.host.add_platform(Adapter())
        await stack.say("room", "old")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("aalis_plugin_session_manager.manager.new_session_id", lambda: "child")
            await stack.sessions.create_child_session("room")
        await write(stack, "child", "old")
        keeper.ends.clear()
        keeper.on_clear = lambda one: go.wait()  # type: ignore[assignment,return-value]
        deleting = asyncio.create_task(stack.sessions.delete_session("room"))
        await settled(lambda: keeper.steps != [])
        arrivals = [
            asyncio.create_task(stack.say(session_id, f"new {number}", source=source, message_id=str(number)))
            for number in range(3)
        ]
        await asyncio.sleep(0.02)
        assert keeper.ends == []
        assert not any(arrival.done() for arrival in arrivals)
        go.set()
        await asyncio.gather(deleting, *arrivals)
        assert [end.outcome for end in keeper.ends] == ["replied"] * 3
        assert sorted(await history(stack, session_id)) == ["new 0", "new 1", "new 2", "ok", "ok", "ok"]
        other = "child" if session_id == "room" else "room"
        assert await history(stack, other) == []


@rule("GEN-3", "GEN-2")
async def test_messages_around_many_deletions(db: str) -> None:
    """Messages stream in while the room is deleted again and again: nothing hangs, each message is answered in its
    own generation or leaves no trace, and no history outlives its session."""
    keeper = Keeper()
    async with running(db, keeper) as stack:
        stack.host.add_platform(Adapter())

        async def talk() -> None:
            for number in range(40):
                await stack.say("room", f"m{number}", message_id=f"m{number}")

        async def delete() -> None:
            for number in range(15):
                await asyncio.sleep(0.002 * (number % 4))
                await stack.sessions.delete_session("room")

        async with asyncio.timeout(30):
            await asyncio.gather(talk(), delete())
        answered = {end.message.content for end in keeper.ends if end.outcome == "replied"}
        kept = [text for text in await history(stack, "room") if text != "ok"]
        assert set(kept) <= answered
        await stack.sessions.delete_session("room")
        assert await history(stack, "room") == []
        assert (rows(db, "sessions"), rows(db, "deletions"), rows(db, "turns")) == ({}, {}, {})


# --- GEN-4


@rule("GEN-4")
async def test_without_a_session_manager_nothing_is_deleted_and_nothing_compared(db: str) -> None:
    gate, keeper = Gate(), Keeper()
    async with AalisHost(Settings(db=str(db)), plugins=(gate, keeper), model=Model()) as host:
        await host.gateway.ingress(group_message("room", "hello"))
        held = asyncio.create_task(host.gateway.ingress(group_message("room", "hold")))
        await settled(lambda: gate.holding == 1)
        await host.clear_memory(ClearRequest(scope="session", session_id="room"))
        gate.opened.set()
        await held
        messages = (await host.memory.history("room", 10)).messages
        assert [message.content for message in messages] == ["hold", "ok"]
        assert [end.outcome for end in keeper.ends] == ["replied", "replied"]
        assert [what for what, _ in keeper.steps] == ["cleared"]


# --- GEN-5


@rule("GEN-5")
async def test_what_a_turn_says_has_its_turns_generation(db: str) -> None:
    async with running(db) as stack:
        stack.host.add_platform(Adapter())
        for expected in range(3):
            await stack.say("room")
            messages = (await stack.host.memory.history("room", 10)).messages
            assert [message.generation for message in messages] == [expected, expected]
            assert stack.sessions.generation_of("room") == expected
            await stack.sessions.delete_session("room")


@rule("GEN-5", "DELETE-2")
@pytest.mark.parametrize("made_again", [False, True])
async def test_a_turn_that_cant_be_stopped_writes_nothing_any_more(
    db: str, monkeypatch: pytest.MonkeyPatch, made_again: bool
) -> None:
    """Its model answers after the session is gone: no reply in the history or to the room, no tokens, no last turn."""
    monkeypatch.setattr(agent, "PATIENCE", 0.05)
    keeper, model, adapter = Keeper(), Stubborn(hold=asyncio.Event()), Adapter()
    async with running(db, keeper, model=model) as stack:
        stack.host.add_platform(adapter)
        turn = asyncio.create_task(stack.say("room", "old"))
        await model.asked.wait()
        async with asyncio.timeout(5):
            await stack.sessions.delete_session("room")
            if made_again:
                await stack.sessions.record_inbound(group_message("room"))
        before = stack.sessions.get_session("room")
        assert model.hold is not None
        model.hold.set()
        await turn
        await asyncio.sleep(0.15)
        assert [end.outcome for end in keeper.ends] == ["aborted"]
        assert await history(stack, "room") == []
        assert adapter.sent == []
        assert stack.sessions.get_session("room") == before


# --- the kit: each kind of late event

Late = Callable[[], Awaitable[Any]]


async def refused(work: Awaitable[Any], *errors: type[Exception]) -> None:
    with pytest.raises(errors or SessionNotFound):
        await work


LATE_CALLS: dict[str, Callable[[Stack], Awaitable[Any]]] = {
    "update": lambda stack: stack.sessions.update_session("one", SessionUpdates(metadata={"late": True})),
    "title": lambda stack: stack.sessions.update_session_title("one", "late"),
    "complete": lambda stack: stack.sessions.complete_session("one", "late"),
    "directory": lambda stack: stack.sessions.set_current_dir("one", "/late"),
}


async def begin_turns(stack: Stack) -> list[TurnStart]:
    """Turns of the session that haven't ended yet."""
    return [await start_turn(stack, "one", f"turn {number}") for number in range(4)]


async def end_turns(stack: Stack, turns: list[TurnStart]) -> None:
    """All their ends, of each outcome."""
    for turn, outcome in zip(turns, ("replied", "error", "aborted", None), strict=True):
        await end_turn(stack, turn, outcome=outcome, reply="late", error="late" if outcome == "error" else None)


async def fire(stack: Stack, turns: list[TurnStart]) -> None:
    """Each kind of event that names no caller: usage, turn ends, a turn that begins after all, old words."""
    await stack.host.emit("aalis_llm_usage", usage=LlmUsage(session_id="one", input_tokens=9, output_tokens=9))
    await end_turns(stack, turns)
    await stack.host.emit("aalis_turn_after", turn=unknown_end(stack))
    for generation in range(stack.sessions.generation_of("one")):
        assert await write(stack, "one", "late", generation=generation) == "refused"


def unknown_end(stack: Stack) -> TurnEnd:
    turn = new_turn("one", "never begun", stack.clock())
    return TurnEnd(
        turn_id=turn.turn_id, message=turn.message, session_id="one", ended_at=stack.clock(), outcome="replied"
    )


@rule("GEN-5", "USAGE-1", "TURN-2", "CREATE-10")
async def test_nothing_late_brings_a_deleted_session_back(db: str) -> None:
    """No record, no history, no event; what names the session by a call is told that there is none."""
    async with running(db) as stack:
        await stack.sessions.ensure_session("one", SessionDraft(title="T"))
        turns = await begin_turns(stack)
        await write(stack, "one")
        await stack.sessions.delete_session("one")
        await asyncio.sleep(0.02)
        stack.recorder.events.clear()
        for call in LATE_CALLS.values():
            await refused(call(stack))
        await fire(stack, turns)
        turn = await start_turn(stack, "one", "begun late")
        await end_turn(stack, turn, outcome="replied")
        await settled(lambda: rows(db, "turns") == {})
        await asyncio.sleep(0.15)
        assert stack.recorder.events == []
        assert stack.sessions.list_sessions() == []
        assert await history(stack, "one") == []
        assert (rows(db, "sessions"), rows(db, "deletions")) == ({}, {})
    async with running(db) as stack:
        assert stack.sessions.list_sessions() == []


@rule("GEN-5", "TURN-2", "TURN-1")
async def test_nothing_late_changes_the_session_that_has_the_id_now(db: str) -> None:
    """Ends of turns that began before or during the deletion, and words of the generation before."""
    keeper, during = Keeper(), []
    async with running(db, keeper) as stack:
        await stack.sessions.ensure_session("one", SessionDraft(title="T"))
        turns = await begin_turns(stack)

        async def begin_more(session_id: str) -> None:
            during.append(await start_turn(stack, "one", f"turn in {len(during)}"))

        keeper.on_deleted = keeper.on_clear = begin_more
        await stack.sessions.delete_session("one")
        made = await stack.sessions.ensure_session("one", SessionDraft(status="waiting"))
        stack.recorder.events.clear()
        await end_turns(stack, turns)
        for turn in during:
            await end_turn(stack, turn, outcome="replied")
        assert len(during) == 2
        assert await write(stack, "one", "late", generation=0) == "refused"
        await settled(lambda: rows(db, "turns") == {})
        assert stack.sessions.get_session("one") == made
        assert stack.recorder.events == []
        assert await history(stack, "one") == []
    async with running(db) as stack:
        assert stack.sessions.get_session("one") == made


@rule("GEN-5", "STORE-3")
async def test_what_waited_for_the_store_before_the_deletion_stays_before_it(db: str) -> None:
    """Changes, tokens and a turn's end that nothing stored yet don't slip into the session that is made next."""
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("one")
            turns = await begin_turns(stack)
            memories[0].pass_commits.clear()
            blocker = asyncio.create_task(stack.sessions.ensure_session("blocker"))
            await memories[0].waiting.wait()
            calls = [asyncio.create_task(call(stack)) for call in LATE_CALLS.values()]
            await stack.host.emit("aalis_llm_usage", usage=LlmUsage(session_id="one", input_tokens=9))
            await end_turns(stack, turns)
            await asyncio.sleep(0)
            deleting = asyncio.create_task(stack.sessions.delete_session("one"))
            await asyncio.sleep(0.01)
            made = asyncio.create_task(stack.sessions.ensure_session("one", SessionDraft(name="new")))
            memories[0].pass_commits.set()
            await asyncio.gather(blocker, deleting, made)
            await asyncio.gather(*calls, return_exceptions=True)
            await asyncio.sleep(0.15)
            info = stack.sessions.get_session("one")
            assert info == made.result()
            assert (info.name, info.title, info.result, info.metadata) == ("new", None, None, None)
            assert (info.current_dir, info.tokens, info.last_turn, info.status) == (None, None, None, "active")
            assert stack.sessions.generation_of("one") == 1


@rule("GEN-5", "DELETE-5")
async def test_a_refusing_store_doesnt_mix_generations(db: str) -> None:
    """Everything waits: changes, a deletion, the next session and its changes. Each stays in its own generation."""
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("one")
            turns = await begin_turns(stack)
            memories[0].refuse = float("inf")
            for call in LATE_CALLS.values():
                await refused(call(stack), StorageError)
            await refused(stack.sessions.delete_session("one"), StorageError)
            await refused(stack.sessions.ensure_session("one", SessionDraft(name="new")), StorageError)
            await end_turns(stack, turns)
            await stack.host.emit("aalis_llm_usage", usage=LlmUsage(session_id="one", input_tokens=5))
            memories[0].refuse = 0
            await stack.sessions.ensure_session("another")
            await settled(lambda: '"tokens"' in rows(db, "sessions")["one"])
            info = stack.sessions.get_session("one")
            assert info is not None and info.tokens is not None
            assert (info.name, info.title, info.metadata, info.last_turn) == ("new", None, None, None)
            assert (info.status, info.tokens.input) == ("active", 5)


@rule("GEN-5", "STORE-3")
@pytest.mark.parametrize("late", [*LATE_CALLS, "usage", "turn ends", "turn start"])
@pytest.mark.parametrize("made_again", [False, True])
async def test_a_process_that_hasnt_heard_of_the_deletion_changes_nothing(db: str, late: str, made_again: bool) -> None:
    """It still sees the session that another process deleted (and made again): what it writes is refused."""
    with watched_memory() as memories:
        async with running(db) as here, running(db) as deaf:
            await here.sessions.ensure_session("one", SessionDraft(title="T"))
            await settled(lambda: deaf.sessions.get_session("one") is not None)
            turns = await begin_turns(deaf) if late == "turn ends" else []
            await settled(lambda: len(rows(db, "turns")) == len(turns))
            memories[1].deaf = True
            await asyncio.sleep(0.06)
            await here.sessions.delete_session("one")
            made = None
            if made_again:
                made = await here.sessions.ensure_session("one", SessionDraft(name="new", status="waiting"))
            assert deaf.sessions.get_session("one") is not None
            here.recorder.events.clear()
            if late in LATE_CALLS:
                await refused(LATE_CALLS[late](deaf))
            elif late == "usage":
                await deaf.host.emit("aalis_llm_usage", usage=LlmUsage(session_id="one", input_tokens=9))
                await asyncio.sleep(0.15)
            elif late == "turn ends":
                await end_turns(deaf, turns)
            else:
                await end_turn(deaf, await start_turn(deaf, "one", "stale"), outcome="replied")
            memories[1].deaf = False
            await settled(lambda: deaf.sessions.get_session("one") == made)
            await settled(lambda: rows(db, "turns") == {})
            await asyncio.sleep(0.1)
            assert here.sessions.get_session("one") == made
            assert here.recorder.events == []
            assert deaf.sessions.generation_of("one") == 1
    async with running(db) as stack:
        assert stack.sessions.get_session("one") == made


@rule("GEN-5", "CREATE-5", "TURN-1", "USAGE-1")
async def test_a_session_that_a_process_makes_again_before_it_heard_of_the_deletion_lives(db: str) -> None:
    """Its turns, tokens and changes count like any other's, in both processes and after a restart."""

    async def live(stack: Stack, number: int) -> None:
        turn = await start_turn(stack, "one", f"turn {number}")
        info = stack.sessions.get_session("one")
        assert info is not None and info.status == "active"
        await stack.host.emit("aalis_llm_usage", usage=LlmUsage(session_id="one", input_tokens=1))
        await end_turn(stack, turn, outcome="replied")
        await stack.sessions.update_session_title("one", f"{number}")
        info = stack.sessions.get_session("one")
        assert info is not None and info.tokens is not None and info.last_turn is not None
        assert (info.status, info.last_turn.outcome, info.tokens.input) == ("completed", "replied", number)

    with watched_memory() as memories:
        async with running(db) as here, running(db) as deaf:
            await here.sessions.ensure_session("one", SessionDraft(title="old"))
            await settled(lambda: deaf.sessions.get_session("one") is not None)
            memories[1].deaf = True
            await asyncio.sleep(0.06)
            await here.sessions.delete_session("one")
            made = await deaf.sessions.ensure_session("one", SessionDraft(name="new"))
            assert (made.name, made.title) == ("new", None)
            memories[1].deaf = False
            await settled(lambda: deaf.sessions.generation_of("one") == 1)
            await settled(lambda: here.sessions.get_session("one") == made)
            await live(deaf, 1)
            await settled(lambda: here.sessions.get_session("one") == deaf.sessions.get_session("one"))
            await live(here, 2)
            await settled(lambda: rows(db, "turns") == {})
    async with running(db) as stack:
        await live(stack, 3)


@rule("GEN-1", "TURN-1", "DELETE-5")
async def test_a_session_that_is_made_again_after_two_processes_deleted_it_lives(db: str) -> None:
    """Both reckoned with the same number; the second one's commit got a higher, with the next session in it."""
    with watched_memory() as memories:
        async with running(db) as here, running(db) as deaf:
            await here.sessions.ensure_session("one", SessionDraft(title="old"))
            await settled(lambda: deaf.sessions.get_session("one") is not None)
            memories[1].refuse = float("inf")
            with pytest.raises(StorageError):
                await deaf.sessions.delete_session("one")
            with pytest.raises(StorageError):
                await deaf.sessions.ensure_session("one", SessionDraft(name="new"))
            memories[1].deaf = True
            await here.sessions.delete_session("one")
            memories[1].refuse, memories[1].deaf = 0, False
            await settled(lambda: deaf.sessions.generation_of("one") == here.sessions.generation_of("one") == 2)
            await settled(lambda: not rows(db, "deletions"))
            turn = await start_turn(deaf, "one", "turn")
            await end_turn(deaf, turn, outcome="replied")
            info = deaf.sessions.get_session("one")
            assert info is not None and (info.name, info.status) == ("new", "completed")
            await settled(lambda: here.sessions.get_session("one") == info)
