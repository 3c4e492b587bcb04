"""Filing and back-fill: what a native message makes of its session before anything else reads it."""

import asyncio
import logging
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import PluginMeta, ToolRegistry, ToolSpec
from aalis_api_session_manager.kinds import origin_chat_of
from aalis_api_session_manager.message import IncomingMessage, ToolCall, ToolCallContext
from aalis_api_session_manager.model import SessionCreation, SessionDraft, SessionInfo, WorkBinding
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_host.models.base import ModelReply
from aalis_host.platforms.terminal import TerminalAdapter
from aalis_plugin_session_manager import intake
from tests.session_manager.kit import Adapter, Recorder, Stack, group_message, private_message, running
from tests.session_manager.probes import Looker, Replies, count_commits, read_stored


def typed(session_id: str | None, **fields: Any) -> IncomingMessage:
    """What the owner types into the terminal."""
    return IncomingMessage(
        **{"session_id": session_id, "platform": "cli", "content": "hello", "user_id": "owner", **fields}
    )


@pytest.mark.rule("INTAKE-1", "INTAKE-2")
async def test_arrivals_wait_for_a_deletion_those_without_a_session_never(db: str) -> None:
    """Native messages and those with a `source` wait until the deletion has ended; other sessions' don't."""
    deleting, go_on = asyncio.Event(), asyncio.Event()

    async def listen(name: str, what: Any) -> None:
        if name == "deleted":
            deleting.set()
            await go_on.wait()

    async with running(db, recorder=Recorder(listener=listen)) as stack:
        stack.host.add_platform(Adapter())
        await stack.sessions.record_inbound(group_message("s"))
        deletion = asyncio.create_task(stack.sessions.delete_session("s"))
        await deleting.wait()
        arrivals = [
            asyncio.create_task(stack.sessions.record_inbound(message))
            for message in (group_message("s"), group_message("s", source="timer"), typed("s"))
        ]
        await stack.sessions.record_inbound(typed(None))
        await stack.sessions.record_inbound(typed(None, source="timer"))
        await stack.sessions.record_inbound(typed("other"))
        await asyncio.sleep(0.05)
        assert not any(arrival.done() for arrival in arrivals)
        assert stack.sessions.get_session("s") is None
        go_on.set()
        await asyncio.gather(*arrivals, deletion)
        assert stack.sessions.get_session("s").kind == "room"
        assert stack.recorder.names("s") == ["created", "deleted", "created"]


@pytest.mark.rule("INTAKE-2")
async def test_messages_that_somebody_made_and_those_of_children_file_nothing(stack: Stack) -> None:
    """A `source`, a child session, no session id: nobody is asked, nothing is made or changed."""
    adapter = Adapter()
    stack.host.add_platform(adapter)
    parent = await stack.sessions.ensure_session("bare")
    child = await stack.sessions.create_child_session("bare")
    await stack.sessions.record_inbound(group_message("fresh", source="timer"))
    await stack.sessions.record_inbound(group_message("bare", source=""))
    await stack.sessions.record_inbound(group_message(child.id))
    await stack.sessions.record_inbound(group_message(None))
    assert stack.sessions.get_session("fresh") is None
    assert stack.sessions.get_session("bare").origin_platform is None
    assert stack.sessions.get_session(child.id) == child
    assert stack.sessions.get_session("bare").created_at == parent.created_at
    assert adapter.asked == 0


@pytest.mark.rule("INTAKE-3", "ORIGIN-1", "ORIGIN-6")
async def test_a_native_message_files_its_room(stack: Stack) -> None:
    """A session that isn't in the table becomes a root of the kind room, named, with one `session_created`."""
    stack.host.add_platform(Adapter(), context_id="one")
    await stack.sessions.record_inbound(group_message("g", group_name="The group"))
    await stack.sessions.record_inbound(private_message("p", user_name="Uli"))
    group, private = stack.sessions.get_session("g"), stack.sessions.get_session("p")
    assert (group.kind, group.parent_id, group.status, group.name) == ("room", None, "active", "The group")
    assert (group.origin_platform, group.origin_chat.multi_party, group.origin_instance) == ("onebot", True, "one")
    assert (private.name, private.origin_chat.multi_party, private.origin_chat.target_id) == ("Uli", False, "u1")
    assert (group.created_from, group.workspace, group.work) == (None, None, None)
    assert stack.recorder.names("g") == stack.recorder.names("p") == ["created"]


