"""One empty database per test, on each back end."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from aalis_host.memory import Memory, open_memory
from tests.host.memory.cluster import Cluster, running
from tests.host.memory.kit import Clock


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still until a test moves it."""
    return Clock()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server; skipped with the reason where none can be run."""
    with running() as started:
        yield started


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str | Path]:
    """Where an empty database of each back end is."""
    if request.param == "sqlite":
        yield tmp_path / "memory.db"
        return
    with request.getfixturevalue("cluster").database() as url:
        yield url


@pytest.fixture
def open_again(database: str | Path, clock: Clock) -> Callable[..., Memory]:
    """Another memory on the same database, as another process would open it."""
    return lambda **options: open_memory(database, now=clock, **options)


@pytest.fixture
async def memory(open_again: Callable[..., Memory]) -> AsyncIterator[Memory]:
    """An open memory on an empty database."""
    async with open_again() as opened:
        yield opened
