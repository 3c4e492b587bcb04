"""How many messages lie between two positions of a session: exact, and cheap however many there are.

A session's shown messages are cut, in their order, into blocks of at most `BLOCK`; the table `counts` has a row for
each, named by its first position, with the numbers it holds. A count adds up whole blocks and looks at single
messages only at both ends. Every change of messages keeps its blocks in the same transaction.
"""

import sqlite3
from typing import Final

from aalis_api_session_manager.memory import COUNT_LIMIT, Position
from aalis_host.memory.rows import TEXT

__all__ = ["BLOCK", "FIRST", "added", "archived_below", "count", "rebuild", "shown_condition"]

BLOCK: Final = 128

FIRST: Final = Position(-(2**63), 0)
"""Ahead of every message; a session's first block begins here."""

_COLUMN: Final = {
    (False, True): "live_texts",
    (False, False): "live_tools",
    (True, True): "old_texts",
    (True, False): "old_tools",
}


def shown_condition(include_archived: bool, include_tools: bool) -> tuple[str, str]:
    """The index to read by and the condition on `messages`."""
    condition = "shown > 0" if include_tools else "shown > 0 AND shown = 1"
    return ("every", condition) if include_archived else ("live", f"{condition} AND archived = 0")


def _block_numbers(include_archived: bool, include_tools: bool) -> str:
    columns = [name for (old, text), name in _COLUMN.items() if old <= include_archived and (text or include_tools)]
    return " + ".join(columns)


_VARIANTS: Final = [(archived, tools) for archived in (False, True) for tools in (False, True)]

_SUM_BLOCKS: Final = {
    variant: f"SELECT timestamp, id, {_block_numbers(*variant)} FROM counts"
    " WHERE session_id = ? AND (timestamp, id) >= (?, ?) AND (timestamp, id) < (?, ?) ORDER BY timestamp DESC, id DESC"
    for variant in _VARIANTS
}

_COUNT_MESSAGES: Final = {
    variant: f"SELECT count(*) FROM messages INDEXED BY {shown_condition(*variant)[0]}"
    f" WHERE session_id = ? AND {shown_condition(*variant)[1]}"
    " AND (timestamp, id) >= (?, ?) AND (timestamp, id) < (?, ?)"
    for variant in _VARIANTS
}

_BLOCK_OF: Final = (
    "SELECT timestamp, id FROM counts WHERE session_id = ? AND (timestamp, id) <= (?, ?)"
    " ORDER BY timestamp DESC, id DESC LIMIT 1"
)

_NEXT_BLOCK: Final = (
    "SELECT timestamp, id FROM counts WHERE session_id = ? AND (timestamp, id) > (?, ?) ORDER BY timestamp, id LIMIT 1"
)

_ENTRIES: Final = (
    "SELECT timestamp, id, shown, archived FROM messages INDEXED BY every WHERE session_id = ? AND shown > 0"
    " AND (timestamp, id) >= (?, ?) AND (timestamp, id) < (?, ?) ORDER BY timestamp, id"
)

_INSERT: Final = "INSERT INTO counts VALUES (?, ?, ?, ?, ?, ?, ?)"

_DELETE: Final = "DELETE FROM counts WHERE session_id = ? AND timestamp = ? AND id = ?"

_ADD: Final = {
    kind: f"UPDATE counts SET {column} = {column} + 1 WHERE session_id = ? AND timestamp = ? AND id = ?"
    " RETURNING live_texts + live_tools + old_texts + old_tools"
    for kind, column in _COLUMN.items()
}

_LAST: Final = Position(2**63 - 1, 2**63 - 1)

Entry = tuple[int, int, int, int]
"""Timestamp, id, shown, archived of a message."""


