"""What the tests of several folders share."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the clone, with the rules and the recorded traffic; the test is skipped without it."""
    if not SHARED.is_dir():
        pytest.skip("the folder `shared` isn't beside the clone")
    return SHARED
