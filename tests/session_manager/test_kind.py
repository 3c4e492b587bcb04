"""What the session manager makes of kinds, statuses and titles."""

from typing import get_args

import pytest

from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import PluginMeta, ToolRegistry, ToolSpec
from aalis_api_session_manager.message import IncomingMessage, ToolCall, ToolCallContext
from aalis_api_session_manager.model import SessionCreation, SessionDraft, SessionStatus, SessionUpdates
from aalis_api_session_manager.text import session_label
from aalis_api_session_manager.wire import from_json, to_json
from aalis_host.models.base import ModelReply
from tests.session_manager.kit import Adapter, Stack, group_message, running
from tests.session_manager.probes import Replies, read_stored, write_stored


@pytest.mark.rule("KIND-2")
async def test_kind_is_derived_however_a_session_comes_to_be(stack: Stack) -> None:
    """Created and ensured roots are `owner`, children `task`, filed rooms `room`; a back-fill turns owner into room."""
    stack.host.add_platform(Adapter())
    root = await stack.sessions.create_session()
    child = await stack.sessions.create_child_session(root.id)
    by_parent_id = await stack.sessions.create_session(SessionDraft(parent_id=child.id))
    ensured = await stack.sessions.ensure_session("bare")
    await stack.sessions.record_inbound(group_message("room"))
    assert (root.kind, child.kind, by_parent_id.kind, ensured.kind) == ("owner", "task", "task", "owner")
    assert stack.sessions.get_session("room").kind == "room"

    below = await stack.sessions.create_child_session("room")
    await stack.sessions.record_inbound(group_message("bare"))
    assert stack.sessions.get_session("bare").kind == "room"
    assert below.kind == "task"


@pytest.mark.rule("KIND-2", "CREATE-2")
async def test_kind_from_a_caller_is_never_believed(stack: Stack) -> None:
    """A JSON form that carries `kind` has it dropped on create, ensure and update; metadata isn't read for it."""
    lie = {"kind": "room", "name": "N", "metadata": {"kind": "room"}}
    created = await stack.sessions.create_session(from_json(lie, SessionDraft))
    ensured = await stack.sessions.ensure_session("bare", from_json(lie, SessionDraft))
    updated = await stack.sessions.update_session(created.id, from_json(lie, SessionUpdates))
    assert {created.kind, ensured.kind, updated.kind} == {"owner"}


@pytest.mark.rule("KIND-2", "KIND-5", "ORIGIN-3")
async def test_kind_in_an_old_record_is_never_believed(db: str) -> None:
    """On load the kind comes from parent and origin platform, whatever the record says; the next write corrects it."""
    async with running(db) as stack:
        await stack.sessions.ensure_session("root")
        child = await stack.sessions.create_child_session("root")
        stack.host.add_platform(Adapter())
        await stack.sessions.record_inbound(group_message("room"))
    for key, lie in (("root", "room"), (child.id, "owner"), ("room", "task")):
        write_stored(db, "sessions", key, {**read_stored(db, "sessions", key), "kind": lie})

    async with running(db) as stack:
        kinds = {info.id: info.kind for info in stack.sessions.list_sessions()}
        assert kinds == {"root": "owner", child.id: "task", "room": "room"}
        await stack.sessions.update_session_title("root", "T")
    assert read_stored(db, "sessions", "root")["kind"] == "owner"


