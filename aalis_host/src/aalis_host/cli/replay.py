"""`aalis replay`: recorded rooms through the gateway."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from tempfile import TemporaryDirectory
from typing import IO, Any

import attrs
import click
import orjson

from aalis_api_session_manager.wire import camel
from aalis_host.app import wall_clock
from aalis_host.cli.arguments import Finite
from aalis_host.cli.base import Given, Mistake, command_options, json_option, opened, written_to
from aalis_host.cli.output import print_json
from aalis_host.cli.progress import progress, spinner
from aalis_host.cli.recording import Span, kept, read_lines, span_of
from aalis_host.cli.replaying import Event, Replay, Tally, events_of
from aalis_host.cli.tables import show_facts
from aalis_host.cli.texts import text
from aalis_host.platforms.onebot import OneBotAdapter

__all__ = ["replay"]


@click.command()
@click.argument("file")
@click.option(
    "--speed",
    type=Finite(min=0.001),
    metavar="N",
    help="So many times as fast as it was; else at full speed.",
)
@click.option("--as-recorded", is_flag=True, help="Keep the recorded times.")
@click.option("--actions", metavar="FILE", help="Write what the agent says here, as OneBot v11 actions, one a line.")
@json_option
@command_options
def replay(given: Given, file: str, speed: float | None, as_recorded: bool, actions: str | None, as_json: bool) -> None:
    """Let recorded OneBot v11 events happen again.

    FILE has one event a line; `-` is standard input. The recorded times are moved so that the last message is sent now.
    For that standard input is read to its end first; with --as-recorded each line is taken as it comes, so that a
    live connection can be piped in.

    Events of one session keep their order. An event that the database has already is skipped.

    \b
    aalis replay examples/rooms-day.jsonl --db day.db
    aalis replay rooms.jsonl --speed 60
    onebot-client | aalis replay - --as-recorded --actions /dev/stdout
    """
    tally = asyncio.run(_replay(given, file, speed, as_recorded, actions))
    figures = attrs.asdict(tally) | {"seconds": round(tally.seconds, 3), "rate": round(tally.rate, 1)}
    if as_json:
        print_json({camel(name): figure for name, figure in figures.items()})
    else:
        show_facts([(given.say(f"replay.{name}"), f"{figure:,}") for name, figure in figures.items()])
    if tally.failed or tally.errors:
        click.get_current_context().exit(1)


async def _replay(given: Given, file: str, speed: float | None, as_recorded: bool, actions: str | None) -> Tally:
    tally = Tally()
    said: IO[bytes] | None = None

    async def deliver(action: dict[str, Any]) -> None:
        if said is not None:
            said.write(orjson.dumps(action, option=orjson.OPT_APPEND_NEWLINE))
            said.flush()

    adapter = OneBotAdapter(deliver)
    async with AsyncExitStack() as stack:
        path, span = await stack.enter_async_context(_recording(given, file, as_recorded))
        events = events_of(given, read_lines(path), adapter, _shift(span, speed, wall_clock()), tally)
        first = await anext(events, None)
        if first is None:
            raise Mistake(text("replay.no-event", path=file))
        if actions is not None:
            said = stack.enter_context(written_to(actions))
        host = await stack.enter_async_context(opened(given, read_only=False, onebot=adapter))
        work = Replay(given, host, speed, tally)
        host.hooks.register(tally, "aalis-replay-tally")
        host.hooks.register(work.passages, "aalis-replay-passages")
        with progress(given.say("replay.replaying"), None if span is None else span.lines) as at:
            await work.run(_chained(first, events), at)
        return tally


async def _chained(first: Event, rest: AsyncIterator[Event]) -> AsyncIterator[Event]:
    yield first
    async for event in rest:
        yield event


@asynccontextmanager
async def _recording(given: Given, file: str, as_recorded: bool) -> AsyncIterator[tuple[str, Span | None]]:
    """What to read, and what a first look at it tells."""
    if as_recorded:
        yield file, None
        return
    with TemporaryDirectory(prefix="aalis-") as folder:
        with spinner(given.say("replay.reading")):
            path = await kept(file, folder)
            span = await span_of(path)
        yield path, span


def _shift(span: Span | None, speed: float | None, now: int) -> int:
    """What makes the last message's time the moment at which it is sent."""
    if span is None or span.first is None or span.last is None:
        return 0
    lasts = 0 if speed is None else round((span.last - span.first) / speed)
    return now + lasts - span.last
