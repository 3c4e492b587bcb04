"""A stack for each test: on a SQLite file, or on each memory back end where the test asks for it."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.tool_session.kit import Stack, stack


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the process's time zone, until the test ends."""

    def use(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield use
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
async def s(tmp_path: Path, db: str) -> AsyncIterator[Stack]:
    """The stack with default settings."""
    async with stack(tmp_path, db=db) as made:
        yield made
