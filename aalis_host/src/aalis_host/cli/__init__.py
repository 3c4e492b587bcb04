"""The command line."""

from aalis_host.cli.main import main

__all__ = ["main"]
