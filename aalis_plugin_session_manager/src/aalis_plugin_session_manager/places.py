"""Places and workspaces: where sessions belong. Rules: PLACE-1 to -6, WS-1 to -3."""

import logging
import secrets
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from attrs import evolve

from aalis_api_session_manager.errors import InvalidSession, PlaceNotFound, WorkspaceNotFound
from aalis_api_session_manager.kinds import IsOwner, SessionLookup, root_session_of, window_key
from aalis_api_session_manager.model import (
    DEFAULT_WORKSPACE,
    OriginChat,
    PlaceInfo,
    SessionInfo,
    SessionPlace,
    WorkspaceAdded,
    WorkspaceInfo,
)
from aalis_api_session_manager.values import clean_text, freeze_json
from aalis_plugin_session_manager.change import Edit
from aalis_plugin_session_manager.collection import Collection
from aalis_plugin_session_manager.records import PlaceRecord, merged
from aalis_plugin_session_manager.store import RecordStore

__all__ = ["DEFAULT_PLACE", "Places", "checked_path"]

log = logging.getLogger(__name__)

_PREFIX = "workspace:"
DEFAULT_PLACE = SessionPlace(kind="workspace", key=_PREFIX + DEFAULT_WORKSPACE)


def checked_path(session_id: str | None, path: str) -> str:
    """The path as it is. Raises InvalidSession for one that is empty or can't be stored: it would be another one."""
    if not path or clean_text(path) != path:
        raise InvalidSession(session_id, f"{path!r} isn't a path that can be stored")
    return path


class _Registered(Exception):
    """The directory has a workspace already."""

    def __init__(self, workspace_id: str) -> None:
        super().__init__(workspace_id)
        self.workspace_id = workspace_id


