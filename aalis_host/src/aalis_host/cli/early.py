"""Ctrl-C while the rest of the command is still being imported."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["silent_ctrl_c"]


@contextmanager
def silent_ctrl_c() -> Iterator[None]:
    """Meanwhile Ctrl-C ends the process at once, without a word, with exit status 130."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