def count(db: sqlite3.Connection, session_id: str, low: Position, high: Position, archived: bool, tools: bool) -> int:
    """The shown messages from `low` up to, and without, `high`: exact to COUNT_LIMIT, one more for "more"."""
    if low >= high:
        return 0
    variant = (archived, tools)

    def single(start: Position, end: Position) -> int:
        if start >= end:
            return 0
        values = (session_id, start.timestamp, start.id, end.timestamp, end.id)
        return int(db.execute(_COUNT_MESSAGES[variant], values).fetchone()[0])

    blocks = db.execute(_SUM_BLOCKS[variant], (session_id, low.timestamp, low.id, high.timestamp, high.id))
    last = blocks.fetchone()
    if last is None:
        return single(low, high)
    first = Position(last[0], last[1])
    total = single(first, high)
    for timestamp, number, held in blocks:
        first = Position(timestamp, number)
        total += held
        if total > COUNT_LIMIT:
            return COUNT_LIMIT + 1
    return min(total + single(low, first), COUNT_LIMIT + 1)


def added(db: sqlite3.Connection, session_id: str, position: Position, shown: int, archived: bool) -> None:
    """A shown message was stored."""
    at = (position.timestamp, position.id)
    block = db.execute(_BLOCK_OF, (session_id, *at)).fetchone()
    if block is None:
        _insert(db, session_id, FIRST, [(*at, shown, archived)])
        return
    held = db.execute(_ADD[archived, shown == TEXT], (session_id, *block)).fetchone()[0]
    if held > BLOCK:
        _split(db, session_id, Position(*block), position)


def _split(db: sqlite3.Connection, session_id: str, start: Position, newest: Position) -> None:
    end = _next_block(db, session_id, start)
    entries = _entries(db, session_id, start, end)
    # A history that grows at its end leaves full blocks behind; anywhere else both halves get room.
    middle = len(entries) - 1 if entries[-1][:2] == (newest.timestamp, newest.id) else len(entries) // 2
    db.execute(_DELETE, (session_id, start.timestamp, start.id))
    _insert(db, session_id, start, entries[:middle])
    _insert(db, session_id, Position(*entries[middle][:2]), entries[middle:])


def archived_below(db: sqlite3.Connection, session_id: str, boundary: Position) -> None:
    """Every shown message ahead of `boundary` was archived."""
    at = (boundary.timestamp, boundary.id)
    block = db.execute(_BLOCK_OF, (session_id, *at)).fetchone()
    if block is None:
        return
    db.execute(
        "UPDATE counts SET old_texts = old_texts + live_texts, old_tools = old_tools + live_tools, live_texts = 0,"
        " live_tools = 0 WHERE session_id = ? AND (timestamp, id) < (?, ?) AND live_texts + live_tools > 0",
        (session_id, *block),
    )
    start = Position(*block)
    entries = _entries(db, session_id, start, _next_block(db, session_id, start))
    db.execute(_DELETE, (session_id, *block))
    _insert(db, session_id, start, entries)


def rebuild(db: sqlite3.Connection, session_id: str) -> None:
    """Make the blocks of a session anew, after messages were removed from it."""
    db.execute("DELETE FROM counts WHERE session_id = ?", (session_id,))
    entries = _entries(db, session_id, FIRST, _LAST)
    for at in range(0, len(entries), BLOCK):
        start = Position(*entries[at][:2]) if at else FIRST
        _insert(db, session_id, start, entries[at : at + BLOCK])


def _next_block(db: sqlite3.Connection, session_id: str, start: Position) -> Position:
    row = db.execute(_NEXT_BLOCK, (session_id, start.timestamp, start.id)).fetchone()
    return _LAST if row is None else Position(*row)


def _entries(db: sqlite3.Connection, session_id: str, start: Position, end: Position) -> list[Entry]:
    return db.execute(_ENTRIES, (session_id, start.timestamp, start.id, end.timestamp, end.id)).fetchall()


def _insert(db: sqlite3.Connection, session_id: str, start: Position, entries: list[Entry]) -> None:
    held = dict.fromkeys(_COLUMN, 0)
    for _, _, shown, archived in entries:
        held[bool(archived), shown == TEXT] += 1
    db.execute(_INSERT, (session_id, start.timestamp, start.id, *held.values()))
