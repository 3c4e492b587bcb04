"""One empty database per test, on each back end."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from aalis_host.memory import Memory, open_memory
from tests.host.memory.kit import Clock


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still until a test moves it."""
    return Clock()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    """Where an empty database of each back end is."""
    return tmp_path / "memory.db" if request.param == "sqlite" else request.getfixturevalue("url")


@pytest.fixture
def open_again(database: str | Path, clock: Clock) -> Callable[..., Memory]:
    """Another memory on the same database, as another process would open it."""
    return lambda **options: open_memory(database, now=clock, **options)


@pytest.fixture
async def memory(open_again: Callable[..., Memory]) -> AsyncIterator[Memory]:
    """An open memory on an empty database."""
    async with open_again() as opened:
        yield opened
