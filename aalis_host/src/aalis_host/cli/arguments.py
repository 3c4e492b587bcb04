"""Reading what a person types as an argument."""

import math
import re
from datetime import datetime
from typing import Any

import click

from aalis_api_session_manager.model import Identity
from aalis_host.cli.base import Mistake
from aalis_host.cli.texts import text

__all__ = ["Finite", "identity", "moment", "session_id"]

_SPAN = re.compile(r"(\d+)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}

session_id = click.argument("session_id", metavar="ID")


class Finite(click.FloatRange):
    """A number in a range, and a real one: neither `nan` nor `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises click's BadParameter."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is no finite number.", param, ctx)
        return number


def moment(name: str, value: str | None, now: int) -> int | None:
    """Milliseconds since the epoch of a span before `now` (`12h`) or an ISO time (without an offset: this
    process's zone). Raises Mistake."""
    if value is None:
        return None
    span = _SPAN.fullmatch(value)
    if span is not None:
        return now - int(span[1]) * _SECONDS[span[2]] * 1000
    try:
        return round(datetime.fromisoformat(value).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise Mistake(text("bad-time", name=name, value=value)) from None


def identity(value: str) -> Identity:
    """The account of `platform:user`. Raises Mistake."""
    platform, colon, user = value.partition(":")
    if not platform or not colon or not user:
        raise Mistake(text("bad-identity", value=value))
    return Identity(platform=platform, user_id=user)
