"""One turn: history, model, tools, reply; always paired, one at a time."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aalis_api_session_manager.errors import ConfigError
from aalis_api_session_manager.memory import Changeset
from aalis_api_session_manager.message import LlmUsage, ToolCallContext, TurnEnd, TurnStart
from aalis_api_session_manager.model import Identity
from aalis_api_session_manager.text import TextRef
from aalis_host import agent
from aalis_host.config import AgentSettings
from aalis_host.models.base import ModelError, ModelReply
from tests.host.kit import (
    Adapter,
    Recorder,
    ScriptedModel,
    Sessions,
    calls,
    history,
    message,
    room_message,
    running,
    texts,
    tool,
)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def reason(end: TurnEnd) -> str | None:
    return end.error.source if isinstance(end.error, TextRef) else end.error


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_turn(tmp_path: Path, recorder: Recorder) -> None:
    """Saved, started, asked, counted, saved, sent, ended, all with one turn id."""
    adapter = Adapter(platform="cli")
    async with running(tmp_path, recorder, model=ScriptedModel(["hi there"])) as host:
        host.add_platform(adapter)
        await host.gateway.ingress(message("hello", message_id="m1"))
    (start, end) = recorder.turns
    assert isinstance(start, TurnStart)
    assert isinstance(end, TurnEnd)
    assert start.turn_id == end.turn_id
    assert len(start.turn_id) == 32
    assert (start.session_id, start.message.content) == ("s", "hello")
    assert (end.outcome, end.reply, end.error) == ("replied", "hi there", None)
    assert start.started_at <= end.ended_at
    assert recorder.usage == [LlmUsage(session_id="s", input_tokens=5, output_tokens=1)]
    (sent,) = adapter.sent
    assert (sent.session_id, sent.content, sent.turn_id, sent.reply_to) == ("s", "hi there", start.turn_id, "m1")


@pytest.mark.parametrize("text", ["", " \n"])
async def test_silent(tmp_path: Path, recorder: Recorder, text: str) -> None:
    """An empty answer is a silent turn: nothing is stored or sent."""
    adapter = Adapter(platform="cli")
    async with running(tmp_path, recorder, model=ScriptedModel([text])) as host:
        host.add_platform(adapter)
        await host.gateway.ingress(message("hello"))
        assert await texts(host) == [("user", "hello")]
    assert (recorder.outcomes, adapter.sent) == (["silent"], [])


async def test_tools(tmp_path: Path, recorder: Recorder) -> None:
    """Calls run in order with the turn's context, are stored with their results, and the model reads them."""
    seen: list[tuple[dict[str, Any], ToolCallContext]] = []

    async def add(arguments: dict[str, Any], context: ToolCallContext) -> str:
        seen.append((arguments, context))
        return json.dumps({"sum": arguments["a"] + arguments["b"]})

    number = {"type": "integer"}
    model = ScriptedModel([calls(("add", '{"a": 1, "b": "2"}'), ("add", '{"a": 3, "b": 4}')), "3 and 7"])
    async with running(tmp_path, recorder, model=model) as host:
        host.tools.register(tool("add", add, {"a": number, "b": number}, required=["a", "b"]))
        await host.gateway.ingress(message("add", platform="cli", user_id="owner"))
        stored = await history(host)
    assert [arguments for arguments, _ in seen] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    turn_id = recorder.ends[0].turn_id
    owner = Identity(platform="cli", user_id="owner")
    assert seen[0][1] == ToolCallContext(session_id="s", platform="cli", approve_for=(owner,), turn_id=turn_id)
    assert [(m.role, m.content, m.tool_call_id, m.name) for m in stored] == [
        ("user", "add", None, None),
        ("assistant", "", None, None),
        ("tool", '{"sum": 3}', "c0", "add"),
        ("tool", '{"sum": 7}', "c1", "add"),
        ("assistant", "3 and 7", None, None),
    ]
    assert [call.arguments for call in stored[1].tool_calls] == ['{"a": 1, "b": "2"}', '{"a": 3, "b": 4}']
    assert [m.role for m in model.asked[1]] == ["system", "user", "assistant", "tool", "tool"]
    assert [offered["function"]["name"] for offered in model.offered[0]] == ["add"]
    assert [usage.input_tokens for usage in recorder.usage] == [3, 5]


