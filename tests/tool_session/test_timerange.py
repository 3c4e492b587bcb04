"""Times as models send them."""

from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from aalis_api_session_manager.service import HistoryRange
from aalis_plugin_tool_session.texts import Refused
from aalis_plugin_tool_session.timerange import local_iso, read_range

NOW = 1_796_073_281_984
MINUTE = 60_000
DAY = 24 * 60 * MINUTE

pytestmark = pytest.mark.rule("HIST-4")


def ms(zone_name: str, *parts: int, fold: int = 0) -> int:
    """A wall-clock time in a zone, as milliseconds: by another library than the code uses."""
    return int(datetime(*parts, tzinfo=ZoneInfo(zone_name), fold=fold).timestamp() * 1000)


def window(since: object = None, until: object = None, within_minutes: object = None) -> HistoryRange:
    return read_range(since=since, until=until, within_minutes=within_minutes, now=NOW)


def refused(**arguments: object) -> str:
    with pytest.raises(Refused) as caught:
        window(**arguments)
    return str(caught.value)


@pytest.mark.parametrize("name", ["Asia/Seoul", "America/New_York", "UTC", "Asia/Kathmandu"])
def test_a_bare_date_is_the_whole_day_of_the_servers_zone(zone: Callable[[str], None], name: str) -> None:
    zone(name)
    assert window("2026-11-30", "2026-11-30") == HistoryRange(
        since_ts=ms(name, 2026, 11, 30), until_ts=ms(name, 2026, 12, 1) - 1
    )


@pytest.mark.parametrize("name", ["Asia/Seoul", "America/New_York"])
def test_a_time_without_an_offset_is_the_servers(zone: Callable[[str], None], name: str) -> None:
    zone(name)
    assert window("2026-11-30T09:30", "2026-11-30 18:05:07.250") == HistoryRange(
        since_ts=ms(name, 2026, 11, 30, 9, 30), until_ts=ms(name, 2026, 11, 30, 18, 5, 7) + 250
    )


def test_an_offset_is_kept_whatever_the_zone(zone: Callable[[str], None]) -> None:
    zone("Asia/Seoul")
    assert window("2026-11-30T00:00Z", "2026-11-30T09:30+08:00") == HistoryRange(
        since_ts=ms("UTC", 2026, 11, 30), until_ts=ms("UTC", 2026, 11, 30, 1, 30)
    )


def test_a_day_with_a_clock_change_has_its_true_length(zone: Callable[[str], None]) -> None:
    """2026-11-01 has 25 hours in New York, 2026-03-08 has 23."""
    zone("America/New_York")
    for day, hours in (("2026-11-01", 25), ("2026-03-08", 23), ("2026-03-09", 24)):
        read = window(day, day)
        assert read.since_ts is not None and read.until_ts is not None
        assert read.until_ts + 1 - read.since_ts == hours * 60 * MINUTE


def test_an_hour_that_happens_twice_is_read_wide(zone: Callable[[str], None]) -> None:
    """01:30 of the day the clocks go back: since is the first, until the second."""
    zone("America/New_York")
    read = window("2026-11-01T01:30", "2026-11-01T01:30")
    assert read.since_ts == ms("UTC", 2026, 11, 1, 5, 30)
    assert read.until_ts == ms("UTC", 2026, 11, 1, 6, 30)


def test_an_hour_that_is_skipped_is_moved_on(zone: Callable[[str], None]) -> None:
    """02:30 of the day the clocks go forward doesn't exist; it is 03:30 then."""
    zone("America/New_York")
    read = window("2026-03-08T02:30", "2026-03-08T02:30")
    assert read.since_ts == read.until_ts == ms("UTC", 2026, 3, 8, 7, 30)


def test_a_midnight_that_is_skipped_begins_the_day_at_its_first_moment(zone: Callable[[str], None]) -> None:
    """In Beirut the clocks go from 24:00 to 01:00 of 2026-03-29."""
    zone("Asia/Beirut")
    assert window("2026-03-29").since_ts == ms("UTC", 2026, 3, 28, 22)
    assert window(until="2026-03-28").until_ts == ms("UTC", 2026, 3, 28, 22) - 1


