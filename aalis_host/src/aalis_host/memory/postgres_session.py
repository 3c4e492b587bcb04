"""One connection that comes back: after a restart of the server the next use connects anew."""

import time
from collections.abc import Callable
from typing import Any, Final

import psycopg

__all__ = ["Connection", "PostgresSession"]

Connection = psycopg.Connection[tuple[Any, ...]]

RECONNECT_SECONDS: Final = 5.0
"""How long a use of the connection waits for the server to come back."""


class PostgresSession:
    """A connection of one thread. Raises psycopg.Error when it can't be made."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self.db = connect()

    @property
    def lost(self) -> bool:
        """The connection is of no use any more."""
        return self.db.closed

    def ensure(self, seconds: float = RECONNECT_SECONDS) -> None:
        """Connect again if the connection was lost, trying for some seconds."""
        deadline = time.monotonic() + seconds
        pause = 0.02
        while self.lost:
            try:
                self.db = self._connect()
            except psycopg.OperationalError:
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, 0.5)

    def close(self) -> None:
        """End the connection, whatever state it is in."""
        self.db.close()
