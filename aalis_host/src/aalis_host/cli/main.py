"""The command `aalis`."""

import click

from aalis_host.cli.chat import chat
from aalis_host.cli.config import config
from aalis_host.cli.delegate import delegate
from aalis_host.cli.ending import Commands
from aalis_host.cli.importing import import_
from aalis_host.cli.plugins import plugins
from aalis_host.cli.replay import replay
from aalis_host.cli.sessions import sessions
from aalis_host.cli.tools import tools

__all__ = ["main"]


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="aalis-host", prog_name="aalis", message="%(prog)s %(version)s")
def main() -> None:
    """An agent in many rooms, and its sessions in sight.

    \b
    aalis chat                                    talk to it
    aalis replay examples/rooms-day.jsonl         let a recorded day of chat rooms happen
    aalis sessions list                           see what came of it

    Every command takes --db PATH (the database) and --config FILE (the configuration).
    """


for command in (chat, config, delegate, import_, plugins, replay, sessions, tools):
    main.add_command(command)
