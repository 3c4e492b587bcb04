"""Workspaces: registered once, listed in order, forgotten without a trace."""

import asyncio
from pathlib import Path

import pytest

from aalis_api_session_manager.errors import InvalidSession, WorkspaceNotFound
from aalis_api_session_manager.model import (
    SessionCreation,
    SessionInfo,
    SessionUpdates,
    WorkBinding,
    WorkspaceInfo,
)
from tests.session_manager.kit import Clock, Stack, running
from tests.session_manager.probes import read_stored, stored_keys

DEFAULT = WorkspaceInfo(id="default")


async def project_session(stack: Stack, workspace_id: str, root: str) -> SessionInfo:
    """A session of a workspace, bound to its directory, with further directories."""
    work = WorkBinding(root=root, extra_roots=("/extra",), worktrees=("/tree",))
    return await stack.sessions.create_session(creation=SessionCreation(workspace=workspace_id, work=work))


@pytest.mark.rule("WS-1")
async def test_one_record_for_one_path(stack: Stack, db: str) -> None:
    """The second registration answers the first record with `existed`; another spelling is another path."""
    first = await stack.sessions.add_workspace("/srv/one/app")
    assert (first.existed, first.workspace.name, first.workspace.root) == (False, "app", "/srv/one/app")
    assert read_stored(db, "places", f"workspace:{first.workspace.id}")["root"] == "/srv/one/app"
    again = await stack.sessions.add_workspace("/srv/one/app")
    assert (again.existed, again.workspace) == (True, first.workspace)
    same_name = await stack.sessions.add_workspace("/srv/two/app")
    other_case = await stack.sessions.add_workspace("/srv/one/App")
    assert (same_name.existed, same_name.workspace.name, other_case.existed) == (False, "app", False)
    assert len({one.workspace.id for one in (first, same_name, other_case)}) == 3


@pytest.mark.rule("WS-1")
async def test_registering_at_once_makes_one_record(stack: Stack, db: str) -> None:
    """Twenty calls for one path: one says that it is new, all answer the same, each when it is in the file."""

    async def add() -> tuple[str, bool]:
        added = await stack.sessions.add_workspace("/srv/app")
        assert read_stored(db, "places", f"workspace:{added.workspace.id}") is not None
        return added.workspace.id, added.existed

    answers = await asyncio.gather(*(add() for _ in range(20)))
    assert len({workspace_id for workspace_id, _ in answers}) == 1
    assert sorted(existed for _, existed in answers) == [False] + [True] * 19
    assert len(stack.sessions.list_workspaces()) == 2


@pytest.mark.rule("WS-1")
async def test_the_id_is_not_computed_from_the_path(db: str, tmp_path: Path) -> None:
    """Two databases give one path two ids; an id is fixed over a restart."""
    async with running(db) as stack:
        first = (await stack.sessions.add_workspace("/srv/app")).workspace
    async with running(tmp_path / "other.db") as stack:
        assert (await stack.sessions.add_workspace("/srv/app")).workspace.id != first.id
    async with running(db) as stack:
        again = await stack.sessions.add_workspace("/srv/app")
        assert (again.existed, again.workspace) == (True, first)


@pytest.mark.rule("WS-1", "BIND-2")
@pytest.mark.parametrize("path", ["", "bad\x00path", "bad\udc80path"])
async def test_what_is_no_path_is_refused(stack: Stack, path: str) -> None:
    """Nothing is registered under a path that the caller didn't give."""
    with pytest.raises(InvalidSession):
        await stack.sessions.add_workspace(path)
    assert stack.sessions.list_workspaces() == [DEFAULT]


@pytest.mark.rule("WS-2")
async def test_listed_in_order_of_registration(db: str) -> None:
    """The default first; the order holds when the clock stands still or steps back, and over a restart."""
    roots = ["/z", "/a", "/m", "/b"]

    class Stopped(Clock):
        def __call__(self) -> int:
            self.ms -= 1000
            return self.ms

    async with running(db, clock=Stopped()) as stack:
        for root in roots:
            await stack.sessions.add_workspace(root)
        assert [one.root for one in stack.sessions.list_workspaces()] == [None, *roots]
        assert stack.sessions.list_workspaces()[0] == DEFAULT
    async with running(db) as stack:
        assert [one.root for one in stack.sessions.list_workspaces()] == [None, *roots]