async def test_whom_a_turn_acts_for(tmp_path: Path) -> None:
    """The actor when there is one, else the sender, else nobody."""
    seen: list[tuple[Identity, ...]] = []

    async def who(arguments: dict[str, Any], context: ToolCallContext) -> str:
        seen.append(context.approve_for)
        return "{}"

    async with running(tmp_path, model=ScriptedModel([calls(("who", "{}")), "a"] * 3)) as host:
        host.tools.register(tool("who", who))
        ann = Identity(platform="onebot", user_id="7")
        await host.gateway.ingress(message(actor=ann))
        await host.gateway.ingress(room_message(mentioned=True))
        await host.gateway.ingress(message(user_id=None))
    assert seen == [(ann,), (ann,), ()]


async def test_bad_calls_go_back_to_the_model(tmp_path: Path, recorder: Recorder) -> None:
    """Unknown tools, malformed arguments and failing tools are answered with an error, and the turn goes on."""

    async def broken(arguments: dict[str, Any], context: ToolCallContext) -> str:
        raise ValueError("x")

    model = ScriptedModel([calls(("nothing", "{}"), ("broken", '{"a'), ("broken", "{}")), "sorry"])
    async with running(tmp_path, recorder, model=model) as host:
        host.tools.register(tool("broken", broken))
        await host.gateway.ingress(message())
    answers = [json.loads(m.content)["error"] for m in model.asked[1][-3:]]
    assert answers[0].startswith("there is no tool 'nothing'")
    assert "aren't JSON" in answers[1]
    assert "an error inside it" in answers[2]
    assert recorder.outcomes == ["replied"]


async def test_the_tool_loop_ends(tmp_path: Path, recorder: Recorder) -> None:
    """A model that only calls tools fails the turn, after as many rounds as the setting says."""
    model = ScriptedModel([calls(("echo", "{}")) for _ in range(10)])
    async with running(tmp_path, recorder, model=model, agent=AgentSettings(max_tool_rounds=3)) as host:
        host.tools.register(tool())
        await host.gateway.ingress(message())
        assert [m.role for m in await history(host)].count("tool") == 3
    assert len(model.asked) == 4
    assert recorder.outcomes == ["error"]
    assert "called tools 3 times" in (reason(recorder.ends[0]) or "")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModelError("its server answered 500"), "The model gave no answer: its server answered 500"),
        (ConfigError("no key"), "The model gave no answer: no key"),
        (ValueError("a bug"), "ValueError: a bug"),
    ],
)
async def test_a_failing_model(tmp_path: Path, recorder: Recorder, error: Exception, words: str) -> None:
    """The turn ends as `error` with the reason; the question stays, and the next message has its turn."""
    async with running(tmp_path, recorder, model=ScriptedModel([error, "again"])) as host:
        await host.gateway.ingress(message("one"))
        await host.gateway.ingress(message("two"))
        assert await texts(host) == [("user", "one"), ("user", "two"), ("assistant", "again")]
    assert recorder.outcomes == ["error", "replied"]
    assert reason(recorder.ends[0]) == words
    assert recorder.paired()


async def test_a_reply_that_cannot_be_sent(tmp_path: Path, recorder: Recorder) -> None:
    """The adapter's failure ends the turn as `error`; the reply is in the history."""
    async with running(tmp_path, recorder) as host:
        host.add_platform(Adapter(platform="cli", error=OSError("the socket is closed")))
        await host.gateway.ingress(message("hello"))
        assert await texts(host) == [("user", "hello"), ("assistant", "ok")]
    (end,) = recorder.ends
    assert (end.outcome, end.reply, reason(end)) == ("error", "ok", "The reply couldn't be sent: the socket is closed")


async def test_the_history_a_model_is_given(tmp_path: Path) -> None:
    """As many messages as the setting says, the one to answer last, whatever its own time."""
    model = ScriptedModel()
    settings = AgentSettings(system_prompt="Be kind.", history_messages=3)
    async with running(tmp_path, model=model, agent=settings) as host:
        for number in range(4):
            await host.gateway.ingress(message(f"m{number}", timestamp=1_000_000 * (number + 1)))
        await host.gateway.ingress(message("an old one", timestamp=5))
    assert [m.content for m in model.asked[3]] == ["Be kind.", "m2", "ok", "m3"]
    assert [m.content for m in model.asked[4]] == ["Be kind.", "ok", "m3", "ok", "an old one"]


async def test_replies_stand_behind_their_questions(tmp_path: Path) -> None:
    """Messages that carry times of long ago keep their order with the replies."""
    async with running(tmp_path) as host:
        for number in range(3):
            await host.gateway.ingress(message(f"m{number}", timestamp=3_600_000 * (number + 1)))
        assert [text for _, text in await texts(host)] == ["m0", "ok", "m1", "ok", "m2", "ok"]


