"""Making, ensuring, changing and completing sessions."""

import asyncio
import subprocess
import sys
import uuid
from typing import Any

import pytest

from aalis_api_session_manager.errors import InvalidSession, SessionNotFound, WorkspaceNotFound
from aalis_api_session_manager.kinds import is_unfiled
from aalis_api_session_manager.model import (
    LastTurn,
    SessionCreation,
    SessionDraft,
    SessionInfo,
    SessionUpdates,
    TokenCount,
    WorkBinding,
)
from aalis_api_session_manager.wire import from_json
from aalis_plugin_session_manager import manager
from tests.session_manager.kit import Adapter, Recorder, Stack, group_message, running
from tests.session_manager.probes import read_stored, stored_keys, write_stored

OWNED: dict[str, Any] = {
    "kind": "room",
    "originPlatform": "onebot",
    "originChat": {"type": "group", "multiParty": True, "targetId": "1"},
    "originInstance": "x",
    "createdFrom": "cli",
    "workspace": "w",
    "work": {"root": "/x"},
    "currentDir": "/x",
    "lastReplyAt": 1,
    "lastTurn": {"outcome": "replied", "endedAt": 1},
    "tokens": {"input": 9, "output": 9},
}
"""What the session manager owns, as a caller's JSON might carry it."""


def owned(session: SessionInfo) -> dict[str, Any]:
    """What a session has of it."""
    return {
        "created_from": session.created_from,
        "workspace": session.workspace,
        "work": session.work,
        "current_dir": session.current_dir,
        "origin": (session.origin_platform, session.origin_chat, session.origin_instance),
        "turns": (session.last_reply_at, session.last_turn, session.tokens),
    }


def hand_out(monkeypatch: pytest.MonkeyPatch, *ids: str) -> None:
    """Let these be the next fresh ids."""
    remaining = iter(ids)
    monkeypatch.setattr(manager, "new_session_id", lambda: next(remaining))


@pytest.mark.rule("CREATE-1")
async def test_a_new_session_has_a_fresh_random_id(stack: Stack, db: str) -> None:
    """A version 4 UUID (122 random bits), the draft's fields, the creation's; durable when it is answered."""
    draft = SessionDraft(name="N", title="T", status="waiting", input_context="do it", result="R", metadata={"a": [1]})
    made = await stack.sessions.create_session(draft, SessionCreation(created_from="webui"))
    assert uuid.UUID(made.id).version == 4
    assert (made.name, made.title, made.status, made.input_context, made.result) == ("N", "T", "waiting", "do it", "R")
    assert (made.metadata, made.created_from, made.parent_id, made.children) == ({"a": (1,)}, "webui", None, ())
    assert made.created_at == made.updated_at > 0
    assert stack.sessions.get_session(made.id) == made
    assert read_stored(db, "sessions", made.id)["inputContext"] == "do it"
    assert stack.recorder.names(made.id) == ["created"]
    plain = await stack.sessions.create_session()
    assert (plain.status, plain.name, plain.created_from) == ("active", None, None)
    at_once = await asyncio.gather(*(stack.sessions.create_session() for _ in range(100)))
    assert len({one.id for one in at_once}) == 100


