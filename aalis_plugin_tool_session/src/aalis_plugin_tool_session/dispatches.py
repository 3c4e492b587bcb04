"""Delegations on their way: which run, whose answers wait to be picked up, and who waits for whom.

One object for each dispatch, found by its id. A running one ends once, by its turn's end or by the end of its
ingress without one; its answer is kept until its source picks it up, at most 24 hours. Rules: DELEG-7, DELEG-9.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from attrs import define, field

from aalis_api_session_manager.message import TurnEnd
from aalis_api_session_manager.model import TurnOutcome
from aalis_plugin_tool_session.cut import cut
from aalis_plugin_tool_session.texts import as_text

__all__ = ["KEPT_MS", "REPLY_MAX_CHARS", "Delegation", "Dispatches", "Ring", "Waits"]

KEPT_MS: Final = 24 * 60 * 60 * 1000
"""How long an answer waits to be picked up. Rule: DELEG-9."""
REPLY_MAX_CHARS: Final = 2000
"""Rule: DELEG-8."""
_SOURCE: Final = "delegation:"


@define(eq=False, kw_only=True)
class Delegation:
    """One dispatch of `source` to `target`, at `at` milliseconds; `generation` is the target's of that moment.

    `outcome`, `reply` (cut, with the number of characters left out) and `error` are of its turn, once `state` is
    `answered`. `orphaned`: the source was deleted meanwhile.
    """

    id: str
    source: str
    target: str
    at: int
    generation: int
    state: Literal["running", "answered", "not_admitted"] = "running"
    outcome: TurnOutcome | None = None
    reply: str = ""
    reply_left_out: int = 0
    error: str | None = None
    orphaned: bool = False
    ended_at: int = 0
    ended: asyncio.Event = field(factory=asyncio.Event, repr=False)

    @property
    def message_source(self) -> str:
        """The `source` of its message, which no other message has."""
        return _SOURCE + self.id


class Dispatches:
    """The delegations that run, and those whose answer nobody has picked up. Times in milliseconds."""

    def __init__(self) -> None:
        self._running: dict[str, Delegation] = {}
        self._answered: OrderedDict[str, Delegation] = OrderedDict()

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._running)

    @property
    def answered(self) -> int:
        """How many answers wait to be picked up."""
        return len(self._answered)

    def add(self, delegation: Delegation) -> None:
        """It is sent now."""
        self._running[delegation.id] = delegation

    def find(self, delegation_id: str, source: str, now: int) -> Delegation | None:
        """An open delegation, for the session that sent it alone."""
        self._expire(now)
        found = self._running.get(delegation_id) or self._answered.get(delegation_id)
        return found if found is not None and found.source == source and not found.orphaned else None

    def turn_ended(self, turn: TurnEnd, now: int) -> None:
        """If the turn is a delegation's, this is its answer."""
        source = turn.message.source
        if source is None or not source.startswith(_SOURCE):
            return
        delegation = self._running.get(source.removeprefix(_SOURCE))
        if delegation is None:
            return
        delegation.outcome = turn.outcome or "silent"
        delegation.reply, delegation.reply_left_out = cut(turn.reply or "", REPLY_MAX_CHARS)
        delegation.error = None if turn.error is None else as_text(turn.error)
        self._end(delegation, "answered", now)

    def ingress_ended(self, delegation: Delegation, now: int) -> None:
        """Its message went all its way; without a turn until now there won't be one."""
        if delegation.state == "running":
            self._end(delegation, "not_admitted", now)

    def _end(self, delegation: Delegation, state: Literal["answered", "not_admitted"], now: int) -> None:
        self._expire(now)
        delegation.state, delegation.ended_at = state, now
        del self._running[delegation.id]
        if not delegation.orphaned:
            self._answered[delegation.id] = delegation
        delegation.ended.set()

    def picked_up(self, delegation: Delegation) -> None:
        """Its source has the answer."""
        self._answered.pop(delegation.id, None)

    def session_deleted(self, session_id: str) -> None:
        """What a deleted session sent is nobody's any more, not even a new session's of the same id."""
        for delegation in [one for one in self._answered.values() if one.source == session_id]:
            del self._answered[delegation.id]
        for delegation in self._running.values():
            delegation.orphaned = delegation.orphaned or delegation.source == session_id

    def _expire(self, now: int) -> None:
        while self._answered and next(iter(self._answered.values())).ended_at < now - KEPT_MS:
            self._answered.popitem(last=False)


class Ring(Exception):
    """Waiting would never end: the target waits for the source. Rule: DELEG-10."""


class Waits:
    """Who waits for whom, while they wait."""

    def __init__(self) -> None:
        self._for: dict[str, Counter[str]] = {}

    def __len__(self) -> int:
        return sum(targets.total() for targets in self._for.values())

    @contextmanager
    def between(self, source: str, target: str) -> Iterator[None]:
        """The source waits for the target inside. Raises Ring at once if that closes one."""
        if self._waits(target, source):
            raise Ring
        targets = self._for.setdefault(source, Counter())
        targets[target] += 1
        try:
            yield
        finally:
            targets[target] -= 1
            if not targets[target]:
                del targets[target]
            if not targets:
                del self._for[source]

    def _waits(self, session_id: str, other: str) -> bool:
        """Does the session wait for the other, directly or through others."""
        seen, open_ = {session_id}, [session_id]
        while open_:
            for target in self._for.get(open_.pop(), ()):
                if target == other:
                    return True
                if target not in seen:
                    seen.add(target)
                    open_.append(target)
        return False
