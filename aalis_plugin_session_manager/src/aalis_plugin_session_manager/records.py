"""The stored forms: records with what only the store needs, to and from plain JSON.

A damaged record raises `Damaged`; a field of the wrong type is dropped and named, unknown fields are kept
and written back. Rule: STORE-4.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from attrs import evolve, field, frozen

from aalis_api_session_manager.kinds import session_kind
from aalis_api_session_manager.model import (
    LastTurn,
    OriginChat,
    PlaceInfo,
    PlaceKind,
    SessionInfo,
    SessionStatus,
    TokenCount,
    WorkBinding,
)
from aalis_api_session_manager.values import freeze_decoded, freeze_object, thaw_json
from aalis_api_session_manager.wire import from_json, to_json

__all__ = [
    "Damaged",
    "DeletionIntent",
    "PlaceRecord",
    "SessionRecord",
    "TurnLease",
    "decode_intent",
    "decode_lease",
    "decode_place",
    "decode_root",
    "decode_session",
    "encode_intent",
    "encode_lease",
    "encode_place",
    "encode_root",
    "encode_session",
    "merged",
    "new_life",
]

_NOTHING: Mapping[str, Any] = {}


class Damaged(Exception):
    """A stored record that can't be read; it stays on disk as it is."""


@frozen
class SessionRecord:
    """A session as stored: without children, which are derived.

    `life` tells it from an earlier session of the same id, `completions` counts `complete_session`, `extra` holds
    the fields that this version doesn't know.
    """

    info: SessionInfo
    life: str = ""
    completions: int = 0
    extra: Mapping[str, Any] = field(default=_NOTHING, hash=False)

    def with_info(self, **changes: Any) -> "SessionRecord":
        """The record with some of the session's fields replaced."""
        return SessionRecord(evolve(self.info, **changes), self.life, self.completions, self.extra)


@frozen(kw_only=True)
class PlaceRecord:
    """A place as stored. Rule: PLACE-5."""

    info: PlaceInfo
    root: str | None = None
    created_at: int
    updated_at: int
    extra: Mapping[str, Any] = field(default=_NOTHING, hash=False)


@frozen(kw_only=True)
class TurnLease:
    """A running turn. `expires_at` in milliseconds; `host` names the running host. Rule: TURN-6.

    `life` is the session's when the turn began, None when there was none yet; `generation` that of its id.
    """

    turn_id: str
    session_id: str
    life: str | None = None
    generation: int = 0
    source: str | None
    host: str
    expires_at: int


@frozen(kw_only=True)
class DeletionIntent:
    """A deletion that has begun and isn't finished: ids by level, deepest first, the root last.

    `generations` is what each id's generation rose to. Rule: DELETE-4.
    """

    levels: tuple[tuple[str, ...], ...]
    generations: Mapping[str, int]
    parent_id: str | None
    host: str
    started_at: int


def new_life() -> str:
    """The `life` of a session whose id may have had another one before, known to this process or not."""
    return secrets.token_hex(8)


