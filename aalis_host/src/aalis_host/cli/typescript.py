"""The database of the TypeScript Aalis, read as it is.

Two tables: `messages` and `metadata` (namespace, key, JSON text). The file is never written to, and nothing is put
beside it: where it has an unmerged log (`-wal`), a copy of both is read.
"""

import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args
from urllib.parse import quote

import orjson

from aalis_api_session_manager.message import Message, MessageRole, ToolCall
from aalis_api_session_manager.values import freeze_object, thaw_json
from aalis_host.cli.base import Mistake
from aalis_host.cli.texts import text

__all__ = ["Source", "opened_source"]

_TABLES = {
    "messages": {"id", "sessionId", "role", "content", "timestamp"},
    "metadata": {"namespace", "key", "data"},
}
_OPTIONAL = (
    "kind",
    "toolCalls",
    "toolCallId",
    "name",
    "archived",
    "metadata",
    "createdAt",
    "reasoningContent",
    "segments",
)
_ROLES = get_args(MessageRole)
_CONTROL_KINDS = ("event-marker",)
_DERIVED = ("children", "kind")
_KEPT = ("config", "createdBy")
"""Fields of a session that have no field of their own any more: they stand in its metadata."""


class Source:
    """One database, opened. Rows that can't be brought in are answered as the reason why."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def count(self) -> tuple[int, int]:
        """How many sessions and messages there are."""
        (sessions,) = self._db.execute("SELECT count(*) FROM metadata WHERE namespace = 'sessions'").fetchone()
        (messages,) = self._db.execute("SELECT count(*) FROM messages").fetchone()
        return sessions, messages

    def sessions(self) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Each session's id with its record in today's stored form, or why there is none."""
        for key, data in self._db.execute("SELECT key, data FROM metadata WHERE namespace = 'sessions' ORDER BY key"):
            yield str(key), _session(str(key), data)

    def messages(self) -> Iterator[tuple[int, Message | str]]:
        """Each message with its number there, in order, or why it can't be read."""
        there = [row[1] for row in self._db.execute("PRAGMA table_info(messages)")]
        columns = ["id", "sessionId", "role", "content", "timestamp", *(name for name in _OPTIONAL if name in there)]
        for row in self._db.execute(f"SELECT {', '.join(columns)} FROM messages ORDER BY id"):
            values = dict(zip(columns, row, strict=True))
            try:
                yield values["id"], _message(values)
            except (TypeError, ValueError) as error:
                yield values["id"], str(error)


@contextmanager
def opened_source(path: Path) -> Iterator[Source]:
    """Open a database for reading. Raises Mistake for what is none of theirs."""
    try:
        with _untouched(path) as readable, closing(_connect(readable)) as db:
            for table, needed in _TABLES.items():
                missing = needed - {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
                if missing:
                    raise Mistake(
                        text("import.not-theirs", path=path, reason=f"{table} lacks {', '.join(sorted(missing))}")
                    )
            yield Source(db)
    except OSError as error:
        raise Mistake(text("unreadable", path=path, reason=error.strerror)) from error
    except sqlite3.DatabaseError as error:
        raise Mistake(text("import.not-theirs", path=path, reason=error)) from error


@contextmanager
def _untouched(path: Path) -> Iterator[Path]:
    path.open("rb").close()
    log = path.with_name(f"{path.name}-wal")
    if not log.exists() or not log.stat().st_size:
        yield path
        return
    with TemporaryDirectory(prefix="aalis-") as folder:
        copy = Path(folder) / "copy.db"
        shutil.copyfile(path, copy)
        shutil.copyfile(log, copy.with_name("copy.db-wal"))
        with closing(sqlite3.connect(copy)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        yield copy


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    db.text_factory = lambda raw: raw.decode(errors="replace")
    return db


def _session(key: str, data: Any) -> dict[str, Any] | str:
    try:
        record = orjson.loads(data)
        if not isinstance(record, dict) or record.get("id") != key:
            return "its id isn't its key" if isinstance(record, dict) else "it isn't a JSON object"
        metadata = record.pop("metadata", None)
        kept = dict(metadata) if isinstance(metadata, dict) else {}
        for name in _KEPT:
            if (value := record.pop(name, None)) is not None:
                kept[name if name not in kept else f"{name} (imported)"] = value
        own = {name: value for name, value in record.items() if name not in _DERIVED and value is not None}
        made: dict[str, Any] = thaw_json(freeze_object({**own, **({"metadata": kept} if kept else {})}))
    except (TypeError, ValueError) as error:
        return str(error)
    return made


def _message(row: Mapping[str, Any]) -> Message:
    """Everything that has no field of its own any more, or can't be read, stands in the metadata."""
    metadata, role, kind = _json(row, "metadata"), row["role"], row.get("kind")
    known = metadata if isinstance(metadata, dict) else {}
    calls, unread = _tool_calls(row)
    more = {
        "metadata": None if known is metadata else metadata,
        "role": None if role in _ROLES else role,
        "kind": kind,
        "reasoningContent": row.get("reasoningContent"),
        "segments": _json(row, "segments"),
        "toolCalls": unread,
    }
    kept = {**known, **{name: value for name, value in more.items() if value is not None}}
    return Message(
        session_id=_words(row["sessionId"]),
        role=role if role in _ROLES else "system",
        kind="control" if kind in _CONTROL_KINDS else "message",
        content=_words(row["content"]),
        timestamp=_milliseconds(row),
        platform=_known(known, "platform"),
        user_id=_known(known, "userId"),
        user_name=_known(known, "nickname"),
        message_id=f"aalis-ts:{row['id']}",
        tool_calls=calls,
        tool_call_id=row.get("toolCallId"),
        name=row.get("name") if role == "tool" else None,
        archived=bool(row.get("archived")),
        metadata=kept or None,
    )


def _tool_calls(row: Mapping[str, Any]) -> tuple[tuple[ToolCall, ...], Any]:
    """The calls, or what stands there when it has another form."""
    raw = _json(row, "toolCalls")
    try:
        functions = [(call["id"], call["function"]) for call in raw or ()]
        return tuple(ToolCall(id=id_, name=one["name"], arguments=one["arguments"]) for id_, one in functions), None
    except (KeyError, TypeError):
        return (), raw


def _json(row: Mapping[str, Any], name: str) -> Any:
    """The column's JSON value; its text where that is none."""
    try:
        return orjson.loads(row.get(name) or "null")
    except orjson.JSONDecodeError:
        return _words(row[name])


def _words(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)


def _known(metadata: Mapping[str, Any], name: str) -> str | None:
    value = metadata.get(name)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) and value != "" else None


def _milliseconds(row: Mapping[str, Any]) -> int:
    """When it was said; where that is missing, when it was stored (`datetime('now')`, UTC)."""
    if isinstance(row["timestamp"], int | float):
        return round(row["timestamp"])
    if isinstance(row.get("createdAt"), str):
        return round(datetime.fromisoformat(row["createdAt"]).replace(tzinfo=UTC).timestamp() * 1000)
    raise ValueError("timestamp is no number")
