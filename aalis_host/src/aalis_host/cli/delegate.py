"""`aalis delegate`: one session gives another a task."""

import asyncio
import math
import time
from typing import Any

import attrs
import click
import orjson

from aalis_api_session_manager.errors import SessionNotFound
from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.message import IncomingMessage, ToolCallContext
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_host.app import AalisHost
from aalis_host.cli.arguments import Finite
from aalis_host.cli.base import Given, Mistake, command_options, opened
from aalis_host.cli.output import block, on_terminal
from aalis_host.cli.progress import spinner
from aalis_host.cli.texts import text
from aalis_host.platforms.terminal import OWNER, PLATFORM_NAME

__all__ = ["delegate"]

_TOOL = "delegate_to_session"
_LONGEST = 300
"""Seconds that the tool waits at most in one call."""


@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("task")
@click.option(
    "--wait",
    type=Finite(min=0, min_open=True),
    metavar="SECONDS",
    help="Wait at most so long; else until it is done.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the tool's whole answer.")
@command_options
def delegate(given: Given, source: str, target: str, task: str, wait: float | None, as_json: bool) -> None:
    """Let session FROM give session TO a task.

    The reply is printed. Where a running host serves TO, the work is done there and goes on after the time is over;
    else it is done here, and stopped then. `aalis sessions history TO` shows what came of it. The exit status is 1
    without a reply.

    \b
    aalis delegate onebot:10001:private:20002 onebot:10001:group:700001 "Tell them lunch is at noon" --wait 60
    """

    inbound = _Inbound(target)

    async def work() -> dict[str, Any]:
        async with opened(given, read_only=False) as host:
            await _check(host, source, target)
            host.hooks.register(inbound, "aalis-delegate")
            with spinner(given.say("delegate.waiting", target=target)):
                return await _answered(host, source, target, task, wait)

    answer = asyncio.run(work())
    if as_json:
        click.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode())
    elif reply := answer.get("reply"):
        click.echo(block(reply) if on_terminal() else reply)
    elif answer.get("status") == "running":
        where = "here" if inbound.here else "elsewhere"
        command = given.command("sessions", "history", target)
        click.echo(given.say(f"delegate.{where}", seconds=f"{wait:g}", target=target, command=command), err=True)
    else:
        words = (answer.get(key) for key in ("error", "note", "reply_withheld", "outcome"))
        click.echo("; ".join(word for word in words if word), err=True)
    if not answer.get("reply"):
        click.get_current_context().exit(1)


@attrs.define(eq=False)
class _Inbound:
    """Notices whether the target's message comes in here: then this process does the work."""

    target: str
    here: bool = False

    @hookimpl(tryfirst=True)
    def aalis_inbound(self, message: IncomingMessage) -> None:
        """A message comes in."""
        self.here = self.here or message.session_id == self.target


async def _check(host: AalisHost, source: str, target: str) -> None:
    """Raises SessionNotFound, and Mistake where nothing can be delegated."""
    if _TOOL not in host.tools.names():
        raise Mistake(text("no-tool", name=_TOOL, hint=""))
    if source == target:
        raise Mistake(text("delegate.itself", id=source))
    manager = host.select(SESSION_MANAGER)
    if not manager.present:
        return
    if manager.use().get_session(source) is None:
        raise SessionNotFound(source)
    if manager.use().get_session(target) is not None:
        return
    if not (await host.memory.history(target, 1, include_archived=True)).messages:
        raise SessionNotFound(target)


async def _answered(host: AalisHost, source: str, target: str, task: str, wait: float | None) -> dict[str, Any]:
    """The tool's answer; it is asked again while the target works and there is time."""
    deadline = time.monotonic() + (math.inf if wait is None else wait)
    context = ToolCallContext(session_id=source, platform=PLATFORM_NAME, approve_for=(OWNER,))
    arguments: dict[str, Any] = {"target_session_id": target, "task": task}
    while True:
        arguments["timeout_seconds"] = min(_LONGEST, max(0.001, deadline - time.monotonic()))
        answer: dict[str, Any] = orjson.loads(await host.tools.call(_TOOL, orjson.dumps(arguments).decode(), context))
        if answer.get("status") != "running" or time.monotonic() >= deadline:
            return answer
        arguments = {"delegation_id": answer["delegation_id"]}
