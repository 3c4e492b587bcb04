"""How many messages lie between two positions of a session, as `sqlite_counts` does it: here each step is one
statement, since each is a way to the server and back."""

from collections.abc import Sequence
from typing import Final

from aalis_api_session_manager.memory import COUNT_LIMIT, Position
from aalis_host.memory.paging import FIRST, LAST, Span
from aalis_host.memory.postgres_pool import Connection

__all__ = ["BLOCK", "OPEN", "Entry", "added", "archived_below", "count", "rebuild", "shown_condition"]

BLOCK: Final = 128

Entry = tuple[str, int, int, int, int]
"""Session id, timestamp, id, shown, archived of a stored message that is shown."""

OPEN: Final = (
    f"INSERT INTO aalis.counts SELECT session_id, {FIRST.timestamp}, {FIRST.id}, 0, 0, 0, 0"
    " FROM unnest(%s::text[]) AS asked (session_id) ON CONFLICT DO NOTHING"
)
"""Gives sessions their first block; it has to be done in a statement ahead of `added`."""

_COLUMNS: Final = ("live_texts", "live_tools", "old_texts", "old_tools")

_HELD: Final = ", ".join(
    f"count(*) FILTER (WHERE archived = {archived} AND shown = {shown}) AS {name}"
    for name, archived, shown in zip(_COLUMNS, (0, 0, 1, 1), (1, 2, 1, 2), strict=True)
)

_ADD: Final = f"""
    WITH asked AS (
        SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::smallint[], %s::smallint[])
            AS asked (session_id, timestamp, id, shown, archived)
    ), grown AS (
        SELECT asked.session_id, block.timestamp, block.id, {_HELD}
        FROM asked CROSS JOIN LATERAL (
            SELECT timestamp, id FROM aalis.counts
            WHERE session_id = asked.session_id AND (timestamp, id) <= (asked.timestamp, asked.id)
            ORDER BY timestamp DESC, id DESC LIMIT 1
        ) AS block
        GROUP BY asked.session_id, block.timestamp, block.id
    )
    UPDATE aalis.counts SET {", ".join(f"{name} = counts.{name} + grown.{name}" for name in _COLUMNS)}
    FROM grown
    WHERE counts.session_id = grown.session_id AND counts.timestamp = grown.timestamp AND counts.id = grown.id
    RETURNING counts.session_id, counts.timestamp, counts.id, {" + ".join(f"counts.{name}" for name in _COLUMNS)}
"""

# The pieces have equal sizes, so that each has room wherever messages come in.
_CUT: Final = f"""
    WITH entries AS (
        SELECT timestamp, id, shown, archived,
            row_number() OVER (ORDER BY timestamp, id) - 1 AS place, count(*) OVER () AS total
        FROM aalis.messages
        WHERE session_id = %(session)s AND shown > 0 AND (timestamp, id) >= (%(timestamp)s, %(id)s)
            AND (timestamp, id) < (%(end_timestamp)s, %(end_id)s)
    ), pieces AS (
        SELECT *, place * ((total + %(block)s - 1) / %(block)s) / total AS piece FROM entries
    )
    INSERT INTO aalis.counts
    SELECT %(session)s, CASE WHEN piece = 0 THEN %(timestamp)s ELSE min(timestamp) END,
        CASE WHEN piece = 0 THEN %(id)s ELSE (array_agg(id ORDER BY timestamp, id))[1] END, {_HELD}
    FROM pieces GROUP BY piece
    ON CONFLICT (session_id, timestamp, id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)}
"""

_BLOCK_OF: Final = (
    "SELECT timestamp, id FROM aalis.counts WHERE session_id = %s AND (timestamp, id) <= (%s, %s)"
    " ORDER BY timestamp DESC, id DESC LIMIT 1"
)

_BEHIND: Final = (
    "SELECT timestamp, id FROM aalis.counts WHERE session_id = %s AND (timestamp, id) > (%s, %s)"
    " ORDER BY timestamp, id LIMIT 1"
)

_ARCHIVED: Final = (
    "UPDATE aalis.counts SET old_texts = old_texts + live_texts, old_tools = old_tools + live_tools, live_texts = 0,"
    " live_tools = 0 WHERE session_id = %s AND (timestamp, id) < (%s, %s) AND live_texts + live_tools > 0"
)

_ENOUGH: Final = 4 * COUNT_LIMIT // BLOCK
"""Blocks to add up at first: twice what half full ones need."""


