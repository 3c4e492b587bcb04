"""The write side of the SQLite file: one connection, one thread."""

import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from aalis_api_session_manager.memory import Changeset, Outcome, Position, SaveResult
from aalis_host.memory import sqlite_counts as counts
from aalis_host.memory.plan import Key, Plan, Stored, generation_ids, record_keys
from aalis_host.memory.rows import COLUMNS, CONTROL, TEXT, encode_message, shown_as
from aalis_host.memory.writer import REMEMBER_MS, Archive, Clear, Save

__all__ = ["LOCK_SECONDS", "SqliteWrites", "begin_immediate"]

LOCK_SECONDS: Final = 5.0
"""How long a write waits for another process's transaction."""

_VALUES: Final = ", ".join("?" for _ in COLUMNS)

_INSERT: Final = (
    f"INSERT INTO messages (number, {', '.join(COLUMNS)}) VALUES (?, {_VALUES})"
    " ON CONFLICT (session_id, message_id) WHERE message_id IS NOT NULL DO NOTHING"
)

_NEWER: Final = (
    "INSERT INTO recent VALUES (?, ?, ?, ?) ON CONFLICT (session_id) DO UPDATE"
    " SET timestamp = excluded.timestamp, id = excluded.id, platform = excluded.platform"
    " WHERE (excluded.timestamp, excluded.id) > (recent.timestamp, recent.id)"
)

_NEWEST: Final = (
    "INSERT INTO recent SELECT session_id, timestamp, id, platform FROM messages INDEXED BY live"
    " WHERE session_id = ? AND shown > 0 AND shown = 1 AND archived = 0 ORDER BY timestamp DESC, id DESC LIMIT 1"
)

_KEPT: Final = (
    "SELECT timestamp, id FROM messages INDEXED BY live WHERE session_id = ? AND shown > 0 AND archived = 0"
    " ORDER BY timestamp DESC, id DESC LIMIT 1 OFFSET ?"
)

_ARCHIVE: Final = (
    "UPDATE messages INDEXED BY live SET archived = 1 WHERE session_id = ? AND shown > 0 AND archived = 0"
    " AND (timestamp, id) <= (?, ?)"
)

_CLEAR: Final = (
    "DELETE FROM messages INDEXED BY every WHERE session_id = ? AND shown > 0",
    "DELETE FROM messages INDEXED BY marks WHERE session_id = ? AND shown = 0",
)

_STORED: Final = "SELECT revision, CAST(data AS BLOB) FROM metadata WHERE namespace = ? AND key = ?"

_WRITE: Final = (
    "INSERT INTO metadata VALUES (?, ?, ?, ?, ?) ON CONFLICT (namespace, key) DO UPDATE"
    " SET revision = excluded.revision, data = excluded.data, removed_at = excluded.removed_at"
)

_FORGET: Final = "DELETE FROM metadata INDEXED BY metadata_removed WHERE removed_at < ? RETURNING revision"

_RAISE: Final = (
    "INSERT INTO generations VALUES (?, ?, ?) ON CONFLICT (session_id) DO UPDATE"
    " SET generation = excluded.generation, revision = excluded.revision"
)