@pytest.mark.parametrize(
    ("digits", "expected"),
    [
        ("20261130", ms("UTC", 2026, 11, 30)),
        ("999999999", 999_999_999_000),
        ("1796073281", 1_796_073_281_000),
        ("999999999999", 999_999_999_999),
        ("1796073281984", 1_796_073_281_984),
        ("17960732819840", 17_960_732_819_840),
    ],
)
@pytest.mark.parametrize("kind", [str, int, float])
def test_digits_are_read_by_their_length(
    zone: Callable[[str], None], digits: str, expected: int, kind: Callable[[str], object]
) -> None:
    """8 a date, 9 or 10 seconds, 12 to 14 milliseconds; as text or as a number."""
    zone("UTC")
    assert window(kind(digits)).since_ts == expected


@pytest.mark.parametrize("length", [*range(1, 8), 11, 15, 16, 20, 40, 5000])
def test_digits_of_any_other_length_are_refused(length: int) -> None:
    text = refused(since="1" * length)
    assert text.startswith("since can't be read as a time: '1")
    assert "8 a date, 9 or 10 seconds, 12 to 14 milliseconds" in text


NO_TEXTS = ("", " ", "yesterday", "2026-13-01", "2026-02-30", "20261345", "2026-11", "09:30", "-1796073281")
FULL_WIDTH = "１７９６０７３２８１"


@pytest.mark.parametrize("value", [*NO_TEXTS, FULL_WIDTH, "9999-12-31", 1.5, True, float("nan"), float("inf"), [], {}])
def test_what_is_no_time_is_refused_by_its_name(value: object) -> None:
    assert refused(until=value).startswith("until can't be read as a time: ")


def test_the_ends_of_the_calendar_are_times() -> None:
    assert window("0001-01-01T00:00+23:59", "9999-12-31T23:59:59-23:59") == HistoryRange(
        since_ts=-62_135_683_140_000, until_ts=253_402_387_139_000
    )


def test_a_refusal_shows_little_of_a_long_value() -> None:
    assert len(refused(since="x" * 100_000)) < 400


def test_since_after_until_is_refused_with_both(zone: Callable[[str], None]) -> None:
    zone("Asia/Seoul")
    text = refused(since="2026-11-30", until="2026-11-29")
    assert text == (
        "since (2026-11-30T00:00:00+09:00) is after until (2026-11-29T23:59:59.999+09:00). Swap them, or leave one out."
    )


def test_space_around_a_time_means_nothing() -> None:
    assert window(" 1796073281984\n", "\t1796073281984 ") == HistoryRange(since_ts=NOW, until_ts=NOW)


def test_one_moment_is_a_window() -> None:
    assert window("1796073281984", "1796073281984") == HistoryRange(since_ts=NOW, until_ts=NOW)


@pytest.mark.parametrize(("minutes", "back"), [(1, MINUTE), (0.5, 30_000), (1440, DAY), (1e300, NOW)])
def test_within_minutes_reaches_back_from_now(minutes: float, back: int) -> None:
    """As far as there is time."""
    assert window(within_minutes=minutes) == HistoryRange(since_ts=NOW - back)


@pytest.mark.parametrize("minutes", [0, -1, -0.5, float("nan"), float("inf"), "60", True, []])
def test_minutes_that_are_none_are_refused(minutes: object) -> None:
    assert refused(within_minutes=minutes) == (
        "within_minutes must be a number above 0. Send one, or leave within_minutes out."
    )


def test_since_and_until_win_over_within_minutes() -> None:
    assert window("1796000000000", None, 5) == HistoryRange(since_ts=1_796_000_000_000)
    assert window(None, "1796000000000", 5) == HistoryRange(until_ts=1_796_000_000_000)


def test_no_argument_is_no_window() -> None:
    assert window() == HistoryRange()


@pytest.mark.parametrize(
    ("name", "timestamp", "text"),
    [
        ("Asia/Seoul", 1_796_073_281_984, "2026-12-01T06:14:41.984+09:00"),
        ("America/New_York", 1_796_073_281_000, "2026-11-30T16:14:41-05:00"),
        ("America/New_York", ms("UTC", 2026, 7, 1, 12), "2026-07-01T08:00:00-04:00"),
        ("Asia/Kathmandu", 0, "1970-01-01T05:30:00+05:30"),
        ("UTC", 2**63 - 1, "9223372036854775807"),
    ],
)
def test_a_moment_is_shown_in_the_servers_zone_with_its_offset(
    zone: Callable[[str], None], name: str, timestamp: int, text: str
) -> None:
    zone(name)
    assert local_iso(timestamp) == text
