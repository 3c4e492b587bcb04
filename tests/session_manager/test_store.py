"""The store: durable when it returns, told afterwards, shared commits, a refusing back end, damaged data."""

import asyncio
import json
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from aalis_api_session_manager.errors import InvalidSession, SessionNotFound, StorageError
from aalis_api_session_manager.memory import Outcome
from aalis_api_session_manager.message import LlmUsage
from aalis_api_session_manager.model import SessionCreation, SessionDraft, SessionUpdates, WorkBinding
from aalis_api_session_manager.service import SessionManagerService
from aalis_host import plugins
from aalis_host.memory import sqlite
from aalis_plugin_session_manager import manager, store
from tests.session_manager.kit import Adapter, Recorder, group_message, running
from tests.session_manager.memories import rows, watched_memory, write_rows
from tests.session_manager.probes import end_turn, start_turn
from tests.session_manager.trees import place, settled

rule = pytest.mark.rule
FOREVER = float("inf")


def stored(db: str, session_id: str, namespace: str = "sessions") -> dict[str, Any] | None:
    text = rows(db, namespace).get(session_id)
    return None if text is None else json.loads(text)


# --- STORE-1


@rule("STORE-1")
async def test_sessions_and_places_are_metadata_of_the_memory_service(db: str) -> None:
    """In the documents' names, without the children, which every reader derives."""
    async with running(db) as stack:
        await stack.sessions.ensure_session("root", SessionDraft(title="T", input_context="do it", metadata={"a": [1]}))
        child = await stack.sessions.create_child_session("root")
        added = (await stack.sessions.add_workspace("/srv/code")).workspace
    session = stored(db, "root")
    assert session is not None
    assert {name: session[name] for name in ("id", "title", "inputContext", "metadata", "status", "kind")} == {
        "id": "root",
        "title": "T",
        "inputContext": "do it",
        "metadata": {"a": [1]},
        "status": "active",
        "kind": "owner",
    }
    assert "children" not in session
    below = stored(db, child.id)
    assert below is not None and (below["parentId"], below["kind"]) == ("root", "task")
    assert set(rows(db, "places")) == {"workspace:default", f"workspace:{added.id}"}
    workspace = stored(db, f"workspace:{added.id}", "places")
    assert workspace is not None and (workspace["kind"], workspace["root"]) == ("workspace", "/srv/code")


@rule("STORE-1")
async def test_another_back_end_has_other_sessions(tmp_path: Path) -> None:
    async with running(tmp_path / "one.db") as one, running(tmp_path / "two.db") as two:
        await one.sessions.ensure_session("here")
        assert two.sessions.get_session("here") is None
    async with running(tmp_path / "one.db") as again:
        assert [info.id for info in again.sessions.list_sessions()] == ["here"]


# --- STORE-2: durable on return, told afterwards

Asked = Callable[[SessionManagerService], Awaitable[Any]]


async def prepare(sessions: SessionManagerService) -> str:
    """A root `one` with the child `below`, a project session; answers its id and a workspace."""
    await sessions.ensure_session("one")
    await place(sessions, "below", "one")
    workspace = (await sessions.add_workspace("/srv/code")).workspace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aalis_plugin_session_manager.manager.new_session_id", lambda: "project")
        creation = SessionCreation(created_from="cli", workspace=workspace.id, work=WorkBinding(root="/srv/code"))
        await sessions.create_session(creation=creation)
    return workspace.id


def field_of(session_id: str, *path: str) -> Callable[[Path], Any]:
    def read(db: str) -> Any:
        value: Any = stored(db, session_id)
        for name in path:
            value = None if value is None else value.get(name)
        return value

    return read


CHANGES: dict[str, tuple[Asked, Callable[[Path], Any], Any]] = {
    "create": (lambda s: s.create_session(SessionDraft(title="new")), lambda db: len(rows(db, "sessions")), 4),
    "ensure": (lambda s: s.ensure_session("two"), field_of("two", "id"), "two"),
    "merge": (lambda s: s.ensure_session("one", SessionDraft(title="T")), field_of("one", "title"), "T"),
    "child": (lambda s: s.create_child_session("one"), lambda db: len(rows(db, "sessions")), 4),
    "update": (lambda s: s.update_session("one", SessionUpdates(result="R")), field_of("one", "result"), "R"),
    "title": (lambda s: s.update_session_title("one", "T"), field_of("one", "title"), "T"),
    "complete": (lambda s: s.complete_session("one", "done"), field_of("one", "status"), "completed"),
    "directory": (lambda s: s.set_current_dir("one", "/srv"), field_of("one", "currentDir"), "/srv"),
    "roots": (lambda s: s.set_extra_roots("project", ["/a"]), field_of("project", "work", "extraRoots"), ["/a"]),
    "worktree": (lambda s: s.add_worktree("project", "/w"), field_of("project", "work", "worktrees"), ["/w"]),
    "delete": (lambda s: s.delete_session("one"), lambda db: sorted(rows(db, "sessions")), ["project"]),
    "file": (lambda s: s.record_inbound(group_message("room")), field_of("room", "originPlatform"), "onebot"),
    "workspace": (lambda s: s.add_workspace("/srv/other"), lambda db: len(rows(db, "places")), 3),
    "place": (
        lambda s: s.update_place("workspace:default", {"colour": "red"}),
        lambda db: json.loads(rows(db, "places")["workspace:default"]).get("metadata"),
        {"colour": "red"},
    ),
}


