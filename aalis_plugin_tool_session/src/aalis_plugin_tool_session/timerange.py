"""Reading the times that a model sends. Pure but for the process's time zone. Rule: HIST-4.

A time without an offset, and a bare date, are read in the process's zone. Where a clock change makes a wall-clock
time happen twice, `since` takes the first and `until` the second; one that a change skips is moved on by as
much as the clock was.
"""

import functools
import math
from datetime import date, datetime, timedelta
from typing import Any, Literal

from aalis_api_session_manager.service import HistoryRange
from aalis_plugin_tool_session.texts import Refused, text

__all__ = ["local_iso", "read_range"]

Bound = Literal["since", "until"]
_EPOCH = datetime(1970, 1, 1)
_DAY = 24 * 60 * 60
_SHOWN = 60


def read_range(*, since: Any, until: Any, within_minutes: Any, now: int) -> HistoryRange:
    """The window that the arguments ask for, open where they ask for nothing. `now` in milliseconds.

    `since` and `until` are text or integers, `within_minutes` a number; they win over it. Raises Refused for
    what can't be read, a window that ends before it begins, and minutes that aren't above 0.
    """
    if since is not None or until is not None:
        window = HistoryRange(
            since_ts=None if since is None else _instant("since", since),
            until_ts=None if until is None else _instant("until", until),
        )
        if window.since_ts is not None and window.until_ts is not None and window.since_ts > window.until_ts:
            raise Refused(text("time.backwards", since=local_iso(window.since_ts), until=local_iso(window.until_ts)))
        return window
    if within_minutes is None:
        return HistoryRange()
    if type(within_minutes) not in (int, float) or not within_minutes > 0 or math.isinf(within_minutes):
        raise Refused(text("argument.positive", name="within_minutes"))
    return HistoryRange(since_ts=now - int(min(within_minutes * 60_000, now)))


def local_iso(timestamp: int) -> str:
    """Milliseconds since the epoch as ISO 8601 in the process's zone, with its offset.

    A time outside of the years 1 to 9999 is given as its digits.
    """
    seconds, milliseconds = divmod(timestamp, 1000)
    try:
        local = datetime.fromtimestamp(seconds)
    except (OverflowError, ValueError, OSError):
        return str(timestamp)
    wall = local - _EPOCH
    fraction = f".{milliseconds:03}" if milliseconds else ""
    return local.isoformat() + fraction + _offset(wall.days * _DAY + wall.seconds - seconds)


@functools.cache
def _offset(seconds: int) -> str:
    minutes = abs(seconds) // 60
    return f"{'-' if seconds < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"


def _instant(name: Bound, value: Any) -> int:
    try:
        if isinstance(value, str):
            written = value.strip()
            is_digits = written.isascii() and written.isdigit()
            return _from_digits(name, written) if is_digits else _from_iso(name, written)
        if type(value) is int or (type(value) is float and value.is_integer()):
            return _from_digits(name, str(int(value)))
    except (ValueError, OverflowError, OSError):
        pass
    shown = str(value)
    raise Refused(text("time.unreadable", name=name, value=repr(shown[:_SHOWN] + ("…" if len(shown) > _SHOWN else ""))))


def _from_digits(name: Bound, digits: str) -> int:
    match len(digits):
        case 8:
            return _from_iso(name, digits)
        case 9 | 10:
            return int(digits) * 1000
        case 12 | 13 | 14:
            return int(digits)
    raise ValueError(digits)


def _from_iso(name: Bound, iso: str) -> int:
    try:
        day = date.fromisoformat(iso)
    except ValueError:
        moment = datetime.fromisoformat(iso)
        first, second = (_milliseconds(moment.replace(fold=fold)) for fold in (0, 1))
        return max(first, second) if name == "until" else first
    return _midnight(day) if name == "since" else _midnight(day + timedelta(days=1)) - 1


def _midnight(day: date) -> int:
    return _milliseconds(datetime(day.year, day.month, day.day))


def _milliseconds(moment: datetime) -> int:
    # `timestamp` moves on a time that a clock change skips; `astimezone` would move it back.
    return int(moment.replace(microsecond=0).timestamp()) * 1000 + moment.microsecond // 1000
