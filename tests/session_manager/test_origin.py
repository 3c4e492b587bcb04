"""Where a room was born, written once, and which adapter has it."""

import asyncio
from typing import Any

import pytest

from aalis_api_session_manager.kinds import origin_chat_of
from aalis_api_session_manager.message import IncomingMessage, OutgoingMessage
from aalis_api_session_manager.model import OriginChat, SessionCreation, SessionDraft
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_api_session_manager.wire import from_json
from tests.session_manager.kit import Adapter, Stack, group_message, private_message, running
from tests.session_manager.probes import read_stored, write_stored

ORIGIN = ("originPlatform", "originChat", "originInstance")


@pytest.mark.rule("ORIGIN-1", "ORIGIN-2")
async def test_platform_and_window_are_written_together_and_stay(stack: Stack, db: str) -> None:
    """One record holds both; messages that say another window, type, account or platform change neither."""
    stack.host.add_platform(Adapter())
    stack.host.add_platform(Adapter("telegram", claimed=lambda session_id: False))
    await stack.sessions.record_inbound(group_message("s", group_id="g1", self_id="bot1"))
    filed = read_stored(db, "sessions", "s")
    assert filed["originPlatform"] == "onebot"
    assert filed["originChat"] == {"type": "group", "multiParty": True, "targetId": "g1", "selfId": "bot1"}

    await stack.sessions.record_inbound(group_message("s", group_id="g2", self_id="bot2"))
    await stack.sessions.record_inbound(private_message("s", user_id="u9"))
    await stack.sessions.record_inbound(group_message("s", platform="telegram"))
    await stack.sessions.ensure_session("s", SessionDraft(title="T"), SessionCreation(created_from="cli"))
    now = read_stored(db, "sessions", "s")
    assert {name: now[name] for name in ORIGIN} == {name: filed[name] for name in ORIGIN}
    assert "createdFrom" not in now


@pytest.mark.rule("ORIGIN-1", "ORIGIN-4")
async def test_children_of_a_room_read_their_roots_window(stack: Stack, db: str) -> None:
    """Only the root carries origin fields; a grandchild's window is the root's."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(group_message("s"))
    child = await stack.sessions.create_child_session("s")
    grandchild = await stack.sessions.create_session(SessionDraft(parent_id=child.id))
    await stack.sessions.record_inbound(group_message(child.id))
    for one in (child, grandchild):
        stored = read_stored(db, "sessions", one.id)
        assert not {*ORIGIN, "createdFrom"} & set(stored)
        assert (one.origin_platform, one.origin_chat, one.origin_instance) == (None, None, None)
        assert origin_chat_of(one.id, stack.host.select(SESSION_MANAGER)).target_id == "g1"


@pytest.mark.rule("ORIGIN-1", "BIND-1")
async def test_a_childs_record_that_carries_what_only_roots_have(db: str) -> None:
    """However it came into the file: the child has none of it, and is listed where its root is."""
    async with running(db) as stack:
        stack.host.add_platform(Adapter())
        await stack.sessions.record_inbound(group_message("s"))
        child = await stack.sessions.create_child_session("s")
    chat = {"type": "group", "multiParty": True, "targetId": "g9"}
    lie = {"originPlatform": "telegram", "originChat": chat, "originInstance": "x", "createdFrom": "cli"}
    lie |= {"workspace": "w", "work": {"root": "/x"}}
    write_stored(db, "sessions", child.id, {**read_stored(db, "sessions", child.id), **lie})
    async with running(db) as stack:
        assert stack.sessions.get_session(child.id) == child
        assert origin_chat_of(child.id, stack.host.select(SESSION_MANAGER)).target_id == "g1"
        assert stack.sessions.place_of(child.id).key == "onebot:group:g1"


@pytest.mark.rule("ORIGIN-1", "INTAKE-4")
async def test_what_another_process_made_of_it_meanwhile_stays(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare root that a terminal elsewhere took, and one that was filed elsewhere, get no second origin."""

    async def never(after_revision: int) -> Any:
        await asyncio.Event().wait()

    async with running(db) as stack:
        for session_id in ("mine", "room"):
            await stack.sessions.ensure_session(session_id)
    async with running(db) as one, running(db) as other:
        monkeypatch.setattr(other.host.memory, "changes", never)
        for stack in (one, other):
            stack.host.add_platform(Adapter())
        await one.sessions.ensure_session("mine", creation=SessionCreation(created_from="cli"))
        await one.sessions.record_inbound(group_message("room", group_id="first"))
        assert other.sessions.get_session("mine").created_from is None
        for session_id in ("mine", "room"):
            await other.sessions.record_inbound(group_message(session_id, group_id="second"))
        mine, room = other.sessions.get_session("mine"), other.sessions.get_session("room")
        assert (mine.created_from, mine.origin_platform, room.origin_chat.target_id) == ("cli", None, "first")
    assert "originPlatform" not in read_stored(db, "sessions", "mine")
    assert read_stored(db, "sessions", "room")["originChat"]["targetId"] == "first"


