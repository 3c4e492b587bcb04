"""The service: each method a few lines on the modules beside it."""

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from attrs import asdict, evolve

from aalis_api_session_manager.errors import InvalidSession, SessionNotFound, StorageError
from aalis_api_session_manager.host import Host
from aalis_api_session_manager.kinds import is_unfiled, root_session_of, session_kind
from aalis_api_session_manager.message import IncomingMessage
from aalis_api_session_manager.model import (
    DEFAULT_WORKSPACE,
    UNSET,
    Identity,
    PlaceInfo,
    SessionCreation,
    SessionDraft,
    SessionInfo,
    SessionPlace,
    SessionStatus,
    SessionUpdates,
    Unset,
    WorkspaceAdded,
    WorkspaceInfo,
)
from aalis_api_session_manager.service import AGENT, AUTHORITY, MEMORY, PLATFORM, TakeVerdict
from aalis_api_session_manager.values import clean_text
from aalis_plugin_session_manager.access import Access
from aalis_plugin_session_manager.change import Edit, Event
from aalis_plugin_session_manager.collection import Collection
from aalis_plugin_session_manager.config import SessionManagerConfig
from aalis_plugin_session_manager.deletion import Deletions
from aalis_plugin_session_manager.intake import Intake
from aalis_plugin_session_manager.places import Places, checked_path
from aalis_plugin_session_manager.records import (
    DeletionIntent,
    PlaceRecord,
    SessionRecord,
    TurnLease,
    decode_intent,
    decode_lease,
    decode_place,
    decode_root,
    decode_session,
    encode_intent,
    encode_lease,
    encode_place,
    encode_root,
    encode_session,
    merged,
    new_life,
)
from aalis_plugin_session_manager.store import STOP_LIMIT, RecordStore
from aalis_plugin_session_manager.table import SessionTable
from aalis_plugin_session_manager.turns import RENEW_MS, Turns

__all__ = ["SessionManager", "new_session_id"]

log = logging.getLogger(__name__)

_NO_DRAFT, _NO_CREATION = SessionDraft(), SessionCreation()


def new_session_id() -> str:
    """A fresh id of 122 random bits. Rule: CREATE-1."""
    return str(uuid.uuid4())


class _Taken(Exception):
    """A fresh id that is taken already."""


