"""How many messages lie between two positions of a session: exact, and cheap however many there are.

A session's shown messages are cut, in their order, into blocks of at most `BLOCK`; the table `counts` has a row for
each, named by its first position, with the numbers it holds. A count adds up whole blocks and looks at single
messages only at both ends. Every change of messages keeps its blocks in the same transaction.
"""

import sqlite3
from typing import Final

from aalis_api_session_manager.memory import COUNT_LIMIT, Position
from aalis_host.memory.paging import FIRST, LAST
from aalis_host.memory.rows import TEXT

__all__ = ["BLOCK", "added", "archived_below", "count", "rebuild", "shown_condition"]

BLOCK: Final = 128

_ENOUGH: Final = (COUNT_LIMIT // BLOCK + 2, 8 * COUNT_LIMIT // BLOCK, -1)
"""Blocks to add up: what full ones need; what sparse ones (other kinds of messages in between) need; all."""

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
    variant: f"SELECT count(*), sum(held) FROM (SELECT {_block_numbers(*variant)} AS held FROM counts"
    " WHERE session_id = ? AND (timestamp, id) >= (?, ?) AND (timestamp, id) < (?, ?)"
    " ORDER BY timestamp DESC, id DESC LIMIT ?)"
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

_BLOCK_FROM: Final = (
    "SELECT timestamp, id FROM counts WHERE session_id = ? AND (timestamp, id) >= (?, ?) ORDER BY timestamp, id LIMIT 1"
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

    first = _block_from(db, session_id, low)
    last = LAST if high == LAST else _block_of(db, session_id, high)
    if last is None or first > last:
        return single(low, high)
    total = single(low, first) + single(last, high)
    for blocks in _ENOUGH:
        values = (session_id, first.timestamp, first.id, last.timestamp, last.id, blocks)
        found, whole = db.execute(_SUM_BLOCKS[variant], values).fetchone()
        if found != blocks or total + whole > COUNT_LIMIT:
            break
    return min(total + (whole or 0), COUNT_LIMIT + 1)


def added(db: sqlite3.Connection, session_id: str, position: Position, shown: int, archived: bool) -> None:
    """A shown message was stored."""
    block = _block_of(db, session_id, position)
    if block is None:
        _insert(db, session_id, FIRST, [(position.timestamp, position.id, shown, archived)])
        return
    held = db.execute(_ADD[archived, shown == TEXT], (session_id, block.timestamp, block.id)).fetchone()[0]
    if held > BLOCK:
        _split(db, session_id, block, position)


def _split(db: sqlite3.Connection, session_id: str, start: Position, newest: Position) -> None:
    end = _behind(db, session_id, start)
    entries = _entries(db, session_id, start, end)
    # A history that grows at its end leaves full blocks behind; anywhere else both halves get room.
    middle = len(entries) - 1 if entries[-1][:2] == (newest.timestamp, newest.id) else len(entries) // 2
    db.execute(_DELETE, (session_id, start.timestamp, start.id))
    _insert(db, session_id, start, entries[:middle])
    _insert(db, session_id, Position(*entries[middle][:2]), entries[middle:])


def archived_below(db: sqlite3.Connection, session_id: str, boundary: Position) -> None:
    """Every shown message ahead of `boundary` was archived."""
    block = _block_of(db, session_id, boundary)
    if block is None:
        return
    db.execute(
        "UPDATE counts SET old_texts = old_texts + live_texts, old_tools = old_tools + live_tools, live_texts = 0,"
        " live_tools = 0 WHERE session_id = ? AND (timestamp, id) < (?, ?) AND live_texts + live_tools > 0",
        (session_id, block.timestamp, block.id),
    )
    entries = _entries(db, session_id, block, _behind(db, session_id, block))
    db.execute(_DELETE, (session_id, block.timestamp, block.id))
    _insert(db, session_id, block, entries)


def rebuild(db: sqlite3.Connection, session_id: str) -> None:
    """Make the blocks of a session anew, after messages were removed from it."""
    db.execute("DELETE FROM counts WHERE session_id = ?", (session_id,))
    entries = _entries(db, session_id, FIRST, LAST)
    for at in range(0, len(entries), BLOCK):
        start = Position(*entries[at][:2]) if at else FIRST
        _insert(db, session_id, start, entries[at : at + BLOCK])


def _block_of(db: sqlite3.Connection, session_id: str, position: Position) -> Position | None:
    row = db.execute(_BLOCK_OF, (session_id, position.timestamp, position.id)).fetchone()
    return None if row is None else Position(*row)


def _block_from(db: sqlite3.Connection, session_id: str, position: Position) -> Position:
    if position == FIRST:
        return FIRST
    row = db.execute(_BLOCK_FROM, (session_id, position.timestamp, position.id)).fetchone()
    return LAST if row is None else Position(*row)


def _behind(db: sqlite3.Connection, session_id: str, block: Position) -> Position:
    return _block_from(db, session_id, Position(block.timestamp, block.id + 1))


def _entries(db: sqlite3.Connection, session_id: str, start: Position, end: Position) -> list[Entry]:
    return db.execute(_ENTRIES, (session_id, start.timestamp, start.id, end.timestamp, end.id)).fetchall()


def _insert(db: sqlite3.Connection, session_id: str, start: Position, entries: list[Entry]) -> None:
    held = dict.fromkeys(_COLUMN, 0)
    for _, _, shown, archived in entries:
        held[bool(archived), shown == TEXT] += 1
    db.execute(_INSERT, (session_id, start.timestamp, start.id, *held.values()))
