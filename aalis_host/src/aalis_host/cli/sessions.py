"""`aalis sessions`: looking at sessions and changing them."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import get_args

import click

from aalis_api_session_manager.errors import SessionNotFound, StorageError
from aalis_api_session_manager.kinds import root_session_of
from aalis_api_session_manager.model import SessionCreation, SessionDraft, SessionInfo, SessionKind, SessionStatus
from aalis_api_session_manager.service import SESSION_MANAGER, SessionManagerService, TakeVerdict
from aalis_api_session_manager.wire import to_json
from aalis_host.app import AalisHost
from aalis_host.cli.arguments import identity, moment, session_id
from aalis_host.cli.base import Given, command_options, json_option, opened, patiently
from aalis_host.cli.check import check
from aalis_host.cli.history import export, history
from aalis_host.cli.output import on_terminal, one_line, print_json, screen
from aalis_host.cli.session_tree import all_below, by_parent, drawn, nested, tops_of
from aalis_host.cli.session_view import SessionView
from aalis_host.platforms.terminal import PLATFORM_NAME

__all__ = ["sessions"]


@click.group()
def sessions() -> None:
    """Look at sessions, and change them.

    \b
    aalis sessions list --kind room --since 24h
    aalis sessions history onebot:10001:group:700001
    aalis sessions tree --db day.db
    """


sessions.add_command(check)
sessions.add_command(export)
sessions.add_command(history)


@sessions.command("list")
@click.option("--kind", type=click.Choice(get_args(SessionKind)), help="Only this kind.")
@click.option("--status", type=click.Choice(get_args(SessionStatus)), help="Only with this status.")
@click.option("--platform", metavar="NAME", help="Only of this platform, such as onebot or cli.")
@click.option("--since", metavar="TIME", help="Only changed since: 12h, 7d, 2026-11-30, 2026-11-30T09:30.")
@json_option
@command_options
def list_(
    given: Given, kind: str | None, status: SessionStatus | None, platform: str | None, since: str | None, as_json: bool
) -> None:
    """List sessions, what changed last first.

    \b
    aalis sessions list --kind room --since 24h
    aalis sessions list --json | jq -r '.[].id'
    """

    async def work() -> None:
        async with opened(given, read_only=True) as host:
            view = _view(given, host)
            after = moment("--since", since, view.now)
            found = [
                session
                for session in view.sessions.list_sessions(status=status)
                if (kind is None or session.kind == kind)
                and (after is None or session.updated_at >= after)
                and (platform is None or view.platform(session) == platform)
            ]
            if as_json:
                print_json([view.as_json(session) for session in found])
            elif found:
                view.show(found)
            else:
                click.echo(given.say("nothing-listed"), err=True)

    asyncio.run(work())


@sessions.command()
@click.argument("session_id", metavar="[ID]", required=False)
@json_option
@command_options
def tree(given: Given, session_id: str | None, as_json: bool) -> None:
    """Show sessions with their subtasks below them.

    All of them, or those of one session.

    \b
    aalis sessions tree
    aalis sessions tree onebot:10001:group:700001
    """

    async def work() -> None:
        async with opened(given, read_only=True) as host:
            view = _view(given, host)
            everything = view.sessions.list_sessions()
            tops = tops_of(everything) if session_id is None else [_get(view.sessions, session_id)]
            below = by_parent(everything)
            if as_json:
                print_json([nested(view, top, below) for top in tops])
            else:
                for line in drawn(view, tops, below):
                    if on_terminal():
                        screen().print(line, soft_wrap=True)
                    else:
                        click.echo(line.plain)

    asyncio.run(work())


@sessions.command()
@session_id
@json_option
@command_options
def show(given: Given, session_id: str, as_json: bool) -> None:
    """Show all that is known of a session.

    \b
    aalis sessions show onebot:10001:group:700001
    """

    async def work() -> None:
        async with opened(given, read_only=True) as host:
            view = _view(given, host)
            session = _get(view.sessions, session_id)
            if as_json:
                print_json(view.as_json(session))
            else:
                view.show_facts(session)

    asyncio.run(work())


@sessions.command()
@click.option("--name", metavar="TEXT", help="Its name.")
@click.option("--title", help="Its title.")
@click.option("--parent", metavar="ID", help="Make it a subtask of this session.")
@json_option
@command_options
def create(given: Given, name: str | None, title: str | None, parent: str | None, as_json: bool) -> None:
    """Make a session; its id is printed.

    \b
    aalis chat --session "$(aalis sessions create --title 'Travel plans')"
    """

    async def work() -> None:
        async with opened(given, read_only=False) as host:
            view = _view(given, host)
            draft = SessionDraft(name=name, title=title, parent_id=parent)
            creation = SessionCreation(created_from=PLATFORM_NAME) if parent is None else None
            session = await patiently(_creating(view.sessions, draft, creation))
            if as_json:
                print_json(view.as_json(session))
            else:
                click.echo(session.id)

    asyncio.run(work())


def _creating(
    manager: SessionManagerService, draft: SessionDraft, creation: SessionCreation | None
) -> Callable[[], Awaitable[SessionInfo]]:
    """Creates one session, however often it is called."""
    kept: list[str] = []

    async def create() -> SessionInfo:
        if kept:
            return await manager.ensure_session(kept[0])
        try:
            return await manager.create_session(draft, creation)
        except StorageError as error:
            kept.extend(filter(None, [error.session_id]))
            raise

    return create


@sessions.command()
@session_id
@click.argument("title", metavar="TEXT")
@command_options
def title(given: Given, session_id: str, title: str) -> None:
    """Set a session's title.

    \b
    aalis sessions title onebot:10001:group:700001 "The kitchen group"
    """

    async def work() -> None:
        async with opened(given, read_only=False) as host:
            manager = host.select(SESSION_MANAGER).use()
            await patiently(lambda: manager.update_session_title(session_id, title))
            click.echo(given.say("titled", id=session_id, title=one_line(title)))

    asyncio.run(work())


@sessions.command()
@session_id
@click.option("--yes", is_flag=True, help="Don't ask.")
@command_options
def delete(given: Given, session_id: str, yes: bool) -> None:
    """Delete a session, all below it, and their messages.

    On a terminal it asks first.

    \b
    aalis sessions delete onebot:10001:group:700001 --yes
    """

    async def look() -> tuple[str, int]:
        async with opened(given, read_only=True) as host:
            view = _view(given, host)
            session = _get(view.sessions, session_id)
            return view.label(session), len(all_below(session, by_parent(view.sessions.list_sessions())))

    async def work() -> None:
        async with opened(given, read_only=False) as host:
            manager = host.select(SESSION_MANAGER).use()
            await patiently(lambda: manager.delete_session(session_id))

    label, count = asyncio.run(look())
    if not yes and sys.stdin.isatty():
        question = "delete-sure" if count else "delete-sure-alone"
        if not click.confirm(given.say(question, id=session_id, label=label, count=count), err=True):
            click.get_current_context().exit(1)
    asyncio.run(work())
    click.echo(given.say("deleted", id=session_id, count=count))


@sessions.command("can-take")
@click.argument("current", metavar="A")
@click.argument("target", metavar="B")
@click.option("--as", "principal", metavar="PLATFORM:USER", help="For this account; else for nobody in particular.")
@json_option
@command_options
def can_take(given: Given, current: str, target: str, principal: str | None, as_json: bool) -> None:
    """May session A take what is session B's?

    Its history, its media. Says by which rule, and which setting would have to change. The answer is no error: the exit
    status is 0 for both.

    \b
    aalis sessions can-take onebot:10001:group:1 onebot:10001:group:2 --as onebot:20002
    """

    async def work() -> None:
        async with opened(given, read_only=True) as host:
            manager = host.select(SESSION_MANAGER).use()
            account = None if principal is None else identity(principal)
            _get(manager, current), _get(manager, target)
            verdict = manager.can_take(current, target, account)
            rules = _rules(manager, current, target, verdict)
            if as_json:
                settings = None if verdict.reason is None else verdict.reason.params.get("settings")
                print_json(
                    {
                        "ok": verdict.ok,
                        "rules": rules,
                        **({"settings": settings.split(", ")} if settings else {}),
                        **({} if verdict.reason is None else {"reason": to_json(verdict.reason)}),
                    }
                )
            elif verdict.reason is None:
                click.echo(given.say("take.allowed", rules=", ".join(rules)))
            else:
                click.echo(given.say("take.refused", rules=", ".join(rules), reason=given.render(verdict.reason)))

    asyncio.run(work())


def _rules(manager: SessionManagerService, current: str, target: str, verdict: TakeVerdict) -> list[str]:
    """The rules that decided: the reason names those of a refusal."""
    if verdict.reason is not None:
        named = verdict.reason.params.get("rules")
        return named.split(", ") if isinstance(named, str) else ["TAKE-3"]
    roots = {
        session and session.id for session in (root_session_of(one, manager.get_session) for one in (current, target))
    }
    return ["TAKE-2"] if current == target or (len(roots) == 1 and None not in roots) else ["TAKE-4", "TAKE-5"]


def _view(given: Given, host: AalisHost) -> SessionView:
    return SessionView(given, host.select(SESSION_MANAGER).use(), host.now())


def _get(manager: SessionManagerService, session_id: str) -> SessionInfo:
    session = manager.get_session(session_id)
    if session is None:
        raise SessionNotFound(session_id)
    return session
