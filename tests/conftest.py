"""What the tests of several folders share."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SHARED = Path(__file__).parents[2] / "shared"

# A busy machine is no failure: no example has a time limit of its own.
settings.register_profile("unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the clone, with the rules and the recorded traffic; the test is skipped without it."""
    if not SHARED.is_dir():
        pytest.skip("the folder `shared` isn't beside the clone")
    return SHARED