def begin_immediate(db: sqlite3.Connection) -> None:
    """Take the file's write lock, waiting at most LOCK_SECONDS.

    SQLite's own wait grows to 100 ms between two looks; next to busy processes that starves the one that waits.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            db.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0.0002, 0.002))


class SqliteWrites:
    """A `WriteStore` on one SQLite connection. `now` in milliseconds since the epoch."""

    def __init__(self, db: sqlite3.Connection, now: Callable[[], int]) -> None:
        self._db = db
        self._now = now
        self._reached = 0
        self.revision = 0

    def begin(self) -> None:
        begin_immediate(self._db)
        self._reached = self.revision

    def end(self) -> None:
        self._db.execute("COMMIT")
        self.revision = self._reached

    def give_up(self) -> None:
        """Every wait here has an end of its own."""

    def undo(self) -> None:
        if self._db.in_transaction:
            with suppress(sqlite3.Error):  # some failures have rolled back already
                self._db.execute("ROLLBACK")

    def close(self) -> None:
        self._db.close()

    def save(self, pieces: Sequence[Save]) -> list[SaveResult]:
        number = first = self._db.execute("SELECT message_id FROM state").fetchone()[0]
        stored: dict[str, int] = {}
        results = []
        for piece in pieces:
            if piece.session_id not in stored:
                stored[piece.session_id] = self._generation(piece.session_id)
            if piece.generation is not None and piece.generation < stored[piece.session_id]:
                results.append(SaveResult(status="refused"))
            elif self._insert(number + 1, piece, stored[piece.session_id]):
                number += 1
                results.append(SaveResult(status="saved", id=number))
            else:
                results.append(SaveResult(status="duplicate"))
        if number > first:
            self._db.execute("UPDATE state SET message_id = ?", (number,))
        return results

    def _insert(self, number: int, piece: Save, stored: int) -> bool:
        message = piece.message
        generation = stored if piece.generation is None else piece.generation
        values = encode_message(number, piece.session_id, message, generation)
        if self._db.execute(_INSERT, (number, *values)).rowcount == 0:
            return False
        shown = shown_as(message)
        if shown != CONTROL:
            position = Position(message.timestamp, number)
            counts.added(self._db, piece.session_id, position, shown, message.archived)
            if shown == TEXT and not message.archived:
                self._db.execute(_NEWER, (piece.session_id, message.timestamp, number, message.platform))
        return True

    def _generation(self, session_id: str) -> int:
        row = self._db.execute("SELECT generation FROM generations WHERE session_id = ?", (session_id,)).fetchone()
        return 0 if row is None else int(row[0])

    def archive(self, pieces: Sequence[Archive]) -> list[int]:
        return [self._archive(piece) for piece in pieces]

    def _archive(self, piece: Archive) -> int:
        newest_old = self._db.execute(_KEPT, (piece.session_id, max(piece.keep, 0))).fetchone()
        if newest_old is None:
            return 0
        archived = self._db.execute(_ARCHIVE, (piece.session_id, *newest_old)).rowcount
        timestamp, number = newest_old
        counts.archived_below(self._db, piece.session_id, Position(timestamp, number + 1))
        self._find_newest(piece.session_id)
        return archived

    def clear(self, pieces: Sequence[Clear]) -> list[int]:
        return [self._clear(piece.session_id, piece.below_generation) for piece in pieces]

    def _clear(self, session_id: str | None, below: int | None) -> int:
        if session_id is None:
            return self._clear_all()
        lower, values = ("", (session_id,)) if below is None else (" AND generation < ?", (session_id, below))
        removed = sum(self._db.execute(statement + lower, values).rowcount for statement in _CLEAR)
        if removed:
            counts.rebuild(self._db, session_id)
            self._find_newest(session_id)
        return removed

    def _clear_all(self) -> int:
        removed = self._db.execute("DELETE FROM messages").rowcount
        self._db.execute("DELETE FROM counts")
        self._db.execute("DELETE FROM recent")
        return removed

    def _find_newest(self, session_id: str) -> None:
        self._db.execute("DELETE FROM recent WHERE session_id = ?", (session_id,))
        self._db.execute(_NEWEST, (session_id,))

    def commit(self, pieces: Sequence[Changeset]) -> list[Outcome]:
        revision = self._db.execute("SELECT revision FROM state").fetchone()[0]
        plan = Plan(
            self._stored(record_keys(pieces)),
            {session_id: self._generation(session_id) for session_id in generation_ids(pieces)},
            revision,
        )
        outcomes = [plan.apply(changeset) for changeset in pieces]
        if plan.revision > revision:
            self._write(plan)
        self._reached = plan.revision
        return outcomes

    def _stored(self, keys: set[Key]) -> dict[Key, Stored]:
        rows: dict[Key, Any] = {key: self._db.execute(_STORED, key).fetchone() for key in keys}
        return {key: row for key, row in rows.items() if row is not None}

    def _write(self, plan: Plan) -> None:
        now = self._now()
        self._db.executemany(
            _WRITE,
            [
                (namespace, key, revision, text, now if text is None else None)
                for (namespace, key), (revision, text) in plan.writes.items()
            ],
        )
        if plan.raised:
            self._db.executemany(_RAISE, [(session_id, *raised) for session_id, raised in plan.raised.items()])
        self._db.execute("UPDATE state SET revision = ?", (plan.revision,))
        if any(text is None for _, text in plan.writes.values()):
            self._forget(now - REMEMBER_MS)

    def _forget(self, removed_before: int) -> None:
        forgotten = self._db.execute(_FORGET, (removed_before,)).fetchall()
        if forgotten:
            self._db.execute("UPDATE state SET pruned = max(pruned, ?)", (max(forgotten)[0],))
