"""Workspaces, bindings and directories of sessions."""

import pytest

from aalis_api_session_manager.errors import AalisError, InvalidSession, SessionNotFound, WorkspaceNotFound
from aalis_api_session_manager.message import ClearRequest
from aalis_api_session_manager.model import SessionCreation, SessionDraft, SessionInfo, SessionUpdates, WorkBinding
from aalis_api_session_manager.wire import from_json
from tests.session_manager.kit import Adapter, Stack, group_message, running
from tests.session_manager.probes import read_stored, stored_keys

ROOT = "/srv/project"


async def bound(stack: Stack, root: str = ROOT) -> SessionInfo:
    """A session of a new workspace, bound to its directory."""
    workspace = (await stack.sessions.add_workspace(ROOT)).workspace.id
    creation = SessionCreation(workspace=workspace, work=WorkBinding(root=root))
    return await stack.sessions.create_session(creation=creation)


@pytest.mark.rule("BIND-1")
@pytest.mark.parametrize("workspace", [None, "default"])
async def test_the_default_workspace_isnt_stored(stack: Stack, db: str, workspace: str | None) -> None:
    """Left out or named, it is no field of the record."""
    session = await stack.sessions.create_session(creation=SessionCreation(created_from="cli", workspace=workspace))
    assert session.workspace is None
    assert not {"workspace", "work", "currentDir"} & set(read_stored(db, "sessions", session.id))


@pytest.mark.rule("BIND-1")
async def test_a_workspace_must_have_a_record(stack: Stack, db: str) -> None:
    """An unknown id, the key of a place, an empty text: raised with that id, and no session is made."""
    known = (await stack.sessions.add_workspace(ROOT)).workspace.id
    for unknown in ("unknown", f"workspace:{known}", "workspace:default", ""):
        with pytest.raises(WorkspaceNotFound) as caught:
            await stack.sessions.create_session(
                creation=SessionCreation(workspace=unknown, work=WorkBinding(root=ROOT))
            )
        assert caught.value.workspace_id == unknown
    assert stored_keys(db, "sessions") == []


@pytest.mark.rule("BIND-1", "BIND-5", "CREATE-1")
async def test_workspace_and_binding_stay_with_the_root(db: str) -> None:
    """The id without a prefix, on the root alone; both are read back as they were given."""
    async with running(db) as stack:
        workspace = (await stack.sessions.add_workspace(ROOT)).workspace.id
        work = WorkBinding(root="/trees/a", extra_roots=("/x",), worktrees=("/trees/b",))
        root = await stack.sessions.create_session(creation=SessionCreation(workspace=workspace, work=work))
        child = await stack.sessions.create_child_session(root.id)
        assert (root.workspace, root.work) == (workspace, work)
        assert (child.workspace, child.work) == (None, None)
    stored = read_stored(db, "sessions", root.id)
    assert stored["workspace"] == workspace
    assert stored["work"] == {"root": "/trees/a", "extraRoots": ["/x"], "worktrees": ["/trees/b"]}
    async with running(db) as stack:
        read = stack.sessions.get_session(root.id)
        assert (read.workspace, read.work) == (workspace, work)


@pytest.mark.rule("BIND-2")
async def test_a_project_needs_a_binding_and_the_default_takes_none(stack: Stack, db: str) -> None:
    """Raised both ways, and no session is made."""
    workspace = (await stack.sessions.add_workspace(ROOT)).workspace.id
    for wrong in (
        SessionCreation(workspace=workspace),
        SessionCreation(workspace=workspace, created_from="cli"),
        SessionCreation(work=WorkBinding(root=ROOT)),
        SessionCreation(workspace="default", work=WorkBinding(root=ROOT)),
    ):
        with pytest.raises(InvalidSession):
            await stack.sessions.create_session(creation=wrong)
    assert stored_keys(db, "sessions") == []


