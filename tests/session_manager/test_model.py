"""A state machine drives the real service and a plain dictionary side by side; readers of both must see the same."""

import asyncio
import tempfile
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path, PurePath
from typing import Any

import pytest
from attrs import define, evolve, field
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aalis_api_session_manager.errors import SessionNotFound, StorageError, WorkspaceNotFound
from aalis_api_session_manager.kinds import session_kind
from aalis_api_session_manager.message import ClearRequest, LlmUsage, TurnEnd, TurnStart
from aalis_api_session_manager.model import (
    LastTurn,
    OriginChat,
    SessionCreation,
    SessionDraft,
    SessionInfo,
    SessionUpdates,
    TokenCount,
    WorkBinding,
)
from aalis_plugin_session_manager import deletion, manager, places, store
from aalis_plugin_session_manager.texts import INTERRUPTED
from tests.session_manager.kit import Adapter, Clock, Recorder, Stack, group_message, running
from tests.session_manager.memories import Watched, watched_memory
from tests.session_manager.probes import new_turn

IDS = ("p0", "p1", "p2", "room0", "room1")
"""Ids that come again and again; others are made by the service."""
TEXTS = ("alpha", "beta", "", "日本", "\U0001f469\u200d\U0001f4bb")
NAMES = ("First group", "Second group")
OUTCOMES = ("replied", "silent", "aborted", "error", None)

names = st.sampled_from(TEXTS)
ids = st.sampled_from(IDS)
picks = st.integers(0, 63)
values = st.sampled_from([1, None, "x", {"k": (1,)}])
metadata = st.dictionaries(st.sampled_from(["a", "b", "settings"]), values, max_size=2)
makers = st.sampled_from([None, "cli"])


@define(eq=False)
class Still(Clock):
    """Time stands still within a step."""

    def __call__(self) -> int:
        return self.ms