def _of_type(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError
        return value

    return check


_STATUSES = frozenset(get_args(SessionStatus))


def _status(value: Any) -> Any:
    if value not in _STATUSES:
        raise ValueError
    return value


def _record(cls: type) -> Callable[[Any], Any]:
    return lambda value: from_json(value, cls)


def _shallow(value: Any) -> Any:
    """Frozen. Raises Damaged for what is nested so deep that it couldn't be written back."""
    try:
        return freeze_decoded(value)
    except ValueError as error:
        raise Damaged(str(error)) from error


def _object(value: Any) -> Any:
    if type(value) is not dict:
        raise TypeError
    return _shallow(value)


_text, _integer = _of_type(str), _of_type(int)
_SESSION: dict[str, tuple[str, type, Callable[[Any], Any] | None]] = {
    "id": ("id", str, None),
    "name": ("name", str, None),
    "title": ("title", str, None),
    "parentId": ("parent_id", str, None),
    "status": ("status", str, _status),
    "createdAt": ("created_at", int, None),
    "updatedAt": ("updated_at", int, None),
    "createdFrom": ("created_from", str, None),
    "inputContext": ("input_context", str, None),
    "result": ("result", str, None),
    "metadata": ("metadata", dict, _shallow),
    "originPlatform": ("origin_platform", str, None),
    "originChat": ("origin_chat", dict, _record(OriginChat)),
    "workspace": ("workspace", str, None),
    "work": ("work", dict, _record(WorkBinding)),
    "currentDir": ("current_dir", str, None),
    "originInstance": ("origin_instance", str, None),
    "lastReplyAt": ("last_reply_at", int, None),
    "lastTurn": ("last_turn", dict, _record(LastTurn)),
    "tokens": ("tokens", dict, _record(TokenCount)),
}
"""Stored name -> attribute, JSON type, and what makes the value of it (None: it is the value)."""

_PLAIN = (str, int)
_ENVELOPE = {"life", "completions"}
_DERIVED = {"children", "kind"}
_ROOT_ONLY = ("created_from", "origin_platform", "origin_chat", "origin_instance", "workspace", "work")


def decode_session(key: str, data: Any) -> tuple[SessionRecord, list[str]]:
    """The record and the names of fields that were dropped. Raises Damaged."""
    if type(data) is not dict:
        raise Damaged("it isn't a JSON object")
    if data.get("id") != key:
        raise Damaged("its id isn't its key")
    fields: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    dropped: list[str] = []
    for name, value in data.items():
        known = _SESSION.get(name)
        if known is not None:
            attribute, json_type, make = known
            if type(value) is json_type:
                try:
                    fields[attribute] = value if make is None else make(value)
                except Damaged:
                    raise
                except Exception:
                    dropped.append(name)
            elif value is not None:
                dropped.append(name)
        elif name not in _DERIVED and name not in _ENVELOPE:
            _shallow(value)
            extra[name] = value
    if "parent_id" in fields:
        for name in _ROOT_ONLY:
            fields.pop(name, None)
    fields.setdefault("status", "completed")
    fields.setdefault("created_at", fields.get("updated_at", 0))
    fields.setdefault("updated_at", fields["created_at"])
    kind = session_kind(fields.get("parent_id"), fields.get("origin_platform"))
    life, completions = data.get("life"), data.get("completions")
    record = SessionRecord(
        SessionInfo(kind=kind, **fields),
        life if type(life) is str else "",
        completions if type(completions) is int else 0,
        extra or _NOTHING,
    )
    return record, dropped


def _to_plain(value: Any) -> Any:
    return thaw_json(value) if isinstance(value, Mapping) else to_json(value)


def encode_session(record: SessionRecord) -> dict[str, Any]:
    """Plain JSON for the store."""
    info = record.info
    data: dict[str, Any] = {**record.extra, "kind": info.kind}
    for name, (attribute, _, _) in _SESSION.items():
        value = getattr(info, attribute)
        if value is not None:
            data[name] = value if type(value) in _PLAIN else _to_plain(value)
    if record.life:
        data["life"] = record.life
    if record.completions:
        data["completions"] = record.completions
    return data


_PLACE = {"key", "kind", "name", "root", "metadata", "createdAt", "updatedAt"}


def _valid(data: Mapping[str, Any], names: Iterable[str], check: Callable[[Any], Any], dropped: list[str]) -> list[Any]:
    values = []
    for name in names:
        value = data.get(name)
        if value is not None:
            try:
                value = check(value)
            except (TypeError, ValueError):
                dropped.append(name)
                value = None
        values.append(value)
    return values


def decode_place(key: str, data: Any) -> tuple[PlaceRecord, list[str]]:
    """The record and the names of fields that were dropped. Raises Damaged."""
    if type(data) is not dict:
        raise Damaged("it isn't a JSON object")
    if data.get("key") != key:
        raise Damaged("its key isn't the one it is stored under")
    if data.get("kind") not in get_args(PlaceKind):
        raise Damaged("it has no kind")
    dropped: list[str] = []
    name, root = _valid(data, ("name", "root"), _text, dropped)
    (metadata,) = _valid(data, ("metadata",), _object, dropped)
    created_at, updated_at = _valid(data, ("createdAt", "updatedAt"), _integer, dropped)
    record = PlaceRecord(
        info=PlaceInfo(kind=data["kind"], key=key, name=name, metadata=metadata),
        root=root,
        created_at=created_at or 0,
        updated_at=updated_at or created_at or 0,
        extra={name: value for name, value in data.items() if name not in _PLACE} or _NOTHING,
    )
    return record, dropped


def encode_place(record: PlaceRecord) -> dict[str, Any]:
    """Plain JSON for the store."""
    root = {} if record.root is None else {"root": record.root}
    times = {"createdAt": record.created_at, "updatedAt": record.updated_at}
    return {**record.extra, **to_json(record.info), **root, **times}


def decode_root(key: str, data: Any) -> tuple[str, list[str]]:
    """The id of the workspace that a directory has. Raises Damaged."""
    workspace_id = data.get("workspace") if type(data) is dict else None
    if type(workspace_id) is not str:
        raise Damaged("it names no workspace")
    return workspace_id, []


def encode_root(workspace_id: str) -> dict[str, Any]:
    """Plain JSON for the store."""
    return {"workspace": workspace_id}


def decode_lease(key: str, data: Any) -> tuple[TurnLease, list[str]]:
    """Raises Damaged."""
    return _whole(TurnLease, data), []


def encode_lease(lease: TurnLease) -> dict[str, Any]:
    """Plain JSON for the store."""
    return dict(to_json(lease))


def decode_intent(key: str, data: Any) -> tuple[DeletionIntent, list[str]]:
    """Raises Damaged."""
    return _whole(DeletionIntent, data), []


def encode_intent(intent: DeletionIntent) -> dict[str, Any]:
    """Plain JSON for the store."""
    return dict(to_json(intent))


def _whole(cls: type, data: Any) -> Any:
    try:
        return from_json(data, cls)
    except Exception as error:
        raise Damaged(str(error)) from error


def merged(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Metadata merged by top-level key, whole values replaced; None clears. Rule: CREATE-7."""
    if new is None or not old:
        return new
    return freeze_object({**old, **new})
