"""Fixtures of the session manager's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.session_manager.kit import Stack, running


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A database that doesn't exist yet."""
    return tmp_path / "aalis.db"


@pytest.fixture
async def stack(db: Path) -> AsyncIterator[Stack]:
    """A running host with the session manager on a new database."""
    async with running(db) as made:
        yield made
