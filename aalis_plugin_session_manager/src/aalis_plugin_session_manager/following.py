"""Taking over what other processes commit."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from aalis_api_session_manager.memory import MemoryService, MetadataRow, Outcome
from aalis_api_session_manager.service import ServiceSelection
from aalis_plugin_session_manager.collection import Collection

__all__ = ["Follower"]

log = logging.getLogger(__name__)

LOOK = 5.0
"""Seconds that one wait for changes takes at the most."""
GATHER = 0.02
"""Seconds between hearing of a commit and reading it, so that a busy store is read in slices."""
FIRST_RETRY, LAST_RETRY = 0.05, 2.0
"""Seconds between tries while the store can't be read."""

Take = Callable[[Iterable[MetadataRow], Mapping[str, int]], None]
"""(changed records, raised generations)."""


class Follower:
    """Knows up to which revision everything was seen.

    `lock` keeps reading and own committing apart: so an own commit is always known before it is read back.
    """

    def __init__(
        self,
        memory: ServiceSelection[MemoryService],
        collections: Mapping[str, Collection[Any]],
        lock: asyncio.Lock,
        take: Take,
    ) -> None:
        self._memory = memory
        self._collections = collections
        self._lock = lock
        self._take = take
        self._revision = 0

    async def begin(self) -> None:
        """What is stored from now on will be followed."""
        self._revision = (await self._memory.use().changes(2**62)).revision

    def committed(self, outcomes: Sequence[Outcome]) -> None:
        """Own commits that come right behind what was seen need no reading back."""
        for revision in sorted(row.revision for outcome in outcomes for row in outcome.records):
            if revision == self._revision + 1:
                self._revision = revision

    async def run(self) -> None:
        """For ever."""
        delay = FIRST_RETRY
        while True:
            try:
                if await self._memory.use().wait_for_changes(self._revision, LOOK):
                    await asyncio.sleep(GATHER)
                    await self.catch_up()
                delay = FIRST_RETRY
            except Exception as error:
                log.warning("can't follow the store: %s", error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, LAST_RETRY)

    async def catch_up(self) -> None:
        """Take over what is committed by now. Raises StorageError."""
        async with self._lock:
            memory = self._memory.use()
            changes = await memory.changes(self._revision)
            rows = changes.rows if changes.complete else await self._everything(memory)
            self._take(rows, changes.generations if changes.complete else await memory.generations())
            self._revision = max(self._revision, changes.revision)

    async def _everything(self, memory: MemoryService) -> list[MetadataRow]:
        """Every stored record, and a removal for each that is known here and stored no more."""
        rows = []
        for namespace, collection in self._collections.items():
            stored = await memory.list_metadata(namespace)
            rows += stored
            present = {row.key for row in stored}
            for key in collection.committed_keys():
                if key not in present:
                    gone = collection.entry(key).revision + 1
                    rows.append(MetadataRow(namespace=namespace, key=key, revision=gone, data=None))
        return rows
