"""Requests to clear, and what their answers mean."""

from collections.abc import Sequence

import pytest

from aalis_api_session_manager.kinds import history_cleared
from aalis_api_session_manager.message import HISTORY_SOURCE, ClearRequest, ClearRow

DONE = ClearRow(source=HISTORY_SOURCE, success=True)
FAILED = ClearRow(source=HISTORY_SOURCE, success=False, message="disk full")
OTHER = ClearRow(source="persona", success=True)


@pytest.mark.rule("CLEAR-1", "CLEAR-2")
@pytest.mark.parametrize(
    ("types", "rows", "cleared"),
    [
        ((), [DONE], True),
        (("context",), [DONE], True),
        (("persona", "context"), [OTHER, DONE], True),
        ((), [OTHER, DONE], True),
        (("persona",), [OTHER, DONE], False),
        ((), [FAILED], False),
        (("context",), [FAILED], False),
        ((), [OTHER], False),
        ((), [], False),
    ],
)
def test_the_history_was_cleared(types: tuple[str, ...], rows: Sequence[ClearRow], cleared: bool) -> None:
    """It was when it was asked for (no types, or `context`) and its own row reported success."""
    assert history_cleared(ClearRequest(scope="session", session_id="s", types=types), rows) is cleared
    assert history_cleared(ClearRequest(scope="all", types=types), rows) is cleared


def test_a_request_names_its_session_or_all() -> None:
    """A request for one session needs its id; one for all takes none, so that neither is read as the other."""
    with pytest.raises(ValueError, match="session id"):
        ClearRequest(scope="session")
    with pytest.raises(ValueError, match="session id"):
        ClearRequest(scope="all", session_id="s")
