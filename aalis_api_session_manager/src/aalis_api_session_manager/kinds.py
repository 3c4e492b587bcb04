"""The pure rules on records. Nothing here reads an id's spelling. Rule: KIND-3."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from aalis_api_session_manager.message import HISTORY_SOURCE, ClearRequest, ClearRow, IncomingMessage
from aalis_api_session_manager.model import OriginChat, SessionInfo, SessionKind
from aalis_api_session_manager.service import ServiceSelection, SessionManagerService

__all__ = [
    "IsOwner",
    "RoomClass",
    "SessionLookup",
    "chat_scope_of",
    "from_elsewhere",
    "history_cleared",
    "is_unfiled",
    "origin_chat_of",
    "room_class",
    "root_session_of",
    "session_kind",
    "window_key",
]

RoomClass = Literal["room", "owner-only", "internal"]
SessionLookup = Callable[[str], SessionInfo | None]
IsOwner = Callable[[str, str], bool]
"""(platform, user id) -> is this an owner's identity."""


def session_kind(parent_id: str | None, origin_platform: str | None) -> SessionKind:
    """A child is a `task`; a root with an origin platform a `room`; any other an `owner`. Rule: KIND-1."""
    if parent_id is not None:
        return "task"
    return "owner" if origin_platform is None else "room"


def is_unfiled(root: SessionInfo) -> bool:
    """A root made by id that nothing is known of: no origin platform, creation source or binding. Rule: CREATE-9."""
    return root.parent_id is None and root.origin_platform is None and root.created_from is None and root.work is None


def root_session_of(session_id: str, lookup: SessionLookup) -> SessionInfo | None:
    """The root that the parent chain of a session ends in.

    None when the session isn't in the table, the chain is broken, or it is a cycle.
    """
    seen: set[str] = set()
    session = lookup(session_id)
    while session is not None and session.parent_id is not None:
        if session.id in seen:
            return None
        seen.add(session.id)
        session = lookup(session.parent_id)
    return session


def room_class(info: SessionInfo | None, lookup: SessionLookup, is_owner: IsOwner) -> RoomClass:
    """Who is in the audience, decided on the root. Rules: ROOM-1, ROOM-2, ROOM-3.

    `info` None, or one whose root can't be told, is `internal`.
    """
    root = info if info is None or info.parent_id is None else root_session_of(info.parent_id, lookup)
    if root is None:
        return "internal"
    if root.origin_platform is None:
        return "internal" if root.created_from is None else "owner-only"
    chat = root.origin_chat
    if chat is None or chat.multi_party:
        return "room"
    return "owner-only" if is_owner(root.origin_platform, chat.target_id) else "room"


def origin_chat_of(session_id: str, sessions: ServiceSelection[SessionManagerService]) -> OriginChat | None:
    """The chat window of the session's root; None without a session manager, record or window. Rule: ORIGIN-4."""
    if not sessions.present:
        return None
    root = root_session_of(session_id, sessions.use().get_session)
    return None if root is None else root.origin_chat


def from_elsewhere(message: IncomingMessage, sessions: ServiceSelection[SessionManagerService]) -> bool:
    """The message entered by another platform than the room's; False when it can't be told. Rule: ORIGIN-5."""
    if message.session_id is None or not sessions.present:
        return False
    root = root_session_of(message.session_id, sessions.use().get_session)
    if root is None or root.origin_platform is None:
        return False
    return root.origin_platform != message.platform


def chat_scope_of(message: IncomingMessage, session_types: Mapping[str, bool]) -> OriginChat:
    """The chat window of a native message, by its platform's declarations (type name -> multi-party).

    A type that isn't declared is taken as multi-party when the message carries a group. Rule: ORIGIN-2.
    """
    type_name = message.session_type or ""
    multi_party = session_types.get(type_name, message.group_id is not None)
    return OriginChat(
        type=type_name,
        multi_party=multi_party,
        target_id=(message.group_id if multi_party else message.peer_id or message.user_id) or "",
        self_id=message.self_id,
    )


def window_key(platform: str, type_name: str, target_id: str) -> str:
    """`platform:type:target`; a missing part is an empty string. Rules: PLACE-2, PLACE-3.

    Only the target may hold a colon, so that two windows never share a key. Raises ValueError otherwise.
    """
    if ":" in platform or ":" in type_name:
        raise ValueError(f"platform and type names can't contain a colon: {platform!r}, {type_name!r}")
    return f"{platform}:{type_name}:{target_id}"


def history_cleared(request: ClearRequest, rows: Iterable[ClearRow]) -> bool:
    """The message history was asked to be cleared, and was. Rule: CLEAR-1."""
    if request.types and "context" not in request.types:
        return False
    return any(row.source == HISTORY_SOURCE and row.success for row in rows)
