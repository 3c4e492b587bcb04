"""Lines come whole, numbered, and bounded, whatever the chunks."""

import asyncio
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aalis_host.platforms.lines import Line, LineSplitter, read_chunks


def split(chunks: list[bytes], limit: int = 10) -> list[Line]:
    splitter = LineSplitter(limit)
    return [line for chunk in chunks for line in splitter.feed(chunk)] + list(splitter.end())


@given(st.binary(max_size=60), st.lists(st.integers(0, 60)), st.integers(0, 12))
def test_chunks_make_no_difference(data: bytes, cuts: list[int], limit: int) -> None:
    """However the bytes are cut, the lines are the same; one that is longer than the limit has a number only."""
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[start:end] for start, end in pairwise(bounds)]
    whole = data.split(b"\n")
    if not whole[-1]:
        whole.pop()
    expected = [Line(n, line if len(line) <= limit else None) for n, line in enumerate(whole, 1)]
    assert split(chunks, limit) == expected


def test_an_endless_line_keeps_nothing() -> None:
    """A line over the limit is forgotten while it still comes in, and the next one is whole."""
    splitter = LineSplitter(limit=100)
    for _ in range(1000):
        assert list(splitter.feed(b"x" * 90)) == []
    assert list(splitter.feed(b"\nnext\n")) == [Line(1, None), Line(2, b"next")]


async def test_a_pipe_is_read_as_it_comes() -> None:
    """What is written so far is read before the pipe ends, and the loop runs meanwhile."""
    read, write = os.pipe()
    chunks = read_chunks(read)
    os.write(write, b"one\n")
    assert await anext(chunks) == b"one\n"
    waiting = asyncio.ensure_future(anext(chunks, b"end"))
    await asyncio.sleep(0)
    assert not waiting.done()
    os.write(write, b"two")
    assert await waiting == b"two"
    os.close(write)
    assert await anext(chunks, b"end") == b"end"


async def test_a_reader_that_stops_lets_go(tmp_path: Path) -> None:
    """Leaving in the middle of a large file closes it."""
    path = tmp_path / "large"
    path.write_bytes(b"x" * 5_000_000)
    fd = os.open(path, os.O_RDONLY)
    chunks = read_chunks(fd)
    assert await anext(chunks)
    await chunks.aclose()
    while True:
        try:
            os.fstat(fd)
        except OSError:
            break
        await asyncio.sleep(0.01)


async def test_what_cannot_be_read_is_raised(tmp_path: Path) -> None:
    """An error of the descriptor reaches the reader."""
    with pytest.raises(OSError, match="directory"):
        async for _ in read_chunks(os.open(tmp_path, os.O_RDONLY)):
            pass
