"""One recording on its way through a host."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import attrs
import click

from aalis_api_session_manager.errors import StorageError
from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.message import IncomingMessage, LlmUsage, TurnEnd
from aalis_host.app import AalisHost
from aalis_host.cli.base import Given
from aalis_host.cli.lanes import Lanes
from aalis_host.platforms.lines import MAX_LINE, Line
from aalis_host.platforms.onebot import OneBotAdapter

__all__ = ["Event", "Replay", "Tally", "events_of"]

_AT_ONCE = 16
"""Sessions that are worked for side by side."""
_WAITING = 1_000
"""Messages that are under way or read ahead."""
_COMPLAINTS = 10
"""Bad lines that are shown one by one."""

Event = tuple[int, IncomingMessage | None]
"""The number of its line, and the message if it is one."""


@attrs.define(eq=False)
class Tally:
    """What became of a recording.

    `messages` are those stored, `repeated` those that the database had; `failed` couldn't be stored. `errors` are
    turns, `input` and `output` tokens.
    """

    rooms: int = 0
    messages: int = 0
    repeated: int = 0
    other: int = 0
    bad: int = 0
    failed: int = 0
    turns: int = 0
    replies: int = 0
    errors: int = 0
    input: int = 0
    output: int = 0
    seconds: float = 0.0
    rate: float = 0.0

    @hookimpl
    def aalis_turn_after(self, turn: TurnEnd) -> None:
        """A turn ended."""
        self.turns += 1
        self.replies += turn.outcome == "replied"
        self.errors += turn.outcome == "error"

    @hookimpl
    def aalis_llm_usage(self, usage: LlmUsage) -> None:
        """A model call used tokens."""
        self.input += usage.input_tokens
        self.output += usage.output_tokens


class Passages:
    """Tells when a message has passed every hook on its way in: what comes next for it, but a turn, is one step.

    A session's next message may be let in then and is stored behind it, both in one commit.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[], None]] = {}

    @contextmanager
    def watched(self, message: IncomingMessage, passed: Callable[[], None]) -> Iterator[None]:
        """Meanwhile, call `passed` when this message has passed."""
        self._waiting[id(message)] = passed
        try:
            yield
        finally:
            del self._waiting[id(message)]

    @hookimpl(trylast=True)
    def aalis_inbound(self, message: IncomingMessage) -> None:
        """The bot's own messages meet no gate."""
        if message.own:
            self._passed(message)

    @hookimpl(trylast=True)
    def aalis_inbound_gate(self, message: IncomingMessage) -> None:
        """Nobody has an opinion."""
        self._passed(message)

    def _passed(self, message: IncomingMessage) -> None:
        passed = self._waiting.get(id(message))
        if passed is not None:
            passed()


async def events_of(
    given: Given, lines: AsyncIterator[Line], adapter: OneBotAdapter, shift: int, tally: Tally
) -> AsyncIterator[Event]:
    """The events of a recording; `shift` is added to each message's time. Lines that hold none are told of, the first
    of them one by one, and counted."""
    async for line in lines:
        try:
            if line.data is None:
                raise ValueError(given.say("replay.long-line", limit=MAX_LINE))
            if not line.data.strip():
                continue
            message = adapter.receive(line.data, shift=shift)
        except ValueError as error:
            tally.bad += 1
            if tally.bad <= _COMPLAINTS:
                click.echo(given.say("replay.bad-line", number=line.number, reason=str(error)), err=True)
            continue
        tally.other += message is None
        yield line.number, message
    if tally.bad > _COMPLAINTS:
        click.echo(given.say("replay.more-bad-lines", count=tally.bad - _COMPLAINTS), err=True)


Item = tuple[int, IncomingMessage]
"""A message and the number of its line."""


@attrs.define(eq=False)
class Replay:
    """One recording on its way through a host.

    `speed` None: as fast as it goes, else so many times as fast as it was.
    """

    given: Given
    host: AalisHost
    speed: float | None
    tally: Tally
    passages: Passages = attrs.field(factory=Passages)
    _rooms: set[str] = attrs.field(factory=set)
    _taken_in: int = 0
    _began: tuple[float, int] | None = None

    async def run(self, events: AsyncIterator[Event], at: Callable[[int], None]) -> None:
        """Read to the end; returns when every turn has ended. `at` is told the line of each event that was read."""
        began, saves = time.monotonic(), Counter(self.host.memory.saves)
        async with Lanes(self._take_in, self._is_alone, at_once=_AT_ONCE, waiting=_WAITING) as lanes:
            async for number, message in events:
                if message is not None:
                    session_id = message.session_id or ""
                    self._rooms.add(session_id)
                    await self._until(message.timestamp or 0)
                    await lanes.put(session_id, (number, message))
                at(number)
        tally, ended = self.tally, self.host.memory.saves - saves
        tally.rooms = len(self._rooms)
        tally.repeated = ended["duplicate"]
        tally.messages = self._taken_in - ended["duplicate"] - ended["refused"]
        tally.seconds = time.monotonic() - began
        tally.rate = self._taken_in / tally.seconds

    async def _until(self, said: int) -> None:
        """Wait for the moment at which this was said, as fast as the recording is played."""
        if self.speed is None:
            return
        if self._began is None:
            self._began = time.monotonic(), said
        start, first = self._began
        await asyncio.sleep(max(0.0, start + (said - first) / 1000 / self.speed - time.monotonic()))

    def _is_alone(self, item: Item) -> bool:
        """Will it have a turn, as far as can be told: that one sees all before it, and nothing that came after."""
        message, trigger = item[1], self.host.settings.trigger
        if message.group_id is None or trigger == "always":
            return not message.own
        return message.mentioned and trigger == "mentioned"

    async def _take_in(self, item: Item, let_next: Callable[[], None]) -> None:
        number, message = item
        try:
            if self._is_alone(item):
                await self.host.gateway.ingress(message)
            else:
                with self.passages.watched(message, let_next):
                    await self.host.gateway.ingress(message)
        except StorageError as error:
            self.tally.failed += 1
            click.echo(self.given.say("replay.not-stored", number=number, reason=error), err=True)
        else:
            self._taken_in += 1
