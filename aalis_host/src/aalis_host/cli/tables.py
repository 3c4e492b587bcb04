"""Tables: fitted to a terminal, or plain aligned lines for another program, with nothing cut or coloured."""

from collections.abc import Sequence

import click
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from aalis_host.cli.output import on_terminal, screen

__all__ = ["show_captioned", "show_facts", "show_table"]

_GAP = "  "
_NARROW = 10
_BETWEEN = 3
"""Cells between two columns of a table on a terminal."""

Row = Sequence[str]


def show_table(
    headings: Row, rows: Sequence[Row], *, right: Sequence[int] = (), styles: Sequence[str | None] | None = None
) -> None:
    """A table with these headings; `right`: the columns of numbers; `styles`: one for each row, on a terminal."""
    if not on_terminal():
        for line in _lines([headings, *rows], _widths([headings, *rows]), right):
            click.echo(line)
        return
    out, styles = screen(), styles or [None] * len(rows)
    first, *others = _widths([headings, *rows])
    least = [first, *(min(width, _NARROW) for width in others)]
    if sum(least) + _BETWEEN * len(least) > out.width:
        _show_stacked(headings, rows, styles)
        return
    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    for index, (heading, width) in enumerate(zip(headings, least, strict=True)):
        justify: JustifyMethod = "right" if index in right else "left"
        made.add_column(heading, justify=justify, overflow="fold", no_wrap=index == 0, min_width=width)
    for cells, style in zip(rows, styles, strict=True):
        made.add_row(*map(Text, cells), style=style)
    out.print(made)


def _show_stacked(headings: Row, rows: Sequence[Row], styles: Sequence[str | None]) -> None:
    """A table for a narrow terminal: under each row's first cell the others, each with its heading."""
    for cells, style in zip(rows, styles, strict=True):
        screen().print(Text(cells[0]), style=style, soft_wrap=True)
        made = Table.grid(padding=(0, 2, 0, 0))
        made.add_column(style="dim", no_wrap=True)
        made.add_column(overflow="fold")
        for heading, cell in zip(headings[1:], cells[1:], strict=True):
            if cell:
                made.add_row(_GAP + heading, Text(cell), style=style)
        if made.rows:
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