@pytest.mark.rule("BIND-2")
@pytest.mark.parametrize(
    "root", ["/srv/project/../elsewhere", "C:\\work\\app", "/no/such/place", "relative", "/ü/émoji 🌈"]
)
async def test_paths_are_taken_as_they_are(stack: Stack, root: str) -> None:
    """Nothing is resolved, normalized or looked up."""
    session = await bound(stack, root)
    await stack.sessions.set_extra_roots(session.id, [root])
    await stack.sessions.add_worktree(session.id, root)
    await stack.sessions.set_current_dir(session.id, root)
    changed = stack.sessions.get_session(session.id)
    assert changed.work == WorkBinding(root=root, extra_roots=(root,), worktrees=(root,))
    assert changed.current_dir == root


@pytest.mark.rule("BIND-3")
async def test_further_directories_replace_and_worktrees_add_once(stack: Stack, db: str) -> None:
    """From anywhere in the tree they are written to the root, each change with its event."""
    root = await bound(stack)
    child = await stack.sessions.create_child_session(root.id)
    grandchild = await stack.sessions.create_child_session(child.id)
    stack.recorder.events.clear()
    await stack.sessions.set_extra_roots(root.id, ["/a", "/b"])
    await stack.sessions.set_extra_roots(grandchild.id, ["/c"])
    await stack.sessions.add_worktree(child.id, "/t1")
    await stack.sessions.add_worktree(grandchild.id, "/t2")
    await stack.sessions.add_worktree(root.id, "/t1")
    work = WorkBinding(root=ROOT, extra_roots=("/c",), worktrees=("/t1", "/t2"))
    assert stack.sessions.get_session(root.id).work == work
    assert read_stored(db, "sessions", root.id)["work"]["worktrees"] == ["/t1", "/t2"]
    assert {name for name, _ in stack.recorder.events} == {"updated"}
    assert [what.id for _, what in stack.recorder.events][:4] == [root.id] * 4
    for one in (child, grandchild):
        assert (stack.sessions.get_session(one.id).work, read_stored(db, "sessions", one.id).get("work")) == (
            None,
            None,
        )
    await stack.sessions.set_extra_roots(child.id, [])
    assert stack.sessions.get_session(root.id).work.extra_roots == ()


@pytest.mark.rule("BIND-3")
async def test_what_is_no_project_session_has_no_binding_to_change(stack: Stack) -> None:
    """A plain session, a room, and their children raise; an unknown one isn't found; nothing is changed."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(group_message("room"))
    plain = await stack.sessions.create_session(creation=SessionCreation(created_from="cli"))
    child = await stack.sessions.create_child_session(plain.id)
    before = stack.sessions.list_sessions()
    for session_id in ("room", plain.id, child.id):
        with pytest.raises(InvalidSession):
            await stack.sessions.set_extra_roots(session_id, ["/a"])
        with pytest.raises(InvalidSession):
            await stack.sessions.add_worktree(session_id, "/a")
    for change in (
        stack.sessions.set_extra_roots("unknown", ["/a"]),
        stack.sessions.add_worktree("unknown", "/a"),
        stack.sessions.set_current_dir("unknown", "/a"),
    ):
        with pytest.raises(SessionNotFound):
            await change
    assert stack.sessions.list_sessions() == before


@pytest.mark.rule("BIND-2", "BIND-3", "BIND-4")
@pytest.mark.parametrize("path", ["", "bad\x00path", "bad\udc80path"])
async def test_what_is_no_path_is_refused(stack: Stack, path: str) -> None:
    """An empty path, or one that can't be stored, is never stored as another one; nothing changes."""
    session = await bound(stack)
    for change in (
        stack.sessions.set_extra_roots(session.id, ["/ok", path]),
        stack.sessions.add_worktree(session.id, path),
        stack.sessions.set_current_dir(session.id, path),
    ):
        with pytest.raises(AalisError):
            await change
    assert stack.sessions.get_session(session.id) == session


@pytest.mark.rule("BIND-3")
async def test_one_text_is_not_several_directories(stack: Stack) -> None:
    """A path given where a list of paths belongs isn't taken apart into letters."""
    session = await bound(stack)
    with pytest.raises((AalisError, TypeError)):
        await stack.sessions.set_extra_roots(session.id, "/srv")
    assert stack.sessions.get_session(session.id) == session


