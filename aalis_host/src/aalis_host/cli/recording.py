"""A recording of OneBot v11 events: a file, or standard input."""

import os
from collections.abc import AsyncIterator

from attrs import frozen

from aalis_host.cli.base import Mistake
from aalis_host.cli.texts import text
from aalis_host.platforms.lines import Line, LineSplitter, read_chunks
from aalis_host.platforms.onebot import event_time

__all__ = ["STANDARD_INPUT", "Span", "kept", "read_lines", "span_of"]

STANDARD_INPUT = "-"


@frozen
class Span:
    """What a first look at a recording tells: its number of lines, and when its first and last message were sent
    (milliseconds; None: it has none)."""

    lines: int
    first: int | None
    last: int | None


async def read_lines(path: str) -> AsyncIterator[Line]:
    """The lines of a file or of standard input, as they come; blank ones are left out. Raises Mistake."""
    try:
        splitter = LineSplitter()
        async for chunk in read_chunks(os.dup(0) if path == STANDARD_INPUT else os.open(path, os.O_RDONLY)):
            for line in splitter.feed(chunk):
                yield line
        for line in splitter.end():
            yield line
    except OSError as error:
        raise Mistake(text("unreadable", path=path, reason=error.strerror)) from error


async def kept(path: str, folder: str) -> str:
    """A path that can be read twice: standard input is copied into the folder."""
    if path != STANDARD_INPUT:
        return path
    copy = os.path.join(folder, "input.jsonl")
    with os.fdopen(os.open(copy, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        async for chunk in read_chunks(os.dup(0)):
            file.write(chunk)
    return copy


async def span_of(path: str) -> Span:
    """The first look."""
    number, first, last = 0, None, None
    async for line in read_lines(path):
        number = line.number
        at = None if line.data is None else event_time(line.data)
        if at is not None:
            first = at if first is None else min(first, at)
            last = at if last is None else max(last, at)
    return Span(number, first, last)