async def test_one_at_a_time(tmp_path: Path, recorder: Recorder) -> None:
    """Turns of one session and source are one after the other, in order; other sources and sessions run beside."""
    model = ScriptedModel(gate=asyncio.Event())
    async with running(tmp_path, recorder, model=model) as host:
        sent = [message(f"m{i}") for i in range(5)] + [message("made", source="timer"), message("other", "t")]
        tasks = [asyncio.create_task(host.agent.handle_message(one, 0)) for one in sent]
        await eventually(lambda: model.at_once == 3)
        assert {turn.message.content for turn in recorder.turns} == {"m0", "made", "other"}
        assert model.gate is not None
        model.gate.set()
        await asyncio.gather(*tasks)
    assert model.most_at_once == 3
    ended = [end.message.content for end in recorder.ends if end.message == message(end.message.content)]
    assert ended == [f"m{i}" for i in range(5)]
    assert recorder.paired()


@pytest.mark.rule("GEN-2")
async def test_deleted_while_it_waited(tmp_path: Path, recorder: Recorder) -> None:
    """A message that waits for its channel while the session is deleted is dropped, unarchived."""
    sessions, model = Sessions(), ScriptedModel(gate=asyncio.Event())
    async with running(tmp_path, recorder, sessions, model=model) as host:
        first = asyncio.create_task(host.gateway.ingress(message("first")))
        await eventually(lambda: model.at_once == 1)
        second = asyncio.create_task(host.gateway.ingress(message("second")))
        await asyncio.sleep(0.01)
        sessions.generations["s"] = 1
        third = asyncio.create_task(host.gateway.ingress(message("third")))
        assert model.gate is not None
        model.gate.set()
        await asyncio.gather(first, second, third)
        assert [turn.message.content for turn in recorder.ends] == ["first", "third"]
        assert "second" not in [text for _, text in await texts(host)]


@pytest.mark.rule("GEN-5")
async def test_deleted_elsewhere_during_its_turn(tmp_path: Path, recorder: Recorder) -> None:
    """A reply whose generation is over in the store is neither stored nor sent; the turn ends as `aborted`."""
    model, adapter = ScriptedModel(gate=asyncio.Event()), Adapter(platform="cli")
    async with running(tmp_path, recorder, model=model) as host:
        host.add_platform(adapter)
        task = asyncio.create_task(host.gateway.ingress(message("one")))
        await eventually(lambda: model.at_once == 1)
        await host.memory.commit_metadata([Changeset(changes=(), generations={"s": 1})])
        assert model.gate is not None
        model.gate.set()
        await task
        assert await texts(host) == [("user", "one")]
    assert (recorder.outcomes, adapter.sent) == (["aborted"], [])


