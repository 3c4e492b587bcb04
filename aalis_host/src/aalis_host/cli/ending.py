"""How a command ends: its exit status, and what is said of its errors."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import click

from aalis_host.cli.output import one_line

__all__ = ["Commands", "terminated"]

terminated: Final = threading.Event()
"""Was this process told to stop by SIGTERM."""


class Commands(click.Group):
    """The commands, with one way out for all: 2 after a mistake, 130 after Ctrl-C, 143 after SIGTERM, silence when
    nobody reads on."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command line and end the process."""
        kwargs["standalone_mode"] = False
        _open_what_is_closed()
        try:
            with _sigterm_as_ctrl_c():
                code = super().main(*args, **kwargs)
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = error.exit_code
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else "aalis"
            _complain(f"{error.format_message()} (see: {where} --help)")
            code = error.exit_code
        except click.ClickException as error:
            _complain(error.format_message())
            code = error.exit_code
        except click.Abort:
            code = 143 if terminated.is_set() else 130
        except OSError as error:
            if error.errno != errno.EPIPE:
                _complain(_told(error))
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 1
        sys.exit(code if isinstance(code, int) else 0)


def _open_what_is_closed() -> None:
    """A standard stream that was closed (`>&-`) is the null device, before another file gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """What a service manager sends stops a command as cleanly as Ctrl-C does."""

    def stop(_: int, __: object) -> None:
        terminated.set()
        if not callable(signal.getsignal(signal.SIGINT)):  # ignored, as in the background of a shell script
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    terminated.clear()
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _told(error: OSError) -> str:
    words = error.strerror or str(error)
    return words if error.filename is None else f"{error.filename}: {words}"


def _complain(words: str) -> None:
    with suppress(OSError):
        click.echo(f"aalis: {one_line(words)}", err=True)
