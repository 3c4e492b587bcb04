"""Lines from a file, a pipe or standard input, without ever blocking the loop or keeping more than one in memory."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator

from attrs import define, field, frozen

__all__ = ["MAX_LINE", "Line", "LineSplitter", "read_chunks"]

MAX_LINE = 16 * 1024 * 1024
"""Bytes. A longer line isn't kept."""
_CHUNK = 64 * 1024
_CHUNKS_AHEAD = 8


@frozen
class Line:
    """A line without its end, and its number from 1; `data` None: it was longer than the limit."""

    number: int
    data: bytes | None


@define(eq=False)
class LineSplitter:
    """Puts chunks of bytes together again as lines."""

    limit: int = MAX_LINE
    _number: int = 0
    _rest: bytearray = field(factory=bytearray)
    _too_long: bool = False

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """The lines that this chunk ends."""
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            self._keep(part)
            yield self._line()
        self._keep(rest)

    def end(self) -> Iterator[Line]:
        """The last line, when nothing ended it."""
        if self._rest or self._too_long:
            yield self._line()

    def _keep(self, part: bytes) -> None:
        if self._too_long or len(self._rest) + len(part) > self.limit:
            self._too_long = True
            self._rest.clear()
        else:
            self._rest += part

    def _line(self) -> Line:
        self._number += 1
        line = Line(self._number, None if self._too_long else bytes(self._rest))
        self._rest.clear()
        self._too_long = False
        return line


async def read_chunks(fd: int) -> AsyncIterator[bytes]:
    """What a file descriptor gives, as it comes, until its end; closes it. Raises OSError.

    A thread of its own reads, a few chunks ahead at most: a read of a terminal or a pipe can't be
    interrupted, and nobody waits for this thread when the program ends.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_AHEAD)
    wanted = True

    def pump() -> None:
        item: bytes | OSError = b"more"
        try:
            while item and isinstance(item, bytes):
                room.acquire()
                if not wanted:
                    return
                try:
                    item = os.read(fd, _CHUNK)
                except OSError as error:
                    item = error
                loop.call_soon_threadsafe(queue.put_nowait, item)
        except RuntimeError:
            pass  # the loop is closed: the program ends
        finally:
            os.close(fd)

    threading.Thread(target=pump, name="aalis-read", daemon=True).start()
    try:
        while item := await queue.get():
            if isinstance(item, OSError):
                raise item
            yield item
            room.release()
    finally:
        wanted = False
        room.release()