@pytest.mark.rule("BIND-4", "CREATE-4")
async def test_the_current_directory_is_every_sessions_own(stack: Stack, db: str) -> None:
    """None at first, even when bound; a child takes its parent's of that moment; then each changes its own."""
    root = await bound(stack)
    early = await stack.sessions.create_child_session(root.id)
    await stack.sessions.set_current_dir(root.id, "/srv/project/a")
    late = await stack.sessions.create_child_session(root.id)
    by_draft = await stack.sessions.create_session(SessionDraft(parent_id=root.id))
    below = await stack.sessions.create_child_session(late.id)
    assert (root.current_dir, early.current_dir) == (None, None)
    assert {one.current_dir for one in (late, by_draft, below)} == {"/srv/project/a"}
    await stack.sessions.set_current_dir(late.id, "/srv/project/b")
    await stack.sessions.set_current_dir(root.id, "/srv/project/c")
    directories = [stack.sessions.get_session(one.id).current_dir for one in (root, early, late, by_draft, below)]
    assert directories == ["/srv/project/c", None, "/srv/project/b", "/srv/project/a", "/srv/project/a"]
    assert read_stored(db, "sessions", late.id)["currentDir"] == "/srv/project/b"
    assert "currentDir" not in read_stored(db, "sessions", early.id)


@pytest.mark.rule("BIND-4", "EVENT-1")
async def test_every_kind_of_session_has_a_current_directory(stack: Stack) -> None:
    """A room, a bare root and a terminal's session too; each change emits `session_updated`."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(group_message("room"))
    await stack.sessions.ensure_session("bare")
    for session_id in ("room", "bare"):
        events = stack.recorder.names(session_id)
        await stack.sessions.set_current_dir(session_id, "/tmp/x")
        assert stack.sessions.get_session(session_id).current_dir == "/tmp/x"
        assert stack.recorder.names(session_id) == [*events, "updated"]


@pytest.mark.rule("BIND-4", "CREATE-2")
async def test_nothing_else_changes_directory_workspace_or_binding(stack: Stack) -> None:
    """JSON forms that carry them have them dropped, on create, ensure, child and update."""
    lie = {"currentDir": "/x", "workspace": "w", "work": {"root": "/x"}, "name": "N"}
    draft = from_json(lie, SessionDraft)
    session = await bound(stack)
    made = [
        await stack.sessions.create_session(draft),
        await stack.sessions.ensure_session("s", draft),
        await stack.sessions.ensure_session("s", draft),
        await stack.sessions.create_child_session("s", draft),
    ]
    assert {(one.current_dir, one.workspace, one.work) for one in made} == {(None, None, None)}
    updated = await stack.sessions.update_session(session.id, from_json(lie, SessionUpdates))
    assert (updated.current_dir, updated.workspace, updated.work) == (None, session.workspace, session.work)


@pytest.mark.rule("BIND-5")
async def test_no_clearing_takes_them_and_deleting_does(db: str) -> None:
    """Cleared by session, by type, and everywhere: all stays. Deleted and made again: nothing is left."""
    async with running(db) as stack:
        root = await bound(stack)
        await stack.sessions.set_current_dir(root.id, "/srv/project/a")
        before = stack.sessions.get_session(root.id)
        for request in (
            ClearRequest(scope="session", session_id=root.id),
            ClearRequest(scope="session", session_id=root.id, types=("context", "memory")),
            ClearRequest(scope="all"),
        ):
            await stack.host.clear_memory(request)
        assert stack.sessions.get_session(root.id) == before
    async with running(db) as stack:
        assert stack.sessions.get_session(root.id) == before
        await stack.sessions.delete_session(root.id)
        again = await stack.sessions.ensure_session(root.id)
        assert (again.workspace, again.work, again.current_dir) == (None, None, None)
        assert len(stack.sessions.list_workspaces()) == 2
