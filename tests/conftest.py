"""What the tests of several folders share."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.cluster import Cluster, running

SHARED = Path(__file__).parents[2] / "shared"

# A busy machine is no failure: no example has a time limit of its own.
settings.register_profile("unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


# In the background of a script Ctrl-C is ignored, and what the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the clone, with the rules and the recorded traffic; the test is skipped without it."""
    if not SHARED.is_dir():
        pytest.skip("the folder `shared` isn't beside the clone")
    return SHARED


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server; skipped with the reason where none can be run."""
    with running() as started:
        yield started


@pytest.fixture
def url(cluster: Cluster) -> Iterator[str]:
    """An empty database on the server."""
    with cluster.database() as made:
        yield made


@pytest.fixture
def db(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that doesn't exist yet: a file, or on the server where `each_back_end` says so."""
    if getattr(request, "param", "sqlite") == "postgres":
        made: str = request.getfixturevalue("url")
        return made
    return str(tmp_path / "aalis.db")
