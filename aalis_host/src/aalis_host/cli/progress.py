"""How far something is, on standard error, where a person looks at it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["progress", "spinner"]

_EVERY = 100


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:,.0f}/s")


@contextmanager
def progress(words: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar with its rate; the function is told how many are done. `total` None: nobody knows."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(words, total=total)

        def done(number: int) -> None:
            if number - bar.tasks[0].completed >= _EVERY:
                bar.update(task, completed=number)

        yield done


def spinner(words: str) -> AbstractContextManager[Any]:
    """Something turns while one waits."""
    console = Console(stderr=True)
    return console.status(words) if console.is_terminal else nullcontext()
