"""The read side of the PostgreSQL database. Reads that belong together are one snapshot."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg

from aalis_api_session_manager.memory import (
    Changes,
    MetadataRow,
    Page,
    Position,
    RecentSession,
)
from aalis_host.memory.paging import LAST, bounds, clamped
from aalis_host.memory.postgres_counts import count, shown_condition
from aalis_host.memory.postgres_pool import Connection, Pool, on_connection
from aalis_host.memory.readers import PageRequest, RecentRequest
from aalis_host.memory.rows import COLUMNS, decode_message, decode_metadata

__all__ = ["PostgresReads"]

T = TypeVar("T")

_COLUMNS: Final = ", ".join(f"messages.{column}" for column in COLUMNS)

_RECORDS: Final = "SELECT namespace, key, revision, data FROM aalis.metadata"

_GENERATIONS: Final = "SELECT session_id, generation FROM aalis.generations"


class PostgresReads:
    """A `ReadStore` on a pool of connections whose transactions are read-only snapshots; others may use it too."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def close(self) -> None:
        self._pool.close()

    def _read(self, work: Callable[[Connection], T]) -> T:
        return on_connection(self._pool, work)

    def page(self, request: PageRequest) -> Page:
        return self._read(lambda db: self._page(db, request))

    def _page(self, db: Connection, request: PageRequest) -> Page:
        session_id, archived, tools = request.session_id, request.include_archived, request.include_tools
        asked = bounds(request)
        low, high = asked.inside
        direction = "ASC" if asked.forward else "DESC"
        with db.transaction():
            rows = db.execute(
                f"SELECT {_COLUMNS} FROM aalis.messages WHERE session_id = %s AND {shown_condition(archived, tools)}"
                " AND (timestamp, id) >= (%s, %s) AND (timestamp, id) < (%s, %s)"
                f" ORDER BY timestamp {direction}, id {direction} LIMIT %s",
                (session_id, low.timestamp, low.id, high.timestamp, high.id, request.limit),
            ).fetchall()
            messages = tuple(decode_message(row) for row in (rows if asked.forward else reversed(rows)))
            older, newer = (count(db, session_id, span, archived, tools) for span in asked.left_out(messages))
        return Page(messages=messages, older=older, newer=newer)

    def recent(self, request: RecentRequest) -> list[RecentSession]:
        since, before = clamped(Position(request.since_ts, 0)), clamped(request.before or LAST)
        platform, values = ("", ()) if request.platform is None else ("recent.platform = %s AND", (request.platform,))
        rows = self._read(
            lambda db: db.execute(
                f"SELECT recent.session_id, {_COLUMNS} FROM aalis.recent JOIN aalis.messages ON messages.id = recent.id"
                f" WHERE {platform} (recent.timestamp, recent.id) >= (%s, 0)"
                " AND (recent.timestamp, recent.id) < (%s, %s) AND recent.session_id <> ALL(%s)"
                " ORDER BY recent.timestamp DESC, recent.id DESC LIMIT %s",
                (*values, since.timestamp, before.timestamp, before.id, list(request.exclude), request.limit),
            ).fetchall()
        )
        return [RecentSession(session_id=row[0], message=decode_message(row[1:])) for row in rows]

    def record(self, namespace: str, key: str) -> MetadataRow | None:
        statement = f"{_RECORDS} WHERE namespace = %s AND key = %s AND data IS NOT NULL"
        row = self._read(lambda db: db.execute(statement, (namespace, key)).fetchone())
        return None if row is None else decode_metadata(*row)

    def records(self, namespace: str, after_key: str | None, limit: int | None) -> list[MetadataRow]:
        beyond, values = ("", ()) if after_key is None else ("AND key > %s", (after_key,))
        statement = f"{_RECORDS} WHERE namespace = %s {beyond} AND data IS NOT NULL ORDER BY key LIMIT %s"
        rows = self._read(lambda db: db.execute(statement, (namespace, *values, limit)).fetchall())
        return [decode_metadata(*row) for row in rows]

    def generations(self) -> dict[str, int]:
        return dict(self._read(_all_generations))

    def revision(self) -> int:
        return self._read(lambda db: _number(db.execute("SELECT revision FROM aalis.state")))

    def changes(self, after_revision: int) -> Changes:
        return self._read(lambda db: _changes(db, after_revision))


def _number(cursor: psycopg.Cursor[tuple[Any, ...]]) -> int:
    row = cursor.fetchone()
    if row is None:
        raise psycopg.DataError("a row is missing")
    return int(row[0])


def _all_generations(db: Connection) -> list[tuple[Any, ...]]:
    return db.execute(_GENERATIONS).fetchall()


def _changes(db: Connection, after_revision: int) -> Changes:
    with db.transaction():
        revision, pruned = db.execute("SELECT revision, pruned FROM aalis.state").fetchone() or (0, 0)
        if not pruned <= after_revision <= revision:
            everything = dict(_all_generations(db))
            return Changes(rows=(), generations=everything, revision=revision, complete=False)
        rows = db.execute(f"{_RECORDS} WHERE revision > %s ORDER BY revision", (after_revision,)).fetchall()
        raised = db.execute(f"{_GENERATIONS} WHERE revision > %s", (after_revision,)).fetchall()
    return Changes(rows=tuple(decode_metadata(*row) for row in rows), generations=dict(raised), revision=revision)
