"""`aalis sessions history` and `export`: what was said."""

import asyncio
import sys
from collections.abc import AsyncIterator
from textwrap import indent
from typing import Any

import click
import orjson
from rich.padding import Padding
from rich.text import Text

from aalis_api_session_manager.errors import SessionNotFound
from aalis_api_session_manager.memory import COUNT_LIMIT, MemoryService, Position
from aalis_api_session_manager.message import Message, ToolCallContext
from aalis_api_session_manager.model import SessionInfo
from aalis_api_session_manager.service import (
    SESSION_HISTORY,
    SESSION_MANAGER,
    HistoryOptions,
    HistoryResult,
    SessionManagerService,
)
from aalis_api_session_manager.values import thaw_json
from aalis_api_session_manager.wire import to_json
from aalis_host.cli.arguments import moment, session_id
from aalis_host.cli.base import Given, Mistake, command_options, json_option, opened, written_to
from aalis_host.cli.output import block, on_terminal, one_line, print_json, screen
from aalis_host.platforms.terminal import OWNER, PLATFORM_NAME

__all__ = ["export", "history"]

_SLICE = 1_000


@click.command()
@session_id
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many messages, at most the session tools' maxLimit (100); else their defaultLimit (20).",
)
@click.option("--cursor", help="Go on from here: a cursor that the page before gave.")
@click.option("--since", metavar="TIME", help="Only since: 12h, 7d, 2026-11-30, 2026-11-30T09:30.")
@click.option("--until", metavar="TIME", help="Only until.")
@click.option("--archived", is_flag=True, help="With archived messages.")
@click.option("--tools", is_flag=True, help="With tool calls and their results.")
@json_option
@command_options
def history(
    given: Given,
    session_id: str,
    limit: int | None,
    cursor: str | None,
    since: str | None,
    until: str | None,
    archived: bool,
    tools: bool,
    as_json: bool,
) -> None:
    """Show a session's messages, in the order they were said in.

    The last ones; with --since or --until the first ones of that time. Each page says how to get the next.

    \b
    aalis sessions history onebot:10001:group:700001 --limit 50
    aalis sessions history onebot:10001:group:700001 --since 2h --tools
    """

    async def work() -> None:
        async with opened(given, read_only=True) as host:
            manager = host.select(SESSION_MANAGER)
            if manager.present and manager.use().get_session(session_id) is None:
                raise SessionNotFound(session_id)
            options = HistoryOptions(
                session_id=session_id,
                limit=limit,
                cursor=cursor,
                since_ts=moment("--since", since, host.now()),
                until_ts=moment("--until", until, host.now()),
                include_archived=True if archived else None,
                include_tools=True if tools else None,
            )
            call = ToolCallContext(session_id=session_id, platform=PLATFORM_NAME, approve_for=(OWNER,))
            page = await host.select(SESSION_HISTORY).use().get_history(options, call)
            if page.error is not None:
                raise Mistake(page.error)
            if as_json:
                print_json(to_json(page))
            else:
                _show(given, page)

    asyncio.run(work())


def _show(given: Given, page: HistoryResult) -> None:
    for message in page.messages:
        _show_line(given.say("when", at=message.timestamp), _speaker(message))
        for call in message.tool_calls:
            _show_block(f"/{one_line(call.name)} {one_line(call.arguments)}")
        if message.content:
            _show_block(block(message.content))
    if not page.messages:
        click.echo(given.say("nothing-listed"), err=True)
    for side, count, cursor in (("older", page.older, page.older_cursor), ("newer", page.newer, page.newer_cursor)):
        if cursor is not None:
            shown = str(count) if count <= COUNT_LIMIT else given.say("more-than", count=COUNT_LIMIT)
            command = given.command("sessions", "history", page.session_id, "--cursor", cursor)
            click.echo(given.say(f"history.{side}", count=shown, command=command), err=True)


def _show_line(when: str, speaker: str) -> None:
    if on_terminal():
        screen().print(Text(when, style="dim").append(f"  {speaker}", style="bold"))
    else:
        click.echo(f"{when}  {speaker}")


def _show_block(words: str) -> None:
    """Indented, also where a terminal breaks its lines."""
    if on_terminal():
        screen().print(Padding(Text(words), (0, 0, 0, 2), expand=False))
    else:
        click.echo(indent(words, "  "))


def _speaker(message: Message) -> str:
    return one_line(message.name or message.user_name or message.user_id or message.role)


@click.command()
@session_id
@click.option("--output", metavar="FILE", default="-", help="A file; else it is printed.")
@command_options
def export(given: Given, session_id: str, output: str) -> None:
    """Write a session with all its messages as JSON.

    One JSON value: the session, its messages, archived ones too, and below it the same of each of its subtasks.

    \b
    aalis sessions export onebot:10001:group:700001 --output kitchen.json
    """

    async def work() -> None:
        async with opened(given, read_only=True) as host:
            manager = host.select(SESSION_MANAGER).use()
            session = manager.get_session(session_id)
            if session is None:
                raise SessionNotFound(session_id)
            with written_to(output) as file:
                async for piece in _pieces(manager, host.memory, session, frozenset()):
                    file.write(piece.encode())
                file.write(b"\n")

    asyncio.run(work())


async def _pieces(
    manager: SessionManagerService, memory: MemoryService, session: SessionInfo, above: frozenset[str]
) -> AsyncIterator[str]:
    """`{"session": …, "messages": […], "below": […]}`, with the messages in slices, however many there are."""
    yield f'{{"session": {_dumped(to_json(session))}, "messages": ['
    after, first = Position(-sys.maxsize, 0), True
    while messages := (await memory.history(session.id, _SLICE, include_archived=True, after=after)).messages:
        for message in messages:
            yield ("\n" if first else ",\n") + _dumped(to_json(message))
            first = False
        after = Position(messages[-1].timestamp, messages[-1].id)
    yield '], "below": ['
    inside = above | {session.id}
    children = [child for child in manager.get_children(session.id) if child.id not in inside]
    for number, child in enumerate(children):
        yield ", " if number else ""
        async for piece in _pieces(manager, memory, child, inside):
            yield piece
    yield "]}"


def _dumped(value: Any) -> str:
    return orjson.dumps(value, default=thaw_json).decode()