@pytest.mark.rule("WS-2", "BIND-2")
async def test_the_directory_is_nobodys_business_here(stack: Stack, tmp_path: Path, db: str) -> None:
    """One that doesn't exist, exists, or is removed later is listed alike; nothing is stored about it, none is made."""
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.mkdir()
    ids = [(await stack.sessions.add_workspace(str(path))).workspace.id for path in (there, missing)]
    stored = [read_stored(db, "places", f"workspace:{one}") for one in ids]
    assert stored[0].keys() == stored[1].keys() == {"key", "kind", "name", "root", "createdAt", "updatedAt"}
    there.rmdir()
    await project_session(stack, ids[0], str(there))
    assert [one.id for one in stack.sessions.list_workspaces()] == ["default", *ids]
    assert not there.exists()
    assert not missing.exists()


@pytest.mark.rule("WS-3", "BIND-3", "PLACE-4")
async def test_removing_one_sends_its_sessions_home(db: str, tmp_path: Path) -> None:
    """Its sessions lose workspace and binding, the whole tree its directories, each with an event; others nothing."""
    (tmp_path / "file").write_text("kept")
    async with running(db) as stack:
        sessions = stack.sessions
        gone, kept = [(await sessions.add_workspace(root)).workspace.id for root in (str(tmp_path), "/srv/kept")]
        await sessions.update_place(f"workspace:{gone}", {"a": 1})
        root = await project_session(stack, gone, str(tmp_path))
        await sessions.set_current_dir(root.id, "/somewhere")
        child = await sessions.create_child_session(root.id)
        grandchild = await sessions.create_child_session(child.id)
        await sessions.update_session(child.id, SessionUpdates(title="stays"))
        other = await project_session(stack, kept, "/srv/kept")
        await sessions.set_current_dir(other.id, "/srv/kept/sub")
        plain = await sessions.create_session(creation=SessionCreation(created_from="cli"))
        await sessions.set_current_dir(plain.id, "/home")
        untouched = {one: sessions.get_session(one) for one in (other.id, plain.id)}
        stack.recorder.events.clear()

        await sessions.remove_workspace(gone)
        told = [what.id for name, what in stack.recorder.events if name == "updated"]
        assert sorted(told) == sorted([root.id, child.id, grandchild.id])
        assert {name for name, _ in stack.recorder.events} == {"updated"}
        assert [one.id for one in sessions.list_workspaces()] == ["default", kept]
        assert sessions.get_place(f"workspace:{gone}") is None
        assert {one: sessions.get_session(one) for one in untouched} == untouched
    assert set(stored_keys(db, "places")) == {"workspace:default", f"workspace:{kept}"}
    assert (tmp_path / "file").read_text() == "kept"

    async with running(db) as stack:
        for session_id in (root.id, child.id, grandchild.id):
            session = stack.sessions.get_session(session_id)
            assert (session.workspace, session.work, session.current_dir) == (None, None, None)
            assert stack.sessions.place_of(session_id).key == "workspace:default"
        assert stack.sessions.get_session(child.id).title == "stays"


@pytest.mark.rule("WS-3")
async def test_what_cant_be_removed(stack: Stack) -> None:
    """The default workspace and an unknown id raise, the second removal too; nothing changes."""
    workspace = (await stack.sessions.add_workspace("/srv/app")).workspace
    before = stack.sessions.list_places()
    with pytest.raises(InvalidSession):
        await stack.sessions.remove_workspace("default")
    for unknown in ("unknown", "", f"workspace:{workspace.id}", "workspace:default"):
        with pytest.raises(WorkspaceNotFound) as caught:
            await stack.sessions.remove_workspace(unknown)
        assert caught.value.workspace_id == unknown
    assert stack.sessions.list_places() == before
    await stack.sessions.remove_workspace(workspace.id)
    with pytest.raises(WorkspaceNotFound):
        await stack.sessions.remove_workspace(workspace.id)


@pytest.mark.rule("WS-3")
async def test_adding_the_directory_again_makes_a_new_workspace(stack: Stack) -> None:
    """A new id without the old data, last in the list; the old id can't be used any more."""
    old = (await stack.sessions.add_workspace("/srv/app")).workspace
    later = (await stack.sessions.add_workspace("/srv/other")).workspace
    await stack.sessions.update_place(f"workspace:{old.id}", {"a": 1})
    await stack.sessions.remove_workspace(old.id)
    added = await stack.sessions.add_workspace("/srv/app")
    assert added.existed is False
    assert added.workspace.id != old.id
    assert stack.sessions.get_place(f"workspace:{added.workspace.id}").metadata is None
    assert [one.id for one in stack.sessions.list_workspaces()] == ["default", later.id, added.workspace.id]
    with pytest.raises(WorkspaceNotFound):
        await project_session(stack, old.id, "/srv/app")