def shown_condition(include_archived: bool, include_tools: bool) -> str:
    """The condition on `messages`."""
    shown = "shown > 0" if include_tools else "shown > 0 AND shown = 1"
    return shown if include_archived else f"{shown} AND archived = 0"


def _count_query(include_archived: bool, include_tools: bool) -> str:
    names = [name for name in _COLUMNS if include_archived or name.startswith("live")]
    held = " + ".join(name for name in names if include_tools or name.endswith("texts"))
    blocks = (
        "SELECT timestamp, id FROM aalis.counts WHERE session_id = %(session)s"
        " AND (timestamp, id) >= (%(low_timestamp)s, %(low_id)s)"
        " AND (timestamp, id) <= (%(high_timestamp)s, %(high_id)s)"
    )
    single = (
        "SELECT count(*) FROM aalis.messages WHERE session_id = %(session)s"
        f" AND {shown_condition(include_archived, include_tools)} AND (timestamp, id) >= "
    )
    return f"""
        WITH edges AS (
            SELECT coalesce(first.timestamp, %(high_timestamp)s) AS first_timestamp,
                coalesce(first.id, %(high_id)s) AS first_id,
                coalesce(last.timestamp, %(high_timestamp)s) AS last_timestamp,
                coalesce(last.id, %(high_id)s) AS last_id
            FROM (SELECT 1) AS one
            LEFT JOIN ({blocks} ORDER BY timestamp, id LIMIT 1) AS first ON true
            LEFT JOIN ({blocks} ORDER BY timestamp DESC, id DESC LIMIT 1) AS last ON true
        )
        SELECT whole.found,
            whole.held
            + ({single} (%(low_timestamp)s, %(low_id)s) AND (timestamp, id) < (first_timestamp, first_id))
            + ({single} (last_timestamp, last_id) AND (timestamp, id) < (%(high_timestamp)s, %(high_id)s))
        FROM edges CROSS JOIN LATERAL (
            SELECT count(*) AS found, coalesce(sum(held), 0) AS held FROM (
                SELECT {held} AS held FROM aalis.counts WHERE session_id = %(session)s
                    AND (timestamp, id) >= (first_timestamp, first_id) AND (timestamp, id) < (last_timestamp, last_id)
                ORDER BY timestamp DESC, id DESC LIMIT %(blocks)s
            ) AS summed
        ) AS whole
    """


_COUNT: Final = {
    (archived, tools): _count_query(archived, tools) for archived in (False, True) for tools in (False, True)
}


def count(db: Connection, session_id: str, span: Span, archived: bool, tools: bool) -> int:
    """The shown messages of a span: exact to COUNT_LIMIT, one more for "more"."""
    low, high = span
    if low >= high:
        return 0
    values = {
        "session": session_id,
        "low_timestamp": low.timestamp,
        "low_id": low.id,
        "high_timestamp": high.timestamp,
        "high_id": high.id,
    }
    found, total = 0, 0
    for blocks in (_ENOUGH, None):
        found, total = db.execute(_COUNT[archived, tools], {**values, "blocks": blocks}).fetchone() or (0, 0)
        if found != blocks or total > COUNT_LIMIT:
            break
    return min(int(total), COUNT_LIMIT + 1)


def added(db: Connection, entries: Sequence[Entry]) -> None:
    """Shown messages were stored."""
    grown = db.execute(_ADD, [list(column) for column in zip(*entries, strict=True)]).fetchall()
    for session_id, timestamp, number, held in grown:
        if held > BLOCK:
            _cut(db, session_id, Position(timestamp, number))


def archived_below(db: Connection, session_id: str, boundary: Position) -> None:
    """Every shown message ahead of `boundary` was archived."""
    row = db.execute(_BLOCK_OF, (session_id, boundary.timestamp, boundary.id)).fetchone()
    if row is not None:
        db.execute(_ARCHIVED, (session_id, *row))
        _cut(db, session_id, Position(*row))


def rebuild(db: Connection, session_id: str) -> None:
    """Make the blocks of a session anew, after messages were removed from it."""
    db.execute("DELETE FROM aalis.counts WHERE session_id = %s", (session_id,))
    _cut(db, session_id, FIRST)


def _cut(db: Connection, session_id: str, start: Position) -> None:
    """Count the messages of a block again; one with too many becomes several."""
    row = db.execute(_BEHIND, (session_id, start.timestamp, start.id)).fetchone()
    end = LAST if row is None else Position(*row)
    values = {
        "session": session_id,
        "timestamp": start.timestamp,
        "id": start.id,
        "end_timestamp": end.timestamp,
        "end_id": end.id,
        "block": BLOCK,
    }
    db.execute(_CUT, values)