@pytest.mark.rule("INTAKE-3", "ORIGIN-2")
async def test_what_the_bot_says_from_elsewhere_files_its_room_too(stack: Stack) -> None:
    """The bot's own account writes from another device: the window is the peer's, not named after the bot."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(private_message("p", own=True, user_id="bot1", user_name="Bot", peer_id="u7"))
    filed = stack.sessions.get_session("p")
    assert (filed.kind, filed.origin_chat.target_id, filed.name) == ("room", "u7", None)
    assert stack.sessions.get_place("onebot:private:u7").name == "u7"
    await stack.sessions.record_inbound(group_message("g", own=True, user_id="bot1", user_name="Bot"))
    assert stack.sessions.get_session("g").name == "The group"


@pytest.mark.rule("INTAKE-3")
async def test_what_the_bot_says_to_nobody_known_files_nothing(stack: Stack) -> None:
    """An own message of a one-to-one that doesn't say to whom: its sender, the bot, is not the peer."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(private_message("p", own=True, user_id="bot1"))
    assert stack.sessions.get_session("p") is None


@pytest.mark.rule("INTAKE-3", "CREATE-11")
async def test_an_owners_surface_never_files_a_room(stack: Stack) -> None:
    """What is typed in the terminal or the web leaves an unknown id unknown, a bare root bare, its own its own."""
    terminal = TerminalAdapter(show=lambda text: None)
    stack.host.add_platform(terminal)
    own = await stack.sessions.create_session(creation=SessionCreation(created_from="cli"))
    await stack.sessions.ensure_session("bare")
    for session_id in (own.id, "bare", "unknown"):
        terminal.open(session_id)
        await stack.sessions.record_inbound(terminal.message(session_id, "hello"))
        await stack.sessions.record_inbound(typed(session_id, platform="webui"))
    assert stack.sessions.get_session("unknown") is None
    for session_id in (own.id, "bare"):
        session = stack.sessions.get_session(session_id)
        assert (session.kind, session.origin_platform, session.origin_chat) == ("owner", None, None)
    assert [place.key for place in stack.sessions.list_places()] == ["workspace:default"]


@pytest.mark.rule("INTAKE-4", "KIND-2")
async def test_a_bare_root_is_filled_in_by_its_adapters_first_message(stack: Stack, db: str) -> None:
    """Origin, instance and place come; what it had stays; one `session_updated`."""
    stack.host.add_platform(Adapter(), context_id="one")
    await stack.sessions.ensure_session("s", SessionDraft(title="T", metadata={"a": 1}, status="waiting"))
    child = await stack.sessions.create_child_session("s")
    events = stack.recorder.names("s")
    await stack.sessions.record_inbound(group_message("s"))
    filled = stack.sessions.get_session("s")
    assert (filled.kind, filled.origin_platform, filled.origin_instance) == ("room", "onebot", "one")
    assert (filled.name, filled.title, filled.status, filled.metadata) == ("The group", "T", "waiting", {"a": 1})
    assert filled.children == (child.id,)
    assert stack.recorder.names("s") == [*events, "updated"]
    assert read_stored(db, "sessions", "s")["originPlatform"] == "onebot"
    assert stack.sessions.get_place("onebot:group:g1").name == "The group"


@pytest.mark.rule("INTAKE-4")
async def test_a_name_that_a_bare_root_had_stays(stack: Stack) -> None:
    """Back-fill names the nameless only."""
    stack.host.add_platform(Adapter())
    await stack.sessions.ensure_session("s", SessionDraft(name="Mine"))
    await stack.sessions.record_inbound(group_message("s"))
    assert stack.sessions.get_session("s").name == "Mine"