@pytest.mark.rule("CREATE-1")
async def test_an_id_that_is_taken_is_never_overwritten(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collision, also with a call of the same moment, takes the next id; the first session is untouched."""
    taken = await stack.sessions.ensure_session("taken", SessionDraft(name="first"))
    hand_out(monkeypatch, "taken", "free", "free", "taken", "free", "also free")
    made = await asyncio.gather(*(stack.sessions.create_session(SessionDraft(name=f"new {i}")) for i in range(2)))
    assert {one.id for one in made} == {"free", "also free"}
    assert stack.sessions.get_session("taken") == taken


@pytest.mark.rule("CREATE-1", "GEN-1")
async def test_an_id_that_was_deleted_isnt_fresh(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number of deletions, and what others may still keep for it, aren't a new session's."""
    await stack.sessions.ensure_session("deleted")
    await stack.sessions.delete_session("deleted")
    hand_out(monkeypatch, "deleted", "free")
    assert (await stack.sessions.create_session()).id == "free"


@pytest.mark.rule("CREATE-1", "STORE-4")
async def test_the_id_of_a_damaged_record_isnt_fresh(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on disk stays there."""
    async with running(db):
        pass
    write_stored(db, "sessions", "hurt", "{truncated")
    async with running(db) as stack:
        hand_out(monkeypatch, "hurt", "free")
        assert (await stack.sessions.create_session()).id == "free"


@pytest.mark.rule("CREATE-1")
async def test_an_id_that_another_process_took_isnt_fresh(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store refuses the record that is there by now: the next id is taken, the other's session untouched."""

    async def never(after_revision: int) -> Any:
        await asyncio.Event().wait()

    async with running(db) as one, running(db) as other:
        monkeypatch.setattr(other.host.memory, "changes", never)
        await one.sessions.ensure_session("taken", SessionDraft(name="first"))
        assert other.sessions.get_session("taken") is None
        hand_out(monkeypatch, "taken", "free")
        assert (await other.sessions.create_session(SessionDraft(name="second"))).id == "free"
        assert one.sessions.get_session("taken").name == "first"
        assert read_stored(db, "sessions", "taken")["name"] == "first"


@pytest.mark.rule("CREATE-2")
async def test_what_the_session_manager_owns_cant_be_passed(stack: Stack) -> None:
    """The types have none of these fields, and a JSON form that carries them has them dropped, wherever it goes."""
    for name in ("kind", "origin_platform", "created_from", "workspace", "work", "current_dir", "tokens"):
        with pytest.raises(TypeError):
            SessionDraft(**{name: "x"})
        with pytest.raises(TypeError):
            SessionUpdates(**{name: "x"})
    await stack.sessions.ensure_session("bare")
    draft = from_json({**OWNED, "name": "N"}, SessionDraft)
    made = [
        await stack.sessions.create_session(draft),
        await stack.sessions.ensure_session("new", draft),
        await stack.sessions.ensure_session("bare", draft),
        await stack.sessions.create_child_session("bare", draft),
        await stack.sessions.update_session("bare", from_json({**OWNED, "name": "N"}, SessionUpdates)),
    ]
    nothing = owned(SessionInfo(id="x", created_at=0, updated_at=0))
    assert [owned(one) for one in made] == [nothing] * 5
    assert {one.name for one in made} == {"N"}


@pytest.mark.rule("CREATE-3")
async def test_a_creation_is_for_roots_only(stack: Stack, db: str) -> None:
    """Beside a parent it raises, whatever it says; a draft's parent raises where the parent is said otherwise."""
    await stack.sessions.ensure_session("parent")
    child_draft = SessionDraft(parent_id="parent")
    for creation in (
        SessionCreation(created_from="cli"),
        SessionCreation(workspace="default"),
        SessionCreation(work=WorkBinding(root="/x")),
        SessionCreation(),
    ):
        with pytest.raises(InvalidSession):
            await stack.sessions.create_session(child_draft, creation)
    with pytest.raises(InvalidSession):
        await stack.sessions.ensure_session("new", child_draft)
    with pytest.raises(InvalidSession):
        await stack.sessions.ensure_session("parent", child_draft)
    with pytest.raises(InvalidSession):
        await stack.sessions.create_child_session("parent", child_draft)
    with pytest.raises(SessionNotFound):
        await stack.sessions.create_session(SessionDraft(parent_id="unknown"))
    assert stored_keys(db, "sessions") == ["parent"]


@pytest.mark.rule("CREATE-4", "CREATE-8", "CREATE-9", "DELETE-3")
async def test_a_missing_parent_is_made_by_id_first(stack: Stack, db: str) -> None:
    """A bare, unfiled, active root with exactly this id; the child below it; the parent is told of its child."""
    child = await stack.sessions.create_child_session("onebot:1:group:2", SessionDraft(name="C", title="T"))
    parent = stack.sessions.get_session("onebot:1:group:2")
    assert (child.parent_id, child.name, child.title, child.kind) == (parent.id, "C", "T", "task")
    assert (parent.status, parent.name, parent.children, is_unfiled(parent)) == ("active", None, (child.id,), True)
    assert [info.id for info in stack.sessions.get_children(parent.id)] == [child.id]
    assert stack.recorder.names(parent.id) == ["created", "updated"]
    assert stack.recorder.names(child.id) == ["created"]
    assert stored_keys(db, "sessions") == sorted([parent.id, child.id])


@pytest.mark.rule("CREATE-4")
async def test_children_made_at_once_below_a_missing_parent(stack: Stack) -> None:
    """Twenty at once: one parent, twenty children, oldest first."""
    children = await asyncio.gather(*(stack.sessions.create_child_session("p") for _ in range(20)))
    assert stack.recorder.names("p").count("created") == 1
    parent = stack.sessions.get_session("p")
    assert sorted(parent.children) == sorted(child.id for child in children)
    below = stack.sessions.get_children("p")
    assert [info.id for info in below] == list(parent.children)
    assert [info.created_at for info in below] == sorted(info.created_at for info in below)


@pytest.mark.rule("CREATE-5", "CREATE-8")
async def test_ensuring_a_missing_one_makes_an_active_root(stack: Stack, db: str) -> None:
    """With exactly this id, the patch's fields, no origin, and a creation source only if one was passed."""
    plain = await stack.sessions.ensure_session("a")
    given = await stack.sessions.ensure_session("b", SessionDraft(name="N", metadata={"x": 1}))
    own = await stack.sessions.ensure_session("c", creation=SessionCreation(created_from="cli"))
    assert {(one.status, one.parent_id, one.origin_platform) for one in (plain, given, own)} == {("active", None, None)}
    assert [one.id for one in (plain, given, own)] == ["a", "b", "c"]
    assert (given.name, given.metadata) == ("N", {"x": 1})
    assert [one.created_from for one in (plain, given, own)] == [None, None, "cli"]
    assert read_stored(db, "sessions", "c")["createdFrom"] == "cli"
    assert [stack.recorder.names(one) for one in "abc"] == [["created"]] * 3


@pytest.mark.rule("CREATE-5", "CREATE-7")
async def test_ensuring_an_existing_one_merges(stack: Stack) -> None:
    """What the patch doesn't say stays; metadata merges by top-level key; one `session_updated`."""
    first = SessionDraft(name="N", title="T", status="waiting", metadata={"a": {"x": 1}, "b": 1})
    made = await stack.sessions.ensure_session("s", first)
    again = await stack.sessions.ensure_session("s", SessionDraft(title="T2", metadata={"a": {"y": 2}}))
    assert (again.name, again.title, again.status) == ("N", "T2", "waiting")
    assert again.metadata == {"a": {"y": 2}, "b": 1}
    assert (again.created_at, again.updated_at > made.updated_at) == (made.created_at, True)
    assert stack.recorder.names("s") == ["created", "updated"]


@pytest.mark.rule("CREATE-5", "ORIGIN-1")
async def test_the_creation_source_is_filled_in_only_where_nothing_is_known(db: str) -> None:
    """An unfiled root gets it, stored and told; a room, a bound one, one that has it, and a child keep their own."""
    creation = SessionCreation(created_from="webui")
    async with running(db) as stack:
        sessions = stack.sessions
        stack.host.add_platform(Adapter())
        await sessions.record_inbound(group_message("room"))
        workspace = (await sessions.add_workspace("/x")).workspace.id
        bound = SessionCreation(workspace=workspace, work=WorkBinding(root="/x"))
        project = await sessions.create_session(creation=bound)
        await sessions.ensure_session("own", creation=SessionCreation(created_from="cli"))
        child = await sessions.create_child_session("bare")
        expected = {"bare": "webui", "room": None, project.id: None, "own": "cli", child.id: None}
        for session_id, created_from in expected.items():
            events = stack.recorder.names(session_id)
            ensured = await sessions.ensure_session(session_id, creation=creation)
            assert ensured.created_from == created_from
            added = ["updated"] if session_id == "bare" else []
            assert stack.recorder.names(session_id) == [*events, *added]
    async with running(db) as stack:
        assert {one: stack.sessions.get_session(one).created_from for one in expected} == expected


@pytest.mark.rule("CREATE-5", "BIND-1")
async def test_ensuring_gives_no_workspace_and_no_binding(stack: Stack) -> None:
    """They raise, on a missing and on an existing one, and nothing is made or changed."""
    workspace = (await stack.sessions.add_workspace("/x")).workspace.id
    there = await stack.sessions.ensure_session("there")
    for creation in (SessionCreation(workspace=workspace), SessionCreation(work=WorkBinding(root="/x"))):
        for session_id in ("there", "new"):
            with pytest.raises(InvalidSession):
                await stack.sessions.ensure_session(session_id, creation=creation)
    assert stack.sessions.get_session("new") is None
    assert stack.sessions.get_session("there") == there


@pytest.mark.rule("CREATE-5")
async def test_ensuring_at_once_makes_one(stack: Stack) -> None:
    """Fifty calls: one record, one `session_created`, each part of the patches is in it."""
    calls = (stack.sessions.ensure_session("s", SessionDraft(metadata={str(i): i})) for i in range(50))
    await asyncio.gather(*calls)
    assert stack.sessions.get_session("s").metadata == {str(i): i for i in range(50)}
    assert stack.recorder.names("s").count("created") == 1


HARD_IDS = {
    "colons": "a:b::c:",
    "slashes": "../a/b//c\\d",
    "spaces": "  a  b ",
    "upper case": "ABC",
    "a kilobyte": "x" * 1024,
    "emoji": "👩‍👩‍👧‍👦🇰🇷é",
    "SQL and JSON": '\'; DROP TABLE metadata; -- {"id": "%s"}',
    "control characters": "a\tb\nc\x7f\x1b[31m",
    "of a place": "workspace:default",
}


@pytest.mark.rule("CREATE-5", "KIND-3")
@pytest.mark.parametrize("session_id", HARD_IDS.values(), ids=HARD_IDS)
async def test_hard_ids_are_kept_to_the_letter(db: str, session_id: str) -> None:
    """Made, changed, with a child, filed, read back after a restart, deleted: always exactly this id."""
    async with running(db) as stack:
        stack.host.add_platform(Adapter())
        made = await stack.sessions.ensure_session(session_id, SessionDraft(name="N"))
        child = await stack.sessions.create_child_session(session_id)
        await stack.say(session_id)
        assert (made.id, child.parent_id) == (session_id, session_id)
    assert read_stored(db, "sessions", session_id)["id"] == session_id
    async with running(db) as stack:
        read = stack.sessions.get_session(session_id)
        assert (read.id, read.name, read.kind, read.children) == (session_id, "N", "room", (child.id,))
        assert read.last_turn.outcome == "replied"
        await stack.sessions.delete_session(session_id)
        assert stack.sessions.list_sessions() == []
        assert stack.sessions.generation_of(session_id) == 1
    assert stored_keys(db, "sessions") == []


@pytest.mark.rule("CREATE-5")
@pytest.mark.parametrize("session_id", ["", "a\x00b", "a\ud800"])
async def test_what_cant_be_an_id_is_refused(stack: Stack, db: str, session_id: str) -> None:
    """An id that can't be stored as it is raises, also as a child's parent, instead of becoming another one."""
    with pytest.raises(InvalidSession):
        await stack.sessions.ensure_session(session_id)
    with pytest.raises(InvalidSession):
        await stack.sessions.create_child_session(session_id)
    assert stored_keys(db, "sessions") == []


@pytest.mark.rule("CREATE-6")
async def test_metadata_is_stored_as_given(db: str) -> None:
    """Create, child and ensure keep it whole; `title` and `inputContext` in it stay there; the caller keeps no hold."""
    given: dict[str, Any] = {
        "title": "not a title",
        "inputContext": "no context",
        "name": "no name",
        "kind": "room",
        "deep": {"list": [1, 2.5, None, True, {"ключ": "значение"}], "empty": {}},
        "settings": {"session-manager": {"unknown": 1}},
    }
    wanted = {**given, "deep": {"list": [1, 2.5, None, True, {"ключ": "значение"}], "empty": {}}}
    async with running(db) as stack:
        made = [
            await stack.sessions.create_session(SessionDraft(metadata=given)),
            await stack.sessions.ensure_session("s", SessionDraft(metadata=given)),
            await stack.sessions.create_child_session("s", SessionDraft(metadata=given)),
        ]
        given["deep"]["list"].append("later")
        given["more"] = 1
        assert {(one.title, one.input_context, one.name) for one in made} == {(None, None, None)}
        with pytest.raises(TypeError):
            made[0].metadata["deep"] = 1
    for one in made:
        assert read_stored(db, "sessions", one.id)["metadata"] == wanted


@pytest.mark.rule("CREATE-7")
async def test_an_update_merges_metadata_and_is_told(stack: Stack, db: str) -> None:
    """Whole values by top-level key; fields left out stay, None clears; one `session_updated`; unknown ids raise."""
    draft = SessionDraft(name="N", title="T", input_context="C", metadata={"a": {"x": 1}, "b": [1], "c": 1})
    made = await stack.sessions.create_session(draft)
    changed = await stack.sessions.update_session(
        made.id, SessionUpdates(metadata={"a": {"y": 2}, "b": None}, title=None, status="archived")
    )
    assert changed.metadata == {"a": {"y": 2}, "b": None, "c": 1}
    assert (changed.name, changed.title, changed.input_context, changed.status) == ("N", None, "C", "archived")
    assert changed.updated_at > made.updated_at
    assert stack.recorder.names(made.id) == ["created", "updated"]
    assert stack.recorder.events[-1] == ("updated", changed)
    assert read_stored(db, "sessions", made.id)["metadata"] == {"a": {"y": 2}, "b": None, "c": 1}
    assert (await stack.sessions.update_session(made.id, SessionUpdates(metadata=None))).metadata is None
    for change in (
        stack.sessions.update_session("unknown", SessionUpdates(title="T")),
        stack.sessions.update_session_title("unknown", "T"),
        stack.sessions.complete_session("unknown", "R"),
    ):
        with pytest.raises(SessionNotFound):
            await change
    assert stack.sessions.get_session("unknown") is None


@pytest.mark.rule("CREATE-7")
async def test_updates_at_once_lose_nothing(stack: Stack) -> None:
    """Each of a hundred concurrent updates of one session is in it."""
    await stack.sessions.ensure_session("s")
    await asyncio.gather(
        *(stack.sessions.update_session("s", SessionUpdates(metadata={str(i): i})) for i in range(100))
    )
    assert stack.sessions.get_session("s").metadata == {str(i): i for i in range(100)}


@pytest.mark.rule("CREATE-9", "BIND-1")
async def test_which_records_are_unfiled(stack: Stack) -> None:
    """A bare root, and one made without a creation; not a room, a terminal's, a bound one, or a child."""
    sessions = stack.sessions
    stack.host.add_platform(Adapter())
    await sessions.record_inbound(group_message("room"))
    workspace = (await sessions.add_workspace("/x")).workspace.id
    bound = SessionCreation(workspace=workspace, work=WorkBinding(root="/x"))
    unfiled = [await sessions.ensure_session("bare"), await sessions.create_session()]
    filed = [
        sessions.get_session("room"),
        await sessions.create_session(creation=SessionCreation(created_from="cli")),
        await sessions.create_session(creation=bound),
        await sessions.create_child_session("bare"),
    ]
    assert [is_unfiled(one) for one in unfiled + filed] == [True, True, False, False, False, False]


@pytest.mark.rule("CREATE-10", "EVENT-1")
async def test_completing_sets_status_and_result_and_is_told(stack: Stack, db: str) -> None:
    """`session_completed` carries the session as it is then, after it is in the file; again completed, told again."""
    read: list[Any] = []

    async def listen(name: str, what: Any) -> None:
        if name == "completed":
            read.append(read_stored(db, "sessions", what.id)["result"])

    stack.recorder.listener = listen
    made = await stack.sessions.create_session(SessionDraft(status="waiting"))
    await stack.sessions.complete_session(made.id, "42")
    done = stack.sessions.get_session(made.id)
    assert (done.status, done.result) == ("completed", "42")
    assert [event for event in stack.recorder.events if event[0] == "completed"] == [("completed", done)]
    await stack.sessions.complete_session(made.id, "43")
    assert stack.recorder.names(made.id).count("completed") == 2
    assert read == ["42", "43"]


@pytest.mark.rule("CREATE-10")
async def test_only_completing_is_told_as_completed(stack: Stack) -> None:
    """A status set by an update is an update."""
    made = await stack.sessions.create_session()
    await stack.sessions.update_session(made.id, SessionUpdates(status="completed", result="R"))
    assert stack.recorder.names(made.id) == ["created", "updated"]


@pytest.mark.rule("CREATE-10")
async def test_a_completion_is_told_once_over_a_restart(db: str) -> None:
    """Neither loading nor a later change tells it again."""
    async with running(db) as stack:
        await stack.sessions.ensure_session("s")
        await stack.sessions.complete_session("s", "R")
    recorder = Recorder()
    async with running(db, recorder=recorder) as stack:
        await stack.sessions.update_session_title("s", "T")
    assert recorder.names("s") == ["updated"]


@pytest.mark.rule("CREATE-10")
async def test_a_title_is_set_and_told(stack: Stack, db: str) -> None:
    """With any letters; the rest of the record stays."""
    made = await stack.sessions.create_session(SessionDraft(name="N"))
    await stack.sessions.update_session_title(made.id, "👩‍👩‍👧‍👦 «Ü»")
    titled = stack.sessions.get_session(made.id)
    assert (titled.title, titled.name) == ("👩‍👩‍👧‍👦 «Ü»", "N")
    assert stack.recorder.events[-1] == ("updated", titled)
    assert read_stored(db, "sessions", made.id)["title"] == "👩‍👩‍👧‍👦 «Ü»"


@pytest.mark.rule("CREATE-11", "INTAKE-3")
def test_the_terminals_sessions_are_created_from_cli(db: str) -> None:
    """`aalis chat`, new and by name, makes its session with `created_from` before it sends; it is no room."""
    for arguments in ([], ["--session", "mine"]):
        command = [sys.executable, "-c", "from aalis_host.cli import main; main()", "chat", *arguments, "--db", str(db)]
        done = subprocess.run(command, input="hello\n", capture_output=True, text=True, timeout=50, check=False)
        assert done.returncode == 0, done.stderr
    keys = stored_keys(db, "sessions")
    assert len(keys) == 2
    for key in keys:
        stored = read_stored(db, "sessions", key)
        assert (stored["createdFrom"], stored["kind"]) == ("cli", "owner")
        assert "originPlatform" not in stored
        assert stored["lastTurn"]["outcome"] == "replied"


@pytest.mark.rule("CREATE-1", "CREATE-2", "STORE-1")
async def test_everything_of_a_session_is_there_after_a_restart(db: str) -> None:
    """Every field of the documents, as it was."""
    async with running(db) as stack:
        stack.host.add_platform(Adapter())
        await stack.say("room")
        workspace = (await stack.sessions.add_workspace("/x")).workspace.id
        work = WorkBinding(root="/x", extra_roots=("/y",), worktrees=("/z",))
        draft = SessionDraft(name="N", title="T", input_context="C", result="R", metadata={"a": 1})
        bound = SessionCreation(created_from="webui", workspace=workspace, work=work)
        project = await stack.sessions.create_session(draft, bound)
        await stack.sessions.set_current_dir(project.id, "/x/sub")
        child = await stack.sessions.create_child_session(project.id, SessionDraft(status="error"))
        await stack.sessions.complete_session(child.id, "done")
    before = {one.id: one for one in stack.sessions.list_sessions()}
    assert isinstance(before["room"].last_turn, LastTurn)
    assert isinstance(before["room"].tokens, TokenCount)
    async with running(db) as stack:
        assert {one.id: one for one in stack.sessions.list_sessions()} == before
        with pytest.raises(WorkspaceNotFound):
            await stack.sessions.create_session(creation=SessionCreation(workspace="w"))
