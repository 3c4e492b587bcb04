"""The write side of the PostgreSQL database: one thread, and one connection at a time.

Every transaction begins by locking the one row of `state`. So transactions of all processes come one after the
other, and revisions and message ids appear in the order of commits. What a group stores goes to the server in a few
statements on arrays, however large the group is: the others wait meanwhile.

A connection that is lost in the middle of a commit leaves open whether it was done. Each transaction therefore
writes its number to this writer's row of `writers`; on another connection, the lock on `state` waits until the old
transaction has ended one way or the other, and that number tells which.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import psycopg

from aalis_api_session_manager.memory import Changeset, Outcome, Position, SaveResult
from aalis_host.memory import postgres_counts as counts
from aalis_host.memory.plan import Key, Plan, Stored, generation_ids, record_keys
from aalis_host.memory.postgres_listener import CHANNEL
from aalis_host.memory.postgres_pool import WAIT_SECONDS, Connection, Pool
from aalis_host.memory.rows import COLUMNS, CONTROL, TEXT, encode_message, shown_as
from aalis_host.memory.writer import REMEMBER_MS, Archive, Clear, CommitUnknown, Save
from aalis_host.words import said_by

__all__ = ["PostgresWrites", "forget_writers"]

_log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.02
"""Between losing a connection, or a question that wasn't answered, and asking what became of a commit."""

CLOSE_SECONDS: Final = 1.0
"""How long a writer that ends waits for a connection, to remove its row."""

WRITER_MS: Final = 7 * 24 * 3600 * 1000
"""How long the row of a writer that ended without a word is kept."""

_LOCK: Final = "SELECT revision, message_id FROM aalis.state FOR UPDATE"

_MARK: Final = (
    "INSERT INTO aalis.writers VALUES ('{}', {}, {}) ON CONFLICT (id) DO UPDATE"
    " SET transaction = excluded.transaction, seen_at = excluded.seen_at"
)

_GENERATIONS: Final = "SELECT session_id, generation FROM aalis.generations WHERE session_id = ANY(%s)"

_TAKEN: Final = (
    "SELECT messages.session_id, messages.message_id"
    " FROM unnest(%s::text[], %s::text[]) AS asked (session_id, message_id)"
    " JOIN aalis.messages ON messages.session_id = asked.session_id AND messages.message_id = asked.message_id"
)

_NUMBERS: Final = ("id", "timestamp", "generation", "shown", "archived")

_COLUMN_ARRAYS: Final = ", ".join(f"%s::{'bigint' if column in _NUMBERS else 'text'}[]" for column in COLUMNS)

_INSERT: Final = (
    f"WITH opened AS ({counts.OPEN})"
    f" INSERT INTO aalis.messages ({', '.join(COLUMNS)}) SELECT * FROM unnest({_COLUMN_ARRAYS})"
)

_NEWER: Final = (
    "INSERT INTO aalis.recent SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::text[])"
    " ON CONFLICT (session_id) DO UPDATE"
    " SET timestamp = excluded.timestamp, id = excluded.id, platform = excluded.platform"
    " WHERE (excluded.timestamp, excluded.id) > (recent.timestamp, recent.id)"
)

_NEWEST: Final = (
    "INSERT INTO aalis.recent SELECT session_id, timestamp, id, platform FROM aalis.messages"
    " WHERE session_id = %s AND shown > 0 AND shown = 1 AND archived = 0 ORDER BY timestamp DESC, id DESC LIMIT 1"
)

_KEPT: Final = (
    "SELECT timestamp, id FROM aalis.messages WHERE session_id = %s AND shown > 0 AND archived = 0"
    " ORDER BY timestamp DESC, id DESC LIMIT 1 OFFSET %s"
)

_ARCHIVE: Final = (
    "UPDATE aalis.messages SET archived = 1 WHERE session_id = %s AND shown > 0 AND archived = 0"
    " AND (timestamp, id) <= (%s, %s)"
)

_CLEAR: Final = (
    "DELETE FROM aalis.messages WHERE session_id = %s AND shown > 0",
    "DELETE FROM aalis.messages WHERE session_id = %s AND shown = 0",
)

_STORED: Final = (
    "SELECT metadata.namespace, metadata.key, metadata.revision, metadata.data"
    " FROM unnest(%s::text[], %s::text[]) AS asked (namespace, key)"
    " JOIN aalis.metadata ON metadata.namespace = asked.namespace AND metadata.key = asked.key"
)

