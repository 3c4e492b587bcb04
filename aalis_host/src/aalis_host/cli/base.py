"""What every command shares: its options, its host, and what becomes of errors."""

import asyncio
import os
import shlex
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Concatenate, Final, ParamSpec, TypeVar

import attrs
import click
from babel import Locale

from aalis_api_session_manager.errors import (
    AalisError,
    ServiceNotFound,
    SessionNotFound,
    StorageError,
    WorkspaceNotFound,
)
from aalis_api_session_manager.text import TextRef
from aalis_host.app import AalisHost
from aalis_host.cli.logs import set_up_logging
from aalis_host.cli.texts import text
from aalis_host.config import Loaded, read_settings, without_password
from aalis_host.platforms.onebot import OneBotAdapter
from aalis_host.texts import reader_locale, render

__all__ = [
    "Given",
    "Mistake",
    "WithDefault",
    "command_options",
    "is_there",
    "json_option",
    "make_home",
    "opened",
    "patiently",
    "written_to",
]

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_SECONDS: Final = 20.0
"""How long a command waits for a change that the store keeps for later."""


class Mistake(click.ClickException):
    """A person's mistake: one clear line on standard error, exit status 2."""

    exit_code = 2

    def __init__(self, reason: TextRef | str) -> None:
        super().__init__(reason if isinstance(reason, str) else reason.source)
        self.reason = reason


@attrs.frozen
class Given:
    """What a command was given: its settings, the language it answers in, and how it was said where to look."""

    loaded: Loaded
    locale: Locale
    where: tuple[str, ...] = ()

    def say(self, key: str, **params: Any) -> str:
        """One of the command line's texts in the reader's language."""
        return render(text(key, **params), self.locale)

    def command(self, *arguments: str) -> str:
        """A command to type next, on the same database."""
        return shlex.join(("aalis", *arguments, *self.where))

    def render(self, words: str | TextRef) -> str:
        """Any text in the reader's language."""
        return render(words, self.locale)


class WithDefault(click.Group):
    """A group that runs its command `default` when none is named."""

    def __init__(self, *args: Any, default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with the default named where only options are."""
        if not args or (args[0].startswith("-") and not set(args) & set(self.get_help_option_names(ctx))):
            args = [self._default, *args]
        return super().parse_args(ctx, args)


def command_options(function: Callable[Concatenate[Given, P], None]) -> Callable[..., None]:
    """Give a command `--db`, `--config` and `--debug`; the function gets what they say, and its errors become words."""

    @click.option("--db", metavar="PATH", help="The database: a file, or a postgresql:// address.")
    @click.option("--config", type=click.Path(path_type=Path), help="The configuration; else ./aalis.toml, if any.")
    @click.option("--debug", is_flag=True, help="Show tracebacks, and log more.")
    @wraps(function)
    def command(*args: Any, db: str | None, config: Path | None, debug: bool, **kwargs: Any) -> None:
        set_up_logging(debug)
        locale = reader_locale()
        try:
            loaded = read_settings(config, {"db": db})
            locale = reader_locale(loaded.settings.language)
            function(Given(loaded, locale, _where(db, config)), *args, **kwargs)
        except (AalisError, Mistake, OSError) as error:
            if debug:
                traceback.print_exc()
            if isinstance(error, OSError):
                raise
            raise _in_words(error, locale) from error

    return command


def _where(db: str | None, config: Path | None) -> tuple[str, ...]:
    """The options as they were typed; an address with a password isn't said again."""
    secret = db is not None and without_password(db) != db
    return (
        *(("--db", db) if db is not None and not secret else ()),
        *(("--config", str(config)) if config is not None else ()),
    )


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value instead of a table.")


@asynccontextmanager
async def opened(
    given: Given, *, read_only: bool, real: bool | None = True, onebot: OneBotAdapter | None = None
) -> AsyncIterator[AalisHost]:
    """A running host on the database of the settings, with the platforms that this program has.

    `real` None: where there is no database yet, an empty one that is thrown away stands in for it; False: always.
    """
    settings = given.loaded.settings
    async with AsyncExitStack() as stack:
        if not real and (real is False or not is_there(settings.db)):
            folder = stack.enter_context(TemporaryDirectory(prefix="aalis-"))
            settings, read_only = attrs.evolve(settings, db=f"{folder}/empty.db"), False
        elif not read_only:
            make_home(given.loaded)
        host = await stack.enter_async_context(AalisHost(settings, read_only=read_only))
        host.add_platform(onebot or OneBotAdapter())
        yield host


async def patiently(change: Callable[[], Awaitable[T]]) -> T:
    """Make a change that may be made twice; again while the store only keeps it, because another process holds the
    file or the server is away. Raises what `change` raises, its StorageError after PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await change()
        except StorageError as error:
            if not error.pending or time.monotonic() > deadline:
                raise
        await asyncio.sleep(PATIENCE_SECONDS / 20)


def is_there(db: str) -> bool:
    """Is there a database at this address, or at least somebody who knows."""
    return "://" in db or os.path.exists(db)


def make_home(loaded: Loaded) -> None:
    """Make the folder of the database where nobody said where it is to be. Raises Mistake."""
    if "db" not in loaded.sources:
        folder = Path(loaded.settings.db).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Mistake(text("no-home", path=folder, reason=error.strerror)) from error


@contextmanager
def written_to(path: str) -> Iterator[IO[bytes]]:
    """A file that is made or emptied now; `-` is standard output. Raises Mistake where that can't be."""
    try:
        file = click.open_file(path, "wb")
    except OSError as error:
        raise Mistake(text("unreadable", path=path, reason=error.strerror)) from error
    with file:
        yield file
        file.flush()


def _in_words(error: AalisError | Mistake, locale: Locale) -> click.ClickException:
    """A person's mistake is 2; what a person can't help is 1."""
    match error:
        case Mistake():
            return Mistake(render(error.reason, locale))
        case StorageError(pending=True):
            return click.ClickException(render(text("kept", id=error.session_id, error=str(error)), locale))
        case StorageError():
            return click.ClickException(without_password(str(error)))
        case ServiceNotFound():
            return click.ClickException(render(text("no-service", service=error.service), locale))
        case SessionNotFound():
            return Mistake(render(text("no-session", id=error.session_id), locale))
        case WorkspaceNotFound():
            return Mistake(render(text("no-workspace", id=error.workspace_id), locale))
        case _:
            return Mistake(without_password(str(error)))
