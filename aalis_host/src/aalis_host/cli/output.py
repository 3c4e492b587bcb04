"""Showing things on a terminal, or to another program."""

import re
import sys
from typing import Any

import click
import orjson
from rich.console import Console

from aalis_api_session_manager.values import thaw_json

__all__ = ["age", "block", "compact", "on_terminal", "one_line", "print_json", "screen"]

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What moves the cursor or changes colours: other people's text may not."""
_DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""What turns the direction of the rest of a line."""
_UNITS = ((365 * 86_400, "y"), (7 * 86_400, "w"), (86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def on_terminal() -> bool:
    """Does a person look at standard output."""
    return sys.stdout.isatty()


def screen() -> Console:
    """Standard output, where a person looks at it."""
    return Console(highlight=False, markup=False, emoji=False)


def print_json(value: Any) -> None:
    """One JSON value, and nothing else."""
    click.echo(orjson.dumps(value, default=thaw_json, option=orjson.OPT_INDENT_2).decode())


def block(words: str) -> str:
    """Other people's text, with its lines, made harmless for a terminal."""
    return _CONTROL.sub("\ufffd", _DIRECTION.sub("", words.replace("\r\n", "\n")))


def one_line(words: str) -> str:
    """Other people's text in one line, made harmless."""
    return block(" ".join(words.split()))


def age(milliseconds: int) -> str:
    """A span of time in its largest unit: `45s`, `3h`, `2w`."""
    seconds = max(0, milliseconds // 1000)
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), (1, "s"))
    return f"{seconds // size}{unit}"


def compact(number: int) -> str:
    """`950`, `12.3k`, `4.0M`."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)
