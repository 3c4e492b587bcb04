"""The write side of the PostgreSQL database: one connection, one thread.

Every transaction begins by locking the one row of `state`. So transactions of all processes come one after the
other, and revisions and message ids appear in the order of commits.

A connection that is lost in the middle of a commit leaves open whether it was done. Each transaction therefore
writes its number to this writer's row of `writers`; after connecting again, the lock on `state` waits until the old
transaction has ended one way or the other, and that number tells which.
"""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final
from uuid import uuid4

import psycopg
from psycopg.pq import TransactionStatus

from aalis_api_session_manager.memory import Changeset, Outcome, SaveResult
from aalis_host.memory.plan import Key, Plan, Stored, generation_ids, record_keys
from aalis_host.memory.postgres_listener import CHANNEL
from aalis_host.memory.postgres_session import PostgresSession
from aalis_host.memory.rows import COLUMNS, TEXT, encode_message, shown_as
from aalis_host.memory.writer import REMEMBER_MS, Archive, Clear, Save

__all__ = ["PostgresWrites"]

Cursor = psycopg.Cursor[tuple[Any, ...]]

RESOLVE_SECONDS: Final = 30.0
"""How long an unanswered commit is asked after, while the server can't be reached."""

WRITER_MS: Final = 7 * 24 * 3600 * 1000
"""The row of a writer that ended without a word is removed after this time."""

_LOCK: Final = "SELECT revision, message_id FROM aalis.state FOR UPDATE"

_MARK: Final = (
    "INSERT INTO aalis.writers VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE"
    " SET transaction = excluded.transaction, seen_at = excluded.seen_at"
)

_INSERT: Final = f"INSERT INTO aalis.messages ({', '.join(COLUMNS)}) VALUES ({', '.join(['%s'] * len(COLUMNS))})"

_TAKEN: Final = (
    "SELECT messages.session_id, messages.message_id"
    " FROM unnest(%s::text[], %s::text[]) AS asked (session_id, message_id)"
    " JOIN aalis.messages ON messages.session_id = asked.session_id AND messages.message_id = asked.message_id"
)

_NEWER: Final = (
    "INSERT INTO aalis.recent VALUES (%s, %s, %s, %s) ON CONFLICT (session_id) DO UPDATE"
    " SET timestamp = excluded.timestamp, id = excluded.id, platform = excluded.platform"
    " WHERE (excluded.timestamp, excluded.id) > (recent.timestamp, recent.id)"
)

_NEWEST: Final = (
    "INSERT INTO aalis.recent SELECT session_id, timestamp, id, platform FROM aalis.messages"
    " WHERE session_id = %s AND shown > 0 AND shown = 1 AND archived = 0 ORDER BY timestamp DESC, id DESC LIMIT 1"
)

_CLEAR: Final = (
    "DELETE FROM aalis.messages WHERE session_id = %s AND shown > 0",
    "DELETE FROM aalis.messages WHERE session_id = %s AND shown = 0",
)

_ARCHIVE: Final = (
    "UPDATE aalis.messages SET archived = 1 WHERE session_id = %(session)s AND shown > 0 AND archived = 0"
    " AND (timestamp, id) <= (SELECT timestamp, id FROM aalis.messages"
    " WHERE session_id = %(session)s AND shown > 0 AND archived = 0"
    " ORDER BY timestamp DESC, id DESC LIMIT 1 OFFSET %(keep)s)"
)

_STORED: Final = (
    "SELECT metadata.namespace, metadata.key, metadata.revision, metadata.data"
    " FROM unnest(%s::text[], %s::text[]) AS asked (namespace, key)"
    " JOIN aalis.metadata ON metadata.namespace = asked.namespace AND metadata.key = asked.key"
)

_GENERATIONS: Final = "SELECT session_id, generation FROM aalis.generations WHERE session_id = ANY(%s)"

_WRITE: Final = (
    "INSERT INTO aalis.metadata VALUES (%s, %s, %s, %s, %s) ON CONFLICT (namespace, key) DO UPDATE"
    " SET revision = excluded.revision, data = excluded.data, removed_at = excluded.removed_at"
)

_RAISE: Final = (
    "INSERT INTO aalis.generations VALUES (%s, %s, %s) ON CONFLICT (session_id) DO UPDATE"
    " SET generation = excluded.generation, revision = excluded.revision"
)

_FORGET: Final = (
    "WITH forgotten AS (DELETE FROM aalis.metadata WHERE removed_at < %s RETURNING revision)"
    " UPDATE aalis.state SET pruned = greatest(pruned, (SELECT max(revision) FROM forgotten))"
    " WHERE EXISTS (SELECT 1 FROM forgotten)"
)