@pytest.mark.rule("ORIGIN-1", "CREATE-2")
async def test_no_caller_can_give_an_origin(stack: Stack) -> None:
    """A JSON form that carries origin fields has them dropped."""
    lie = {"originPlatform": "onebot", "originChat": {"type": "group", "multiParty": True, "targetId": "1"}}
    made = [
        await stack.sessions.create_session(from_json(lie, SessionDraft)),
        await stack.sessions.ensure_session("s", from_json(lie, SessionDraft)),
        await stack.sessions.create_child_session("s", from_json(lie, SessionDraft)),
    ]
    assert {(info.origin_platform, info.origin_chat) for info in made} == {(None, None)}


@pytest.mark.rule("ORIGIN-2")
@pytest.mark.parametrize(
    ("message", "chat"),
    [
        pytest.param(
            group_message("s", group_id="g1", user_id="u1", self_id="b"),
            OriginChat(type="group", multi_party=True, target_id="g1", self_id="b"),
            id="a group: its id",
        ),
        pytest.param(
            private_message("s", user_id="u1", self_id="b"),
            OriginChat(type="private", multi_party=False, target_id="u1", self_id="b"),
            id="one-to-one: the peer's account",
        ),
        pytest.param(
            group_message("s", self_id=None),
            OriginChat(type="group", multi_party=True, target_id="g1", self_id=None),
            id="no account on the message: none recorded",
        ),
        pytest.param(
            group_message("s", session_type="room", group_id="g1", user_id="u1"),
            OriginChat(type="room", multi_party=False, target_id="u1", self_id="bot1"),
            id="the declaration decides, not that there is a group",
        ),
        pytest.param(
            private_message("s", session_type="circle", group_id="c1"),
            OriginChat(type="circle", multi_party=True, target_id="c1", self_id="bot1"),
            id="the platform's own type name",
        ),
        pytest.param(
            private_message("s", own=True, user_id="bot1", peer_id="u7"),
            OriginChat(type="private", multi_party=False, target_id="u7", self_id="bot1"),
            id="what the bot says one-to-one: the peer, never the bot",
        ),
    ],
)
async def test_the_window_is_what_the_adapter_declares(
    stack: Stack, message: IncomingMessage, chat: OriginChat
) -> None:
    """Type, multi-party mark, target and account, by the adapter's declarations of that moment."""
    stack.host.add_platform(
        Adapter(session_types={"group": True, "private": False, "room": False, "circle": True}, claimed=lambda _: True)
    )
    await stack.sessions.record_inbound(message)
    assert stack.sessions.get_session("s").origin_chat == chat


@pytest.mark.rule("ORIGIN-2")
async def test_a_later_declaration_changes_nothing_recorded(db: str) -> None:
    """An adapter that declares its types otherwise, now or after a restart, changes no recorded window."""
    adapter = Adapter()
    async with running(db) as stack:
        stack.host.add_platform(adapter)
        await stack.sessions.record_inbound(group_message("s"))
        adapter.session_types = {"group": False, "private": True}
        await stack.sessions.record_inbound(group_message("s"))
        assert stack.sessions.get_session("s").origin_chat.multi_party is True
    async with running(db) as stack:
        stack.host.add_platform(adapter)
        await stack.sessions.record_inbound(group_message("s"))
        assert stack.sessions.get_session("s").origin_chat.multi_party is True


@pytest.mark.rule("ORIGIN-3", "KIND-3")
async def test_a_record_without_origin_has_none_whatever_its_id(db: str) -> None:
    """Read from the file: no origin platform, kind owner, default place; its next message back-fills it."""
    session_id = "onebot:bot1:group:g1"
    async with running(db):
        pass
    record = {"id": session_id, "status": "completed", "createdAt": 1, "updatedAt": 2, "kind": "room"}
    write_stored(db, "sessions", session_id, record)
    async with running(db) as stack:
        read = stack.sessions.get_session(session_id)
        assert (read.kind, read.origin_platform, read.origin_chat) == ("owner", None, None)
        assert stack.sessions.place_of(session_id).key == "workspace:default"
        stack.host.add_platform(Adapter())
        await stack.sessions.record_inbound(group_message(session_id))
        filled = stack.sessions.get_session(session_id)
        assert (filled.kind, filled.origin_chat.target_id, filled.created_at) == ("room", "g1", 1)


@pytest.mark.rule("ORIGIN-6")
async def test_the_instance_is_the_first_that_claims_as_routing_finds_it(stack: Stack, db: str) -> None:
    """Of three adapters two claim: the first of them is recorded, and it is the one that gets what is sent."""
    adapters = [Adapter(claimed=lambda _: False), Adapter(), Adapter()]
    for number, adapter in enumerate(adapters):
        stack.host.add_platform(adapter, context_id=f"instance-{number}")
    await stack.sessions.record_inbound(group_message("s"))
    assert stack.sessions.get_session("s").origin_instance == "instance-1"
    assert read_stored(db, "sessions", "s")["originInstance"] == "instance-1"
    await stack.host.gateway.dispatch(OutgoingMessage(session_id="s", content="hello"))
    assert [len(adapter.sent) for adapter in adapters] == [0, 1, 0]


