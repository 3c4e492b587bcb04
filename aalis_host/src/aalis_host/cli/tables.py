"""Tables: fitted to a terminal, or plain aligned lines for another program, with nothing cut or coloured."""

from collections.abc import Sequence

import click
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from aalis_host.cli.output import on_terminal, screen

__all__ = ["show_captioned", "show_facts", "show_table"]

_GAP = "  "
_NARROW = 10

Row = Sequence[str]


def show_table(
    headings: Row, rows: Sequence[Row], *, right: Sequence[int] = (), styles: Sequence[str | None] | None = None
) -> None:
    """A table with these headings; `right`: the columns of numbers; `styles`: one for each row, on a terminal."""
    if not on_terminal():
        for line in _lines([headings, *rows], _widths([headings, *rows]), right):
            click.echo(line)
        return
    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    for index, heading in enumerate(headings):
        made.add_column(heading, justify="right" if index in right else "left", overflow="fold", no_wrap=index == 0)
    for cells, style in zip(rows, styles or [None] * len(rows), strict=True):
        made.add_row(*map(Text, cells), style=style)
    screen().print(made)


def show_captioned(
    headings: Row, rows: Sequence[Row], captions: Sequence[str], *, right: Sequence[int], flexible: Sequence[int]
) -> None:
    """A table for a terminal: each row is one line, with a caption of any length below it.

    Where the terminal is too narrow the `flexible` columns are cut, the last of them first.
    """
    out = screen()
    widths = _widths([headings, *rows])
    missing = sum(widths) + len(_GAP) * (len(widths) - 1) - out.width
    for index in reversed(flexible):
        spare = max(0, min(missing, widths[index] - _NARROW))
        widths[index] -= spare
        missing -= spare
    heading, *lines = _lines([headings, *rows], widths, right)
    out.print(Text(heading, style="bold"), soft_wrap=True)
    for line, caption in zip(lines, captions, strict=True):
        out.print(Text(line).append(f"\n{_GAP}{caption}", style="dim"), soft_wrap=True)


def show_facts(rows: Sequence[tuple[str, str]]) -> None:
    """Names with values, a row each; a value may have several lines."""
    if not on_terminal():
        lines = [(name if first else "", line) for name, value in rows for first, line in _numbered(value)]
        for line in _lines(lines, _widths(lines), ()):
            click.echo(line)
        return
    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(Text(name), Text(value))
    screen().print(made)


def _numbered(value: str) -> list[tuple[bool, str]]:
    return [(number == 0, line) for number, line in enumerate(value.split("\n"))]


def _widths(rows: Sequence[Row]) -> list[int]:
    return [max(map(cell_len, column)) for column in zip(*rows, strict=True)]


def _lines(rows: Sequence[Row], widths: Sequence[int], right: Sequence[int]) -> list[str]:
    made = []
    for cells in rows:
        fitted = []
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            shown = _cut(cell, width)
            space = " " * (width - cell_len(shown))
            fitted.append(space + shown if index in right else shown + space)
        made.append(_GAP.join(fitted).rstrip())
    return made


def _cut(words: str, cells: int) -> str:
    """At most so many cells, with an ellipsis where something is missing."""
    if cell_len(words) <= cells:
        return words
    line = Text(words)
    line.truncate(cells, overflow="ellipsis")
    return line.plain