@pytest.mark.rule("INTAKE-4", "CREATE-9")
async def test_a_root_that_is_known_already_is_not_filled_in(stack: Stack) -> None:
    """One with a creation source or a binding is somebody's: a native message gives it no origin."""
    stack.host.add_platform(Adapter())
    workspace = (await stack.sessions.add_workspace("/srv/project")).workspace.id
    binding = WorkBinding(root="/srv/project")
    roots = [
        await stack.sessions.create_session(creation=SessionCreation(created_from="webui")),
        await stack.sessions.create_session(creation=SessionCreation(workspace=workspace, work=binding)),
    ]
    for root in roots:
        await stack.sessions.record_inbound(group_message(root.id))
        assert stack.sessions.get_session(root.id) == root


CLAIMANTS = {
    "nobody": [],
    "its own": ["onebot"],
    "two of its own": ["onebot", "onebot"],
    "another platform": ["telegram"],
    "its own and another": ["onebot", "telegram"],
    "another and its own": ["telegram", "onebot"],
}


@pytest.mark.rule("INTAKE-4", "INTAKE-5")
@pytest.mark.parametrize("claimants", CLAIMANTS.values(), ids=CLAIMANTS)
async def test_who_claims_the_id_decides(stack: Stack, claimants: list[str]) -> None:
    """The message's platform alone: filed and back-filled. Nobody: only what is fresh is filed. Else nothing."""
    for number, platform in enumerate(["onebot", "telegram"]):
        stack.host.add_platform(Adapter(platform, claimed=lambda _: False), context_id=f"idle-{number}")
    for number, platform in enumerate(claimants):
        stack.host.add_platform(Adapter(platform), context_id=f"claims-{number}")
    await stack.sessions.ensure_session("bare")
    for session_id in ("bare", "fresh"):
        await stack.sessions.record_inbound(group_message(session_id))

    bare, fresh = stack.sessions.get_session("bare"), stack.sessions.get_session("fresh")
    if not claimants:
        assert bare.origin_platform is None
        assert (fresh.origin_platform, fresh.origin_instance) == ("onebot", None)
    elif set(claimants) == {"onebot"}:
        assert (bare.origin_platform, bare.origin_instance) == ("onebot", "claims-0")
        assert (fresh.origin_platform, fresh.origin_instance) == ("onebot", "claims-0")
    else:
        assert bare.origin_platform is None
        assert fresh is None
        assert stack.sessions.get_place("onebot:group:g1") is None


@pytest.mark.rule("INTAKE-3", "INTAKE-5")
async def test_a_platform_whose_adapter_is_gone_is_filed_by_what_the_message_says(stack: Stack) -> None:
    """No adapter at all: a window type on the message tells that it came from one."""
    await stack.sessions.record_inbound(group_message("s"))
    filed = stack.sessions.get_session("s")
    assert (filed.origin_platform, filed.origin_chat.multi_party, filed.origin_instance) == ("onebot", True, None)


async def broken(session_id: str) -> bool:
    raise RuntimeError("no connection")


async def cancelled(session_id: str) -> bool:
    raise asyncio.CancelledError


async def hanging(session_id: str) -> bool:
    await asyncio.Event().wait()
    return True


@pytest.mark.rule("INTAKE-5", "INTAKE-7")
@pytest.mark.parametrize("claims", [broken, cancelled, hanging])
async def test_an_adapter_that_cant_say_claims_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, claims: Callable[[str], Any]
) -> None:
    """An adapter that raises, is cancelled or hangs is passed over: the one that claims the id gets it."""
    monkeypatch.setattr(intake, "CLAIM_LIMIT", 0.05)
    stack.host.add_platform(Adapter("telegram", claimed=claims), context_id="broken")
    stack.host.add_platform(Adapter(claimed=claims), context_id="broken too")
    stack.host.add_platform(Adapter(), context_id="well")
    await stack.sessions.record_inbound(group_message("s"))
    assert stack.sessions.get_session("s").origin_instance == "well"


