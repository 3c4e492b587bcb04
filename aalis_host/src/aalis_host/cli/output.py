"""Showing things on a terminal, or to another program."""

import re
import sys
from collections.abc import Sequence
from typing import Any

import click
import orjson
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aalis_api_session_manager.values import thaw_json

__all__ = [
    "age",
    "block",
    "compact",
    "facts",
    "on_terminal",
    "one_line",
    "print_json",
    "screen",
    "table",
    "with_captions",
]

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What moves the cursor or changes colours: other people's text may not."""
_DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""What turns the direction of the rest of a line."""
_PIPE_WIDTH = 10_000
_GAP = "  "
_NARROW = 10
_UNITS = ((365 * 86_400, "y"), (7 * 86_400, "w"), (86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def on_terminal() -> bool:
    """Does a person look at standard output."""
    return sys.stdout.isatty()


def screen() -> Console:
    """Standard output. On a terminal as wide as it is; for other programs nothing is cut or coloured."""
    if on_terminal():
        return Console(highlight=False, markup=False, emoji=False)
    return Console(highlight=False, markup=False, emoji=False, width=_PIPE_WIDTH, color_system=None)


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


def cut(words: str, cells: int) -> str:
    """At most so many cells of a terminal, with an ellipsis where something is missing."""
    line = Text(words)
    line.truncate(cells, overflow="ellipsis")
    return line.plain


def table(*headings: str, right: Sequence[int] = ()) -> Table:
    """A table with these headings; `right`: the columns of numbers. Without lines where no person looks."""
    made = Table(box=SIMPLE_HEAD if on_terminal() else None, pad_edge=False, padding=(0, 1), header_style="bold")
    for index, heading in enumerate(headings):
        made.add_column(heading, justify="right" if index in right else "left", overflow="fold")
    return made


def with_captions(
    headings: Sequence[str], rows: Sequence[tuple[Sequence[str], str]], *, right: Sequence[int], flexible: Sequence[int]
) -> list[Text]:
    """Lines of a table whose rows are one line each, with a caption of any length below each.

    Where the terminal is too narrow the `flexible` columns are cut, the last of them first.
    """
    columns = list(zip(headings, *(cells for cells, _ in rows), strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    missing = sum(widths) + len(_GAP) * (len(widths) - 1) - screen().width
    for index in reversed(flexible):
        spare = max(0, min(missing, widths[index] - _NARROW))
        widths[index] -= spare
        missing -= spare

    def line(cells: Sequence[str]) -> str:
        fitted = []
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            shown = cut(cell, width)
            space = " " * (width - cell_len(shown))
            fitted.append(space + shown if index in right else shown + space)
        return _GAP.join(fitted).rstrip()

    lines = [Text(line(headings), style="bold")]
    for cells, caption in rows:
        lines += [Text(line(cells)), Text(f"  {caption}", style="dim")]
    return lines


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Names with values, a row each."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(Text(name), Text(value))
    return made
