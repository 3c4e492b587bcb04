"""Delegations on their way, and those whose answer is held in this host.

A running one ends once, by its turn's end or by the end of its ingress without one; its answer is kept until its
source picks it up, at most 24 hours. Rules: DELEG-7, DELEG-9.
"""

import asyncio
from collections import OrderedDict
from typing import Final, Literal

from attrs import define, field, fields

from aalis_api_session_manager.message import TurnEnd
from aalis_api_session_manager.model import TurnOutcome
from aalis_plugin_tool_session.cut import cut
from aalis_plugin_tool_session.texts import as_text, text

__all__ = ["KEPT_MS", "REPLY_MAX_CHARS", "Delegation", "Dispatches", "State"]

KEPT_MS: Final = 24 * 60 * 60 * 1000
"""How long an answer waits to be picked up. Rule: DELEG-9."""
REPLY_MAX_CHARS: Final = 2000
"""Rule: DELEG-8."""
_SOURCE: Final = "delegation:"

State = Literal["open", "taken", "running", "answered", "not_admitted"]
"""`open`: offered to other hosts; `taken`: one of them asks its platform; the others as a model is told."""


@define(eq=False, kw_only=True)
class Delegation:
    """One dispatch of `source` to `target`, at `at` milliseconds, with the generations both had then.

    `host` runs it, or offers it while it is `open`; then `task` is what is to be done, and `declined` the hosts that
    don't want it. `outcome`, `reply` (cut, with the number of characters left out) and `error` are its turn's, once
    `state` is `answered`; `not_admitted` may have an `error` too. These fields are what is stored.

    `stored`: the state that the store has. `waiters`: calls of this host that wait for it. `picked_up`: its source
    has the answer, or nobody may have it any more.
    """

    id: str
    source: str
    target: str
    at: int
    generation: int
    source_generation: int
    host: str
    state: State = "running"
    task: str | None = None
    declined: tuple[str, ...] = ()
    outcome: TurnOutcome | None = None
    reply: str | None = None
    reply_left_out: int = 0
    error: str | None = None
    ended_at: int = 0

    stored: State | None = field(default=None, init=False)
    waiters: int = field(default=0, init=False)
    picked_up: bool = field(default=False, init=False)
    storing: asyncio.Lock = field(factory=asyncio.Lock, init=False, repr=False)
    _news: asyncio.Event = field(factory=asyncio.Event, init=False, repr=False)

    @property
    def message_source(self) -> str:
        """The `source` of its message, which no other message has."""
        return _SOURCE + self.id

    @property
    def ended(self) -> bool:
        """It has its answer, or won't get one."""
        return self.state in ("answered", "not_admitted")

    @property
    def expires_at(self) -> int:
        """When an answer that wasn't picked up is dropped."""
        return (self.ended_at or self.at) + KEPT_MS

    def end(self, state: Literal["answered", "not_admitted"], now: int) -> None:
        """It has ended."""
        self.state, self.ended_at = state, now
        self.tell()

    def interrupted(self, now: int) -> None:
        """The host that ran it is gone."""
        self.outcome, self.error = "aborted", text("delegate.interrupted").source
        self.end("answered", now)

    def take_over(self, stored: "Delegation | None") -> None:
        """What is stored of it now; None: its answer was picked up elsewhere, or its source deleted.

        One that has ended doesn't change any more.
        """
        if self.ended:
            return
        if stored is None:
            self.picked_up, self.stored = True, None
        else:
            for one in fields(Delegation):
                if one.init:
                    setattr(self, one.name, getattr(stored, one.name))
            self.stored = stored.state
        self.tell()

    def tell(self) -> None:
        """Wake who waits for news."""
        self._news.set()
        self._news = asyncio.Event()

    async def news(self) -> None:
        """Wait until something has changed."""
        await self._news.wait()

    async def over(self) -> None:
        """Wait until it has ended, or nobody may have its answer."""
        while not self.ended and not self.picked_up:
            await self.news()


class Dispatches:
    """The delegations that run in this host, and the answers that are in no store. Times in milliseconds."""

    def __init__(self) -> None:
        self._running: dict[str, Delegation] = {}
        self._answered: OrderedDict[str, Delegation] = OrderedDict()

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._running)

    @property
    def answered(self) -> int:
        """How many answers wait here to be picked up, or stored."""
        return len(self._answered)

    def held(self) -> list[Delegation]:
        """All of them."""
        return [*self._running.values(), *self._answered.values()]

    def add(self, delegation: Delegation) -> None:
        """It is sent now."""
        self._running[delegation.id] = delegation

    def find(self, delegation_id: str, now: int) -> Delegation | None:
        """One that is held here."""
        self._expire(now)
        return self._running.get(delegation_id) or self._answered.get(delegation_id)

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
        if delegation.id in self._running:
            self._end(delegation, "not_admitted", now)

    def _end(self, delegation: Delegation, state: Literal["answered", "not_admitted"], now: int) -> None:
        self._expire(now)
        del self._running[delegation.id]
        if not delegation.picked_up:
            self._answered[delegation.id] = delegation
        delegation.end(state, now)

    def drop(self, delegation: Delegation) -> None:
        """Its source has the answer, the store keeps it, or it is nobody's."""
        self._answered.pop(delegation.id, None)

    def _expire(self, now: int) -> None:
        while self._answered and next(iter(self._answered.values())).expires_at < now:
            self._answered.popitem(last=False)
