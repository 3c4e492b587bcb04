"""The cursor: an opaque token for a place in one session's window, that the tool takes back. Rule: HIST-9."""

import base64
import binascii
import json
from hashlib import blake2b
from typing import Literal

from attrs import field, frozen

from aalis_api_session_manager.memory import Position
from aalis_plugin_tool_session.texts import Refused, text

__all__ = ["Cursor", "Side", "read_cursor"]

Side = Literal["older", "newer"]
_VERSION = 1
_DIGEST = 6


@frozen
class Cursor:
    """Where to go on: `older` than the position, or `newer`, in the window and with the switches it was made for."""

    side: Side
    position: Position
    since_ts: int | None = field(kw_only=True)
    until_ts: int | None = field(kw_only=True)
    include_archived: bool = field(kw_only=True)
    include_tools: bool = field(kw_only=True)

    def token(self, session_id: str) -> str:
        """The text form, bound to the session."""
        place = (self.position.timestamp, self.position.id)
        window = (self.since_ts, self.until_ts, self.include_archived, self.include_tools)
        body = json.dumps((_VERSION, self.side, place, *window), separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(_sealed(body + _digest(session_id.encode()))).decode().rstrip("=")


def read_cursor(token: str, session_id: str) -> Cursor:
    """The cursor of a token. Raises Refused for one that can't be read or belongs to another session."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars="-_", validate=True)
    except (ValueError, binascii.Error):
        raise Refused(text("cursor.unreadable")) from None
    content = raw[:-_DIGEST]
    body, owner = content[:-_DIGEST], content[-_DIGEST:]
    if raw != _sealed(content) or not body.startswith(b"[%d," % _VERSION):
        raise Refused(text("cursor.unreadable"))
    if owner != _digest(session_id.encode()):
        raise Refused(text("cursor.other-session"))
    _, side, position, since_ts, until_ts, include_archived, include_tools = json.loads(body)
    return Cursor(
        side,
        Position(*position),
        since_ts=since_ts,
        until_ts=until_ts,
        include_archived=include_archived,
        include_tools=include_tools,
    )


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST).digest()


def _sealed(content: bytes) -> bytes:
    """With a check against mangling. A forged cursor reaches nothing that its session may not read anyway."""
    return content + _digest(content)
