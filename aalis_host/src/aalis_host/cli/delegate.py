"""`aalis delegate`: one session gives another a task."""

import asyncio
from typing import Any

import click
import orjson

from aalis_api_session_manager.errors import SessionNotFound
from aalis_api_session_manager.message import ToolCallContext
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

    The reply is printed. Where a running host serves TO, the work is done there
    and goes on after the time is over; else it is done here, and stopped then. The exit status is 1
    without a reply.

    \b
    aalis delegate onebot:10001:private:20002 onebot:10001:group:700001 "Tell them lunch is at noon" --wait 60
    """

    async def work() -> dict[str, Any]:
        async with opened(given, read_only=False) as host:
            manager = host.select(SESSION_MANAGER)
            if manager.present and manager.use().get_session(source) is None:
                raise SessionNotFound(source)
            with spinner(given.say("delegate.waiting", target=target)):
                return await _answered(host, source, target, task, wait)

    answer = asyncio.run(work())
    if as_json:
        click.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode())
    elif reply := answer.get("reply"):
        click.echo(block(reply) if on_terminal() else reply)
    else:
        words = (answer.get(key) for key in ("error", "note", "reply_withheld", "outcome"))
        click.echo("; ".join(word for word in words if word), err=True)
    if not answer.get("reply"):
        click.get_current_context().exit(1)


async def _answered(host: AalisHost, source: str, target: str, task: str, wait: float | None) -> dict[str, Any]:
    """The tool's answer; without a limit of time it is asked again while the target works."""
    if _TOOL not in host.tools.names():
        raise Mistake(text("no-tool", name=_TOOL, hint=""))
    context = ToolCallContext(session_id=source, platform=PLATFORM_NAME, approve_for=(OWNER,))
    limit = {"timeout_seconds": _LONGEST if wait is None else wait}
    arguments: dict[str, Any] = {"target_session_id": target, "task": task, **limit}
    while True:
        answer: dict[str, Any] = orjson.loads(await host.tools.call(_TOOL, orjson.dumps(arguments).decode(), context))
        if wait is not None or answer.get("status") != "running":
            return answer
        arguments = {"delegation_id": answer["delegation_id"], **limit}
