"""`aalis tools`: what a model is given, and calling it as a model would."""

import asyncio

import click

from aalis_api_session_manager.errors import SessionNotFound
from aalis_api_session_manager.message import ToolCallContext
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_host.app import AalisHost
from aalis_host.cli.arguments import identity
from aalis_host.cli.base import Given, Mistake, WithDefault, command_options, json_option, opened
from aalis_host.cli.output import on_terminal, one_line, print_json
from aalis_host.cli.tables import show_table
from aalis_host.cli.texts import text
from aalis_host.platforms.terminal import OWNER, PLATFORM_NAME
from aalis_host.words import did_you_mean

__all__ = ["call_tool", "tools"]


@click.group(cls=WithDefault, default="list")
def tools() -> None:
    """Show the tools that a model is given, or call one.

    \b
    aalis tools
    aalis tools --json
    aalis tools call list_known_sessions '{"limit": 5}' --session onebot:10001:group:700001
    """


@tools.command("list")
@json_option
@command_options
def list_(given: Given, as_json: bool) -> None:
    """Show the tools as a model is given them.

    `aalis tools` alone does the same.

    \b
    aalis tools --json
    """

    async def work() -> None:
        async with opened(given, read_only=True, real=None) as host:
            if as_json:
                print_json(host.tools.describe())
                return
            rows = []
            for tool in host.tools.specs():
                words = one_line(host.tools.description(tool))
                rows.append((tool.name, tool.group, words.partition(". ")[0] if on_terminal() else words))
            show_table([given.say(f"head.{head}") for head in ("name", "group", "description")], rows)

    asyncio.run(work())


@tools.command("call")
@click.argument("name")
@click.argument("arguments", metavar="JSON", default="{}")
@click.option("--session", "session_id", metavar="ID", required=True, help="The session that calls.")
@click.option(
    "--as",
    "participants",
    metavar="PLATFORM:USER",
    multiple=True,
    default=(f"{OWNER.platform}:{OWNER.user_id}",),
    show_default=True,
    help="Whom it is called for; may be given again.",
)
@command_options
def call_(given: Given, name: str, arguments: str, session_id: str, participants: tuple[str, ...]) -> None:
    """Call a tool as a model would.

    Its answer alone is printed. A refusal is an answer too: it is printed as the model sees it, and the exit status is
    0.

    \b
    aalis tools call session_get_history '{"session_id": "onebot:10001:private:20002"}' \\
        --session onebot:10001:group:700001 --as onebot:20002
    """

    async def work() -> None:
        context = ToolCallContext(
            session_id=session_id, platform=PLATFORM_NAME, approve_for=tuple(map(identity, participants))
        )
        async with opened(given, read_only=True) as host:
            acts = _known(host, name, session_id)
            if not acts:
                click.echo(await host.tools.call(name, arguments, context))
        if acts:
            click.echo(await call_tool(given, name, arguments, context))

    asyncio.run(work())


async def call_tool(given: Given, name: str, arguments: str, context: ToolCallContext) -> str:
    """The answer of a tool that may change something. Raises Mistake for an unknown tool, SessionNotFound."""
    async with opened(given, read_only=False) as host:
        _known(host, name, context.session_id)
        return await host.tools.call(name, arguments, context)


def _known(host: AalisHost, name: str, session_id: str) -> bool:
    """Does the tool change anything. Raises Mistake for an unknown one, SessionNotFound for an unknown session."""
    spec = next((spec for spec in host.tools.specs() if spec.name == name), None)
    if spec is None:
        raise Mistake(text("no-tool", name=name, hint=did_you_mean(name, host.tools.names())))
    manager = host.select(SESSION_MANAGER)
    if manager.present and manager.use().get_session(session_id) is None:
        raise SessionNotFound(session_id)
    return spec.risk == "act"
