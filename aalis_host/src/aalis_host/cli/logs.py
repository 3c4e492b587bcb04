"""What the program tells of itself while it works: on standard error, never on standard output."""

import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import click
import structlog

__all__ = ["quiet", "set_up_logging"]

_SHARED = (
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
)


class _ToStandardError(logging.Handler):
    """Writes to what `sys.stderr` is at that moment: a progress bar or a test may have replaced it."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(self.format(record), err=True)


def _in_one_line(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Name an exception instead of showing its traceback."""
    error = event.pop("exc_info", None)
    if isinstance(error, tuple):
        error = error[1]
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException) and not any(str(error) in str(value) for value in event.values() if str(error)):
        event["error"] = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return event


def set_up_logging(debug: bool) -> None:
    """Warnings and errors in one line each; with `debug` everything, with tracebacks."""
    colours = sys.stderr.isatty()
    console = structlog.dev.ConsoleRenderer(
        colors=colours, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )
    finish = structlog.stdlib.ProcessorFormatter(
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *([] if debug else [_in_one_line]),
            console,
        ],
        foreign_pre_chain=_SHARED,
    )
    handler = _ToStandardError()
    handler.setFormatter(finish)
    root = logging.getLogger()
    root.handlers[:] = [*(other for other in root.handlers if not isinstance(other, _ToStandardError)), handler]
    root.setLevel(logging.INFO if debug else logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Nothing from this logger meanwhile: the command says it itself. With `debug` it is logged all the same."""
    logger = logging.getLogger(name)
    level = logger.level
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
