"""A stack for each test: on a SQLite file, or on each memory back end where the test asks for it."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.host.memory.cluster import Cluster, running
from tests.tool_session.kit import Stack, stack


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server; skipped with the reason where none can be run."""
    with running() as started:
        yield started


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
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where an empty database is; `each_back_end` says of which."""
    if getattr(request, "param", "sqlite") == "sqlite":
        yield str(tmp_path / "aalis.db")
        return
    with request.getfixturevalue("cluster").database() as url:
        yield url


@pytest.fixture
async def s(tmp_path: Path, db: str) -> AsyncIterator[Stack]:
    """The stack with default settings."""
    async with stack(tmp_path, db=db) as made:
        yield made
