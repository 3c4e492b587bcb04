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

COLUMNS: Final = (
    "id",
    "session_id",
    "timestamp",
    "shown",
    "archived",
    "generation",
    "role",
    "content",
    "platform",
    "user_id",
    "user_name",
    "message_id",
    "tool_calls",
    "tool_call_id",
    "name",
    "metadata",
)
"""The columns of a stored message, in the order of `encode_message` and `decode_message`."""


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
        shown_as(message),
        int(message.archived),
        generation,
        message.role,
        message.content,
        message.platform,
        message.user_id,
        message.user_name,
        message.message_id,
        encode_json(calls) if calls else None,
        message.tool_call_id,
        message.name,
        None if message.metadata is None else encode_json(message.metadata),
    )


def decode_message(row: Sequence[Any]) -> Message:
    """A message from the values of `COLUMNS`; an unreadable part is named in the log and left out."""
    number, session_id, timestamp, shown, archived, generation, role, content, platform, user_id, user_name = row[:11]
    message_id, calls, tool_call_id, name, metadata = row[11:]
    message = Message.__new__(Message)
    # Restored as unpickling does it, without converters and validators: what is stored went through them when it
    # was made, and they are half the time of a page.
    message.__setstate__(  # type: ignore[attr-defined]  # attrs gives it to classes with slots
        {
            "id": number,
            "session_id": session_id,
            "timestamp": timestamp,
            "kind": "message" if shown else "control",
            "archived": bool(archived),
            "generation": generation,
            "role": role,
            "content": content,
            "platform": platform,
            "user_id": user_id,
            "user_name": user_name,
            "message_id": message_id,
            "tool_calls": () if calls is None else _decode_calls(session_id, number, calls),
            "tool_call_id": tool_call_id,
            "name": name,
            "metadata": None if metadata is None else _decode_object(session_id, number, metadata),
        }
    )
    return message


def _decode_calls(session_id: str, number: int, text: str) -> tuple[ToolCall, ...]:
    try:
        return tuple(ToolCall(**call) for call in orjson.loads(text))
    except (ValueError, TypeError):
        _log.warning("session %r: the tool calls of message %d can't be read", session_id, number)
        return ()


def _decode_object(session_id: str, number: int, text: str) -> Any:
    try:
        data = orjson.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        _log.warning("session %r: the metadata of message %d can't be read", session_id, number)
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
