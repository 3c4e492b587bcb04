"""`aalis plugins`: what was found, and what failed."""

import asyncio
from typing import Any

import click

from aalis_host.cli.base import Given, command_options, json_option, opened
from aalis_host.cli.logs import quiet
from aalis_host.cli.output import one_line, print_json
from aalis_host.cli.tables import show_table
from aalis_host.plugins import PluginReport

__all__ = ["plugins"]


@click.command()
@json_option
@command_options
def plugins(given: Given, as_json: bool) -> None:
    """Show the plugins, and why one failed.

    They are started for it, on the database when there is one; nothing in it is changed.

    \b
    aalis plugins
    aalis plugins --json
    """

    async def work() -> None:
        with quiet("aalis_host.plugins"):
            async with opened(given, read_only=True, real=None) as host:
                reports = host.plugin_report
        if as_json:
            print_json([_as_json(report) for report in reports])
            return
        rows = [(one.name, one.version or "", ", ".join(one.provides), _state(given, one)) for one in reports]
        styles = ["red" if report.error else None for report in reports]
        show_table(
            [given.say(f"head.{head}") for head in ("name", "version", "provides", "state")], rows, styles=styles
        )

    asyncio.run(work())


def _state(given: Given, report: PluginReport) -> str:
    return given.say("plugin.failed", reason=one_line(report.error)) if report.error else given.say("plugin.runs")


def _as_json(report: PluginReport) -> dict[str, Any]:
    return {
        "name": report.name,
        "version": report.version,
        "provides": list(report.provides),
        **({} if report.error is None else {"error": report.error}),
    }
