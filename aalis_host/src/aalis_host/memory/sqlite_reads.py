"""The read side of the SQLite file. Every query is a range of an index."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aalis_api_session_manager.memory import Changes, MetadataRow, Page, Position, RecentSession
from aalis_host.memory import sqlite_counts as counts
from aalis_host.memory.paging import LAST, bounds, clamped
from aalis_host.memory.readers import PageRequest, RecentRequest
from aalis_host.memory.rows import COLUMNS, decode_message, decode_metadata

__all__ = ["SqliteReads"]

_RECORDS: Final = "SELECT namespace, key, revision, CAST(data AS BLOB) FROM metadata"

_COLUMNS: Final = ", ".join(f"messages.{column}" for column in COLUMNS)

_RECENT: Final = (
    f"SELECT recent.session_id, {_COLUMNS} FROM recent INDEXED BY %s CROSS JOIN messages ON messages.number = recent.id"
    " WHERE %s (recent.timestamp, recent.id) >= (?, 0) AND (recent.timestamp, recent.id) < (?, ?)"
    " ORDER BY recent.timestamp DESC, recent.id DESC"
)

_RECENT_ALL: Final = _RECENT % ("recent_order", "")
_RECENT_PLATFORM: Final = _RECENT % ("recent_platform", "recent.platform = ? AND")


def _page_query(include_archived: bool, include_tools: bool, direction: str) -> str:
    index, condition = counts.shown_condition(include_archived, include_tools)
    return (
        f"SELECT {_COLUMNS} FROM messages INDEXED BY {index} WHERE session_id = ? AND {condition}"
        " AND (timestamp, id) >= (?, ?) AND (timestamp, id) < (?, ?)"
        f" ORDER BY timestamp {direction}, id {direction} LIMIT ?"
    )


_PAGE: Final = {
    (archived, tools, forward): _page_query(archived, tools, "ASC" if forward else "DESC")
    for archived in (False, True)
    for tools in (False, True)
    for forward in (False, True)
}


class SqliteReads:
    """A `ReadStore` on one SQLite connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _one_state(self) -> Iterator[None]:
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    def page(self, request: PageRequest) -> Page:
        session_id, archived, tools = request.session_id, request.include_archived, request.include_tools
        asked = bounds(request)
        low, high = asked.inside
        values = (session_id, low.timestamp, low.id, high.timestamp, high.id, request.limit)
        with self._one_state():
            rows = self._db.execute(_PAGE[archived, tools, asked.forward], values).fetchall()
            messages = tuple(decode_message(row) for row in (rows if asked.forward else reversed(rows)))
            older, newer = (
                counts.count(self._db, session_id, *span, archived, tools) for span in asked.left_out(messages)
            )
        return Page(messages=messages, older=older, newer=newer)

    def recent(self, request: RecentRequest) -> list[RecentSession]:
        since, before = clamped(Position(request.since_ts, 0)), clamped(request.before or LAST)
        values = (since.timestamp, before.timestamp, before.id)
        if request.platform is None:
            rows = self._db.execute(_RECENT_ALL, values)
        else:
            rows = self._db.execute(_RECENT_PLATFORM, (request.platform, *values))
        found: list[RecentSession] = []
        try:
            while len(found) < request.limit and (row := rows.fetchone()) is not None:
                if row[0] not in request.exclude:
                    found.append(RecentSession(session_id=row[0], message=decode_message(row[1:])))
        finally:
            rows.close()
        return found

    def record(self, namespace: str, key: str) -> MetadataRow | None:
        row = self._db.execute(
            f"{_RECORDS} WHERE namespace = ? AND key = ? AND data IS NOT NULL", (namespace, key)
        ).fetchone()
        return None if row is None else decode_metadata(*row)

    def records(self, namespace: str, after_key: str | None, limit: int | None) -> list[MetadataRow]:
        beyond, values = ("", ()) if after_key is None else ("AND key > ?", (after_key,))
        rows = self._db.execute(
            f"{_RECORDS} WHERE namespace = ? {beyond} AND data IS NOT NULL ORDER BY key LIMIT ?",
            (namespace, *values, -1 if limit is None else limit),
        )
        return [decode_metadata(*row) for row in rows]

    def generations(self) -> dict[str, int]:
        return dict(self._db.execute("SELECT session_id, generation FROM generations").fetchall())

    def revision(self) -> int:
        return int(self._db.execute("SELECT revision FROM state").fetchone()[0])

    def changes(self, after_revision: int) -> Changes:
        with self._one_state():
            revision, pruned = self._db.execute("SELECT revision, pruned FROM state").fetchone()
            if not pruned <= after_revision <= revision:
                return Changes(rows=(), generations=self.generations(), revision=revision, complete=False)
            rows = self._db.execute(f"{_RECORDS} WHERE revision > ? ORDER BY revision", (after_revision,)).fetchall()
            raised = self._db.execute(
                "SELECT session_id, generation FROM generations WHERE revision > ?", (after_revision,)
            ).fetchall()
        return Changes(rows=tuple(decode_metadata(*row) for row in rows), generations=dict(raised), revision=revision)
