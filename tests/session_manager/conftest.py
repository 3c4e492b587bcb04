"""Fixtures of the session manager's tests."""

from collections.abc import AsyncIterator

import pytest

from tests.session_manager.kit import Stack, running


@pytest.fixture
async def stack(db: str) -> AsyncIterator[Stack]:
    """A running host with the session manager on a new database."""
    async with running(db) as made:
        yield made
