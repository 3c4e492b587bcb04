"""`aalis plugins`: what was found, and what failed."""

from typing import Any

import click
from rich.text import Text

from aalis_host.cli.base import Given, command_options, interruptible, json_option, opened
from aalis_host.cli.logs import quiet
from aalis_host.cli.output import one_line, print_json, screen, table
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
        shown = table(*(given.say(f"head.{head}") for head in ("name", "version", "provides", "state")))
        for report in reports:
            state = given.say("plugin.runs")
            if report.error is not None:
                state = given.say("plugin.failed", reason=one_line(report.error))
            cells = (report.name, report.version or "", ", ".join(report.provides), state)
            shown.add_row(*map(Text, cells), style="red" if report.error else None)
        screen().print(shown)

    interruptible(work())


def _as_json(report: PluginReport) -> dict[str, Any]:
    return {
        "name": report.name,
        "version": report.version,
        "provides": list(report.provides),
        **({} if report.error is None else {"error": report.error}),
    }
