"""A table of sessions and a selection of its service, as small as the pure rules need them."""

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from aalis_api_session_manager.errors import ServiceNotFound
from aalis_api_session_manager.message import IncomingMessage
from aalis_api_session_manager.model import Identity, OriginChat, SessionInfo
from aalis_api_session_manager.take import TakeVerdict

GROUP = OriginChat(type="group", multi_party=True, target_id="900")
PEER = OriginChat(type="private", multi_party=False, target_id="7")


def session(session_id: str = "s", **fields: Any) -> SessionInfo:
    """A record with the fields given."""
    return SessionInfo(id=session_id, **{"created_at": 1, "updated_at": 1, **fields})


def room(session_id: str = "s", *, chat: OriginChat | None = GROUP, **fields: Any) -> SessionInfo:
    """The root of an IM room of the platform `onebot`."""
    return session(session_id, **{"kind": "room", "origin_platform": "onebot", "origin_chat": chat, **fields})


def message(**fields: Any) -> IncomingMessage:
    """A native message of the platform `onebot` to the session `s`."""
    return IncomingMessage(**{"session_id": "s", "platform": "onebot", "content": "hello", **fields})


def is_owner(platform: str, user_id: str) -> bool:
    """The owner has the account 1 on `onebot` and `owner` on `cli`."""
    return (platform, user_id) in {("onebot", "1"), ("cli", "owner")}


class Table:
    """What the pure rules ask of a session manager: `get_session` and `can_take`."""

    def __init__(self, *sessions: SessionInfo) -> None:
        self.sessions: Mapping[str, SessionInfo] = {session.id: session for session in sessions}
        self.asked: list[tuple[str, str, Identity | None]] = []

    def get_session(self, session_id: str) -> SessionInfo | None:
        """The record, or None."""
        return self.sessions.get(session_id)

    def can_take(self, current_id: str, target_id: str, principal: Identity | None = None) -> TakeVerdict:
        """Refuses everything, and remembers who asked."""
        self.asked.append((current_id, target_id, principal))
        return TakeVerdict(False)

    def renamed(self, rename: Mapping[str, str]) -> "Table":
        """The same sessions under other ids."""
        return Table(
            *(
                evolve(s, id=rename[s.id], parent_id=None if s.parent_id is None else rename[s.parent_id])
                for s in self.sessions.values()
            )
        )


@frozen
class Selection:
    """A service selection that holds a table, or nothing."""

    table: Any = None

    @property
    def present(self) -> bool:
        """There is a table."""
        return self.table is not None

    def use(self) -> Any:
        """The table, or ServiceNotFound."""
        if self.table is None:
            raise ServiceNotFound("session-manager")
        return self.table