@pytest.mark.rule("KIND-5")
async def test_every_reader_is_given_the_same_kind(stack: Stack) -> None:
    """The record, the list, the children, the event and the JSON of a summary hold one and the same field."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(group_message("room"))
    await stack.sessions.create_session(creation=SessionCreation(created_from="cli"))
    await stack.sessions.create_child_session("room")
    events = {what.id: what.kind for name, what in stack.recorder.events if name == "created"}
    for listed in stack.sessions.list_sessions():
        assert listed.kind == stack.sessions.get_session(listed.id).kind == events[listed.id]
        assert to_json(listed)["kind"] == listed.kind
    assert [info.kind for info in stack.sessions.get_children("room")] == ["task"]
    assert sorted(events.values()) == ["owner", "room", "task"]


@pytest.mark.rule("KIND-3")
@pytest.mark.parametrize("spelling", ["onebot:1:group:2", "webui:x", "cli:owner", "mcp-server", "workflow::daily"])
async def test_an_ids_spelling_decides_nothing(stack: Stack, spelling: str) -> None:
    """A record made by id looks the same whatever the id is like; filing it is decided by the message alone."""
    stack.host.add_platform(Adapter())
    made = await stack.sessions.ensure_session(spelling)
    assert (made.kind, made.origin_platform, made.origin_chat, made.created_from) == ("owner", None, None, None)
    assert stack.sessions.place_of(spelling).key == "workspace:default"

    await stack.sessions.record_inbound(group_message(spelling, group_id="g7"))
    filed = stack.sessions.get_session(spelling)
    assert (filed.kind, filed.origin_platform, filed.origin_chat.target_id) == ("room", "onebot", "g7")


@pytest.mark.rule("KIND-3")
async def test_ids_are_case_exact(stack: Stack, db: str) -> None:
    """Ids that differ in case, in a space or in how a letter is composed are different sessions."""
    ids = ["Room", "room", "room ", "caf\u00e9", "cafe\u0301"]
    for session_id in ids:
        await stack.sessions.ensure_session(session_id, SessionDraft(name=f"name of {session_id}"))
    await stack.sessions.delete_session("room")
    assert stack.sessions.get_session("room") is None
    for session_id in set(ids) - {"room"}:
        assert stack.sessions.get_session(session_id).name == f"name of {session_id}"
        assert read_stored(db, "sessions", session_id)["id"] == session_id


class Asker:
    """A plugin with one tool that keeps for whom it was called."""

    meta = PluginMeta(name="asker")

    def __init__(self) -> None:
        self.calls: list[ToolCallContext] = []

    @hookimpl
    def aalis_register_tools(self, registry: ToolRegistry) -> None:
        async def ask(arguments: dict[str, object], call: ToolCallContext) -> str:
            self.calls.append(call)
            return "{}"

        spec = ToolSpec(name="ask", group="test", description="Asks.", parameters={"type": "object"}, handler=ask)
        registry.register(spec)


@pytest.mark.rule("KIND-4")
async def test_kind_owner_says_nothing_about_who_is_present(db: str) -> None:
    """A session of a workflow is of the kind `owner`; what its turn may do is asked of who triggered it."""
    asker = Asker()
    model = Replies([ModelReply(tool_calls=(ToolCall(id="1", name="ask", arguments="{}"),)), ModelReply(content="ok")])
    async with running(db, asker, model=model) as stack:
        session = await stack.sessions.ensure_session("workflow::daily")
        assert session.kind == "owner"
        stranger = IncomingMessage(session_id=session.id, platform="hook", content="go", user_id="x", source="timer")
        await stack.host.gateway.ingress(stranger)
    (call,) = asker.calls
    assert [(who.platform, who.user_id) for who in call.approve_for] == [("hook", "x")]


@pytest.mark.rule("KIND-6")
async def test_each_status_can_be_given_and_stays(db: str) -> None:
    """`active`, `waiting`, `completed`, `error`, `archived`: set, listed by, and there after a restart; no other."""
    statuses = get_args(SessionStatus)
    assert sorted(statuses) == ["active", "archived", "completed", "error", "waiting"]
    async with running(db) as stack:
        for status in statuses:
            await stack.sessions.ensure_session(f"made {status}", SessionDraft(status=status))
            await stack.sessions.ensure_session(f"changed {status}")
            await stack.sessions.update_session(f"changed {status}", SessionUpdates(status=status))
    async with running(db) as stack:
        for status in statuses:
            assert {info.id for info in stack.sessions.list_sessions(status=status)} == {
                f"made {status}",
                f"changed {status}",
            }
    with pytest.raises(ValueError, match="paused"):
        SessionUpdates(status="paused")


@pytest.mark.rule("LABEL-3", "CREATE-6", "CREATE-10")
async def test_a_title_is_no_name(stack: Stack) -> None:
    """A title is kept apart: the label of a titled session is still its default, and a name is no title."""
    titled = await stack.sessions.create_session()
    await stack.sessions.update_session_title(titled.id, "A title")
    titled = stack.sessions.get_session(titled.id)
    named = await stack.sessions.create_session(SessionDraft(name="A name", metadata={"title": "not this"}))
    assert (titled.title, titled.name) == ("A title", None)
    assert session_label(titled).key == "session.default-root"
    assert (named.title, session_label(named)) == (None, "A name")
