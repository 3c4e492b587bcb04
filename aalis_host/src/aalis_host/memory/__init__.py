"""The memory service of the embedded host: a SQLite file or a PostgreSQL database."""

import importlib
from collections.abc import Callable
from pathlib import Path

from aalis_api_session_manager.errors import ConfigError
from aalis_host.memory.service import Memory
from aalis_host.memory.sqlite import SqliteBackend

__all__ = ["Memory", "open_memory"]


def open_memory(db: str | Path, *, read_only: bool = False, now: Callable[[], int]) -> Memory:
    """The memory kept in `db`, a path or a `postgresql://` URL; `async with` opens and closes it.

    `read_only`: nothing is made or changed, and a missing database is a mistake. `now` in milliseconds since the
    epoch. Raises ConfigError for a URL that can't be read, or when the extra `postgres` isn't installed.
    """
    if isinstance(db, str) and db.startswith(("postgresql://", "postgres://")):
        try:
            postgres = importlib.import_module("aalis_host.memory.postgres")
        except ImportError as error:
            raise ConfigError(
                f"a PostgreSQL database needs the extra `postgres`: pip install 'aalis-host[postgres]' ({error})"
            ) from error
        return Memory(postgres.PostgresBackend(db, read_only, now))
    return Memory(SqliteBackend(Path(db), read_only, now))
