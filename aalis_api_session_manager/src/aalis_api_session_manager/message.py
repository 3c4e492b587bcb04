"""Messages, turns, usage and clearing: what travels between platforms, gateway, agent and stores."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from attrs import field, frozen

from aalis_api_session_manager.model import Identity, TurnOutcome
from aalis_api_session_manager.text import TextRef, text_or_ref
from aalis_api_session_manager.values import clean_text, freeze_object, optional_text

__all__ = [
    "HISTORY_SOURCE",
    "ClearRequest",
    "ClearRow",
    "IncomingMessage",
    "LlmUsage",
    "Message",
    "MessageRole",
    "OutgoingMessage",
    "ToolCall",
    "ToolCallContext",
    "TurnEnd",
    "TurnStart",
]

MessageRole = Literal["user", "assistant", "tool", "system"]

HISTORY_SOURCE: Final = "history"
"""`ClearRow.source` of the store that holds the messages. Rule: CLEAR-1."""


@frozen(kw_only=True)
class IncomingMessage:
    """A message on its way in.

    `platform` is where it entered. `source` is None for a native message (one that an adapter received);
    anything else names who made it. `session_type`, `group_id`, `group_name`, `self_id` are what the
    platform said of the window; `own` marks what the bot's own account sent. `timestamp` in milliseconds is
    the event's own time, None means now. `mentioned`: it is addressed to the bot. `proactive_depth` and
    `trigger_type` as rule DELEG-2 says. `actor` is whom it acts for when that isn't its sender. `peer_id` is
    the other account of a one-to-one window; left out, it is the sender (an `own` message must name it).
    """

    session_id: str | None = field(default=None, converter=optional_text)
    platform: str = field(converter=clean_text)
    content: str = field(converter=clean_text)
    timestamp: int | None = None
    message_id: str | None = field(default=None, converter=optional_text)
    user_id: str | None = field(default=None, converter=optional_text)
    user_name: str | None = field(default=None, converter=optional_text)
    session_type: str | None = field(default=None, converter=optional_text)
    group_id: str | None = field(default=None, converter=optional_text)
    group_name: str | None = field(default=None, converter=optional_text)
    self_id: str | None = field(default=None, converter=optional_text)
    peer_id: str | None = field(default=None, converter=optional_text)
    source: str | None = field(default=None, converter=optional_text)
    trigger_type: str | None = field(default=None, converter=optional_text)
    proactive_depth: int | None = None
    mentioned: bool = False
    own: bool = False
    actor: Identity | None = None

    @property
    def native(self) -> bool:
        """An adapter received it; nobody made it."""
        return self.source is None

    @property
    def participants(self) -> tuple[Identity, ...]:
        """Whom the turn of this message acts for: the `actor`, else the sender, else nobody. Rule: TAKE-8."""
        if self.actor is not None:
            return (self.actor,)
        if self.user_id:
            return (Identity(platform=self.platform, user_id=self.user_id),)
        return ()


@frozen(kw_only=True)
class OutgoingMessage:
    """A message on its way to a session's audience; the gateway finds the adapter that claims the session."""

    session_id: str = field(converter=clean_text)
    content: str = field(converter=clean_text)
    turn_id: str | None = None
    reply_to: str | None = None


@frozen(kw_only=True)
class ToolCall:
    """A call that a model asked for. `arguments` is the JSON text as the model wrote it, checked by nobody yet."""

    id: str = field(converter=clean_text)
    name: str = field(converter=clean_text)
    arguments: str = field(converter=clean_text)


@frozen(kw_only=True)
class Message:
    """A stored message.

    `id` is the store's own number (0 before it is saved); `timestamp` in milliseconds. Order is
    (timestamp, id). `message_id` is the platform's id, unique in its session. `kind` "control" is a mark
    that no reader is shown (rule HIST-9). `generation` as rule GEN-5 says.
    """

    session_id: str = field(converter=clean_text)
    role: MessageRole
    content: str = field(converter=clean_text)
    timestamp: int
    id: int = 0
    kind: Literal["message", "control"] = "message"
    platform: str | None = field(default=None, converter=optional_text)
    user_id: str | None = field(default=None, converter=optional_text)
    user_name: str | None = field(default=None, converter=optional_text)
    message_id: str | None = field(default=None, converter=optional_text)
    tool_calls: tuple[ToolCall, ...] = field(default=(), converter=tuple[ToolCall, ...])
    tool_call_id: str | None = field(default=None, converter=optional_text)
    name: str | None = field(default=None, converter=optional_text)
    archived: bool = False
    generation: int = 0
    metadata: Mapping[str, Any] | None = field(default=None, converter=freeze_object, hash=False)


@frozen(kw_only=True)
class ToolCallContext:
    """Where and for whom a tool is called.

    `session_id` is the calling session, `platform` the one its turn's message entered by, `approve_for` the
    participants (rule TAKE-8), `turn_id` None outside a turn.
    """

    session_id: str
    platform: str | None = None
    approve_for: tuple[Identity, ...] = field(default=(), converter=tuple[Identity, ...])
    turn_id: str | None = None


@frozen(kw_only=True)
class TurnStart:
    """A turn began. `turn_id` is unique over all processes."""

    turn_id: str
    message: IncomingMessage
    session_id: str
    started_at: int


@frozen(kw_only=True)
class TurnEnd:
    """A turn ended; every `TurnStart` has one. `outcome` None: it was intercepted. `error` only for `error`."""

    turn_id: str
    message: IncomingMessage
    session_id: str
    ended_at: int
    outcome: TurnOutcome | None = None
    reply: str | None = field(default=None, converter=optional_text)
    error: str | TextRef | None = field(default=None, converter=text_or_ref)


@frozen(kw_only=True)
class LlmUsage:
    """Tokens that one model call used, for whatever purpose. Rule: USAGE-1."""

    session_id: str | None
    input_tokens: int = 0
    output_tokens: int = 0


@frozen(kw_only=True)
class ClearRequest:
    """Ask every store to clear its own. Rules: DELETE-1, CLEAR-1, GEN-5.

    `types` empty means everything; `context` is the message history. `below_generation`: remove only what
    belongs to a lower generation (a deletion), None: all. Raises ValueError for a scope `session` without an
    id, or `all` with one.
    """

    scope: Literal["session", "all"]
    session_id: str | None = None
    types: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    below_generation: int | None = None

    def __attrs_post_init__(self) -> None:
        if (self.scope == "session") == (self.session_id is None):
            raise ValueError("the scope `session` needs a session id, and `all` takes none")


@frozen(kw_only=True)
class ClearRow:
    """What one store did with a `ClearRequest`. `source` names it; the message history is `HISTORY_SOURCE`."""

    source: str
    success: bool
    message: str = ""
