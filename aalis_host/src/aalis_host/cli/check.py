"""`aalis sessions check`: stored sessions that can't be read, or don't fit together. Rule: STORE-4."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import attrs
import click

from aalis_api_session_manager.memory import MemoryService, MetadataRow
from aalis_api_session_manager.model import SessionInfo
from aalis_api_session_manager.text import TextRef
from aalis_api_session_manager.wire import camel, from_json
from aalis_host.cli.base import Given, command_options, json_option, opened
from aalis_host.cli.output import one_line, print_json
from aalis_host.cli.tables import show_table
from aalis_host.cli.texts import text

__all__ = ["check", "problems_of"]

_NAMESPACE = "sessions"
_SLICE = 1_000
_DERIVED = ("id", "kind", "children")
_FIELDS: Mapping[str, Any] = {
    camel(field.name): field.type
    for field in attrs.fields(attrs.resolve_types(SessionInfo))
    if field.name not in _DERIVED
}


@click.command()
@json_option
@command_options
def check(given: Given, as_json: bool) -> None:
    """Name every stored session that is damaged.

    Unreadable records, wrong types, missing parents, rings of parents. Nothing is repaired or changed. The exit status
    is 1 when something was found.

    \b
    aalis sessions check --db day.db
    """

    async def work() -> int:
        async with opened(given, read_only=True) as host:
            parents: dict[str, str | None] = {}
            found: list[tuple[str, TextRef]] = []
            count = 0
            async for row in _rows(host.memory):
                count += 1
                found += ((row.key, problem) for problem in problems_of(row))
                if row.data is not None and row.data.get("id") == row.key:
                    parent = row.data.get("parentId")
                    parents[row.key] = parent if isinstance(parent, str) else None
            found += _broken_chains(parents)
        if as_json:
            print_json({"records": count, "problems": [{"id": key, "problem": what.source} for key, what in found]})
            return len(found)
        if found:
            rows = [(one_line(key), one_line(given.render(what))) for key, what in found]
            show_table((given.say("head.session"), given.say("head.state")), rows)
        summary = "check.found" if found else "check.fine"
        click.echo(given.say(summary, count=count, problems=len(found)), err=bool(found))
        return len(found)

    if asyncio.run(work()):
        click.get_current_context().exit(1)


def problems_of(row: MetadataRow) -> Iterator[TextRef]:
    """What is wrong with one stored record."""
    if row.data is None:
        yield text("check.damaged")
    elif row.data.get("id") != row.key:
        yield text("check.other-id")
    else:
        for name, kind in _FIELDS.items():
            if row.data.get(name) is not None:
                try:
                    from_json(row.data[name], kind)
                except Exception as error:
                    yield text("check.field", field=name, reason=str(error) or type(error).__name__)
        children = row.data.get("children")
        if isinstance(children, list) and any(children.count(child) > 1 for child in children):
            yield text("check.children")


async def _rows(memory: MemoryService) -> AsyncIterator[MetadataRow]:
    after: str | None = None
    while rows := await memory.list_metadata(_NAMESPACE, after_key=after, limit=_SLICE):
        for row in rows:
            yield row
        after = rows[-1].key


def _broken_chains(parents: Mapping[str, str | None]) -> Iterator[tuple[str, TextRef]]:
    """Sessions whose parent is missing; of each ring of parents, its members once."""
    ends: set[str] = set()
    for start in parents:
        path: dict[str, Any] = {}
        session: str | None = start
        while session is not None and session not in ends and session not in path:
            path[session] = None
            parent = parents[session]
            if parent is not None and parent not in parents:
                yield session, text("check.no-parent", parent=parent)
                break
            session = parent
        if session in path and parents[session] in parents:
            ring = [*path][[*path].index(session) :]
            yield session, text("check.cycle", ring=" -> ".join([*ring, session]))
        ends.update(path)
