"""The one way in which a schema grows."""

import pytest

from aalis_api_session_manager.errors import ConfigError
from aalis_host.memory.upgrades import refuse_newer, refuse_older, upgrade

STEPS = (("a", "b"), ("c",), ("d", "e"))


@pytest.mark.parametrize(("version", "run"), [(0, "abcde"), (1, "cde"), (2, "de"), (3, "")])
def test_only_the_missing_steps_are_run(version: int, run: str) -> None:
    """In their order; the number of steps is the version reached."""
    ran: list[str] = []
    assert upgrade("x", version, STEPS, ran.append) == 3
    assert "".join(ran) == run


def test_newer_and_older_are_told_apart() -> None:
    """Each is one line that names the database, both versions and what to do."""
    refuse_newer("x", 3, STEPS)
    refuse_older("x", 3, STEPS)
    with pytest.raises(ConfigError, match=r"x was made by a newer version .*4.*3.*update"):
        refuse_newer("x", 4, STEPS)
    with pytest.raises(ConfigError, match=r"x was made by a newer version .*4.*3.*update"):
        upgrade("x", 4, STEPS, pytest.fail)
    with pytest.raises(ConfigError, match=r"x was made by an older version .*2.*3.*writing"):
        refuse_older("x", 2, STEPS)