@rule("STORE-2")
@pytest.mark.parametrize("change", CHANGES)
async def test_an_awaited_change_is_stored_when_it_returns(db: str, change: str) -> None:
    ask, read, expected = CHANGES[change]
    async with running(db) as stack:
        await prepare(stack.sessions)
        assert read(db) != expected
        await ask(stack.sessions)
        assert read(db) == expected


@rule("STORE-2")
async def test_removing_a_workspace_is_stored_when_it_returns(db: str) -> None:
    async with running(db) as stack:
        workspace_id = await prepare(stack.sessions)
        await stack.sessions.remove_workspace(workspace_id)
        assert set(rows(db, "places")) == {"workspace:default"}
        session = stored(db, "project")
        assert session is not None and "workspace" not in session and "work" not in session


@rule("STORE-2", "EVENT-1")
@pytest.mark.parametrize("change", [name for name in CHANGES if name not in ("workspace", "place")])
async def test_its_event_comes_when_it_is_stored_and_before_it_returns(db: str, change: str) -> None:
    ask, read, expected = CHANGES[change]
    recorder, seen = Recorder(), []
    async with running(db, recorder=recorder) as stack:
        await prepare(stack.sessions)

        async def look(name: str, what: Any) -> None:
            await asyncio.sleep(0.002)
            seen.append(read(db))

        recorder.listener = look
        await ask(stack.sessions)
        assert seen and seen[0] == expected


@rule("STORE-2")
async def test_a_change_shows_at_once_and_returns_when_it_is_stored(db: str) -> None:
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("one")
            memories[0].pass_commits.clear()
            change = asyncio.create_task(stack.sessions.update_session_title("one", "T"))
            await memories[0].waiting.wait()
            info = stack.sessions.get_session("one")
            assert info is not None and info.title == "T"
            assert stack.recorder.names("one") == ["created"]
            assert not change.done()
            memories[0].pass_commits.set()
            await change
            assert stack.recorder.names("one") == ["created", "updated"]


@rule("STORE-2", "TURN-1", "USAGE-1")
async def test_what_hooks_change_shows_at_once_and_nobody_waits(db: str) -> None:
    """Turns and tokens, while the store stands still; they are committed when it goes on."""
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("one", SessionDraft(status="waiting"))
            memories[0].pass_commits.clear()
            async with asyncio.timeout(5):
                turn = await start_turn(stack, "one", "t1")
                info = stack.sessions.get_session("one")
                assert info is not None and info.status == "active"
                usage = LlmUsage(session_id="one", input_tokens=5, output_tokens=1)
                await stack.host.emit("aalis_llm_usage", usage=usage)
                info = stack.sessions.get_session("one")
                assert info is not None and info.tokens is not None and info.tokens.input == 5
                await end_turn(stack, turn, outcome="replied")
                info = stack.sessions.get_session("one")
                assert info is not None and info.status == "completed"
            assert (stored(db, "one") or {}).get("status") == "waiting"
            memories[0].pass_commits.set()
            await settled(lambda: (stored(db, "one") or {}).get("status") == "completed")
            await settled(lambda: (stored(db, "one") or {}).get("tokens") == {"input": 5, "output": 1})
            assert rows(db, "turns") == {}


@rule("STORE-2")
@pytest.mark.parametrize("existing", [1, 300])
async def test_one_change_writes_one_record_however_many_sessions_exist(db: str, existing: int) -> None:
    with watched_memory() as memories:
        async with running(db) as stack:
            await asyncio.gather(*(stack.sessions.ensure_session(f"s{number}") for number in range(existing)))
            for ask, key in (
                (stack.sessions.update_session_title("s0", "T"), "s0"),
                (stack.sessions.complete_session("s0", "done"), "s0"),
                (stack.sessions.ensure_session("new"), "new"),
                (place(stack.sessions, "child", "s0"), "child"),
            ):
                memories[0].forget()
                await ask
                assert [change.key for group in memories[0].stored for one in group for change in one.changes] == [key]


