"""Clearing a history deletes the children."""

import asyncio
from typing import ClassVar

import pytest
from attrs import define

from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import PluginMeta
from aalis_api_session_manager.message import HISTORY_SOURCE, ClearRequest, ClearRow
from tests.session_manager.kit import Stack, running
from tests.session_manager.memories import rows, watched_memory
from tests.session_manager.trees import TREE, history, place, settled, tree, write

rule = pytest.mark.rule


async def two_trees(stack: Stack) -> None:
    """The tree of four, and other -> x -> x1; something is said in each."""
    await tree(stack.sessions)
    for session_id, parent in (("other", None), ("x", "other"), ("x1", "x")):
        await place(stack.sessions, session_id, parent)
    for session_id in (*TREE, "other", "x", "x1"):
        await write(stack, session_id)


def ids(stack: Stack) -> set[str]:
    return {info.id for info in stack.sessions.list_sessions()}


EVERYTHING = {*TREE, "other", "x", "x1"}


@rule("CLEAR-1")
@pytest.mark.parametrize("types", [(), ("context",), ("notes", "context")])
async def test_a_cleared_history_takes_the_sessions_children_with_it(db: str, types: tuple[str, ...]) -> None:
    """All levels below, with their history; the session itself stays, others are untouched."""
    async with running(db) as stack:
        await two_trees(stack)
        result = await stack.host.clear_memory(ClearRequest(scope="session", session_id="root", types=types))
        assert [row.source for row in result if row.success] == [HISTORY_SOURCE]
        assert ids(stack) == {"root", "other", "x", "x1"}
        root = stack.sessions.get_session("root")
        assert root is not None and root.children == ()
        for session_id in TREE:
            assert await history(stack, session_id) == []
        for session_id in ("other", "x", "x1"):
            assert await history(stack, session_id) == ["kept"]
        assert stack.sessions.generation_of("root") == 0
        assert stack.sessions.generation_of("a1") != 0
        assert stack.recorder.names("root")[-1] == "updated"
    assert set(rows(db, "sessions")) == {"root", "other", "x", "x1"}


@rule("CLEAR-1")
async def test_a_childs_cleared_history_takes_only_its_own_children(db: str) -> None:
    async with running(db) as stack:
        await two_trees(stack)
        await stack.host.clear_memory(ClearRequest(scope="session", session_id="a"))
        assert ids(stack) == EVERYTHING - {"a1"}
        assert [await history(stack, one) for one in ("root", "a", "a1", "b")] == [["kept"], [], [], ["kept"]]


@rule("CLEAR-1")
@pytest.mark.parametrize("types", [(), ("context",)])
async def test_when_every_history_is_cleared_all_children_go(db: str, types: tuple[str, ...]) -> None:
    """Everywhere; the roots stay."""
    async with running(db) as stack:
        await two_trees(stack)
        stack.recorder.events.clear()
        await stack.host.clear_memory(ClearRequest(scope="all", types=types))
        assert ids(stack) == {"root", "other"}
        for session_id in EVERYTHING:
            assert await history(stack, session_id) == []
        gone = [what for name, what in stack.recorder.events if name == "deleted"]
        assert sorted(gone) == ["a", "a1", "b", "x", "x1"]
        assert gone.index("a1") < gone.index("a") and gone.index("x1") < gone.index("x")
        assert rows(db, "deletions") == {}


@rule("CLEAR-2")
@pytest.mark.parametrize("scope", ["session", "all"])
async def test_other_types_take_no_child(db: str, scope: str) -> None:
    async with running(db) as stack:
        await two_trees(stack)
        session_id = "root" if scope == "session" else None
        request = ClearRequest(scope=scope, session_id=session_id, types=("notes", "images"))  # type: ignore[arg-type]
        assert await stack.host.clear_memory(request) == []
        assert ids(stack) == EVERYTHING
        assert await history(stack, "root") == ["kept"]


@define(eq=False)
class Notes:
    """A store that always succeeds in clearing its own."""

    meta: ClassVar[PluginMeta] = PluginMeta(name="notes")

    @hookimpl
    async def aalis_memory_clear(self, request: ClearRequest) -> ClearRow:
        return ClearRow(source="notes", success=True)


@rule("CLEAR-2")
async def test_a_history_that_couldnt_be_cleared_takes_no_child(db: str) -> None:
    """Whatever other stores say."""
    with watched_memory() as memories:
        async with running(db, Notes()) as stack:
            await two_trees(stack)
            memories[0].refuse_clearing = 1
            result = await stack.host.clear_memory(ClearRequest(scope="session", session_id="root"))
            assert {row.source: row.success for row in result} == {HISTORY_SOURCE: False, "notes": True}
            assert ids(stack) == EVERYTHING
            assert await history(stack, "root") == ["kept"]


@rule("CLEAR-2")
async def test_only_the_history_row_counts(db: str) -> None:
    """Other stores were cleared, nobody spoke for the history: no child is deleted."""
    async with running(db, Notes()) as stack:
        await two_trees(stack)
        request = ClearRequest(scope="session", session_id="root")
        rows_without = [ClearRow(source="notes", success=True)]
        await stack.host.emit("aalis_memory_cleared", request=request, rows=rows_without)
        assert ids(stack) == EVERYTHING
        rows_with = [*rows_without, ClearRow(source=HISTORY_SOURCE, success=True)]
        await stack.host.emit("aalis_memory_cleared", request=request, rows=rows_with)
        assert ids(stack) == EVERYTHING - {"a", "a1", "b"}


@rule("CLEAR-1", "BIND-5")
async def test_clearing_leaves_the_session_itself_as_it_is(db: str) -> None:
    async with running(db) as stack:
        await tree(stack.sessions)
        await stack.sessions.update_session_title("root", "T")
        await stack.sessions.set_current_dir("root", "/srv")
        before = stack.sessions.get_session("root")
        await stack.host.clear_memory(ClearRequest(scope="session", session_id="root"))
        after = stack.sessions.get_session("root")
        assert before is not None and after is not None
        assert (after.title, after.current_dir, after.created_at) == ("T", "/srv", before.created_at)


@rule("CLEAR-1", "DELETE-5")
async def test_children_that_cant_be_deleted_yet_are_deleted_later(db: str) -> None:
    """The store refuses meanwhile: whoever clears isn't told an error of the children, they go when it works again."""
    with watched_memory() as memories:
        async with running(db) as stack:
            await two_trees(stack)
            memories[0].refuse = float("inf")
            async with asyncio.timeout(5):
                await stack.host.clear_memory(ClearRequest(scope="session", session_id="root"))
            memories[0].refuse = 0
            await settled(
                lambda: set(rows(db, "sessions")) == {"root", "other", "x", "x1"} and not rows(db, "deletions")
            )
            assert await history(stack, "a1") == []


@rule("CLEAR-1")
async def test_clearing_an_unknown_session_deletes_nothing(db: str) -> None:
    async with running(db) as stack:
        await two_trees(stack)
        await stack.host.clear_memory(ClearRequest(scope="session", session_id="nobody"))
        assert ids(stack) == EVERYTHING