async def test_a_turn_that_holds_up_the_end(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host doesn't wait for ever for a turn that doesn't end, and names its session."""
    monkeypatch.setattr(agent, "PATIENCE", 0.02)
    stuck = asyncio.Event()

    async def after(end: TurnEnd) -> None:
        await stuck.wait()

    recorder.on_after = after
    with capture_logs() as logs:
        async with running(tmp_path, recorder, model=ScriptedModel(gate=asyncio.Event())) as host:
            task = asyncio.create_task(host.agent.handle_message(message(), 0))
            await eventually(lambda: recorder.turns)
    stuck.set()
    await task
    assert [entry["sessions"] for entry in logs if entry["event"] == "turns don't end"] == [["s"]]


@pytest.mark.parametrize("way", ["abort", "cancel"])
async def test_stopping_a_turn(tmp_path: Path, recorder: Recorder, way: str) -> None:
    """An abort, or cancelling the caller, ends the turn as `aborted`, paired; the next message has its turn."""
    model = ScriptedModel(gate=asyncio.Event())
    async with running(tmp_path, recorder, model=model) as host:
        task = asyncio.create_task(host.agent.handle_message(message("one"), 0))
        await eventually(lambda: model.at_once == 1)
        if way == "abort":
            host.agent.abort("s")
            await task
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert recorder.outcomes == ["aborted"]
        assert recorder.paired()
        assert model.gate is not None
        model.gate.set()
        await host.gateway.ingress(message("two"))
        assert await texts(host) == [("user", "one"), ("user", "two"), ("assistant", "ok")]


async def test_cancelled_while_it_waits(tmp_path: Path, recorder: Recorder) -> None:
    """A message whose caller gives up before its turn leaves nothing."""
    model = ScriptedModel(gate=asyncio.Event())
    async with running(tmp_path, recorder, model=model) as host:
        first = asyncio.create_task(host.agent.handle_message(message("one"), 0))
        await eventually(lambda: model.at_once == 1)
        second = asyncio.create_task(host.agent.handle_message(message("two"), 0))
        await asyncio.sleep(0)
        second.cancel()
        assert model.gate is not None
        model.gate.set()
        await asyncio.gather(first, second, return_exceptions=True)
        assert [text for _, text in await texts(host)] == ["one", "ok"]
    assert recorder.outcomes == ["replied"]


async def test_cancelled_again_and_again(tmp_path: Path, recorder: Recorder) -> None:
    """However often the caller is cancelled, the turn's end is told, and its channel isn't free before."""
    after = asyncio.Event()

    async def slow(end: TurnEnd) -> None:
        await after.wait()

    recorder.on_after = slow
    model = ScriptedModel(gate=asyncio.Event())
    async with running(tmp_path, recorder, model=model) as host:
        task = asyncio.create_task(host.agent.handle_message(message("one"), 0))
        await eventually(lambda: model.at_once == 1)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.002)
        following = asyncio.create_task(host.agent.handle_message(message("two"), 0))
        await asyncio.sleep(0.005)
        assert len([turn for turn in recorder.turns if isinstance(turn, TurnStart)]) == 1
        assert model.gate is not None
        model.gate.set()
        after.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await following
    assert recorder.outcomes == ["aborted", "replied"]
    assert recorder.paired()


async def test_stopped_before_it_began(tmp_path: Path, recorder: Recorder) -> None:
    """An abort while `aalis_turn_before` runs: no model is asked, and the turn ends as `aborted`."""
    model = ScriptedModel()
    async with running(tmp_path, recorder, model=model) as host:

        async def abort(turn: TurnStart) -> None:
            host.agent.abort("s")

        recorder.on_before = abort
        await host.gateway.ingress(message())
    assert (recorder.outcomes, model.asked) == (["aborted"], [])


async def test_a_tool_that_swallows_its_cancellation(tmp_path: Path, recorder: Recorder) -> None:
    """A stopped turn goes no further, even when the tool that runs doesn't let itself be cancelled."""
    inside = asyncio.Event()

    async def stubborn(arguments: dict[str, Any], context: ToolCallContext) -> str:
        inside.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "{}"

    model = ScriptedModel([calls(("stubborn", "{}")), "never"])
    async with running(tmp_path, recorder, model=model) as host:
        host.tools.register(tool("stubborn", stubborn))
        task = asyncio.create_task(host.gateway.ingress(message()))
        await inside.wait()
        host.agent.abort("s")
        await task
    assert (recorder.outcomes, len(model.asked)) == (["aborted"], 1)


@pytest.mark.rule("EVENT-1")
async def test_failing_hooks_do_not_stop_a_turn(tmp_path: Path, recorder: Recorder) -> None:
    """A plugin that raises before and after the turn changes nothing for the others."""

    async def broken(turn: TurnStart | TurnEnd) -> None:
        raise ValueError("broken")

    async with running(tmp_path, recorder) as host:
        host.hooks.register(Recorder(on_before=broken, on_after=broken), "failing")
        await host.gateway.ingress(message())
    assert recorder.outcomes == ["replied"]


async def test_the_host_stops_during_a_turn(tmp_path: Path, recorder: Recorder) -> None:
    """Leaving the host ends its turns as `aborted`, told to the plugins; what waited is stored without a turn."""
    model = ScriptedModel(gate=asyncio.Event())
    async with running(tmp_path, recorder, model=model) as host:
        tasks = [asyncio.create_task(host.agent.handle_message(message(text), 0)) for text in ("one", "two")]
        await eventually(lambda: model.at_once == 1)
    await asyncio.gather(*tasks)
    assert recorder.outcomes == ["aborted"]
    assert model.closed
    async with running(tmp_path) as host:
        assert await texts(host) == [("user", "one"), ("user", "two")]


async def test_nothing_is_left(tmp_path: Path) -> None:
    """The channels of a thousand sessions are gone when their turns have ended."""
    async with running(tmp_path) as host:
        await asyncio.gather(*(host.gateway.ingress(message(session_id=f"s{i}")) for i in range(1000)))
        assert len(host.agent._channels) == 0
        assert host.agent._running == {}


async def test_a_message_without_a_session() -> None:
    """The agent has no turn for it; the gateway never asks."""
    with pytest.raises(ValueError, match="without a session"):
        await agent.Agent.handle_message(object(), message(session_id=None), 0)  # type: ignore[arg-type]


async def test_model_reply_defaults() -> None:
    """An answer is text, calls and tokens, all empty unless given."""
    assert ModelReply() == ModelReply(content="", tool_calls=(), input_tokens=0, output_tokens=0)
