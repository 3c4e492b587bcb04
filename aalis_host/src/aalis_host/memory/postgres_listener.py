"""Hearing of commits: LISTEN on a connection of its own, in a thread.

A notification only wakes whoever waits; what changed is read from the tables. So one that was lost, because the
connection was cut, costs time and nothing else: after connecting again the waiters are woken once, to catch up.
"""

import logging
import select
import socket
import threading
from collections.abc import Callable
from typing import Final

import psycopg

from aalis_host.memory.postgres_pool import Connection
from aalis_host.words import said_by

__all__ = ["CHANNEL", "Listener"]

_log = logging.getLogger(__name__)

CHANNEL: Final = "aalis_changes"

PAUSE_SECONDS: Final = 1.0
"""Between two tries to connect."""


class Listener:
    """Calls `news` in its thread whenever something may have been committed."""

    def __init__(self, connect: Callable[[], Connection], news: Callable[[], None]) -> None:
        self._connect = connect
        self._news = news
        self._stopped = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="aalis-memory-listener", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and its connection; returns when both have ended, or after some seconds."""
        self._stopped.set()
        self._wake.close()
        self._thread.join(PAUSE_SECONDS * 2)

    def _run(self) -> None:
        with self._woken:
            while not self._stopped.is_set():
                try:
                    self._listen()
                except psycopg.Error as error:
                    _log.info("the connection that hears of changes was lost: %s", said_by(error))
                    self._stopped.wait(PAUSE_SECONDS)
                except Exception:
                    _log.exception("hearing of changes failed")
                    self._stopped.wait(PAUSE_SECONDS)

    def _listen(self) -> None:
        with self._connect() as db:
            db.execute(f"LISTEN {CHANNEL}")
            self._news()
            while not self._stopped.is_set():
                ready, _, _ = select.select([db.fileno(), self._woken.fileno()], [], [])
                if db.fileno() in ready:
                    for _ in db.notifies(timeout=0):
                        pass
                    self._news()
