"""The PostgreSQL database: how it is reached, made and brought up to date.

Every connection has time limits, so that nothing waits for ever: for connecting, for a statement, for a lock, and
for a transaction that its client has left alone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from aalis_api_session_manager.errors import ConfigError, StorageError
from aalis_host.memory.postgres_listener import Listener
from aalis_host.memory.postgres_pool import Connection, Pool, make_pool
from aalis_host.memory.postgres_reads import PostgresReads
from aalis_host.memory.postgres_schema import STEPS
from aalis_host.memory.postgres_writes import PostgresWrites, forget_writers
from aalis_host.memory.readers import ReadStore
from aalis_host.memory.upgrades import refuse_newer, refuse_older, upgrade
from aalis_host.memory.writer import WriteStore
from aalis_host.words import said_by

__all__ = ["PostgresBackend"]

READERS: Final = 4
"""Reads that run at once, each on a connection; more wait for one of these."""

_DEFAULTS: Final[dict[str, Any]] = {
    "application_name": "aalis",
    "client_encoding": "UTF8",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

_SETTINGS: Final = (
    "SET statement_timeout = '20s'",
    "SET lock_timeout = '8s'",
    "SET idle_in_transaction_session_timeout = '5s'",
    # Every query is a range of an index, read in its order: also while the server has no statistics yet.
    "SET enable_seqscan = off",
    "SET enable_bitmapscan = off",
    "SET enable_sort = off",
    "SET jit = off",
    "SET tcp_keepalives_idle = 10",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
    "SELECT set_config(name, '20s', false) FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout'",
    # An answered change is on the disk, whatever the server's default is.
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
)
"""A writer that stops in the middle lets go of the counter (5 s) before the others give up waiting for it (8 s)."""

_WRITING: Final = (
    # The lock on the counter is waited for, and what is read under it is what is there then.
    "SET default_transaction_read_only = off",
    "SET default_transaction_isolation = 'read committed'",
)

_READING: Final = (
    "SET default_transaction_read_only = on",
    "SET default_transaction_isolation = 'repeatable read'",
)

_MADE: Final = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = 'aalis' AND tablename = 'schema_version'"

_UPGRADE_LOCK: Final = 0x41616C73
"""Key of the advisory lock that one program holds while it makes or upgrades the tables ("Aals")."""


class PostgresBackend:
    """A database at a libpq URL. `now` in milliseconds since the epoch."""

    poll_seconds = 1.0

    def __init__(self, url: str, read_only: bool, now: Callable[[], int]) -> None:
        try:
            asked = conninfo_to_dict(url)
        except psycopg.Error as error:
            raise ConfigError(f"the database's URL can't be read: {said_by(error)}") from error
        self.read_only = read_only
        self._options = {**_DEFAULTS, **asked}
        self._where = f"the PostgreSQL database {asked.get('dbname') or asked.get('user') or 'of the user'!r}"
        self._now = now

    def open_writer(self) -> WriteStore:
        with self._opening() as db:
            if self._version(db) < len(STEPS):
                self._prepare(db)
            refuse_newer(self._where, self._version(db), STEPS)
            forget_writers(db, self._now())
        return PostgresWrites(self._pool("writer", 1, _WRITING), self._now)

    def open_readers(self) -> list[ReadStore]:
        with self._opening() as db:
            version = self._version(db)
        if version == 0:
            raise ConfigError(f"{self._where} holds nothing of this program")
        refuse_newer(self._where, version, STEPS)
        refuse_older(self._where, version, STEPS)
        pool = self._pool("readers", READERS, _READING)
        return [PostgresReads(pool) for _ in range(READERS)]

    @contextmanager
    def _opening(self) -> Iterator[Connection]:
        """A connection to look at the database with: what is wrong with it is said in one line."""
        try:
            with self._connect() as db:
                encoding = db.info.parameter_status("server_encoding")
                if encoding != "UTF8":
                    raise ConfigError(f"{self._where} has the encoding {encoding}; it must be UTF8")
                yield db
        except psycopg.Error as error:
            raise StorageError(f"{self._where} can't be opened: {said_by(error)}") from error

    def listen(self, news: Callable[[], None]) -> Callable[[], None]:
        """Call `news`, in another thread, when something was committed by anyone; the answer stops that."""
        return Listener(self._connect, news).stop

    def _connect(self) -> Connection:
        db: Connection = psycopg.connect(**self._options, autocommit=True)
        try:
            _configure(db, _SETTINGS)
        except BaseException:
            db.close()
            raise
        return db

    def _pool(self, users: str, size: int, settings: Sequence[str]) -> Pool:
        name = f"{self._where} ({users})"
        return make_pool(name, self._options, size, lambda db: _configure(db, (*_SETTINGS, *settings)))

    def _version(self, db: Connection) -> int:
        if db.execute(_MADE).fetchone() is None:
            return 0
        (version,) = db.execute("SELECT version FROM aalis.schema_version").fetchone() or (0,)
        return int(version)

    def _prepare(self, db: Connection) -> None:
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s)", (_UPGRADE_LOCK,))
            version = self._version(db)  # another process may have been faster
            reached = upgrade(self._where, version, STEPS, db.execute)
            db.execute("UPDATE aalis.schema_version SET version = %s", (reached,))


def _configure(db: Connection, settings: Sequence[str]) -> None:
    with db.pipeline():
        for setting in settings:
            db.execute(setting)