@pytest.mark.rule("INTAKE-6", "STORE-2")
async def test_it_resolves_when_record_and_place_are_in_the_file(stack: Stack, db: str) -> None:
    """Right after it another program reads both from the file; while they can't be stored it doesn't resolve."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(group_message("s"))
    assert read_stored(db, "sessions", "s")["originChat"]["targetId"] == "g1"
    assert read_stored(db, "places", "onebot:group:g1")["name"] == "The group"


@pytest.mark.rule("INTAKE-6", "STORE-2")
async def test_it_waits_for_the_claimants_and_for_the_store(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an adapter thinks, or the store doesn't answer, it doesn't resolve."""
    answer = asyncio.Event()

    async def claims(session_id: str) -> bool:
        await answer.wait()
        return True

    stack.host.add_platform(Adapter(claimed=claims))
    commits = count_commits(stack, monkeypatch)
    commits.held.clear()
    filing = asyncio.create_task(stack.sessions.record_inbound(group_message("s")))
    await asyncio.sleep(0.03)
    assert not filing.done()
    answer.set()
    await asyncio.sleep(0.03)
    assert not filing.done()
    commits.held.set()
    await filing
    assert sorted(chain(*commits.calls)) == [("places", "onebot:group:g1"), ("sessions", "s")]


@pytest.mark.rule("INTAKE-6", "PLACE-6")
async def test_a_filed_session_gets_its_names_without_waiting(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing name and the window's name come with a later message, which doesn't wait for the store."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(group_message("s", group_name=None))
    assert stack.sessions.get_session("s").name is None
    commits = count_commits(stack, monkeypatch)
    commits.held.clear()
    async with asyncio.timeout(30):
        await stack.sessions.record_inbound(group_message("s", group_name="Now named"))
    commits.held.set()
    await stack.sessions.update_session_title("s", "T")
    assert stack.sessions.get_session("s").name == "Now named"
    assert stack.sessions.get_place("onebot:group:g1").name == "Now named"

    await stack.sessions.record_inbound(group_message("s", group_name="Renamed"))
    assert stack.sessions.get_session("s").name == "Now named", "only a missing name"
    assert stack.sessions.get_place("onebot:group:g1").name == "Renamed"


@pytest.mark.rule("INTAKE-7")
async def test_concurrent_calls_share_one_filing(stack: Stack) -> None:
    """Fifty messages at once: every adapter is asked once, one record, one event; another id has its own filing."""
    answer = asyncio.Event()

    async def claims(session_id: str) -> bool:
        await answer.wait()
        return True

    adapters = [Adapter(claimed=claims), Adapter(claimed=claims)]
    for number, adapter in enumerate(adapters):
        stack.host.add_platform(adapter, context_id=str(number))
    calls = [asyncio.create_task(stack.sessions.record_inbound(group_message("s"))) for _ in range(50)]
    calls.append(asyncio.create_task(stack.sessions.record_inbound(group_message("other", group_id="g2"))))
    await asyncio.sleep(0.02)
    answer.set()
    await asyncio.gather(*calls)
    assert [adapter.asked for adapter in adapters] == [2, 2]
    assert stack.recorder.names("s") == ["created"]
    assert stack.sessions.get_session("other").origin_chat.target_id == "g2"


@pytest.mark.rule("INTAKE-7", "STORE-3")
async def test_a_cancelled_caller_takes_nobody_along(stack: Stack) -> None:
    """One of those that share a filing is cancelled: the others get the filed session."""
    answer = asyncio.Event()

    async def claims(session_id: str) -> bool:
        await answer.wait()
        return True

    stack.host.add_platform(Adapter(claimed=claims))
    first, second = (asyncio.create_task(stack.sessions.record_inbound(group_message("s"))) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    answer.set()
    await second
    assert stack.sessions.get_session("s").kind == "room"


@pytest.mark.rule("INTAKE-7")
async def test_a_failed_filing_is_a_warning(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store refuses: the gateway gets no exception, the log names the session."""
    stack.host.add_platform(Adapter())
    commit = stack.host.memory.commit_metadata

    async def refuse(changesets: Any) -> Any:
        raise OSError("disk full")

    monkeypatch.setattr(stack.host.memory, "commit_metadata", refuse)
    with caplog.at_level(logging.WARNING, "aalis_plugin_session_manager"):
        await stack.sessions.record_inbound(group_message("s"))
    assert any(record.levelno == logging.WARNING and "'s'" in record.getMessage() for record in caplog.records)
    monkeypatch.setattr(stack.host.memory, "commit_metadata", commit)


@pytest.mark.rule("INTAKE-7", "PLACE-2")
async def test_a_window_that_cant_have_a_key_is_a_failed_filing(stack: Stack) -> None:
    """A colon in a platform's or type's name: nothing is filed, nobody gets an exception."""
    stack.host.add_platform(Adapter(session_types={"a:b": True}))
    await stack.sessions.record_inbound(group_message("s", session_type="a:b"))
    await stack.sessions.record_inbound(group_message("t", platform="x:y"))
    assert (stack.sessions.get_session("s"), stack.sessions.get_session("t")) == (None, None)


@pytest.mark.rule("INTAKE-3", "INTAKE-4", "PLACE-6")
async def test_a_session_that_becomes_somebodys_while_adapters_think_is_left_alone(stack: Stack) -> None:
    """Ensured with a creation source meanwhile: no origin, and no window's record."""

    async def claims(session_id: str) -> bool:
        await stack.sessions.ensure_session(session_id, creation=SessionCreation(created_from="cli"))
        return True

    stack.host.add_platform(Adapter(claimed=claims))
    await stack.sessions.record_inbound(group_message("s"))
    session = stack.sessions.get_session("s")
    assert (session.kind, session.created_from, session.origin_chat) == ("owner", "cli", None)
    assert [place.key for place in stack.sessions.list_places()] == ["workspace:default"]


@pytest.mark.rule("INTAKE-1", "INTAKE-7")
async def test_from_inside_its_own_deletion_nothing_waits_for_itself(db: str) -> None:
    """A listener of `session_deleted` that takes a message in for that very session is neither stuck nor refused."""

    async def listen(name: str, what: Any) -> None:
        if name == "deleted":
            async with asyncio.timeout(20):
                await stack.sessions.record_inbound(group_message(what))
            passed.append(what)

    passed: list[str] = []
    recorder = Recorder()
    async with running(db, recorder=recorder) as stack:
        stack.host.add_platform(Adapter())
        await stack.sessions.record_inbound(group_message("s"))
        recorder.listener = listen
        await stack.sessions.delete_session("s")
        assert passed == ["s"]
        assert stack.sessions.get_session("s") is None


class Tool:
    """A plugin whose tool looks at its session."""

    meta = PluginMeta(name="tool")

    def __init__(self, look: Callable[[str, str], None]) -> None:
        self.look = look

    @hookimpl
    def aalis_register_tools(self, registry: ToolRegistry) -> None:
        async def handler(arguments: dict[str, Any], call: ToolCallContext) -> str:
            self.look("tool", call.session_id)
            return "{}"

        spec = ToolSpec(name="look", group="t", description="Looks.", parameters={"type": "object"}, handler=handler)
        registry.register(spec)


@pytest.mark.rule("INTAKE-8")
@pytest.mark.parametrize("bare", [False, True])
async def test_gate_turn_and_tool_see_the_filed_session(db: str, bare: bool) -> None:
    """With the very first message, fresh or back-filled, everybody behind the intake reads the window."""
    seen: dict[str, tuple[SessionInfo | None, Any]] = {}

    def look(where: str, session_id: str) -> None:
        chat = origin_chat_of(session_id, stack.host.select(SESSION_MANAGER))
        seen[where] = (stack.sessions.get_session(session_id), chat)

    model = Replies([ModelReply(tool_calls=(ToolCall(id="1", name="look", arguments="{}"),)), ModelReply(content="ok")])
    async with running(db, Looker(look), Tool(look), model=model) as stack:
        stack.host.add_platform(Adapter())
        if bare:
            await stack.sessions.ensure_session("s")
        await stack.say("s", group_id="g5")
    assert list(seen) == ["gate", "turn", "tool"]
    for session, chat in seen.values():
        assert (session.kind, session.origin_platform) == ("room", "onebot")
        assert (chat.type, chat.multi_party, chat.target_id) == ("group", True, "g5")
