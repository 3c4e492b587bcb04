"""The memory service of the embedded host: a SQLite file or a PostgreSQL database."""

from collections.abc import Callable
from pathlib import Path

from aalis_host.memory.service import Memory
from aalis_host.memory.sqlite import SqliteBackend

__all__ = ["Memory", "open_memory"]


def open_memory(db: str | Path, *, read_only: bool = False, now: Callable[[], int]) -> Memory:
    """The memory kept in `db`, a path; `async with` opens and closes it.

    `read_only`: nothing is made or changed, and a missing file is a mistake. `now` in milliseconds since the epoch.
    """
    return Memory(SqliteBackend(Path(db), read_only, now))