@rule("STORE-2")
async def test_changes_that_wait_share_commits(db: str) -> None:
    """A hundred creations and a hundred updates while one commit is under way: one more commit."""
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("first")
            memories[0].forget()
            memories[0].pass_commits.clear()
            slow = asyncio.create_task(stack.sessions.update_session_title("first", "T"))
            await memories[0].waiting.wait()
            made = [asyncio.create_task(stack.sessions.ensure_session(f"s{number}")) for number in range(100)]
            changed = [
                asyncio.create_task(stack.sessions.update_session("first", SessionUpdates(metadata={f"k{number}": 1})))
                for number in range(100)
            ]
            await asyncio.sleep(0)
            memories[0].pass_commits.set()
            await asyncio.gather(slow, *made, *changed)
            assert len(memories[0].commits) == 2
            assert memories[0].records().count("first") == 2
            session = stored(db, "first")
            assert session is not None and len(session["metadata"]) == 100


@rule("STORE-2", "USAGE-1")
async def test_many_usage_records_are_one_write_and_none_is_lost(db: str) -> None:
    """A thousand at once are gathered into one record; what isn't stored yet at a stop is stored then."""
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("one")
            memories[0].forget()
            for _ in range(1000):
                usage = LlmUsage(session_id="one", input_tokens=2, output_tokens=1)
                await stack.host.emit("aalis_llm_usage", usage=usage)
            await settled(lambda: memories[0].records() != [])
            written = memories[0].records().count("one")
            await stack.host.emit("aalis_llm_usage", usage=LlmUsage(session_id="one", input_tokens=1))
        assert memories[0].records().count("one") <= written + 1 <= 3
    session = stored(db, "one")
    assert session is not None and session["tokens"] == {"input": 2001, "output": 1000}


@rule("STORE-2", "INTAKE-6")
async def test_a_filing_and_its_place_are_stored_together_or_not_at_all(db: str) -> None:
    with watched_memory() as memories:
        async with running(db) as stack:
            stack.host.add_platform(Adapter())
            memories[0].forget()
            await stack.sessions.record_inbound(group_message("room"))
            (changeset,) = [one for group in memories[0].stored for one in group]
            assert sorted(change.namespace for change in changeset.changes) == ["places", "sessions"]


# --- STORE-3: the back end refuses


@rule("STORE-3")
@pytest.mark.parametrize("times", [1, 3])
async def test_a_refused_change_waits_and_the_next_success_contains_it(db: str, times: int) -> None:
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("one")
            stack.recorder.events.clear()
            memories[0].refuse = times
            with pytest.raises(StorageError) as raised:
                await stack.sessions.update_session_title("one", "T")
            assert (raised.value.session_id, raised.value.pending) == ("one", True)
            info = stack.sessions.get_session("one")
            assert info is not None and info.title == "T"
            await settled(lambda: (stored(db, "one") or {}).get("title") == "T")
            await settled(lambda: stack.recorder.names("one") == ["updated"])
            assert stack.recorder.events[0][1].title == "T"


@rule("STORE-3")
async def test_the_next_change_takes_the_refused_ones_with_it(db: str) -> None:
    """In their order, in the commit that goes through; each of their events follows."""
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("one")
            memories[0].refuse = FOREVER
            for number in range(3):
                with pytest.raises(StorageError):
                    await stack.sessions.update_session(
                        "one", SessionUpdates(metadata={"last": number, f"k{number}": 1})
                    )
                with pytest.raises(StorageError):
                    await stack.sessions.ensure_session(f"s{number}")
            stack.recorder.events.clear()
            memories[0].forget()
            memories[0].refuse = 0
            await stack.sessions.ensure_session("another")
            session = stored(db, "one")
            assert session is not None and session["metadata"] == {"last": 2, "k0": 1, "k1": 1, "k2": 1}
            assert sorted(memories[0].records()) == ["another", "one", "s0", "s1", "s2"]
            told = {(name, what.id) for name, what in stack.recorder.events}
            assert told == {
                ("updated", "one"),
                ("created", "s0"),
                ("created", "s1"),
                ("created", "s2"),
                ("created", "another"),
            }


@rule("STORE-3")
@pytest.mark.parametrize("change", [name for name in CHANGES if name not in ("file",)])
async def test_every_awaited_change_says_that_it_waits(db: str, change: str) -> None:
    ask, read, expected = CHANGES[change]
    with watched_memory() as memories:
        async with running(db) as stack:
            await prepare(stack.sessions)
            memories[0].refuse = 2
            with pytest.raises(StorageError) as raised:
                await ask(stack.sessions)
            assert raised.value.pending
            await settled(lambda: read(db) == expected)


@rule("STORE-3", "INTAKE-7")
async def test_a_refused_filing_is_a_warning(db: str, caplog: pytest.LogCaptureFixture) -> None:
    with watched_memory() as memories:
        async with running(db) as stack:
            stack.host.add_platform(Adapter())
            memories[0].refuse = 1
            await stack.sessions.record_inbound(group_message("room"))
            assert any(record.levelno == logging.WARNING and "'room'" in record.message for record in caplog.records)
            await settled(lambda: stored(db, "room") is not None)


