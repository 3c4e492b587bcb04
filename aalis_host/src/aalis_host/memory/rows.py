"""What both back ends store of a message and of a metadata record, and how it is read back."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from aalis_api_session_manager.memory import MetadataRow
from aalis_api_session_manager.message import Message, ToolCall
from aalis_api_session_manager.values import freeze_json

__all__ = [
    "COLUMNS",
    "CONTROL",
    "TEXT",
    "TOOL",
    "decode_message",
    "decode_metadata",
    "encode_json",
    "encode_message",
    "shown_as",
]

_log = logging.getLogger(__name__)

CONTROL: Final = 0
TEXT: Final = 1
TOOL: Final = 2

_AS_THEY_ARE: Final = (
    "id",
    "session_id",
    "timestamp",
    "generation",
    "role",
    "content",
    "platform",
    "user_id",
    "user_name",
    "message_id",
    "tool_call_id",
    "name",
)

COLUMNS: Final = (*_AS_THEY_ARE, "shown", "archived", "tool_calls", "metadata")
"""The columns of a stored message, in the order of `encode_message` and `decode_message`."""

# A stored message is restored field by field, without the class's converters and validators: what is stored went
# through them when it was made, and they are half the time of a page.
_PUT_AS_THEY_ARE: Final = tuple(getattr(Message, name).__set__ for name in _AS_THEY_ARE)
_PUT_KIND, _PUT_ARCHIVED, _PUT_CALLS, _PUT_METADATA = (
    getattr(Message, name).__set__ for name in ("kind", "archived", "tool_calls", "metadata")
)


def shown_as(message: Message) -> int:
    """CONTROL is never shown; TOOL is a tool's result, or calls without text; TEXT is the rest. Rule: HIST-9."""
    if message.kind == "control":
        return CONTROL
    if message.role == "tool" or (message.role == "assistant" and message.tool_calls and not message.content.strip()):
        return TOOL
    return TEXT


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} isn't a JSON value")


def encode_json(value: Any) -> str:
    """JSON text. Raises TypeError for what JSON doesn't have."""
    return orjson.dumps(value, default=_plain).decode()


def encode_message(number: int, session_id: str, message: Message, generation: int) -> tuple[Any, ...]:
    """The values of `COLUMNS`."""
    calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return (
        number,
        session_id,
        message.timestamp,
        generation,
        message.role,
        message.content,
        message.platform,
        message.user_id,
        message.user_name,
        message.message_id,
        message.tool_call_id,
        message.name,
        shown_as(message),
        int(message.archived),
        encode_json(calls) if calls else None,
        None if message.metadata is None else encode_json(message.metadata),
    )


def decode_message(row: Sequence[Any]) -> Message:
    """A message from the values of `COLUMNS`; an unreadable part is named in the log and left out."""
    message = Message.__new__(Message)
    for put, value in zip(_PUT_AS_THEY_ARE, row, strict=False):
        put(message, value)
    shown, archived, calls, metadata = row[len(_AS_THEY_ARE) :]
    _PUT_KIND(message, "message" if shown else "control")
    _PUT_ARCHIVED(message, bool(archived))
    _PUT_CALLS(message, () if calls is None else _decode_calls(message, calls))
    _PUT_METADATA(message, None if metadata is None else _decode_object(message, metadata))
    return message


def _decode_calls(message: Message, text: str) -> tuple[ToolCall, ...]:
    try:
        return tuple(ToolCall(**call) for call in orjson.loads(text))
    except (ValueError, TypeError):
        _log.warning("session %r: the tool calls of message %d can't be read", message.session_id, message.id)
        return ()


def _decode_object(message: Message, text: str) -> Any:
    try:
        data = orjson.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        _log.warning("session %r: the metadata of message %d can't be read", message.session_id, message.id)
        return None
    return freeze_json(data)


def decode_metadata(namespace: str, key: str, revision: int, text: bytes | str | None) -> MetadataRow:
    """A record from its stored text; None means that it was removed. Rule: STORE-4."""
    if text is None:
        return MetadataRow(namespace=namespace, key=key, revision=revision, data=None)
    try:
        data = orjson.loads(text)
    except ValueError:
        data = None
    if isinstance(data, dict):
        return MetadataRow(namespace=namespace, key=key, revision=revision, data=data)
    damaged = text if isinstance(text, str) else text.decode(errors="replace")
    return MetadataRow(namespace=namespace, key=key, revision=revision, data=None, damaged=damaged)