@define(eq=False)
class World:
    """What must be seen: sessions by id, generations, words, places, workspaces, turns that haven't ended."""

    sessions: dict[str, SessionInfo] = field(factory=dict)
    generations: dict[str, int] = field(factory=dict)
    words: dict[str, list[str]] = field(factory=dict)
    windows: dict[str, str] = field(factory=dict)
    place_metadata: dict[str, dict[str, Any]] = field(factory=dict)
    workspaces: dict[str, str] = field(factory=dict)
    turns: dict[str, tuple[str, int]] = field(factory=dict)

    def generation(self, session_id: str) -> int:
        return self.generations.get(session_id, 0)

    def put(self, session_id: str, now: int, **fields: Any) -> None:
        """A session that is new."""
        kind = session_kind(fields.get("parent_id"), fields.get("origin_platform"))
        made = {"id": session_id, "created_at": now, "updated_at": now, "kind": kind, **fields}
        self.sessions[session_id] = SessionInfo(**made)

    def change(self, session_id: str, now: int | None, **fields: Any) -> None:
        """Fields of a session that is there; `now` None leaves its time."""
        info = evolve(self.sessions[session_id], **fields)
        self.sessions[session_id] = info if now is None else evolve(info, updated_at=max(now, info.updated_at))

    def merge(self, session_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Fields with metadata merged into what there is."""
        fields = dict(given)
        if fields.get("metadata") is not None:
            fields["metadata"] = {**(self.sessions[session_id].metadata or {}), **fields["metadata"]}
        return fields

    def children(self, session_id: str) -> list[str]:
        found = [info for info in self.sessions.values() if info.parent_id == session_id]
        return [info.id for info in sorted(found, key=lambda info: (info.created_at, info.id))]

    def tree(self, session_id: str) -> list[str]:
        found = [session_id]
        for one in found:
            found += self.children(one)
        return found

    def delete(self, session_id: str) -> None:
        for one in self.tree(session_id):
            del self.sessions[one]
            self.generations[one] = self.generation(one) + 1
            self.words.pop(one, None)

    def root(self, session_id: str) -> SessionInfo | None:
        info = self.sessions.get(session_id)
        while info is not None and info.parent_id is not None:
            info = self.sessions.get(info.parent_id)
        return info

    def place(self, session_id: str) -> str:
        root = self.root(session_id)
        if root is None:
            return "workspace:default"
        if root.origin_chat is not None:
            return f"{root.origin_platform}:{root.origin_chat.type}:{root.origin_chat.target_id}"
        return f"workspace:{root.workspace or 'default'}"

    def unfiled(self, session_id: str) -> bool:
        info = self.sessions[session_id]
        return not (info.parent_id or info.origin_platform or info.created_from or info.work)

    def seen(self, session_id: str) -> SessionInfo:
        """As a reader sees it."""
        return evolve(self.sessions[session_id], children=tuple(self.children(session_id)))

    def file(self, session_id: str, group_name: str, now: int) -> None:
        """A native message of the group came in."""
        chat = OriginChat(type="group", multi_party=True, target_id=f"of {session_id}", self_id="bot1")
        origin: dict[str, Any] = {
            "origin_platform": "onebot",
            "origin_chat": chat,
            "origin_instance": "onebot",
            "kind": "room",
        }
        if session_id not in self.sessions:
            self.put(session_id, now, name=group_name, **origin)
        elif self.unfiled(session_id):
            self.change(session_id, now, name=self.sessions[session_id].name or group_name, **origin)
        elif self.sessions[session_id].origin_platform is None or self.sessions[session_id].parent_id is not None:
            return
        elif not self.sessions[session_id].name:
            self.change(session_id, now, name=group_name)
        self.windows[f"onebot:group:of {session_id}"] = group_name

    def end_turn(self, turn_id: str, now: int, outcome: Any, error: Any) -> None:
        session_id, generation = self.turns.pop(turn_id)
        if session_id not in self.sessions or self.generation(session_id) != generation:
            return
        last_turn = LastTurn(outcome=outcome or "silent", ended_at=now, error=error)
        fields: dict[str, Any] = {"last_turn": last_turn}
        if outcome == "replied":
            fields["last_reply_at"] = now
        if (session_id, generation) not in self.turns.values() and self.sessions[session_id].status == "active":
            fields["status"] = "error" if outcome == "error" else "completed"
        self.change(session_id, now, **fields)


class Sessions(RuleBasedStateMachine):
    """Both sides, a host on a database of its own and the world as it must be."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.db = Path(self.folder.name) / "aalis.db"
        self.clock, self.world = Still(), World()
        self.outer = AsyncExitStack()
        self.memories: list[Watched] = []
        self.numbers = iter(range(10**6))
        self.stack: Stack
        self.patch = pytest.MonkeyPatch()
        for module, name, value in (
            (manager, "new_session_id", lambda: f"s{next(self.numbers)}"),
            (places.secrets, "token_hex", lambda size: f"w{next(self.numbers)}"),
            (store, "GATHER_DELAY", 0.0005),
            (store, "FIRST_RETRY", 0.0005),
            (deletion, "FIRST_RETRY", 0.0005),
        ):
            self.patch.setattr(module, name, value)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def limited() -> Any:
            async with asyncio.timeout(20):
                return await work

        return self.runner.run(limited())

    def teardown(self) -> None:
        self.run(self.outer.aclose())
        self.runner.close()
        self.patch.undo()
        self.folder.cleanup()

    async def start(self) -> None:
        self.outer = AsyncExitStack()
        self.memories = self.outer.enter_context(watched_memory())
        self.mirror: dict[str, SessionInfo] = {}
        recorder = Recorder(listener=self.hear)
        entered = self.outer.enter_async_context(running(self.db, recorder=recorder, clock=self.clock))
        self.stack = await entered
        self.stack.host.add_platform(Adapter())
        self.mirror = {info.id: info for info in self.stack.sessions.list_sessions()}

    async def hear(self, name: str, what: Any) -> None:
        """A listener that knows sessions by events alone."""
        if isinstance(what, str):
            del self.mirror[what]
        else:
            assert (name == "created") == (what.id not in self.mirror)
            self.mirror[what.id] = what

    def now(self, passed: int = 10) -> int:
        self.clock.ms += passed
        return self.clock.ms

    def pick(self, number: int) -> str | None:
        """A session that is there."""
        there = list(self.world.sessions)
        return there[number % len(there)] if there else None

    @property
    def sessions(self) -> Any:
        return self.stack.sessions

    @initialize()
    def begin(self) -> None:
        self.run(self.start())

    # --- making

    @rule(
        name=st.none() | names,
        created_from=makers,
        data=st.none() | metadata,
        passed=st.sampled_from([0, 10]),
    )
    def create(self, name: str | None, created_from: str | None, data: Any, passed: int) -> None:
        now = self.now(passed)
        creation = SessionCreation(created_from=created_from)
        info = self.run(self.sessions.create_session(SessionDraft(name=name, metadata=data), creation))
        self.world.put(info.id, now, name=name, created_from=created_from, metadata=data)

    @rule(pick=picks)
    @precondition(lambda self: self.world.workspaces)
    def create_in_a_workspace(self, pick: int) -> None:
        now = self.now()
        workspace_id = list(self.world.workspaces)[pick % len(self.world.workspaces)]
        work = WorkBinding(root=self.world.workspaces[workspace_id])
        creation = SessionCreation(created_from="cli", workspace=workspace_id, work=work)
        info = self.run(self.sessions.create_session(creation=creation))
        self.world.put(info.id, now, created_from="cli", workspace=workspace_id, work=work)

    @rule(pick=picks, title=st.none() | names)
    def child(self, pick: int, title: str | None) -> None:
        now, parent = self.now(), self.pick(pick) or IDS[pick % len(IDS)]
        if parent not in self.world.sessions:
            self.world.put(parent, now)
        info = self.run(self.sessions.create_child_session(parent, SessionDraft(title=title)))
        self.world.put(info.id, now, title=title, parent_id=parent, current_dir=self.world.sessions[parent].current_dir)

    @rule(session_id=ids, title=st.none() | names, data=st.none() | metadata, created_from=makers)
    def ensure(self, session_id: str, title: str | None, data: Any, created_from: str | None) -> None:
        now = self.now()
        patch, creation = SessionDraft(title=title, metadata=data), SessionCreation(created_from=created_from)
        info = self.run(self.sessions.ensure_session(session_id, patch, creation))
        if session_id not in self.world.sessions:
            self.world.put(session_id, now, title=title, metadata=data, created_from=created_from)
        else:
            before = self.world.sessions[session_id]
            given = {name: value for name, value in (("title", title), ("metadata", data)) if value is not None}
            fields = self.world.merge(session_id, given)
            if created_from is not None and self.world.unfiled(session_id):
                fields["created_from"] = created_from
            if evolve(before, **fields) != before:
                self.world.change(session_id, now, **fields)
        assert info == self.world.seen(session_id)

    @rule(number=st.integers(0, 1), group_name=st.sampled_from(NAMES))
    def inbound(self, number: int, group_name: str) -> None:
        now, session_id = self.now(), f"room{number}"
        message = group_message(session_id, group_id=f"of {session_id}", group_name=group_name)
        self.run(self.sessions.record_inbound(message))
        self.world.file(session_id, group_name, now)

    # --- turns

    @rule(session_id=ids, source=st.sampled_from([None, "schedule"]))
    def say(self, session_id: str, source: str | None) -> None:
        """One whole turn through gateway, agent and model; a message with a source files nothing."""
        now = self.now()
        fields = {"group_id": f"of {session_id}", "group_name": NAMES[0], "source": source}
        self.run(self.stack.say(session_id, "text", **fields))
        if source is None:
            self.world.file(session_id, NAMES[0], now)
        self.world.words.setdefault(session_id, []).extend(["text", "ok"])
        if session_id in self.world.sessions:
            self.world.change(session_id, now, status="active")
            self.count(session_id, 7, 3)
        self.world.turns["said"] = (session_id, self.world.generation(session_id))
        self.world.end_turn("said", now, "replied", None)

    @rule(session_id=ids)
    def begin_turn(self, session_id: str) -> None:
        now, turn_id = self.now(), f"turn {next(self.numbers)}"
        self.run(self.stack.host.emit("aalis_turn_before", turn=new_turn(session_id, turn_id, now)))
        self.world.turns[turn_id] = (session_id, self.world.generation(session_id))
        if session_id in self.world.sessions:
            self.world.change(session_id, now, status="active")

    @rule(pick=picks, outcome=st.sampled_from(OUTCOMES))
    @precondition(lambda self: self.world.turns)
    def end_turn(self, pick: int, outcome: Any) -> None:
        now = self.now()
        turn_id = list(self.world.turns)[pick % len(self.world.turns)]
        session_id, _ = self.world.turns[turn_id]
        error = "because" if outcome == "error" else None
        start: TurnStart = new_turn(session_id, turn_id, now)
        end = TurnEnd(
            turn_id=turn_id,
            message=start.message,
            session_id=session_id,
            ended_at=now,
            outcome=outcome,
            error="because",
        )
        self.run(self.stack.host.emit("aalis_turn_after", turn=end))
        self.world.end_turn(turn_id, now, outcome, error)

    @rule(pick=picks, tokens=st.integers(0, 5))
    def usage(self, pick: int, tokens: int) -> None:
        self.now()
        session_id = self.pick(pick) or "nobody"
        usage = LlmUsage(session_id=session_id, input_tokens=tokens, output_tokens=tokens * 2)
        self.run(self.stack.host.emit("aalis_llm_usage", usage=usage))
        if session_id in self.world.sessions and tokens:
            self.count(session_id, tokens, tokens * 2)

    def count(self, session_id: str, input_tokens: int, output_tokens: int) -> None:
        old = self.world.sessions[session_id].tokens or TokenCount()
        tokens = TokenCount(input=old.input + input_tokens, output=old.output + output_tokens)
        self.world.change(session_id, None, tokens=tokens)

    # --- changing

    @rule(
        pick=picks,
        title=st.none() | names,
        data=st.none() | metadata,
        status=st.sampled_from(["waiting", "archived", "active"]),
        refused=st.sampled_from([0, 0, 0, 1, 2]),
    )
    def update(self, pick: int, title: str | None, data: Any, status: Any, refused: int) -> None:
        """Now and then the store refuses at first: the change is there all the same."""
        now, session_id = self.now(), self.pick(pick)
        updates = SessionUpdates(title=title, metadata=data, status=status)
        if session_id is None:
            with pytest.raises(SessionNotFound):
                self.run(self.sessions.update_session("nobody", updates))
            return
        self.memories[0].refuse = refused
        if refused:
            with pytest.raises(StorageError):
                self.run(self.sessions.update_session(session_id, updates))
        else:
            self.run(self.sessions.update_session(session_id, updates))
        fields = self.world.merge(session_id, {"title": title, "metadata": data, "status": status})
        self.world.change(session_id, now, **fields)

    @rule(pick=picks, result=names)
    def complete(self, pick: int, result: str) -> None:
        now, session_id = self.now(), self.pick(pick)
        if session_id is not None:
            self.run(self.sessions.complete_session(session_id, result))
            self.world.change(session_id, now, status="completed", result=result)

    @rule(pick=picks)
    def go_to_a_directory(self, pick: int) -> None:
        now, session_id = self.now(), self.pick(pick)
        if session_id is not None:
            self.run(self.sessions.set_current_dir(session_id, f"/d{pick}"))
            self.world.change(session_id, now, current_dir=f"/d{pick}")

    @rule(pick=picks, trees=st.booleans())
    def change_a_binding(self, pick: int, trees: bool) -> None:
        bound = [info for info in self.world.sessions.values() if info.work is not None]
        if not bound:
            return
        now, root = self.now(), bound[pick % len(bound)]
        assert root.work is not None
        asked = self.world.tree(root.id)[-1]
        if not trees:
            self.run(self.sessions.set_extra_roots(asked, [f"/e{pick}"]))
            self.world.change(root.id, now, work=evolve(root.work, extra_roots=(f"/e{pick}",)))
        else:
            self.run(self.sessions.add_worktree(asked, f"/w{pick % 3}"))
            if f"/w{pick % 3}" not in root.work.worktrees:
                worktrees = (*root.work.worktrees, f"/w{pick % 3}")
                self.world.change(root.id, now, work=evolve(root.work, worktrees=worktrees))

    # --- deleting and clearing

    @rule(pick=picks)
    def delete(self, pick: int) -> None:
        session_id = self.pick(pick) or "nobody"
        self.now()
        self.run(self.sessions.delete_session(session_id))
        if session_id in self.world.sessions:
            self.world.delete(session_id)

    @rule(pick=picks, below=picks)
    def delete_twice_at_once(self, pick: int, below: int) -> None:
        """A session and one of its tree, in either order."""
        self.now()
        session_id = self.pick(pick)
        if session_id is None:
            return
        tree = self.world.tree(session_id)
        order = [session_id, tree[below % len(tree)]][:: 1 if below % 2 else -1]

        async def both() -> None:
            await asyncio.gather(*map(self.sessions.delete_session, order))

        self.run(both())
        for one in order:
            if one in self.world.sessions:
                self.world.delete(one)

    @rule(number=st.integers(0, 1), title=names)
    def delete_a_room_while_it_is_spoken_to(self, number: int, title: str) -> None:
        """What arrives after the deletion began is of the next room; a patch of the room arrives too."""
        now, session_id = self.now(), f"room{number}"
        if session_id not in self.world.sessions:
            return

        async def together() -> None:
            deleting = asyncio.create_task(self.sessions.delete_session(session_id))
            while self.sessions.get_session(session_id) is not None:
                await asyncio.sleep(0)
            fields = {"group_id": f"of {session_id}", "group_name": NAMES[1]}
            said = self.stack.say(session_id, "text", source="schedule", **fields)
            await asyncio.gather(deleting, said)
            await self.sessions.ensure_session(session_id, SessionDraft(title=title))

        self.run(together())
        self.world.delete(session_id)
        self.world.words[session_id] = ["text", "ok"]
        self.world.put(session_id, now, title=title)

    @rule(pick=picks)
    def clear(self, pick: int) -> None:
        self.now()
        session_id = self.pick(pick) or "nobody"
        self.run(self.stack.host.clear_memory(ClearRequest(scope="session", session_id=session_id)))
        self.world.words.pop(session_id, None)
        for one in self.world.children(session_id):
            self.world.delete(one)

    @rule(types=st.sampled_from([("context",), ("notes",)]))
    def clear_all(self, types: tuple[str, ...]) -> None:
        self.now()
        self.run(self.stack.host.clear_memory(ClearRequest(scope="all", types=types)))
        if types == ("context",):
            self.world.words.clear()
            for root in [info.id for info in self.world.sessions.values() if info.parent_id is None]:
                for one in self.world.children(root):
                    self.world.delete(one)

    # --- places

    @rule(number=st.integers(0, 3))
    def add_workspace(self, number: int) -> None:
        self.now()
        root = f"/srv/project{number}"
        added = self.run(self.sessions.add_workspace(root))
        assert added.existed == (root in self.world.workspaces.values())
        assert added.workspace.root == root
        if added.existed:
            assert self.world.workspaces[added.workspace.id] == root
        else:
            assert added.workspace.id not in self.world.workspaces
            self.world.workspaces[added.workspace.id] = root

    @rule(pick=picks)
    def remove_workspace(self, pick: int) -> None:
        now = self.now()
        if not self.world.workspaces:
            with pytest.raises(WorkspaceNotFound):
                self.run(self.sessions.remove_workspace("none"))
            return
        workspace_id = list(self.world.workspaces)[pick % len(self.world.workspaces)]
        self.run(self.sessions.remove_workspace(workspace_id))
        del self.world.workspaces[workspace_id]
        self.world.place_metadata.pop(f"workspace:{workspace_id}", None)
        for root in [info.id for info in self.world.sessions.values() if info.workspace == workspace_id]:
            for one in self.world.tree(root):
                if one == root:
                    self.world.change(one, now, workspace=None, work=None, current_dir=None)
                elif self.world.sessions[one].current_dir is not None:
                    self.world.change(one, now, current_dir=None)

    @rule(pick=picks, data=metadata)
    def update_place(self, pick: int, data: Any) -> None:
        self.now()
        keys = ["workspace:default", *sorted(self.world.windows)]
        key = keys[pick % len(keys)]
        self.run(self.sessions.update_place(key, data))
        self.world.place_metadata[key] = {**self.world.place_metadata.get(key, {}), **data}

    # --- a restart

    @rule()
    def restart(self) -> None:
        """From the database. Turns that haven't ended were cut off: their leases run out meanwhile."""
        self.run(self.outer.aclose())
        now = self.now(60_000)
        self.run(self.start())
        for turn_id in list(self.world.turns):
            self.world.end_turn(turn_id, now, "aborted", INTERRUPTED)

    # --- what a reader sees

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "stack"):
            return
        world, sessions = self.world, self.sessions
        expected = {one: world.seen(one) for one in world.sessions}
        assert {info.id: info for info in sessions.list_sessions()} == expected
        newest = sorted(expected.values(), key=lambda info: (-info.updated_at, info.id))
        assert sessions.list_sessions() == newest
        assert sessions.list_sessions(parent_id=None) == [info for info in newest if info.parent_id is None]
        assert sessions.list_sessions(status="active") == [info for info in newest if info.status == "active"]
        for session_id in {*world.generations, *world.sessions, *IDS}:
            assert sessions.get_session(session_id) == expected.get(session_id)
            assert sessions.generation_of(session_id) == world.generation(session_id)
            assert [info.id for info in sessions.get_children(session_id)] == world.children(session_id)
            assert sessions.place_of(session_id).key == world.place(session_id)
        workspaces = {workspace.id: workspace.root for workspace in sessions.list_workspaces()}
        assert workspaces == {"default": None, **world.workspaces}
        names = {f"workspace:{one}": PurePath(root).name for one, root in world.workspaces.items()}
        places = {"workspace:default": None, **names, **world.windows}
        assert {place.key: place.name for place in sessions.list_places()} == places
        assert [place.key for place in sessions.list_places()][1:] == sorted(key for key in places if places[key])
        metadata = {place.key: place.metadata for place in sessions.list_places() if place.metadata is not None}
        assert metadata == world.place_metadata

    @invariant()
    def words(self) -> None:
        if hasattr(self, "stack"):
            self.run(self.compare_words())

    async def compare_words(self) -> None:
        for session_id in {*self.world.generations, *self.world.sessions, *IDS}:
            page = await self.stack.host.memory.history(session_id, 1000)
            assert [message.content for message in page.messages] == self.world.words.get(session_id, [])

    @invariant()
    def events(self) -> None:
        """A listener that knows sessions by events alone knows what a reader sees, once all is told."""
        if hasattr(self, "stack"):
            self.run(self.mirrored())

    async def mirrored(self) -> None:
        expected = {one: self.world.seen(one) for one in self.world.sessions}
        for _ in range(2000):
            if self.mirror == expected:
                return
            await asyncio.sleep(0.001)
        assert self.mirror == expected


@pytest.mark.rule("CREATE-1", "CREATE-4", "CREATE-5", "CREATE-7", "CREATE-10", "INTAKE-3", "INTAKE-4", "BIND-3", "WS-3")
@pytest.mark.rule("TURN-1", "TURN-2", "TURN-3", "TURN-6", "USAGE-1", "DELETE-1", "GEN-1", "GEN-3", "GEN-5", "CLEAR-1")
@pytest.mark.rule("CLEAR-2", "PLACE-1", "PLACE-5", "PLACE-6", "WS-1", "EVENT-1", "STORE-1", "STORE-2", "STORE-3")
@pytest.mark.timeout(180)
def test_the_service_is_the_dictionary() -> None:
    """Whatever is done in whatever order, with restarts in between."""
    run_state_machine_as_test(
        Sessions,
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            derandomize=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