_WRITE: Final = (
    "INSERT INTO aalis.metadata"
    " SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::text[], %s::bigint[])"
    " ON CONFLICT (namespace, key) DO UPDATE"
    " SET revision = excluded.revision, data = excluded.data, removed_at = excluded.removed_at"
)

_RAISE: Final = (
    "INSERT INTO aalis.generations SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[])"
    " ON CONFLICT (session_id) DO UPDATE SET generation = excluded.generation, revision = excluded.revision"
)

_FORGET: Final = (
    "WITH forgotten AS (DELETE FROM aalis.metadata WHERE removed_at < %s RETURNING revision)"
    " UPDATE aalis.state SET pruned = greatest(pruned, (SELECT max(revision) FROM forgotten))"
    " WHERE EXISTS (SELECT 1 FROM forgotten)"
)


def forget_writers(db: Connection, now: int) -> None:
    """Remove the rows of writers that ended long ago without a word."""
    db.execute("DELETE FROM aalis.writers WHERE seen_at < %s", (now - WRITER_MS,))


class PostgresWrites:
    """A `WriteStore` on a pool of one connection. `now` in milliseconds since the epoch."""

    def __init__(self, pool: Pool, now: Callable[[], int]) -> None:
        self._pool = pool
        self._used: Connection | None = None
        self._now = now
        self._id = uuid4().hex
        self._transaction = 0
        self._given_up = threading.Event()
        self._stored_revision = self._reached = 0
        self._message_id = 0
        self.revision = 0

    @property
    def _db(self) -> Connection:
        """The connection of the transaction that was begun."""
        if self._used is None:
            raise psycopg.InterfaceError("no transaction was begun")
        return self._used

    def begin(self) -> None:
        self._transaction += 1
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            self._used = self._pool.getconn(deadline - time.monotonic())
            try:
                return self._lock()
            except psycopg.OperationalError:
                lost = self._db.closed  # the server was restarted since the last transaction
                self.undo()
                if not lost:
                    raise

    def _lock(self) -> None:
        answer = self._db.execute(f"BEGIN; {_LOCK}", prepare=False)
        answer.nextset()
        self._stored_revision, self._message_id = answer.fetchone() or (0, 0)
        self._reached = self._stored_revision

    def end(self) -> None:
        finish = (
            f"WITH marked AS ({_MARK.format(self._id, self._transaction, self._now())})"
            f" UPDATE aalis.state SET revision = {self._reached}, message_id = {self._message_id};"
            f" {f'NOTIFY {CHANNEL};' if self._reached > self._stored_revision else ''} COMMIT"
        )
        try:
            self._db.execute(finish, prepare=False)
        except psycopg.OperationalError:
            if not self._db.closed:
                raise
            self._give_back()
            if not self._was_committed():
                raise
        else:
            self._give_back()
        self.revision = self._reached

    def _give_back(self) -> None:
        db, self._used = self._db, None
        self._pool.putconn(db)

    def _was_committed(self) -> bool:
        """Ask on another connection whether the transaction whose commit wasn't answered was done."""
        while not self._given_up.wait(PAUSE_SECONDS):
            try:
                with self._pool.connection() as db, db.transaction():
                    db.execute(_LOCK)
                    row = db.execute("SELECT transaction FROM aalis.writers WHERE id = %s", (self._id,)).fetchone()
                return row is not None and row[0] == self._transaction
            except psycopg.OperationalError as error:
                _log.warning("it isn't known yet whether a transaction was stored: %s", said_by(error))
        raise CommitUnknown("the connection was lost, and it isn't known whether this was stored")

    def give_up(self) -> None:
        self._given_up.set()

    def undo(self) -> None:
        if self._used is not None:
            with suppress(psycopg.Error):
                self._used.rollback()
            self._give_back()

    def close(self) -> None:
        with suppress(psycopg.Error), self._pool.connection(CLOSE_SECONDS) as db:
            db.execute("DELETE FROM aalis.writers WHERE id = %s", (self._id,))
        self._pool.close()

    def save(self, pieces: Sequence[Save]) -> list[SaveResult]:
        db = self._db
        stored = self._generations({piece.session_id for piece in pieces})
        named = [(p.session_id, p.message.message_id) for p in pieces if p.message.message_id is not None]
        taken = {(row[0], row[1]) for row in db.execute(_TAKEN, _columns(named, 2))} if named else set()
        rows: list[tuple[Any, ...]] = []
        shown: list[counts.Entry] = []
        newest: dict[str, tuple[int, int, str | None]] = {}
        results = []
        for piece in pieces:
            session_id, message = piece.session_id, piece.message
            generation = stored.get(session_id, 0) if piece.generation is None else piece.generation
            if generation < stored.get(session_id, 0):
                results.append(SaveResult(status="refused"))
                continue
            if message.message_id is not None:
                if (session_id, message.message_id) in taken:
                    results.append(SaveResult(status="duplicate"))
                    continue
                taken.add((session_id, message.message_id))
            self._message_id += 1
            rows.append(encode_message(self._message_id, session_id, message, generation))
            results.append(SaveResult(status="saved", id=self._message_id))
            kind = shown_as(message)
            if kind != CONTROL:
                shown.append((session_id, message.timestamp, self._message_id, kind, int(message.archived)))
            if kind == TEXT and not message.archived:
                before = newest.get(session_id)
                if before is None or message.timestamp >= before[0]:
                    newest[session_id] = (message.timestamp, self._message_id, message.platform)
        if rows:
            db.execute(_INSERT, (list({entry[0] for entry in shown}), *_columns(rows, len(COLUMNS))))
        if shown:
            counts.added(db, shown)
        if newest:
            db.execute(_NEWER, _columns([(session_id, *values) for session_id, values in newest.items()], 4))
        return results

    def _generations(self, session_ids: set[str]) -> dict[str, int]:
        return dict(self._db.execute(_GENERATIONS, (list(session_ids),)).fetchall()) if session_ids else {}

    def archive(self, pieces: Sequence[Archive]) -> list[int]:
        return [self._archive(piece) for piece in pieces]

    def _archive(self, piece: Archive) -> int:
        db = self._db
        newest_old = db.execute(_KEPT, (piece.session_id, max(piece.keep, 0))).fetchone()
        if newest_old is None:
            return 0
        archived = db.execute(_ARCHIVE, (piece.session_id, *newest_old)).rowcount
        timestamp, number = newest_old
        counts.archived_below(db, piece.session_id, Position(timestamp, number + 1))
        self._find_newest(piece.session_id)
        return archived

    def clear(self, pieces: Sequence[Clear]) -> list[int]:
        return [self._clear(piece.session_id, piece.below_generation) for piece in pieces]

    def _clear(self, session_id: str | None, below: int | None) -> int:
        if session_id is None:
            return self._clear_all()
        lower, values = ("", ()) if below is None else (" AND generation < %s", (below,))
        db = self._db
        removed = sum(db.execute(statement + lower, (session_id, *values)).rowcount for statement in _CLEAR)
        if removed:
            counts.rebuild(db, session_id)
            self._find_newest(session_id)
        return removed

    def _clear_all(self) -> int:
        removed = self._db.execute("DELETE FROM aalis.messages").rowcount
        self._db.execute("DELETE FROM aalis.counts")
        self._db.execute("DELETE FROM aalis.recent")
        return removed

    def _find_newest(self, session_id: str) -> None:
        self._db.execute("DELETE FROM aalis.recent WHERE session_id = %s", (session_id,))
        self._db.execute(_NEWEST, (session_id,))

    def commit(self, pieces: Sequence[Changeset]) -> list[Outcome]:
        revision = self._reached
        keys = record_keys(pieces)
        rows = self._db.execute(_STORED, _columns(keys, 2)).fetchall() if keys else []
        stored: dict[Key, Stored] = {(row[0], row[1]): (row[2], row[3]) for row in rows}
        plan = Plan(stored, self._generations(generation_ids(pieces)), revision)
        outcomes = [plan.apply(changeset) for changeset in pieces]
        if plan.revision > revision:
            self._write(plan)
            self._reached = plan.revision
        return outcomes

    def _write(self, plan: Plan) -> None:
        db, now = self._db, self._now()
        if plan.writes:
            rows = [
                (namespace, key, revision, text, now if text is None else None)
                for (namespace, key), (revision, text) in plan.writes.items()
            ]
            db.execute(_WRITE, _columns(rows, 5))
        if plan.raised:
            db.execute(_RAISE, _columns([(session_id, *raised) for session_id, raised in plan.raised.items()], 3))
        if any(text is None for _, text in plan.writes.values()):
            db.execute(_FORGET, (now - REMEMBER_MS,))


def _columns(rows: Collection[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """The rows as an array for each column."""
    return [[row[column] for row in rows] for column in range(width)]
