"""Where a page of a session begins and ends, and what it leaves out. Pure, the same for every back end."""

from collections.abc import Sequence
from typing import Final

from attrs import frozen

from aalis_api_session_manager.memory import Position
from aalis_api_session_manager.message import Message
from aalis_host.memory.readers import PageRequest

__all__ = ["FIRST", "LAST", "Bounds", "Span", "bounds", "clamped"]

FIRST: Final = Position(-(2**63), 0)
"""Ahead of every message."""

LAST: Final = Position(2**63 - 1, 2**63 - 1)
"""Behind every message."""

Span = tuple[Position, Position]
"""From a position up to, and without, another."""


def clamped(position: Position) -> Position:
    """The same place with numbers that a database takes."""
    return Position(
        max(FIRST.timestamp, min(position.timestamp, LAST.timestamp)), max(FIRST.id, min(position.id, LAST.id))
    )


@frozen
class Bounds:
    """The window that was asked for, and within it the span that the page is taken from."""

    window: Span
    inside: Span
    forward: bool
    limit: int

    def left_out(self, messages: Sequence[Message]) -> tuple[Span, Span]:
        """The spans that hold what the page leaves out before and after. A page that isn't full took all inside."""
        low, high = self.inside
        if len(messages) < self.limit:
            older_end, newer_start = low, high
        elif self.forward:
            older_end, newer_start = low, _behind(messages[-1]) if messages else low
        else:
            older_end, newer_start = Position(messages[0].timestamp, messages[0].id) if messages else high, high
        return (self.window[0], older_end), (newer_start, self.window[1])


def _behind(at: Message | Position) -> Position:
    return Position(at.timestamp, at.id + 1)


def bounds(request: PageRequest) -> Bounds:
    """What a request asks for. A cursor outside the window is moved to its edge."""
    first = FIRST if request.since_ts is None else clamped(Position(request.since_ts, 0))
    end = LAST if request.until_ts is None else clamped(Position(request.until_ts, LAST.id))
    end = max(first, end)
    low = first if request.after is None else min(max(first, clamped(_behind(request.after))), end)
    high = end if request.before is None else min(max(low, clamped(request.before)), end)
    return Bounds((first, end), (low, high), request.after is not None, request.limit)