@rule("STORE-3")
async def test_what_hooks_change_is_logged_when_it_is_refused(db: str, caplog: pytest.LogCaptureFixture) -> None:
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("one")
            memories[0].refuse = 2
            turn = await start_turn(stack, "one", "t1")
            await settled(lambda: memories[0].refuse == 0)
            await end_turn(stack, turn, outcome="error", error="no answer")
            await settled(lambda: (stored(db, "one") or {}).get("status") == "error")
            assert any(record.levelno == logging.WARNING and "'one'" in record.message for record in caplog.records)


@rule("STORE-3", "STORE-2")
async def test_a_cancelled_caller_loses_only_its_waiting(db: str) -> None:
    """Neither the change nor its event nor the others that wait."""
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("one")
            stack.recorder.events.clear()
            memories[0].pass_commits.clear()
            callers = [
                asyncio.create_task(stack.sessions.update_session("one", SessionUpdates(title="T"))),
                asyncio.create_task(stack.sessions.ensure_session("two")),
                asyncio.create_task(stack.sessions.delete_session("one")),
                asyncio.create_task(stack.sessions.ensure_session("three")),
            ]
            await memories[0].waiting.wait()
            for caller in callers[:3]:
                caller.cancel()
            await asyncio.wait(callers[:3])
            assert all(caller.cancelled() for caller in callers[:3])
            memories[0].pass_commits.set()
            await callers[3]
            await settled(lambda: sorted(rows(db, "sessions")) == ["three", "two"])
            await settled(lambda: stack.recorder.names("one")[-1:] == ["deleted"])
            assert stack.recorder.names("two") == ["created"]
            await settled(lambda: rows(db, "deletions") == {})


@rule("STORE-3")
async def test_a_cancelled_filing_is_still_filed(db: str) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def claims(session_id: str) -> bool:
        asked.set()
        await answer.wait()
        return True

    async with running(db) as stack:
        stack.host.add_platform(Adapter(claimed=claims))
        filing = asyncio.create_task(stack.sessions.record_inbound(group_message("room")))
        await asked.wait()
        filing.cancel()
        await asyncio.wait([filing])
        answer.set()
        await settled(lambda: stored(db, "room") is not None)


@rule("STORE-3")
async def test_a_change_that_cant_be_any_more_rejects_no_other(db: str) -> None:
    """Another process deletes the session while a change of it waits, with others in the same commit."""
    with watched_memory() as memories:
        async with running(db) as mine, running(db) as theirs:
            await mine.sessions.ensure_session("gone")
            await mine.sessions.ensure_session("stays")
            await settled(lambda: theirs.sessions.get_session("gone") is not None)
            memories[0].pass_commits.clear()
            first = asyncio.create_task(mine.sessions.ensure_session("first"))
            await memories[0].waiting.wait()
            stale = asyncio.create_task(mine.sessions.update_session_title("gone", "late"))
            neighbours = [
                asyncio.create_task(mine.sessions.update_session_title("stays", "T")),
                asyncio.create_task(mine.sessions.ensure_session("new")),
            ]
            await asyncio.sleep(0)
            await theirs.sessions.delete_session("gone")
            memories[0].pass_commits.set()
            await asyncio.gather(first, *neighbours)
            with pytest.raises(SessionNotFound) as raised:
                await stale
            assert raised.value.session_id == "gone"
            assert sorted(rows(db, "sessions")) == ["first", "new", "stays"]
            await settled(lambda: mine.sessions.get_session("gone") is None)


@rule("STORE-3", "STORE-2")
async def test_both_processes_changes_of_one_record_are_kept(db: str) -> None:
    """The later commit is folded onto what the earlier one stored, and its caller is given both."""
    with watched_memory() as memories:
        async with running(db) as mine, running(db) as theirs:
            await mine.sessions.ensure_session("one", SessionDraft(metadata={"a": 1}))
            await settled(lambda: theirs.sessions.get_session("one") is not None)
            memories[0].pass_commits.clear()
            change = asyncio.create_task(mine.sessions.update_session("one", SessionUpdates(metadata={"b": 2})))
            await memories[0].waiting.wait()
            await theirs.sessions.update_session("one", SessionUpdates(metadata={"a": 9, "c": 3}, title="T"))
            memories[0].pass_commits.set()
            info = await change
            assert (info.title, info.metadata) == ("T", {"a": 9, "b": 2, "c": 3})
            assert mine.sessions.get_session("one") == info
            await settled(lambda: theirs.sessions.get_session("one") == info)


