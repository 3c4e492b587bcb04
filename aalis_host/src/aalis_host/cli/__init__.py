"""The command line."""

from aalis_host.cli.early import silent_ctrl_c

with silent_ctrl_c():
    from aalis_host.cli.main import main

__all__ = ["main"]
