"""A stack of each test, on a file."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.tool_session.kit import Stack, stack


@pytest.fixture
async def s(tmp_path: Path) -> AsyncIterator[Stack]:
    """The stack with default settings."""
    async with stack(tmp_path) as made:
        yield made