@rule("WS-1")
async def test_two_processes_register_one_directory(db: str) -> None:
    """Neither has heard of the other: still one record, and the second is told that it existed."""
    with watched_memory() as memories:
        async with running(db) as here, running(db) as deaf:
            memories[1].deaf = True
            await asyncio.sleep(0.06)
            first = await here.sessions.add_workspace("/srv/code")
            second = await deaf.sessions.add_workspace("/srv/code")
            assert (first.existed, second.existed) == (False, True)
            assert first.workspace == second.workspace
            memories[1].deaf = False
            await settled(lambda: here.sessions.list_workspaces() == deaf.sessions.list_workspaces())
            assert [workspace.root for workspace in here.sessions.list_workspaces()] == [None, "/srv/code"]


@rule("STORE-1")
async def test_a_process_that_was_cut_off_for_long_reads_everything_again(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was removed meanwhile is remembered by nobody any more: it is gone here too, with its event."""
    with watched_memory() as memories:
        async with running(db) as here, running(db) as cut_off:
            await here.sessions.ensure_session("goes")
            await here.sessions.ensure_session("changes")
            await settled(lambda: len(cut_off.sessions.list_sessions()) == 2)
            memories[1].deaf = True
            await asyncio.sleep(0.06)
            changes = memories[1].inner.changes

            async def pruned(after_revision: int) -> Any:
                return evolve(await changes(after_revision), rows=(), generations={}, complete=False)

            monkeypatch.setattr(memories[1].inner, "changes", pruned)
            await here.sessions.delete_session("goes")
            await here.sessions.update_session_title("changes", "T")
            await here.sessions.ensure_session("comes")
            memories[1].deaf = False
            await settled(lambda: cut_off.sessions.list_sessions() == here.sessions.list_sessions())
            await settled(lambda: cut_off.recorder.names("comes") == ["created"])
            assert cut_off.recorder.names("goes") == ["created", "deleted"]
            assert cut_off.recorder.names("changes") == ["created", "updated"]
            assert cut_off.sessions.generation_of("goes") == 1


@rule("STORE-3")
async def test_a_store_that_refuses_one_record_takes_the_others(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes are by changeset: its own caller is told, its own change is tried again."""
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("bad")
            await stack.sessions.ensure_session("good")
            commit = memories[0].inner.commit_metadata

            async def refuse_bad(changesets: Any) -> Any:
                fine = [one for one in changesets if all(change.key != "bad" for change in one.changes)]
                outcomes = iter(await commit(fine))
                return tuple(next(outcomes) if one in fine else Outcome(error=StorageError("no")) for one in changesets)

            monkeypatch.setattr(memories[0].inner, "commit_metadata", refuse_bad)
            bad = asyncio.create_task(stack.sessions.update_session_title("bad", "T"))
            good = asyncio.create_task(stack.sessions.update_session_title("good", "T"))
            await good
            with pytest.raises(StorageError) as raised:
                await bad
            assert (raised.value.session_id, raised.value.pending) == ("bad", True)
            monkeypatch.undo()
            await settled(lambda: (stored(db, "bad") or {}).get("title") == "T")


@rule("STORE-3")
async def test_stopping_says_what_could_not_be_stored(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "STOP_LIMIT", 0.2)
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("fine")
            memories[0].refuse = FOREVER
            for session_id in ("lost", "fine"):
                with pytest.raises(StorageError):
                    await stack.sessions.ensure_session(session_id, SessionDraft(title="T"))
            turn = await start_turn(stack, "fine", "t1")
            assert turn
            with pytest.raises(StorageError) as raised:
                await stack.plugin.aalis_deactivate()
            assert "lost" in str(raised.value) and "fine" in str(raised.value)
    assert sorted(rows(db, "sessions")) == ["fine"]


@rule("STORE-3")
async def test_stopping_lets_those_go_who_wait_for_a_store_that_hangs(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "STOP_LIMIT", 0.2)
    with watched_memory() as memories:
        async with running(db) as stack:
            memories[0].pass_commits.clear()
            waits = asyncio.create_task(stack.sessions.ensure_session("lost"))
            await memories[0].waiting.wait()
            with pytest.raises(StorageError, match="lost"):
                await stack.plugin.aalis_deactivate()
            with pytest.raises(StorageError) as raised:
                async with asyncio.timeout(5):
                    await waits
            assert raised.value.session_id == "lost"


@rule("STORE-3")
async def test_stopping_waits_for_what_is_under_way(db: str) -> None:
    """Whoever still waits for a change gets an answer, and everything that waits is stored."""
    with watched_memory() as memories:
        async with running(db) as stack:
            memories[0].pass_commits.clear()
            change = asyncio.create_task(stack.sessions.ensure_session("one"))
            await memories[0].waiting.wait()
            usage = LlmUsage(session_id="one", input_tokens=5)
            await stack.host.emit("aalis_llm_usage", usage=usage)
            asyncio.get_running_loop().call_later(0.05, memories[0].pass_commits.set)
        await change
    session = stored(db, "one")
    assert session is not None and session["tokens"] == {"input": 5, "output": 0}


@rule("STORE-3", "DELETE-5")
async def test_a_host_says_what_is_lost_also_when_a_deletion_waits(
    db: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Everything that stopping waits for fits into the time that a host gives a plugin (in proportion here)."""
    proportion = 0.05
    limit = store.STOP_LIMIT * proportion
    monkeypatch.setattr(store, "STOP_LIMIT", limit)
    monkeypatch.setattr(manager, "STOP_LIMIT", limit)
    monkeypatch.setattr(plugins, "STOP_SECONDS", plugins.STOP_SECONDS * proportion)
    with watched_memory() as memories:
        async with running(db) as stack:
            await stack.sessions.ensure_session("doomed")
            memories[0].refuse = FOREVER
            with pytest.raises(StorageError):
                await stack.sessions.delete_session("doomed")
            with pytest.raises(StorageError):
                await stack.sessions.ensure_session("lost")
            caplog.clear()
            capsys.readouterr()
    said = capsys.readouterr().out + capsys.readouterr().err + caplog.text
    assert "could not be stored" in said and "lost" in said and "doomed" in said


@rule("STORE-3")
async def test_a_full_disk(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`PRAGMA max_page_count` on the real file: refused, kept, stored when there is room."""
    connections: list[sqlite3.Connection] = []
    connect = sqlite.SqliteBackend._connect

    def remembered(self: Any, mode: str) -> sqlite3.Connection:
        connections.append(connect(self, mode))
        return connections[-1]

    monkeypatch.setattr(sqlite.SqliteBackend, "_connect", remembered)
    async with running(db) as stack:
        await stack.sessions.ensure_session("one")
        writer = connections[0]
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count = {pages}")
        big = {"text": "x" * 200_000}
        with pytest.raises(StorageError) as raised:
            await stack.sessions.update_session("one", SessionUpdates(metadata=big))
        assert (raised.value.session_id, raised.value.pending) == ("one", True)
        info = stack.sessions.get_session("one")
        assert info is not None and info.metadata == big
        assert "metadata" not in (stored(db, "one") or {})
        await stack.sessions.ensure_session("small")
        assert stored(db, "small") is not None
        writer.execute("PRAGMA max_page_count = 100000")
        await settled(lambda: (stored(db, "one") or {}).get("metadata") == big)


@rule("STORE-2")
async def test_the_writer_syncs_every_commit(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill can't prove that the disk has it: the writer's settings, and one transaction for each group."""
    connections: list[sqlite3.Connection] = []
    connect = sqlite.SqliteBackend._connect

    def remembered(self: Any, mode: str) -> sqlite3.Connection:
        connections.append(connect(self, mode))
        return connections[-1]

    monkeypatch.setattr(sqlite.SqliteBackend, "_connect", remembered)
    async with running(db) as stack:
        writer = connections[0]
        assert writer.execute("PRAGMA synchronous").fetchone() == (2,)
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        statements: list[str] = []
        writer.set_trace_callback(statements.append)
        await stack.sessions.ensure_session("one")
        assert [one for one in statements if one == "COMMIT"] == ["COMMIT"]
        statements.clear()
        await asyncio.gather(*(stack.sessions.ensure_session(f"s{number}") for number in range(50)))
        commits = [one for one in statements if one == "COMMIT"]
        assert 1 <= len(commits) <= 3
        writer.set_trace_callback(None)


# --- STORE-4: damaged data

GOOD = {"id": "good", "title": "fine", "status": "completed", "createdAt": 1, "updatedAt": 2}
"""A record of an older program."""

DAMAGED = {
    "truncated": '{"id": "truncated", "title": "x',
    "empty": "",
    "a list": "[1, 2]",
    "a number": "7",
    "a text": '"text"',
    "null": "null",
    "no id": '{"title": "x"}',
    "other id": '{"id": "another", "title": "x", "createdAt": 1, "updatedAt": 1}',
    "id of another type": '{"id": 7, "createdAt": 1}',
}


async def file_with(db: str, texts: dict[str, str], namespace: str = "sessions") -> None:
    async with running(db):
        pass
    write_rows(db, namespace, texts)


@rule("STORE-4")
@pytest.mark.parametrize("what", DAMAGED)
async def test_a_damaged_record_is_named_kept_and_stops_nothing(
    db: str, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    await file_with(db, {what: DAMAGED[what], "good": json.dumps(GOOD)})
    async with running(db) as stack:
        assert [info.id for info in stack.sessions.list_sessions()] == ["good"]
        assert any(repr(what) in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
        assert stack.sessions.get_session(what) is None
        with pytest.raises(InvalidSession) as raised:
            await stack.sessions.ensure_session(what)
        assert raised.value.session_id == what
        with pytest.raises(InvalidSession):
            await stack.sessions.update_session_title(what, "T")
        await stack.sessions.record_inbound(group_message(what))
        await stack.host.emit("aalis_llm_usage", usage=LlmUsage(session_id=what, input_tokens=1))
        await end_turn(stack, await start_turn(stack, what, "t1"))
        await stack.sessions.delete_session(what)
        await stack.sessions.update_session_title("good", "changed")
    assert rows(db, "sessions")[what] == DAMAGED[what]
    assert json.loads(rows(db, "sessions")["good"])["title"] == "changed"


FULL: dict[str, Any] = {
    "id": "full",
    "name": "N",
    "title": "T",
    "status": "waiting",
    "createdAt": 10,
    "updatedAt": 20,
    "createdFrom": "cli",
    "inputContext": "I",
    "result": "R",
    "metadata": {"k": {"deep": [1, None, True]}},
    "originPlatform": "onebot",
    "originChat": {"type": "group", "multiParty": True, "targetId": "g1", "selfId": "b1"},
    "workspace": "w1",
    "work": {"root": "/r", "extraRoots": ["/e"], "worktrees": ["/w"]},
    "currentDir": "/d",
    "originInstance": "onebot",
    "lastReplyAt": 30,
    "lastTurn": {"outcome": "error", "endedAt": 40, "error": "E"},
    "tokens": {"input": 1, "output": 2},
}
ATTRIBUTE = {
    "name": "name",
    "title": "title",
    "status": "status",
    "createdAt": "created_at",
    "updatedAt": "updated_at",
    "createdFrom": "created_from",
    "inputContext": "input_context",
    "result": "result",
    "metadata": "metadata",
    "originPlatform": "origin_platform",
    "originChat": "origin_chat",
    "workspace": "workspace",
    "work": "work",
    "currentDir": "current_dir",
    "originInstance": "origin_instance",
    "lastReplyAt": "last_reply_at",
    "lastTurn": "last_turn",
    "tokens": "tokens",
}
WRONG: list[tuple[str, Any]] = [
    *((name, value) for name in ATTRIBUTE for value in (7.5, True, ["x"])),
    *((name, "text") for name in ("createdAt", "updatedAt", "metadata", "originChat", "work", "lastReplyAt", "tokens")),
    *((name, 7) for name in ("name", "title", "createdFrom", "inputContext", "result", "originPlatform", "workspace")),
    ("status", "sleeping"),
    ("status", 7),
    ("metadata", 7),
    ("currentDir", {}),
    ("originChat", {"type": "group", "multiParty": "yes", "targetId": "g1"}),
    ("originChat", {"type": "group", "targetId": "g1"}),
    ("work", {"root": 7}),
    ("work", {"root": "/r", "extraRoots": "/e"}),
    ("lastTurn", {"outcome": "fine", "endedAt": 40}),
    ("lastTurn", {"outcome": "replied", "endedAt": "now"}),
    ("tokens", {"input": "many", "output": 2}),
    ("tokens", {"input": 1.5}),
]


@rule("STORE-4")
@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=[f"{name}={value}" for name, value in WRONG])
async def test_a_field_of_the_wrong_type_is_dropped_and_the_rest_loads(
    db: str, caplog: pytest.LogCaptureFixture, name: str, wrong: Any
) -> None:
    await file_with(db, {"full": json.dumps({**FULL, name: wrong}), "whole": json.dumps({**FULL, "id": "whole"})})
    async with running(db) as stack:
        info, whole = stack.sessions.get_session("full"), stack.sessions.get_session("whole")
        assert info is not None and whole is not None
        said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert any("'full'" in line and name in line for line in said)
        assert not any("'whole'" in line and "type" in line for line in said)
        same = {other: getattr(info, attribute) for other, attribute in ATTRIBUTE.items() if other != name}
        assert same == {other: getattr(whole, attribute) for other, attribute in ATTRIBUTE.items() if other != name}
        if name not in ("status", "createdAt", "updatedAt"):
            assert getattr(info, ATTRIBUTE[name]) is None
        assert (whole.title, whole.created_at, whole.last_reply_at) == ("T", 10, 30)
        assert (whole.metadata or {})["k"]["deep"] == (1, None, True)


@rule("STORE-4")
async def test_unknown_fields_are_kept_and_written_back(db: str) -> None:
    """Of sessions and of places, through every kind of change; what is derived isn't believed."""
    strange = {"config": {"model": "m"}, "createdBy": "someone", "version": 3}
    await file_with(db, {"full": json.dumps({**FULL, **strange, "kind": "task", "children": ["x", "x", "full"]})})
    window = {"key": "onebot:group:g1", "kind": "window", "name": "G", "createdAt": 1, "updatedAt": 1, "colour": "red"}
    write_rows(db, "places", {"onebot:group:g1": json.dumps(window)})
    async with running(db) as stack:
        info = stack.sessions.get_session("full")
        assert info is not None and (info.kind, info.children) == ("room", ())
        await stack.sessions.update_session("full", SessionUpdates(title="changed", metadata={"k2": 1}))
        await end_turn(stack, await start_turn(stack, "full", "t1"), outcome="replied")
        await stack.sessions.update_place("onebot:group:g1", {"a": 1})
    session, found = stored(db, "full"), stored(db, "onebot:group:g1", "places")
    assert session is not None and found is not None
    assert {name: session[name] for name in strange} == strange
    assert session["title"] == "changed" and session["metadata"] == {**FULL["metadata"], "k2": 1}
    assert (found["colour"], found["metadata"], found["name"]) == ("red", {"a": 1}, "G")


@rule("STORE-4")
async def test_missing_parents_cycles_and_children_that_were_listed_twice(db: str) -> None:
    """Everything loads and can be read and deleted; a root that can't be told is told by nobody."""
    records: dict[str, dict[str, Any]] = {
        "orphan": {"parentId": "nobody"},
        "below": {"parentId": "orphan"},
        "self": {"parentId": "self"},
        "one": {"parentId": "two"},
        "two": {"parentId": "three"},
        "three": {"parentId": "one"},
        "tail": {"parentId": "three"},
        "root": {"createdFrom": "cli", "children": ["child", "child", "nobody", "orphan"]},
        "child": {"parentId": "root", "createdAt": 5},
    }
    texts = {key: json.dumps({"id": key, "createdAt": 1, "updatedAt": 1, **rest}) for key, rest in records.items()}
    await file_with(db, texts)
    async with running(db) as stack:
        sessions = stack.sessions
        assert {info.id for info in sessions.list_sessions()} == set(records)
        assert [info.id for info in sessions.list_sessions(parent_id=None)] == ["root"]
        root = sessions.get_session("root")
        assert root is not None and root.children == ("child",)
        assert [info.id for info in sessions.get_children("orphan")] == ["below"]
        assert [info.id for info in sessions.get_children("three")] == ["tail", "two"]
        for session_id in records:
            assert sessions.place_of(session_id).key == "workspace:default"
            assert bool(sessions.can_take(session_id, "root")) == (session_id in ("root", "child"))
            await sessions.update_session_title(session_id, "T")
            await end_turn(stack, await start_turn(stack, session_id, f"turn of {session_id}"))
        await sessions.delete_session("self")
        await sessions.delete_session("two")
        assert {info.id for info in sessions.list_sessions()} == {"orphan", "below", "root", "child"}
        await sessions.delete_session("orphan")
    assert sorted(rows(db, "sessions")) == ["child", "root"]


@rule("STORE-4")
@pytest.mark.parametrize("namespace", ["places", "turns", "deletions"])
@pytest.mark.parametrize("text", ['{"key": "odd", ', "[]", '{"key": "odd", "kind": 7}', "{}"])
async def test_damage_in_the_other_namespaces_stops_nothing(
    db: str, caplog: pytest.LogCaptureFixture, namespace: str, text: str
) -> None:
    await file_with(db, {"good": json.dumps(GOOD)})
    write_rows(db, namespace, {"odd": text})
    async with running(db) as stack:
        assert any("'odd'" in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
        await stack.sessions.update_session_title("good", "T")
        await end_turn(stack, await start_turn(stack, "good", "t1"))
        await stack.sessions.add_workspace("/srv/code")
        assert stack.sessions.list_places()[0].key == "workspace:default"
        await stack.sessions.delete_session("good")
    assert rows(db, namespace)["odd"] == text


@rule("STORE-4")
@pytest.mark.parametrize(
    "metadata",
    ['{"n": 1e999}', '{"n": 123456789012345678901234567890}', '{"text": "\\ud800"}', "[" * 300 + "]" * 300],
    ids=["infinite", "huge", "surrogate", "deep"],
)
async def test_values_that_cant_be_written_back_never_block_a_change(db: str, metadata: str) -> None:
    """A record whose metadata holds such a value loads or is kept as damaged; a change of it isn't lost silently."""
    text = '{"id": "odd", "createdAt": 1, "updatedAt": 1, "metadata": {"k": ' + metadata + "}}"
    await file_with(db, {"odd": text, "good": json.dumps(GOOD)})
    async with running(db) as stack:
        await stack.sessions.update_session_title("good", "changed")
        if stack.sessions.get_session("odd") is None:
            assert rows(db, "sessions")["odd"] == text
            return
        async with asyncio.timeout(5):
            await stack.sessions.update_session_title("odd", "T")
        session = stored(db, "odd")
        assert session is not None and session["title"] == "T"
