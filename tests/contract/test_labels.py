"""Default names of sessions and places."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from aalis_api_session_manager.model import PlaceInfo
from aalis_api_session_manager.text import TextRef, place_label, session_label
from aalis_api_session_manager.wire import to_json
from tests.contract.kit import session

HALF_PAST_NINE = int(datetime(2026, 11, 2, 0, 30, tzinfo=UTC).timestamp() * 1000)
"""09:30 on 2 November 2026 in Seoul."""


@pytest.fixture
def seoul(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process's time zone is Seoul's."""
    monkeypatch.setenv("TZ", "Asia/Seoul")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.rule("LABEL-1", "LABEL-2")
def test_default_labels(seoul: None) -> None:
    """A nameless root reads by date and time with the year, a nameless child by its time, in the process's zone."""
    root, child = (
        session_label(session(created_at=HALF_PAST_NINE)),
        session_label(session(created_at=HALF_PAST_NINE + 59_999, parent_id="p")),
    )
    assert isinstance(root, TextRef)
    assert isinstance(child, TextRef)
    assert root.source == "Session 2026-11-02 09:30"
    assert child.source == "Subtask 09:30"
    assert root.params == child.params | {"created_at": HALF_PAST_NINE}


@pytest.mark.rule("LABEL-1", "LABEL-3")
def test_a_name_is_the_label() -> None:
    """The name when there is one, of roots and children; an empty one is none, and the title isn't read."""
    assert session_label(session(name="Planning")) == "Planning"
    assert session_label(session(name="Planning", parent_id="p", title="T")) == "Planning"
    assert isinstance(session_label(session(name="", title="T")), TextRef)
    assert isinstance(session_label(session(title="T")), TextRef)


@pytest.mark.rule("LABEL-2")
def test_a_default_label_is_never_stored() -> None:
    """The record that goes to the store holds no name and no label."""
    record = session(created_at=HALF_PAST_NINE)
    session_label(record)
    assert to_json(record).keys() == {"id", "children", "status", "createdAt", "updatedAt", "kind"}


@pytest.mark.rule("LABEL-2")
def test_a_label_survives_a_time_that_no_calendar_has() -> None:
    """A damaged creation time still gives a label that can be shown."""
    label = session_label(session(created_at=2**62))
    assert isinstance(label, TextRef)
    assert label.source == "session.default-root"


@pytest.mark.rule("LABEL-4")
def test_place_labels() -> None:
    """The place's name; the nameless place is the default workspace."""
    window = PlaceInfo(kind="window", key="onebot:group:900", name="Readers")
    assert place_label(window) == "Readers"
    nameless = place_label(PlaceInfo(kind="workspace", key="workspace:default"))
    assert isinstance(nameless, TextRef)
    assert nameless.source == "Default workspace"