class SessionManager:
    """`SessionManagerService` of the contract."""

    def __init__(self, host: Host, config: SessionManagerConfig) -> None:
        self._host = host
        self._emit = partial(host.emit, limit=config.listener_timeout_sec)
        self._table = table = SessionTable()
        self.get_session = table.get
        self._sessions: Collection[SessionRecord] = Collection("sessions", decode_session, encode_session, self._shown)
        self._place_records: Collection[PlaceRecord] = Collection("places", decode_place, encode_place)
        self._roots: Collection[str] = Collection("workspace-roots", decode_root, encode_root)
        self._leases: Collection[TurnLease] = Collection(
            "turns", decode_lease, encode_lease, lambda key, lease: self.turns.lease_shown(key, lease)
        )
        self._intents: Collection[DeletionIntent] = Collection("deletions", decode_intent, encode_intent)
        self._store = RecordStore(
            host.select(MEMORY),
            (self._sessions, self._place_records, self._roots, self._leases, self._intents),
            self._tell,
            lambda generations: self.deletions.adopt(generations),
        )
        self._places = Places(self._place_records, self._roots, table.get, self._is_owner, host.now)
        self.deletions = Deletions(
            self._store,
            table,
            self._sessions,
            self._intents,
            host.select(AGENT),
            self._emit,
            self._parent_changed,
            host.instance_id,
            host.now,
        )
        self.turns = Turns(
            self._store, self._sessions, self._leases, host.instance_id, host.now, self.deletions.generation_of_turn
        )
        self._intake = Intake(
            self._store, self._sessions, self._places, self.deletions, lambda: host.all(PLATFORM), host.now
        )
        self._access = Access(
            config, table.get, self._places.metadata_of_root, self._is_owner, lambda: host.all(PLATFORM)
        )
        self._keeper: asyncio.Task[None] | None = None

    # --- life

    async def start(self) -> None:
        """Load; then finish what a crash left, unless the host only reads."""
        await self._store.load(read_only=self._host.read_only)
        if self._host.read_only:
            return
        self.deletions.resume()
        self.turns.close_expired()
        if (edit := self._places.default_edit()) is not None:
            await self._store.apply(edit.key, edit)
        self._keeper = asyncio.create_task(self._keep(), name="session leases")

    async def _keep(self) -> None:
        """Renew own leases, close what a dead process left."""
        while True:
            await asyncio.sleep(RENEW_MS / 1000)
            try:
                self.turns.renew()
                self.turns.close_expired()
                self.deletions.resume_abandoned()
            except Exception:
                log.exception("keeping the turn leases failed, trying again")

    async def stop(self) -> None:
        """Store what waits. Raises StorageError naming what couldn't be."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._intake.stop()
        await self.deletions.stop(STOP_LIMIT / 10)
        await self._store.stop()

    def _is_owner(self, platform: str, user_id: str) -> bool:
        authority = self._host.select(AUTHORITY)
        return authority.present and authority.use().is_owner(platform, user_id)

    def _shown(self, key: str, record: SessionRecord | None) -> None:
        if record is None:
            self._table.remove(key)
        else:
            self._table.put(record.info)

    # --- events (EVENT-1): one function of what was and what is

    async def _tell(self, event: Event) -> None:
        if event.collection is self._sessions:
            await self._tell_session(event.key, event.old, event.new, event.foreign)
        elif event.foreign and event.collection is self._leases and event.new is None:
            self.turns.lease_ended_elsewhere(event.old)
        elif event.foreign and event.collection is self._intents:
            if event.new is None:
                self.deletions.ended_elsewhere(event.key)
            else:
                self.deletions.began_elsewhere(event.new)

    async def _tell_session(
        self, key: str, old: SessionRecord | None, new: SessionRecord | None, foreign: bool
    ) -> None:
        if old is not None and (new is None or new.life != old.life):
            if foreign:
                self.deletions.removed_elsewhere(key)
                await self._emit("aalis_session_deleted", session_id=key)
                await self._tell_parent(old.info.parent_id)
            else:
                await self.deletions.removed(key)
            old = None
        if new is None:
            return
        shown = self._table.get(key)
        info = new.info if shown is None or not shown.children else evolve(new.info, children=shown.children)
        if old is None:
            await self._emit("aalis_session_created", session=info)
            await self._tell_parent(info.parent_id)
        else:
            await self._emit("aalis_session_updated", session=info)
        if new.completions > (0 if old is None else old.completions):
            await self._emit("aalis_session_completed", session=info)

    async def _tell_parent(self, parent_id: str | None) -> None:
        """Rule: DELETE-3."""
        parent = None if parent_id is None else self._table.get(parent_id)
        if parent is not None:
            await self._emit("aalis_session_updated", session=parent)

    async def _parent_changed(self, parent_id: str) -> None:
        await self._store.in_turn(f"sessions {parent_id!r}", lambda: self._tell_parent(parent_id))

    # --- reading

    def list_sessions(
        self, *, parent_id: str | None | Unset = UNSET, status: SessionStatus | None = None
    ) -> list[SessionInfo]:
        if isinstance(parent_id, str):
            found = sorted(self._table.children(parent_id), key=lambda info: (-info.updated_at, info.id))
        else:
            found = self._table.newest_first(roots_only=parent_id is None)
        return found if status is None else [info for info in found if info.status == status]

    def get_children(self, parent_id: str) -> list[SessionInfo]:
        return self._table.children(parent_id)

    def can_take(self, current_id: str, target_id: str, principal: Identity | None = None) -> TakeVerdict:
        return self._access.can_take(current_id, target_id, principal)

    # --- making

    async def create_session(
        self, draft: SessionDraft | None = None, creation: SessionCreation | None = None
    ) -> SessionInfo:
        draft = draft or _NO_DRAFT
        parent_id = draft.parent_id
        if parent_id is not None:
            if creation is not None:
                raise InvalidSession(None, "only a root has a creation; leave it out beside a parent_id")
            await self.deletions.gate(parent_id)
            if self._table.get(parent_id) is None:
                raise SessionNotFound(parent_id)
        creation = creation or _NO_CREATION
        binding = self._binding(creation)
        while True:
            session_id = new_session_id()
            taken = session_id in self._table or session_id in self._sessions.damaged
            if taken or self.generation_of(session_id):
                continue
            info = self._fresh(session_id, draft, parent_id, created_from=creation.created_from, **binding)

            def fold(record: SessionRecord | None, info: SessionInfo = info) -> SessionRecord:
                if record is not None:
                    raise _Taken
                return SessionRecord(info)

            try:
                return await self._apply(session_id, fold)
            except _Taken:
                continue

    def _binding(self, creation: SessionCreation) -> dict[str, Any]:
        """Rules: BIND-1, BIND-2."""
        workspace_id = DEFAULT_WORKSPACE if creation.workspace is None else creation.workspace
        root = self._places.workspace(workspace_id).root
        if root is None and creation.work is not None:
            raise InvalidSession(None, f"the workspace {workspace_id!r} has no directory, so no session is bound there")
        if root is not None and creation.work is None:
            raise InvalidSession(None, f"a session of the workspace {workspace_id!r} needs work.root")
        return {"workspace": None if workspace_id == DEFAULT_WORKSPACE else workspace_id, "work": creation.work}

    def _fresh(self, session_id: str, draft: SessionDraft, parent_id: str | None, **owned: Any) -> SessionInfo:
        now = self._host.now()
        parent = None if parent_id is None else self._table.get(parent_id)
        return SessionInfo(
            id=session_id,
            kind=session_kind(parent_id, None),
            created_at=now,
            updated_at=now,
            current_dir=None if parent is None else parent.current_dir,
            name=draft.name,
            title=draft.title,
            parent_id=parent_id,
            status=draft.status or "active",
            input_context=draft.input_context,
            result=draft.result,
            metadata=draft.metadata,
            **owned,
        )

    async def ensure_session(
        self, session_id: str, patch: SessionDraft | None = None, creation: SessionCreation | None = None
    ) -> SessionInfo:
        patch, creation = patch or _NO_DRAFT, creation or _NO_CREATION
        if patch.parent_id is not None:
            raise InvalidSession(session_id, "ensure_session makes roots; a parent_id can't be given")
        if creation.workspace is not None or creation.work is not None:
            raise InvalidSession(session_id, "a workspace or a binding is given when a session is created, not ensured")
        _check_id(session_id)
        await self.deletions.gate(session_id)
        now, life = self._host.now(), new_life()
        given = {k: v for k, v in asdict(patch, recurse=False).items() if v is not None}
        fresh = self._fresh(session_id, patch, None, created_from=creation.created_from)

        def fold(record: SessionRecord | None) -> SessionRecord:
            if record is None:
                return SessionRecord(fresh, life)
            changes = dict(given)
            if "metadata" in changes:
                changes["metadata"] = merged(record.info.metadata, changes["metadata"])
            if creation.created_from is not None and is_unfiled(record.info):
                changes["created_from"] = creation.created_from
            if all(getattr(record.info, name) == value for name, value in changes.items()):
                return record
            return record.with_info(updated_at=max(now, record.info.updated_at), **changes)

        return await self._apply(session_id, fold)

    async def create_child_session(self, parent_id: str, draft: SessionDraft | None = None) -> SessionInfo:
        draft = draft or _NO_DRAFT
        if draft.parent_id is not None:
            raise InvalidSession(parent_id, "the parent is the first argument; the draft can't name another")
        while True:
            if self._table.get(parent_id) is None:
                await self.ensure_session(parent_id)
            try:
                return await self.create_session(evolve(draft, parent_id=parent_id))
            except SessionNotFound:
                continue

    # --- changing

    async def _apply(self, session_id: str, fold: Any) -> SessionInfo:
        """Change one record; what readers see of it afterwards."""
        job = self._store.change(session_id, Edit(self._sessions, session_id, fold))
        shown = self._table.get(session_id)
        await self._store.settled(job)
        now_shown = self._table.get(session_id) or shown
        if now_shown is None:
            raise SessionNotFound(session_id)
        return now_shown

    async def _change(self, session_id: str, change: Any) -> SessionInfo:
        """Change an existing record: `change(record) -> record`. Not one that has the id by now (GEN-5)."""
        now, seen = self._host.now(), self._sessions.get(session_id)

        def fold(record: SessionRecord | None) -> SessionRecord:
            if record is None or seen is None or record.life != seen.life:
                raise SessionNotFound(session_id)
            changed: SessionRecord = change(record)
            if changed is record:
                return record
            return changed.with_info(updated_at=max(now, record.info.updated_at))

        return await self._apply(session_id, fold)

    async def update_session(self, session_id: str, updates: SessionUpdates) -> SessionInfo:
        given = {k: v for k, v in asdict(updates, recurse=False).items() if v is not UNSET}

        def change(record: SessionRecord) -> SessionRecord:
            changes = dict(given)
            if "metadata" in changes:
                changes["metadata"] = merged(record.info.metadata, changes["metadata"])
            return record.with_info(**changes)

        return await self._change(session_id, change)

    async def update_session_title(self, session_id: str, title: str) -> None:
        await self.update_session(session_id, SessionUpdates(title=title))

    async def complete_session(self, session_id: str, result: str | None = None) -> None:
        kept = None if result is None else clean_text(result)

        def change(record: SessionRecord) -> SessionRecord:
            done = record.with_info(status="completed", result=kept)
            return evolve(done, completions=record.completions + 1)

        await self._change(session_id, change)

    async def delete_session(self, session_id: str) -> None:
        if self._store.read_only:
            raise StorageError("the store is opened for reading only", session_id=session_id)
        await self.deletions.delete(session_id)

    async def record_inbound(self, message: IncomingMessage) -> None:
        await self._intake.record_inbound(message)

    def generation_of(self, session_id: str) -> int:
        return self.deletions.generation_of(session_id)

    # --- bindings and directories

    async def set_current_dir(self, session_id: str, directory: str) -> None:
        path = checked_path(session_id, directory)
        await self._change(session_id, lambda record: record.with_info(current_dir=path))

    async def set_extra_roots(self, session_id: str, extra_roots: Sequence[str]) -> None:
        if isinstance(extra_roots, str):
            raise InvalidSession(session_id, "expected several directories, got one text")
        roots = tuple(checked_path(session_id, path) for path in extra_roots)
        await self._change_work(session_id, lambda work: evolve(work, extra_roots=roots))

    async def add_worktree(self, session_id: str, path: str) -> None:
        tree = checked_path(session_id, path)
        await self._change_work(
            session_id,
            lambda work: work if tree in work.worktrees else evolve(work, worktrees=(*work.worktrees, tree)),
        )

    async def _change_work(self, session_id: str, change: Any) -> None:
        """Rule: BIND-3."""
        if self._table.get(session_id) is None:
            raise SessionNotFound(session_id)
        root = root_session_of(session_id, self._table.get)
        if root is None:
            raise InvalidSession(session_id, "its root can't be told")

        def change_record(record: SessionRecord) -> SessionRecord:
            work = record.info.work
            if work is None:
                raise InvalidSession(session_id, "it isn't a session of a project, so it has no binding")
            changed = change(work)
            return record if changed is work else record.with_info(work=changed)

        await self._change(root.id, change_record)

    # --- places and workspaces

    def place_of(self, session_id: str) -> SessionPlace:
        return self._places.place_of(session_id)

    def get_place(self, key: str) -> PlaceInfo | None:
        return self._places.get(key)

    def list_places(self) -> list[PlaceInfo]:
        return self._places.all()

    async def update_place(self, key: str, metadata: Mapping[str, Any]) -> PlaceInfo:
        return await self._places.update(self._store, key, metadata)

    async def add_workspace(self, root: str) -> WorkspaceAdded:
        return await self._places.add_workspace(self._store, root)

    def list_workspaces(self) -> list[WorkspaceInfo]:
        return self._places.workspaces()

    async def remove_workspace(self, workspace_id: str) -> None:
        now, edits = self._host.now(), self._places.removal_edits(workspace_id)

        def leave(record: SessionRecord | None) -> SessionRecord | None:
            if record is None or record.info.workspace != workspace_id:
                return record
            updated_at = max(now, record.info.updated_at)
            return record.with_info(workspace=None, work=None, current_dir=None, updated_at=updated_at)

        def leave_directory(record: SessionRecord | None) -> SessionRecord | None:
            if record is None or record.info.current_dir is None:
                return record
            return record.with_info(current_dir=None, updated_at=max(now, record.info.updated_at))

        for root in [info for info in self._table.all() if info.workspace == workspace_id]:
            edits.append(Edit(self._sessions, root.id, leave))
            below = (one for level in self._table.levels(root.id)[1:] for one in level)
            edits += [Edit(self._sessions, one, leave_directory) for one in below]
        await self._store.apply(edits[0].key, *edits)


def _check_id(session_id: str) -> None:
    if not session_id or clean_text(session_id) != session_id:
        raise InvalidSession(session_id, "an id is text that isn't empty, without NUL or lone surrogates")