class Places:
    """The place records, and which place a session has. `roots` holds a workspace's id by its directory, so that
    two processes that register one at the same time meet there."""

    def __init__(
        self,
        records: Collection[PlaceRecord],
        roots: Collection[str],
        lookup: SessionLookup,
        is_owner: IsOwner,
        now: Callable[[], int],
    ) -> None:
        self._records = records
        self._roots = roots
        self._lookup = lookup
        self._is_owner = is_owner
        self._now = now
        self._named: set[str] = set()

    # --- which place

    def place_of(self, session_id: str) -> SessionPlace:
        """Rules: PLACE-1 to PLACE-4. Never raises."""
        root = root_session_of(session_id, self._lookup)
        return DEFAULT_PLACE if root is None else self.place_of_root(root)

    def place_of_root(self, root: SessionInfo) -> SessionPlace:
        """The place of a root session."""
        if root.origin_platform is not None:
            return self._window(root, root.origin_platform)
        if root.workspace is None:
            return DEFAULT_PLACE
        place = SessionPlace(kind="workspace", key=_PREFIX + root.workspace)
        if self._records.get(place.key) is None:
            self._name_once(root.id, "its workspace %r has no record, it counts as the default one", root.workspace)
            return DEFAULT_PLACE
        return place

    def _window(self, root: SessionInfo, platform: str) -> SessionPlace:
        chat = root.origin_chat or OriginChat(type="", multi_party=True, target_id="")
        if self.is_owners_own(platform, chat):
            return DEFAULT_PLACE
        if root.origin_chat is None or not chat.target_id:
            self._name_once(root.id, "its chat window is incomplete, its place is %r:…", platform)
        try:
            key = window_key(platform, chat.type, chat.target_id)
        except ValueError as error:
            self._name_once(root.id, "%s", error)
            key = window_key(platform.replace(":", ""), chat.type.replace(":", ""), chat.target_id)
        return SessionPlace(kind="window", key=key)

    def is_owners_own(self, platform: str, chat: OriginChat) -> bool:
        """An IM one-to-one whose peer is an owner identity. Rule: PLACE-2."""
        return not chat.multi_party and bool(chat.target_id) and self._is_owner(platform, chat.target_id)

    def _name_once(self, session_id: str, message: str, *args: Any) -> None:
        if session_id not in self._named:
            self._named.add(session_id)
            log.warning("session %r: " + message, session_id, *args)

    def metadata_of_root(self, root: SessionInfo) -> Mapping[str, Any] | None:
        """What plugins keep for the place of a root."""
        record = self._records.get(self.place_of_root(root).key)
        return None if record is None else record.info.metadata

    # --- records

    def get(self, key: str) -> PlaceInfo | None:
        """The place, or None."""
        record = self._records.get(key)
        return None if record is None else record.info

    def all(self) -> list[PlaceInfo]:
        """The default workspace first, then by key."""
        places = [record.info for record in self._records.values()]
        return sorted(places, key=lambda place: (place.key != DEFAULT_PLACE.key, place.key))

    async def update(self, store: RecordStore, key: str, metadata: Mapping[str, Any]) -> PlaceInfo:
        """Rule: PLACE-5."""
        frozen, now = freeze_json(metadata), self._now()

        def fold(record: PlaceRecord | None) -> PlaceRecord:
            if record is None:
                raise PlaceNotFound(key)
            info = evolve(record.info, metadata=merged(record.info.metadata, frozen))
            return evolve(record, info=info, updated_at=max(now, record.updated_at))

        await store.apply(key, Edit(self._records, key, fold))
        return self.get(key) or fold(None).info

    def default_edit(self) -> Edit | None:
        """Makes the default workspace's record; None where there is one, be it damaged. Rule: PLACE-6."""
        key = DEFAULT_PLACE.key
        if key in self._records.damaged or self._records.get(key) is not None:
            return None
        fresh = self._fresh(DEFAULT_PLACE, None)
        return Edit(self._records, key, lambda record: fresh if record is None else record)

    def window_edits(self, place: SessionPlace, name: str | None, target: str) -> list[Edit]:
        """Makes a window's record where it is missing, and gives it the name that its platform shows now, if any.

        None for a damaged record, which stays as it is. Rules: PLACE-6, LABEL-4.
        """
        if place.key in self._records.damaged:
            return []
        fresh = self._fresh(place, name or target)

        def fold(record: PlaceRecord | None) -> PlaceRecord:
            if record is None:
                return fresh
            if name is None or record.info.name == name:
                return record
            updated_at = max(fresh.updated_at, record.updated_at)
            return evolve(record, info=evolve(record.info, name=name), updated_at=updated_at)

        return [Edit(self._records, place.key, fold)]

    def _fresh(self, place: SessionPlace, name: str | None) -> PlaceRecord:
        now = self._now()
        return PlaceRecord(info=PlaceInfo(kind=place.kind, key=place.key, name=name), created_at=now, updated_at=now)

    # --- workspaces

    def workspace(self, workspace_id: str) -> WorkspaceInfo:
        """Raises WorkspaceNotFound."""
        if workspace_id == DEFAULT_WORKSPACE:
            return WorkspaceInfo(id=DEFAULT_WORKSPACE)
        record = self._records.get(_PREFIX + workspace_id)
        if record is None or record.info.kind != "workspace":
            raise WorkspaceNotFound(workspace_id)
        return _workspace(record)

    def workspaces(self) -> list[WorkspaceInfo]:
        """The default first, then in order of registration. Rule: WS-2."""
        return [WorkspaceInfo(id=DEFAULT_WORKSPACE), *map(_workspace, self._registered())]

    def _registered(self) -> list[PlaceRecord]:
        records = (r for r in self._records.values() if r.info.kind == "workspace" and r.info.key != DEFAULT_PLACE.key)
        return sorted(records, key=lambda record: (record.created_at, record.info.key))

    async def add_workspace(self, store: RecordStore, root: str) -> WorkspaceAdded:
        """Rule: WS-1."""
        checked_path(None, root)
        registered = self._registered()
        for record in registered:
            if record.root == root:
                await store.stored(self._records, record.info.key)
                return WorkspaceAdded(workspace=_workspace(record), existed=True)
        workspace_id = secrets.token_hex(8)
        key = _PREFIX + workspace_id
        now = max([self._now()] + [record.created_at + 1 for record in registered[-1:]])
        name = PurePath(root).name or root
        fresh = PlaceRecord(
            info=PlaceInfo(kind="workspace", key=key, name=name), root=root, created_at=now, updated_at=now
        )

        def claim(owner: str | None) -> str:
            if owner is not None and owner != workspace_id and _PREFIX + owner not in self._records.damaged:
                raise _Registered(owner)
            return workspace_id

        made = Edit(self._records, key, lambda record: fresh if record is None else record)
        try:
            await store.apply(key, made, Edit(self._roots, root, claim))
        except _Registered as registered:
            workspace = WorkspaceInfo(id=registered.workspace_id, name=name, root=root)
            return WorkspaceAdded(workspace=workspace, existed=True)
        return WorkspaceAdded(workspace=_workspace(fresh), existed=False)

    def removal_edits(self, workspace_id: str) -> list[Edit]:
        """Removes the record, named first. Raises InvalidSession for the default, WorkspaceNotFound. Rule: WS-3."""
        if workspace_id == DEFAULT_WORKSPACE:
            raise InvalidSession(None, "the default workspace can't be removed")
        root = self.workspace(workspace_id).root
        removed = Edit(self._records, _PREFIX + workspace_id, lambda record: None)
        if root is None:
            return [removed]
        return [removed, Edit(self._roots, root, lambda owner: None if owner == workspace_id else owner)]


def _workspace(record: PlaceRecord) -> WorkspaceInfo:
    return WorkspaceInfo(id=record.info.key.removeprefix(_PREFIX), name=record.info.name, root=record.root)