class PostgresWrites:
    """A `WriteStore` on one connection. `now` in milliseconds since the epoch."""

    def __init__(self, session: PostgresSession, now: Callable[[], int]) -> None:
        self._session = session
        self._now = now
        self._open_pipeline = ExitStack()
        self._id = uuid4().hex
        self._transaction = 0
        self._reached = 0
        self._message_id = 0
        self.revision = 0
        session.db.execute("DELETE FROM aalis.writers WHERE seen_at < %s", (now() - WRITER_MS,))

    def begin(self) -> None:
        self._session.ensure()
        try:
            self._lock()
        except psycopg.OperationalError:
            self.undo()
            if not self._session.lost:
                raise
            self._session.ensure()  # the server was restarted since the last transaction
            self._lock()

    def _lock(self) -> None:
        self._transaction += 1
        self._pipeline = self._open_pipeline.enter_context(self._session.db.pipeline())
        self._session.db.execute("BEGIN")
        locked = self._session.db.execute(_LOCK)
        self._pipeline.sync()
        self._reached, self._message_id = locked.fetchone() or (0, 0)

    def end(self) -> None:
        try:
            self._session.db.execute(_MARK, (self._id, self._transaction, self._now()))
            self._session.db.execute("COMMIT")
            self._open_pipeline.close()
        except psycopg.OperationalError:
            if not self._session.lost or not self._was_committed():
                raise
        self.revision = self._reached

    def _was_committed(self) -> bool:
        """Connect again and look whether the transaction whose commit wasn't answered was done."""
        self.undo()
        deadline = time.monotonic() + RESOLVE_SECONDS
        while True:
            try:
                self._session.ensure(deadline - time.monotonic())
                with self._session.db.transaction():
                    self._session.db.execute(_LOCK)
                    row = self._session.db.execute(
                        "SELECT transaction FROM aalis.writers WHERE id = %s", (self._id,)
                    ).fetchone()
                return row is not None and row[0] == self._transaction
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def undo(self) -> None:
        with suppress(Exception):
            self._open_pipeline.close()
        if self._session.lost:
            return
        try:
            if self._session.db.info.transaction_status != TransactionStatus.IDLE:
                self._session.db.execute("ROLLBACK")
        except psycopg.Error:
            self._session.close()

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._session.db.execute("DELETE FROM aalis.writers WHERE id = %s", (self._id,))
        self._session.close()

    def save(self, pieces: Sequence[Save]) -> list[SaveResult]:
        named = [(p.session_id, p.message.message_id) for p in pieces if p.message.message_id is not None]
        raised = self._generations({piece.session_id for piece in pieces})
        known = self._session.db.execute(_TAKEN, _columns(named))
        self._pipeline.sync()
        stored: dict[str, int] = dict(raised.fetchall())
        taken = {(row[0], row[1]) for row in known}
        rows: list[tuple[Any, ...]] = []
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
            if shown_as(message) == TEXT and not message.archived:
                before = newest.get(session_id)
                if before is None or message.timestamp >= before[0]:
                    newest[session_id] = (message.timestamp, self._message_id, message.platform)
        if rows:
            cursor = self._session.db.cursor()
            cursor.executemany(_INSERT, rows)
            if newest:
                cursor.executemany(_NEWER, [(session_id, *values) for session_id, values in newest.items()])
            cursor.execute("UPDATE aalis.state SET message_id = %s", (self._message_id,))
        return results

    def _generations(self, session_ids: set[str]) -> Cursor:
        return self._session.db.execute(_GENERATIONS, (list(session_ids),))

    def archive(self, pieces: Sequence[Archive]) -> list[int]:
        return [self._archive(piece) for piece in pieces]

    def _archive(self, piece: Archive) -> int:
        values = {"session": piece.session_id, "keep": max(piece.keep, 0)}
        archived = self._counted(_ARCHIVE, values)
        self._find_newest(piece.session_id)
        return archived

    def clear(self, pieces: Sequence[Clear]) -> list[int]:
        return [self._clear(piece.session_id, piece.below_generation) for piece in pieces]

    def _clear(self, session_id: str | None, below: int | None) -> int:
        if session_id is None:
            self._session.db.execute("DELETE FROM aalis.recent")
            return self._counted("DELETE FROM aalis.messages")
        lower, values = ("", ()) if below is None else (" AND generation < %s", (below,))
        removed = sum(self._counted(f"{statement}{lower}", (session_id, *values)) for statement in _CLEAR)
        self._find_newest(session_id)
        return removed

    def _find_newest(self, session_id: str) -> None:
        self._session.db.execute("DELETE FROM aalis.recent WHERE session_id = %s", (session_id,))
        self._session.db.execute(_NEWEST, (session_id,))

    def _counted(self, statement: str, values: Any = ()) -> int:
        """How many rows the statement touched."""
        counted = f"WITH touched AS ({statement} RETURNING 1) SELECT count(*) FROM touched"
        (number,) = self._session.db.execute(counted, values).fetchone() or (0,)
        return int(number)

    def commit(self, pieces: Sequence[Changeset]) -> list[Outcome]:
        revision = self._reached
        read = self._session.db.execute(_STORED, _columns(record_keys(pieces)))
        raised = self._generations(generation_ids(pieces))
        # In between two of its statements the server ends the transaction of a client that hangs, say in a fold; it
        # doesn't count as in between before this.
        self._pipeline.sync()
        stored: dict[Key, Stored] = {(row[0], row[1]): (row[2], row[3]) for row in read}
        plan = Plan(stored, dict(raised.fetchall()), revision)
        outcomes = [plan.apply(changeset) for changeset in pieces]
        if plan.revision > revision:
            self._write(plan)
            self._reached = plan.revision
        return outcomes

    def _write(self, plan: Plan) -> None:
        db, now = self._session.db, self._now()
        cursor = db.cursor()
        cursor.executemany(
            _WRITE,
            [
                (namespace, key, revision, text, now if text is None else None)
                for (namespace, key), (revision, text) in plan.writes.items()
            ],
        )
        if plan.raised:
            cursor.executemany(_RAISE, [(session_id, *raised) for session_id, raised in plan.raised.items()])
        db.execute("UPDATE aalis.state SET revision = %s", (plan.revision,))
        if any(text is None for _, text in plan.writes.values()):
            db.execute(_FORGET, (now - REMEMBER_MS,))
        db.execute("SELECT pg_notify(%s, '')", (CHANNEL,))


def _columns(pairs: Collection[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [first for first, _ in pairs], [second for _, second in pairs]
