"""Schema versions: one mechanism for every back end.

A schema is a list of steps. Step n brings a database from version n to n + 1, in the transaction that also stores
the new number; a step that was released is never edited.
"""

from collections.abc import Callable, Sequence

from aalis_api_session_manager.errors import ConfigError

__all__ = ["refuse_newer", "refuse_older", "upgrade"]


Steps = Sequence[Sequence[str]]
"""The statements of each step."""


def refuse_newer(where: str, version: int, steps: Steps) -> None:
    """Raise ConfigError when a newer program made the database."""
    if version > len(steps):
        raise ConfigError(
            f"{where} was made by a newer version of this program "
            f"(its schema is {version}, this program knows up to {len(steps)}): update the program"
        )


def refuse_older(where: str, version: int, steps: Steps) -> None:
    """Raise ConfigError when the database has to be upgraded first: reading only doesn't change it."""
    if version < len(steps):
        raise ConfigError(
            f"{where} was made by an older version of this program (its schema is {version}, this program needs "
            f"{len(steps)}): open it for writing once"
        )


def upgrade(where: str, version: int, steps: Steps, execute: Callable[[str], object]) -> int:
    """Run the steps that are missing and answer the version reached; the caller stores it and commits.

    Raises ConfigError when a newer program made the database.
    """
    refuse_newer(where, version, steps)
    for statement in (statement for step in steps[version:] for statement in step):
        execute(statement)
    return len(steps)
