"""What hosts on one database share: small records in the memory service's metadata, changed by folds.

| namespace | key | holds | module |
|---|---|---|---|
| `delegations` | delegation id | where it stands, until its answer is picked up | `kept.py`, `remote.py` |
| `delegation-waits` | `all` | who waits for whom, while there is more than one host | `rings.py` |
| `hosts` | host id | until when the host is taken to live, and its platforms | `presence.py` |
"""

from collections.abc import Sequence
from typing import Any, Final

from aalis_api_session_manager.host import Host
from aalis_api_session_manager.memory import Change, Changes, Changeset, Fold
from aalis_api_session_manager.service import MEMORY

__all__ = ["DELEGATIONS", "HOSTS", "WAITS", "Edit", "Shared", "Stale"]

DELEGATIONS: Final = "delegations"
HOSTS: Final = "hosts"
WAITS: Final = "delegation-waits"

Edit = tuple[str, str, Fold]
"""Namespace, key, and what becomes of that record."""

_SLICE: Final = 500
_ALWAYS_FOLD: Final = -1
_NEWEST: Final = 2**62


class Stale(Exception):
    """Raised in a fold: the record isn't any more what the change was made for, and stays as it is."""


class Shared:
    """The records. Every method raises AalisError when the back end fails, or nobody provides one."""

    def __init__(self, host: Host) -> None:
        self.host_id = host.instance_id
        self.now = host.now
        self._read_only = host.read_only
        self._memory = host.select(MEMORY)

    @property
    def available(self) -> bool:
        """There is a store, and this host may write to it."""
        return self._memory.present and not self._read_only

    async def change(self, *edits: Edit) -> None:
        """Make the edits, all or none, durably. Raises what a fold raises."""
        (error,) = await self.change_each([edits])
        if error is not None:
            raise error

    async def change_each(self, groups: Sequence[Sequence[Edit]]) -> list[Exception | None]:
        """The same for many groups that share a commit; for each what rejected it."""
        changesets = [
            Changeset(
                changes=tuple(
                    Change(namespace=namespace, key=key, base=_ALWAYS_FOLD, data=None, fold=fold)
                    for namespace, key, fold in edits
                )
            )
            for edits in groups
        ]
        return [outcome.error for outcome in await self._memory.use().commit_metadata(changesets)]

    async def record(self, namespace: str, key: str) -> dict[str, Any] | None:
        """The stored record; None for a missing or an unreadable one."""
        row = await self._memory.use().get_metadata(namespace, key)
        return None if row is None else row.data

    async def records(self, namespace: str) -> dict[str, dict[str, Any]]:
        """The readable records of a namespace by key."""
        found: dict[str, dict[str, Any]] = {}
        last: str | None = None
        while rows := await self._memory.use().list_metadata(namespace, after_key=last, limit=_SLICE):
            found.update({row.key: row.data for row in rows if row.data is not None})
            last = rows[-1].key
            if len(rows) < _SLICE:
                break
        return found

    async def newest(self) -> int:
        """The revision of now."""
        return (await self._memory.use().changes(_NEWEST)).revision

    async def changes(self, after_revision: int) -> Changes:
        """What was committed since."""
        return await self._memory.use().changes(after_revision)

    async def wait_for_changes(self, after_revision: int, seconds: float) -> bool:
        """Wait, at most so long, until something may have been committed since."""
        return await self._memory.use().wait_for_changes(after_revision, seconds)
