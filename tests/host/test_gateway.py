"""The way in and out: hooks, gate, trigger policy, generation, and the adapter that claims a session."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import PluginMeta
from aalis_api_session_manager.message import IncomingMessage, OutgoingMessage
from aalis_api_session_manager.model import OriginChat, SessionInfo
from aalis_host.settings import Trigger
from tests.host.kit import Adapter, Recorder, ScriptedModel, Sessions, history, message, room_message, running, texts

GROUP = OriginChat(type="group", multi_party=True, target_id="1")


def room(session_id: str = "s", chat: OriginChat = GROUP) -> SessionInfo:
    return SessionInfo(id=session_id, created_at=1, updated_at=1, origin_platform="onebot", origin_chat=chat)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


async def test_a_message_has_its_turn(tmp_path: Path, recorder: Recorder) -> None:
    """ingress returns when the turn has ended: the message, the reply, both stored."""
    async with running(tmp_path, recorder) as host:
        await host.gateway.ingress(message("hello"))
        assert recorder.outcomes == ["replied"]
        assert await texts(host) == [("user", "hello"), ("assistant", "ok")]


async def test_what_is_stored_of_a_message(tmp_path: Path) -> None:
    """Its own time, ids and names; who made it stands in the metadata."""
    async with running(tmp_path) as host:
        sent = message("hi", timestamp=1000, message_id="m1", user_name="Ann", source="scheduler", trigger_type="idle")
        await host.gateway.ingress(sent)
        (stored, reply) = await history(host)
        assert (stored.timestamp, stored.message_id, stored.user_id, stored.user_name) == (1000, "m1", "owner", "Ann")
        assert (stored.platform, dict(stored.metadata or {})) == ("cli", {"source": "scheduler", "triggerType": "idle"})
        assert reply.timestamp >= 1000
        assert reply.timestamp < 100_000


async def test_without_a_session(tmp_path: Path, recorder: Recorder) -> None:
    """The hooks run, and nothing else."""
    async with running(tmp_path, recorder) as host:
        await host.gateway.ingress(message(session_id=None))
        assert len(recorder.inbound) == 1
        assert recorder.turns == []


async def test_own_messages(tmp_path: Path, recorder: Recorder) -> None:
    """What the bot's account sent is stored as the assistant's, without gate and turn."""
    recorder.gate = lambda message: pytest.fail("the gate was asked")
    async with running(tmp_path, recorder) as host:
        await host.gateway.ingress(room_message("I said this", own=True, mentioned=True))
        assert await texts(host) == [("assistant", "I said this")]
        assert recorder.turns == []


@pytest.mark.parametrize(
    ("trigger", "mentioned", "answered"),
    [
        ("mentioned", False, False),
        ("mentioned", True, True),
        ("always", False, True),
        ("never", False, False),
        ("never", True, False),
    ],
)
async def test_trigger_policy_in_groups(
    tmp_path: Path, recorder: Recorder, trigger: Trigger, mentioned: bool, answered: bool
) -> None:
    """In a group the setting decides; what isn't answered is stored all the same."""
    async with running(tmp_path, recorder, trigger=trigger) as host:
        host.add_platform(Adapter())
        await host.gateway.ingress(room_message("hello", mentioned=mentioned))
        assert recorder.outcomes == (["replied"] if answered else [])
        assert (await texts(host))[0] == ("user", "hello")
        assert len(await texts(host)) == (2 if answered else 1)


async def test_one_to_one_is_always_answered(tmp_path: Path, recorder: Recorder) -> None:
    """The policy is for windows of several people only: as filed, else as the platform declares the type."""
    sessions = Sessions()
    sessions.records["filed"] = room("filed", OriginChat(type="group", multi_party=False, target_id="7"))
    sessions.records["filed-group"] = room("filed-group")
    async with running(tmp_path, recorder, sessions, trigger="never") as host:
        host.add_platform(Adapter(session_types={"group": True, "private": False, "channel": True}))
        await host.gateway.ingress(message(session_id="terminal"))
        await host.gateway.ingress(room_message(session_id="p", session_type="private", group_id=None))
        await host.gateway.ingress(room_message(session_id="filed"))
        assert len(recorder.ends) == 3
        await host.gateway.ingress(room_message(session_id="c", session_type="channel", group_id=None))
        await host.gateway.ingress(room_message(session_id="undeclared", session_type="guild"))
        await host.gateway.ingress(room_message(session_id="filed-group", session_type="private", group_id=None))
        assert len(recorder.ends) == 3


@pytest.mark.rule("ORIGIN-7")
async def test_messages_from_elsewhere_skip_the_policy(tmp_path: Path, recorder: Recorder) -> None:
    """What enters a room by another platform than its own, and what somebody made, is always answered."""
    sessions = Sessions(records={"s": room()})
    async with running(tmp_path, recorder, sessions, trigger="never") as host:
        host.add_platform(Adapter())
        await host.gateway.ingress(room_message("inside"))
        assert recorder.turns == []
        await host.gateway.ingress(message("from the terminal", platform="cli"))
        await host.gateway.ingress(room_message("delegated", source="session-delegate", proactive_depth=1))
        assert [end.message.content for end in recorder.ends] == ["from the terminal", "delegated"]


@pytest.mark.rule("GEN-2")
async def test_the_gate(tmp_path: Path, recorder: Recorder) -> None:
    """True: no turn, but the message is stored. False lets it pass and asks nobody else, the policy neither."""
    recorder.gate = lambda message: {"stop": True, "go": False}.get(message.content)
    async with running(tmp_path, recorder, trigger="never") as host:
        await host.gateway.ingress(message("stop"))
        assert recorder.turns == []
        await host.gateway.ingress(room_message("go"))
        await host.gateway.ingress(room_message("no opinion"))
        assert [end.message.content for end in recorder.ends] == ["go"]
        assert {text for _, text in await texts(host)} == {"stop", "go", "ok", "no opinion"}


