"""`aalis config`: every setting, and whether all of it is right."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import click
import orjson

from aalis_api_session_manager.text import TextRef
from aalis_api_session_manager.values import thaw_json
from aalis_host.cli.base import Given, Mistake, WithDefault, command_options, json_option, opened
from aalis_host.cli.logs import quiet
from aalis_host.cli.output import on_terminal, one_line, print_json
from aalis_host.cli.tables import show_table
from aalis_host.cli.texts import text
from aalis_host.config import plugin_rows, setting_rows
from aalis_host.plugins import FoundPlugin, PluginReport, find_plugins
from aalis_host.words import did_you_mean

__all__ = ["config"]


@click.group(cls=WithDefault, default="show")
def config() -> None:
    """Show every setting, or check the configuration.

    \b
    aalis config
    aalis config check --config aalis.toml
    """


@config.command()
@json_option
@command_options
def show(given: Given, as_json: bool) -> None:
    """Show every setting with its value, default and source.

    `aalis config` alone does the same. With --json what each is for stands beside it.

    \b
    aalis config
    AALIS_MODEL_KIND=openai aalis config --config aalis.toml
    """
    rows = setting_rows(given.loaded)
    for plugin in find_plugins():
        if plugin.meta is not None:
            rows += plugin_rows(plugin.meta.name, plugin.meta.config, given.loaded)
    if as_json:
        print_json([attrs.asdict(row, recurse=False) for row in rows])
        return
    cells: list[tuple[str, str, str, str]] = []
    styles: list[str | None] = []
    section = ""
    for row in rows:
        changed, key = row.source != "default", row.key
        if on_terminal():
            prefix, _, key = row.key.rpartition(".")
            if prefix != section:
                cells.append((f"[{prefix}]", "", "", ""))
                styles.append("dim")
                section = prefix
        cells.append((key, _value(row.value), _value(row.default) if changed else "", row.source))
        styles.append("bold" if changed else None)
    heads = [given.say(f"head.{head}") for head in ("setting", "value", "default", "source")]
    show_table(heads, cells, styles=styles)


@config.command()
@command_options
def check(given: Given) -> None:
    """Is the configuration right?

    The plugins are started with it, on a database that is thrown away.

    \b
    aalis config check --config aalis.toml
    """
    found = find_plugins()
    wrong = list(_unknown_plugins(given, found))

    async def start() -> list[PluginReport]:
        with quiet("aalis_host.plugins"):
            async with opened(given, read_only=True, real=False) as host:
                return host.plugin_report

    loaded = {plugin.meta.name for plugin in found if plugin.meta is not None}
    for report in asyncio.run(start()):
        if report.name in loaded and report.error is not None:
            wrong.append(text("config.plugin", name=report.name, reason=report.error))
    for problem in wrong[:-1]:
        click.echo(f"aalis: {one_line(given.render(problem))}", err=True)
    if wrong:
        raise Mistake(wrong[-1])
    file = given.loaded.file
    click.echo(given.say("config.right", file=given.say("config.no-file") if file is None else str(file)))


def _unknown_plugins(given: Given, found: Sequence[FoundPlugin]) -> Iterator[TextRef]:
    """Tables that nobody reads."""
    names = {plugin.report.name for plugin in found}
    for name in given.loaded.settings.plugins:
        if name not in names:
            yield text("config.unknown-plugin", name=name, hint=did_you_mean(name, names))


def _value(value: Any) -> str:
    return one_line(value) if isinstance(value, str) else orjson.dumps(value, default=thaw_json).decode()
