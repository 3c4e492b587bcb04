"""Connections that come back: a pool replaces those that were lost, and closes those that nobody needed for a while."""

import logging
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg_pool import ConnectionPool

__all__ = ["WAIT_SECONDS", "Connection", "Pool", "make_pool", "on_connection"]

Connection = psycopg.Connection[tuple[Any, ...]]

Pool = ConnectionPool[Connection]

T = TypeVar("T")

WAIT_SECONDS: Final = 5.0
"""How long work waits for a connection: all are in use, or the server is away."""

IDLE_SECONDS: Final = 60.0
"""Each time so long has passed, one connection that nobody needed is closed, down to the last."""

RETRY_SECONDS: Final = 1.0
"""Between two tries to connect."""

SAY_SECONDS: Final = 60.0
"""How often the log says why a pool can't connect."""


class _Seldom(logging.Filter):
    """Of all that a pool says, lets pass why it can't connect: in one line, the same once in SAY_SECONDS."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        words, now = " ".join(record.getMessage().split()), time.monotonic()
        record.msg, record.args = words, None
        self._said = {said: at for said, at in self._said.items() if now - at < SAY_SECONDS}
        return words.startswith("error connecting") and self._said.setdefault(words, now) == now


_pool_log = logging.getLogger("psycopg.pool")
_pool_log.setLevel(logging.WARNING)  # else `--debug` shows three lines for each read
_pool_log.addFilter(_Seldom())


def make_pool(name: str, options: dict[str, Any], size: int, configure: Callable[[Connection], None]) -> Pool:
    """A pool of one to `size` connections; `options` are psycopg's, `configure` is called for each new one."""
    return ConnectionPool(
        kwargs={**options, "autocommit": True},
        name=name,
        min_size=1,
        max_size=size,
        open=True,
        configure=configure,
        timeout=WAIT_SECONDS,
        max_idle=IDLE_SECONDS,
        # The pause between two tries would double: so the pool gives up early, and begins anew.
        reconnect_timeout=RETRY_SECONDS,
        reconnect_failed=_try_again,
        num_workers=1,
    )


def _try_again(pool: Pool) -> None:
    if not pool.get_stats()["pool_size"]:
        pool.check()


def on_connection(pool: Pool, work: Callable[[Connection], T]) -> T:
    """What `work` answers on a connection of the pool.

    It is done again on another one while they turn out to be lost, as all are after a restart of the server. Raises
    psycopg.OperationalError when there is none in WAIT_SECONDS.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        db = None
        try:
            with pool.connection(deadline - time.monotonic()) as db:
                return work(db)
        except psycopg.OperationalError:
            if db is None or not db.closed:
                raise