@pytest.mark.rule("EVENT-1")
async def test_a_raising_gate_is_no_opinion(tmp_path: Path, recorder: Recorder) -> None:
    """The message has its turn."""

    def broken(message: IncomingMessage) -> bool:
        raise ValueError("broken")

    recorder.gate = broken
    async with running(tmp_path, recorder) as host:
        await host.gateway.ingress(message())
        assert recorder.outcomes == ["replied"]


@pytest.mark.rule("GEN-2")
async def test_deleted_while_it_passed_the_gate(tmp_path: Path, recorder: Recorder) -> None:
    """A message of the old generation has no turn and isn't archived, though its gate ran."""
    sessions = Sessions()

    def delete(message: IncomingMessage) -> None:
        sessions.generations["s"] = 1

    recorder.gate = delete
    async with running(tmp_path, recorder, sessions) as host:
        await host.gateway.ingress(message("late"))
        assert await texts(host) == []
        assert recorder.turns == []


@pytest.mark.rule("GEN-2")
async def test_swallowed_after_a_deletion(tmp_path: Path, recorder: Recorder) -> None:
    """A command in such a message still runs, and the message belongs to the room's next record."""
    sessions = Sessions()

    def command(message: IncomingMessage) -> bool:
        sessions.generations["s"] = 1
        return True

    recorder.gate = command
    async with running(tmp_path, recorder, sessions) as host:
        await host.gateway.ingress(message("/help"))
        assert await texts(host) == [("user", "/help")]


@pytest.mark.rule("GEN-3")
async def test_the_generation_is_the_one_that_was_answered(tmp_path: Path, recorder: Recorder) -> None:
    """A message that waited for a deletion in the session manager's hook belongs to the new generation."""

    class Waiting(Sessions):
        @hookimpl(tryfirst=True)
        def aalis_inbound(self, message: IncomingMessage) -> int:
            self.generations["s"] = 4
            return 4

    async with running(tmp_path, recorder, Waiting()) as host:
        await host.gateway.ingress(message())
        assert recorder.outcomes == ["replied"]


@pytest.mark.rule("GEN-4")
async def test_without_a_session_manager(tmp_path: Path, recorder: Recorder) -> None:
    """Nothing is compared, whatever a plugin answers to the inbound hook."""

    class Odd:
        meta = PluginMeta(name="odd")

        @hookimpl
        def aalis_inbound(self, message: IncomingMessage) -> object:
            return True if message.content == "true" else 0

    async with running(tmp_path, recorder, Odd()) as host:
        await host.gateway.ingress(message("true"))
        await host.gateway.ingress(message("zero"))
        assert recorder.outcomes == ["replied", "replied"]


async def test_a_repeated_message(tmp_path: Path, recorder: Recorder) -> None:
    """A message id that the session has already, answered or only stored, is no second message."""
    async with running(tmp_path, recorder) as host:
        for _ in range(2):
            await host.gateway.ingress(room_message("hello", message_id="1", mentioned=True))
            await host.gateway.ingress(room_message("chatter", message_id="2"))
            await host.gateway.ingress(room_message("own", message_id="3", own=True))
        await host.gateway.ingress(room_message("elsewhere", message_id="2", session_id="t"))
        assert sorted(text for _, text in await texts(host)) == ["chatter", "hello", "ok", "own"]
        assert recorder.outcomes == ["replied"]
        assert await texts(host, "t") == [("user", "elsewhere")]


async def test_dispatch(tmp_path: Path) -> None:
    """To the first adapter that claims the session; one that can't tell doesn't claim it."""

    def broken(session_id: str) -> bool:
        raise ValueError("offline")

    first = Adapter(platform="a", claimed=lambda session_id: session_id == "for-a")
    second, last = Adapter(platform="b", claimed=broken), Adapter(platform="c")
    async with running(tmp_path) as host:
        for adapter in (first, second, last):
            host.add_platform(adapter)
        with capture_logs() as logs:
            for session_id in ("for-a", "other"):
                await host.gateway.dispatch(OutgoingMessage(session_id=session_id, content="x"))
        assert [out.session_id for out in first.sent] == ["for-a"]
        assert [out.session_id for out in last.sent] == ["other"]
        assert [entry["platform"] for entry in logs] == ["b"]


async def test_dispatch_without_an_audience(tmp_path: Path) -> None:
    """A session that nobody claims has no audience: nothing is raised, and no text is logged."""
    async with running(tmp_path) as host:
        with capture_logs() as logs:
            await host.gateway.dispatch(OutgoingMessage(session_id="alone", content="my secret"))
        assert "secret" not in str(logs)


async def test_a_platform_goes(tmp_path: Path) -> None:
    """What `add_platform` answers takes the adapter out again."""
    adapter = Adapter()
    async with running(tmp_path) as host:
        remove = host.add_platform(adapter, "onebot-2")
        remove()
        await host.gateway.dispatch(OutgoingMessage(session_id="s", content="x"))
        assert adapter.sent == []


async def test_the_model_is_asked_for_what_was_said(tmp_path: Path) -> None:
    """In a group the sender's name stands ahead of the text, from the history too."""
    model = ScriptedModel()
    async with running(tmp_path, model=model) as host:
        await host.gateway.ingress(room_message("chatter", user_name="Ann", timestamp=1))
        await host.gateway.ingress(room_message("and you?", user_name="Bo", mentioned=True, timestamp=2))
    assert [(m.role, m.content) for m in model.asked[0][1:]] == [("user", "Ann: chatter"), ("user", "Bo: and you?")]
