"""A change on its way from the table to the store."""

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from attrs import define, field, frozen

from aalis_plugin_session_manager.collection import Collection

__all__ = ["Edit", "Event", "Job", "in_listener"]

in_listener: ContextVar[bool] = ContextVar("in_listener", default=False)
"""True in what a listener of the store's events runs."""


@frozen
class Edit:
    """One record's part of a change: a pure function (record or None) -> record or None."""

    collection: Collection[Any]
    key: str
    fold: Callable[[Any], Any]

    @property
    def address(self) -> tuple[str, str]:
        """Where the record is stored."""
        return (self.collection.namespace, self.key)


@frozen
class Event:
    """A record was committed: `old` and `new` as stored, None for absent. `foreign`: by another process."""

    collection: Collection[Any]
    key: str
    old: Any
    new: Any
    foreign: bool = False

    def __str__(self) -> str:
        return f"{self.collection.namespace} {self.key!r}"


@define(eq=False)
class Job:
    """Edits that are stored together or not at all, and who waits for it.

    `subject` names it in the log. `alone`: it shares no changeset. It is `durable` once stored, `told` once
    its event was handled; `rejected` holds what a fold raised against the record that is stored by now.
    """

    edits: tuple[Edit, ...]
    generations: Mapping[str, int]
    subject: str
    alone: bool = False
    durable: bool = False
    told: bool = False
    warned: bool = False
    rejected: Exception | None = None
    _for_durable: list[asyncio.Future[None]] = field(factory=list)
    _for_told: list[asyncio.Future[None]] = field(factory=list)

    async def settled(self, *, only_durable: bool) -> None:
        """Wait. Raises what it is refused or rejected with. Cancelling the waiter cancels nothing else."""
        if self.rejected is not None:
            raise self.rejected
        if self.told or (only_durable and self.durable):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._for_durable if only_durable else self._for_told).append(waiter)
        await waiter

    @property
    def awaited(self) -> bool:
        """Somebody waits for it."""
        return bool(self._for_durable or self._for_told)

    def was_stored(self) -> None:
        """It is durable."""
        self.durable = True
        _finish(self._for_durable, None)

    def was_told(self) -> None:
        """Its event was handled."""
        self.told = True
        _finish(self._for_told, None)

    def refuse(self, error: Exception) -> None:
        """End every wait with an error."""
        _finish(self._for_durable, error)
        _finish(self._for_told, error)


def _finish(waiters: list[asyncio.Future[None]], error: Exception | None) -> None:
    for waiter in waiters:
        if not waiter.done():
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
    waiters.clear()
