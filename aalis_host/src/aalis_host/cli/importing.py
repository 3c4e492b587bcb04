"""`aalis import`: a database of the TypeScript Aalis. Rule: STORE-5."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from aalis_api_session_manager.memory import Change, Changeset, MemoryService
from aalis_api_session_manager.message import Message
from aalis_api_session_manager.wire import camel
from aalis_host.app import wall_clock
from aalis_host.cli.base import Given, command_options, is_there, json_option, make_home
from aalis_host.cli.output import one_line, print_json
from aalis_host.cli.progress import progress
from aalis_host.cli.tables import show_facts
from aalis_host.cli.typescript import Source, opened_source
from aalis_host.memory import open_memory

__all__ = ["import_"]

T = TypeVar("T")
_NAMESPACE = "sessions"
_SLICE = 500


@attrs.define(eq=False)
class Tally:
    """What was found, and what of it is new here. `None`: a dry run can't tell."""

    sessions: int = 0
    sessions_new: int = 0
    sessions_there: int = 0
    sessions_skipped: int = 0
    messages: int = 0
    messages_new: int | None = 0
    messages_there: int | None = 0
    messages_skipped: int = 0


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@json_option
@command_options
def import_(given: Given, file: Path, dry_run: bool, as_json: bool) -> None:
    """Bring in a database of the TypeScript Aalis.

    Its sessions and messages come as they are. FILE isn't changed. What is here already stays as it is, so that an
    import may be repeated or taken up again. Sessions come without an origin; a room gets it back with its next
    message.

    \b
    aalis import data/aalis.db --dry-run
    aalis import data/aalis.db --db aalis.db
    """
    tally = asyncio.run(_import(given, file, dry_run))
    figures = {name: figure for name, figure in attrs.asdict(tally).items() if figure is not None}
    if as_json:
        print_json({camel(name): figure for name, figure in figures.items()} | {"dryRun": dry_run})
        return
    rows = [(given.say(f"import.{name.replace('_', '-')}"), f"{figure:,}") for name, figure in figures.items()]
    show_facts(rows)
    if dry_run:
        click.echo(given.say("import.dry"), err=True)


async def _import(given: Given, file: Path, dry_run: bool) -> Tally:
    tally = Tally()
    with opened_source(file) as source, progress(given.say("import.importing"), sum(source.count())) as at:
        work = _Import(given, source, tally, at)
        db = given.loaded.settings.db
        if not dry_run:
            make_home(given.loaded)
            async with open_memory(db, now=wall_clock) as memory:
                await work.run(memory, dry_run=False)
        elif is_there(db):
            async with open_memory(db, read_only=True, now=wall_clock) as memory:
                await work.run(memory, dry_run=True)
        else:
            await work.run(None, dry_run=True)
    return tally


@attrs.frozen
class _Import:
    given: Given
    source: Source
    tally: Tally
    at: Callable[[int], None]

    async def run(self, memory: MemoryService | None, *, dry_run: bool) -> None:
        """Bring everything in, in slices. `memory` None: there is no database yet (in a dry run)."""
        generations = {} if memory is None else await memory.generations()
        for records in _slices(self.source.sessions()):
            await self._sessions(records, memory, generations, dry_run)
            self.at(self.tally.sessions)
        for messages in _slices(self.source.messages()):
            await self._messages(messages, None if dry_run else memory)
            self.at(self.tally.sessions + self.tally.messages)

    async def _sessions(
        self,
        records: list[tuple[str, dict[str, Any] | str]],
        memory: MemoryService | None,
        generations: Mapping[str, int],
        dry_run: bool,
    ) -> None:
        self.tally.sessions += len(records)
        changesets = []
        for key, record in records:
            if isinstance(record, str):
                self.tally.sessions_skipped += 1
                self._say("import.bad-session", id=one_line(key), reason=record)
            elif memory is not None and await memory.get_metadata(_NAMESPACE, key) is not None:
                self.tally.sessions_there += 1
            else:
                self.tally.sessions_new += 1
                made = record | ({"generation": generations[key]} if key in generations else {})
                changesets.append(Changeset(changes=(_added(key, made),)))
        if memory is not None and not dry_run:
            for outcome in await memory.commit_metadata(changesets):
                if outcome.error is not None:
                    raise outcome.error

    async def _messages(self, messages: list[tuple[int, Message | str]], memory: MemoryService | None) -> None:
        """Saved in one go, in order."""
        self.tally.messages += len(messages)
        usable = []
        for number, message in messages:
            if isinstance(message, str):
                self.tally.messages_skipped += 1
                self._say("import.bad-message", id=number, reason=message)
            else:
                usable.append(message)
        if memory is None:
            self.tally.messages_new = self.tally.messages_there = None
            return
        saved = await asyncio.gather(*(memory.save_message(message.session_id, message) for message in usable))
        new = sum(result.status == "saved" for result in saved)
        self.tally.messages_new = (self.tally.messages_new or 0) + new
        self.tally.messages_there = (self.tally.messages_there or 0) + len(usable) - new

    def _say(self, key: str, **params: Any) -> None:
        click.echo(self.given.say(key, **params), err=True)


def _added(key: str, record: dict[str, Any]) -> Change:
    """The record where there is none."""
    return Change(
        namespace=_NAMESPACE,
        key=key,
        base=0,
        data=record,
        fold=lambda stored: record if stored is None else stored,
    )


def _slices(items: Iterator[T]) -> Iterator[list[T]]:
    while items_of_one := list(islice(items, _SLICE)):
        yield items_of_one
