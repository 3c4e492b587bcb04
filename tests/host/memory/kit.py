"""What the tests of the memory share: messages, folds, a clock."""

from collections.abc import Iterable
from typing import Any

from aalis_api_session_manager.memory import Change, Changeset, Fold, MetadataRow
from aalis_api_session_manager.message import Message, ToolCall

HOUR = 3_600_000


class Clock:
    """Milliseconds since the epoch, moved by hand."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def text(content: str = "hello", timestamp: int = 1, **fields: Any) -> Message:
    return Message(**{"session_id": "s", "role": "user", "content": content, "timestamp": timestamp, **fields})


def mark(timestamp: int = 1, **fields: Any) -> Message:
    return text("mark", timestamp, kind="control", **fields)


def tool_call(timestamp: int = 1, content: str = "", **fields: Any) -> Message:
    call = ToolCall(id="c1", name="look", arguments='{"at":1}')
    return text(content, timestamp, role="assistant", tool_calls=[call], **fields)


def tool_result(timestamp: int = 1, **fields: Any) -> Message:
    return text("found", timestamp, role="tool", tool_call_id="c1", name="look", **fields)


def contents(messages: Iterable[Message]) -> list[str]:
    return [message.content for message in messages]


def put(key: str, data: dict[str, Any] | None, base: int = 0, fold: Fold | None = None) -> Changeset:
    """One change of `things/key`; unless a fold is given, a stale one is a mistake of the test."""
    return Changeset(changes=(change(key, data, base, fold),))


def change(key: str, data: dict[str, Any] | None, base: int = 0, fold: Fold | None = None) -> Change:
    return Change(namespace="things", key=key, base=base, data=data, fold=fold or _never)


def _never(stored: dict[str, Any] | None) -> dict[str, Any] | None:
    raise AssertionError(f"not expected to be folded again, on {stored}")


def add(amount: int = 1) -> Fold:
    """Adds to the record's `n`."""
    return lambda stored: {**(stored or {}), "n": (stored or {}).get("n", 0) + amount}


def by_key(rows: Iterable[MetadataRow]) -> dict[str, Any]:
    return {row.key: row.data for row in rows}


def generation(session_id: str, number: int) -> Changeset:
    """Raises a session's stored generation to `number`, if it is lower."""
    return Changeset(changes=(), generations={session_id: number})
