"""The SQLite file: how it is opened, made and brought up to date."""

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aalis_api_session_manager.errors import AalisError, ConfigError, StorageError
from aalis_host.memory.readers import ReadStore
from aalis_host.memory.sqlite_reads import SqliteReads
from aalis_host.memory.sqlite_schema import APPLICATION_ID, STEPS
from aalis_host.memory.sqlite_writes import LOCK_SECONDS, SqliteWrites, begin_immediate
from aalis_host.memory.upgrades import refuse_newer, refuse_older, upgrade
from aalis_host.memory.writer import WriteStore

__all__ = ["SqliteBackend"]

READERS: Final = 2
"""One long read doesn't hold up the next."""


class SqliteBackend:
    """A database file. `now` in milliseconds since the epoch."""

    poll_seconds = 0.05

    def __init__(self, path: Path, read_only: bool, now: Callable[[], int]) -> None:
        self._path = path
        self.read_only = read_only
        self._now = now

    def open_writer(self) -> WriteStore:
        db = self._connect("rwc")
        try:
            empty = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if not empty:
                self._check(db)
            if not os.access(self._path, os.W_OK):
                raise StorageError(f"the database {str(self._path)!r} can't be written")
            self._use_wal(db)
            db.execute("PRAGMA synchronous = FULL")
            if empty or self._version(db) < len(STEPS):
                self._prepare(db)
            db.execute("PRAGMA busy_timeout = 0")  # from now on `begin_immediate` waits
        except BaseException as error:
            db.close()
            if isinstance(error, sqlite3.Error):
                raise self._explained(error) from error
            raise
        return SqliteWrites(db, self._now)

    def open_readers(self) -> list[ReadStore]:
        if not self._path.exists():
            raise ConfigError(f"there is no database {str(self._path)!r}")
        stores: list[ReadStore] = []
        try:
            for _ in range(READERS):
                db = self._connect("rw")
                stores.append(SqliteReads(db))
                db.execute("PRAGMA query_only = ON")
                self._check(db)
                refuse_older(str(self._path), self._version(db), STEPS)
        except BaseException as error:
            for store in stores:
                store.close()
            if isinstance(error, sqlite3.Error):
                raise self._explained(error) from error
            raise
        return stores

    def listen(self, news: Callable[[], None]) -> None:
        """Nothing tells of another process's commit; asking for the revision costs microseconds."""

    def _connect(self, mode: str) -> sqlite3.Connection:
        try:
            return sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=LOCK_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def _use_wal(self, db: sqlite3.Connection) -> None:
        """Two processes that open a new file at once: the switch doesn't wait for a lock by itself."""
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.005)

    def _prepare(self, db: sqlite3.Connection) -> None:
        begin_immediate(db)
        version = self._version(db)  # another process may have been faster
        reached = upgrade(str(self._path), version, STEPS, db.execute)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {reached}")
        db.execute("COMMIT")

    def _check(self, db: sqlite3.Connection) -> None:
        if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise ConfigError(f"{str(self._path)!r} isn't a database of this program")
        refuse_newer(str(self._path), self._version(db), STEPS)

    def _version(self, db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA user_version").fetchone()[0])

    def _explained(self, error: sqlite3.Error) -> AalisError:
        if not self._path.parent.is_dir():
            return ConfigError(f"there is no folder {str(self._path.parent)!r} for the database")
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB or self._path.is_dir():
            return ConfigError(f"{str(self._path)!r} isn't a database")
        return StorageError(f"the database {str(self._path)!r} can't be opened: {error}")
