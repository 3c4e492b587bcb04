"""`aalis chat`: a conversation in the terminal."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from importlib import import_module

import attrs
import click

from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.message import TurnEnd
from aalis_api_session_manager.model import SessionCreation
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_host.app import AalisHost
from aalis_host.cli.base import Given, command_options, opened
from aalis_host.cli.ending import terminated
from aalis_host.cli.logs import quiet
from aalis_host.cli.output import block, on_terminal
from aalis_host.cli.recording import STANDARD_INPUT, read_lines
from aalis_host.platforms.terminal import PLATFORM_NAME, TerminalAdapter

__all__ = ["chat"]


@attrs.define(eq=False)
class _Chat:
    """One conversation. Says on standard error why a turn of it has no reply."""

    given: Given
    host: AalisHost
    named: str | None
    terminal: TerminalAdapter = attrs.field(factory=lambda: TerminalAdapter(_show))
    session_id: str | None = None
    failed: bool = False

    async def open(self) -> str:
        """The session's id. It is made, or gone on in, the first time."""
        if self.session_id is None:
            manager = self.host.select(SESSION_MANAGER).use()
            creation = SessionCreation(created_from=PLATFORM_NAME)
            if self.named is None:
                session = await manager.create_session(None, creation)
            else:
                session = await manager.ensure_session(self.named, None, creation)
            self.session_id = session.id
            self.terminal.open(session.id)
            again = self.given.command("chat", "--session", session.id)
            click.echo(self.given.say("chat.opened", id=session.id, command=again), err=True)
        return self.session_id

    @hookimpl
    def aalis_turn_after(self, turn: TurnEnd) -> None:
        """A turn ended."""
        if turn.session_id != self.session_id:
            return
        if turn.outcome == "error":
            self.failed = True
            reason = self.given.render(turn.error) if turn.error else self.given.say("chat.failed")
            click.echo(reason, err=True)
        elif turn.outcome == "aborted":
            click.echo(self.given.say("chat.stopped"), err=True)


@click.command()
@click.option("--session", "session_id", metavar="ID", help="Go on in this session; it is made when there is none.")
@command_options
def chat(given: Given, session_id: str | None) -> None:
    """Talk to the agent. A new session, unless one is named; it is made with the first message.

    Lines may be piped in: each is a message, and standard output has the replies alone. In a terminal Ctrl-C stops
    an answer, Ctrl-D leaves.

    \b
    aalis chat
    printf 'hello\\n/list_known_sessions {}\\n' | aalis chat --db day.db
    """

    async def work() -> bool:
        async with opened(given, read_only=False) as host:
            talk = _Chat(given, host, session_id)
            host.add_platform(talk.terminal)
            host.hooks.register(talk, "aalis-chat")
            if session_id is not None and host.select(SESSION_MANAGER).use().get_session(session_id) is not None:
                await talk.open()
            with quiet("aalis_host.agent"):
                await _converse(talk)
            return talk.failed

    failed = asyncio.run(work())
    if failed and not _interactive():
        click.get_current_context().exit(1)


async def _converse(talk: _Chat) -> None:
    gateway, message = talk.host.gateway, talk.terminal.message
    if _interactive():
        click.echo(talk.given.say("chat.leave"), err=True)
        async for typed in import_module("aalis_host.cli.prompt").typed_lines():
            if typed.strip():
                session_id = await talk.open()
                with _ctrl_c_stops(talk.host, session_id):
                    await gateway.ingress(message(session_id, typed))
    else:
        async for typed in _piped_lines():
            if typed.strip():
                await gateway.ingress(message(await talk.open(), typed))


def _interactive() -> bool:
    return sys.stdin.isatty() and on_terminal()


async def _piped_lines() -> AsyncIterator[str]:
    async for line in read_lines(STANDARD_INPUT):
        if line.data is not None:
            yield line.data.decode(errors="replace").removesuffix("\r")


@contextmanager
def _ctrl_c_stops(host: AalisHost, session_id: str) -> Iterator[None]:
    """Ctrl-C stops the answer, not the conversation; SIGTERM both."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, host.agent.abort, session_id)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
    if terminated.is_set():
        raise KeyboardInterrupt


def _show(reply: str) -> None:
    click.echo(block(reply) if on_terminal() else reply)