@pytest.mark.rule("ORIGIN-6")
async def test_a_stored_instance_is_not_recomputed_and_moves_no_delivery(db: str) -> None:
    """An altered one stays as it is stored, and what is sent still goes to the adapter that claims the id."""
    async with running(db) as stack:
        stack.host.add_platform(Adapter(), context_id="one")
        await stack.sessions.record_inbound(group_message("s"))
    write_stored(db, "sessions", "s", {**read_stored(db, "sessions", "s"), "originInstance": "two"})
    async with running(db) as stack:
        one, two = Adapter(), Adapter(claimed=lambda _: False)
        stack.host.add_platform(one, context_id="one")
        stack.host.add_platform(two, context_id="two")
        await stack.say("s")
        assert stack.sessions.get_session("s").origin_instance == "two"
        assert (len(one.sent), len(two.sent)) == (1, 0)


async def until(condition: Any) -> None:
    """Let the loop run until a condition holds; the test's time limit ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.rule("ORIGIN-6", "INTAKE-5")
async def test_an_instance_that_was_missing_is_filled_in_by_the_next_message(stack: Stack, db: str) -> None:
    """None while nobody claims; what a person types next finds it, stores it and emits `session_updated`."""
    claimed = False
    adapter = Adapter(claimed=lambda _: claimed)
    stack.host.add_platform(adapter, context_id="one")
    await stack.sessions.record_inbound(group_message("s"))
    await stack.sessions.record_inbound(group_message("s"))
    assert stack.sessions.get_session("s").origin_instance is None

    await asyncio.sleep(0.02)
    claimed, asked = True, adapter.asked
    before, events = stack.sessions.get_session("s"), stack.recorder.names("s")
    await stack.sessions.record_inbound(group_message("s", source="timer"))
    await stack.sessions.record_inbound(group_message("s", own=True))
    await asyncio.sleep(0.02)
    assert adapter.asked == asked, "neither a timer nor the bot is a person who types"
    await stack.sessions.record_inbound(group_message("s"))
    await until(lambda: len(stack.recorder.names("s")) > len(events))
    assert adapter.asked == asked + 1
    assert stack.recorder.names("s") == [*events, "updated"]
    after = stack.sessions.get_session("s")
    assert (after.origin_instance, after.origin_chat) == ("one", before.origin_chat)
    assert read_stored(db, "sessions", "s")["originInstance"] == "one"

    await stack.sessions.record_inbound(group_message("s"))
    await asyncio.sleep(0.02)
    assert adapter.asked == asked + 1, "once recorded it isn't resolved again"


@pytest.mark.rule("ORIGIN-6")
async def test_an_instance_of_another_platform_is_not_filled_in(stack: Stack) -> None:
    """Only when the origin platform claims the id."""
    other_claims = False
    stack.host.add_platform(Adapter(claimed=lambda _: False), context_id="one")
    other = Adapter("telegram", claimed=lambda _: other_claims)
    stack.host.add_platform(other, context_id="other")
    await stack.sessions.record_inbound(group_message("s"))
    other_claims = True
    asked = other.asked
    await stack.sessions.record_inbound(group_message("s"))
    await until(lambda: other.asked > asked)
    await stack.sessions.update_session_title("s", "T")
    assert stack.sessions.get_session("s").origin_instance is None


@pytest.mark.rule("ORIGIN-6")
async def test_one_resolution_of_a_record_at_a_time(stack: Stack) -> None:
    """While the adapters are being asked, further messages start no second round."""
    answer = asyncio.Event()
    slow = False

    async def claims(session_id: str) -> bool:
        await answer.wait()
        return True

    adapter = Adapter(claimed=lambda session_id: claims(session_id) if slow else False)
    stack.host.add_platform(adapter, context_id="one")
    await stack.sessions.record_inbound(group_message("s"))
    slow, asked = True, adapter.asked
    for _ in range(5):
        await stack.sessions.record_inbound(group_message("s"))
        await asyncio.sleep(0)
    assert adapter.asked == asked + 1
    answer.set()
    await until(lambda: stack.sessions.get_session("s").origin_instance == "one")


@pytest.mark.rule("ORIGIN-7", "ORIGIN-5")
async def test_a_message_from_elsewhere_passes_the_trigger_policy(stack: Stack) -> None:
    """In a group nobody is answered unaddressed; what the owner types into it from the terminal is."""
    stack.host.add_platform(Adapter())
    await stack.say("s", "chatter", mentioned=False)
    assert stack.sessions.get_session("s").last_turn is None
    await stack.host.gateway.ingress(
        IncomingMessage(session_id="s", platform="cli", content="hear me", user_id="owner", mentioned=False)
    )
    assert stack.sessions.get_session("s").last_turn.outcome == "replied"
    child = await stack.sessions.create_child_session("s")
    await stack.host.gateway.ingress(
        IncomingMessage(session_id=child.id, platform="cli", content="and me", user_id="owner", mentioned=False)
    )
    assert stack.sessions.get_session(child.id).last_turn.outcome == "replied"
