"""Which hosts live. Each says so every 5 seconds in a stored record that holds for 15.

Expiry compares the hosts' wall clocks, which may differ by a few seconds. A host that finds its own record expired was
asleep, perhaps with all the others on a machine that was suspended: it gives them time for a beat.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from aalis_plugin_tool_session.rings import without_hosts
from aalis_plugin_tool_session.shared import HOSTS, Shared, Stale

__all__ = ["BEAT_SECONDS", "TTL_MS", "Presence"]

log = logging.getLogger(__name__)

BEAT_SECONDS: Final = 5.0
TTL_MS: Final = 15_000


class Presence:
    """This host's record, and what was last read of the others.

    `others`: their ids with the platforms they serve. `platforms` answers those of this host. `on_buried` is called
    when the others took this host for dead (it slept, or was cut off) and removed what they saw of it.
    """

    def __init__(self, shared: Shared, platforms: Callable[[], tuple[str, ...]], on_buried: Callable[[], None]) -> None:
        self.others: Mapping[str, tuple[str, ...]] = {}
        self._shared = shared
        self._platforms = platforms
        self._on_buried = on_buried
        self._said: tuple[str, ...] | None = None
        self._next_beat = 0.0
        self._patient_until = 0.0

    @property
    def serves(self) -> bool:
        """This host has platforms of its own."""
        return bool(self._platforms())

    async def beat(self) -> bool:
        """Say that this host lives, when it is time to or its platforms are others than it said; True: it was."""
        platforms, time = self._platforms(), asyncio.get_running_loop().time()
        if platforms == self._said and time < self._next_beat:
            return False
        record = {"expiresAt": self._shared.now() + TTL_MS, "platforms": list(platforms)}
        is_known = self._said is not None

        def renew(stored: dict[str, Any] | None) -> dict[str, Any]:
            if is_known and stored is None:
                raise Stale
            return record

        try:
            await self._shared.change((HOSTS, self._shared.host_id, renew))
        except Stale:
            self._was_buried()
            return await self.beat()
        self._said, self._next_beat = platforms, time + BEAT_SECONDS
        return True

    async def look(self) -> None:
        """See who lives, and bury who doesn't, with their waits."""
        now, stored = self._shared.now(), await self._shared.records(HOSTS)
        itself = stored.pop(self._shared.host_id, None)
        if itself is None and self._said is not None:
            self._was_buried()
        elif itself is not None and not _lives(itself, now):
            self._next_beat, self._patient_until = 0, asyncio.get_running_loop().time() + 2 * BEAT_SECONDS
        self.others = {
            host_id: tuple(record.get("platforms", ()))
            for host_id, record in stored.items()
            if self._lives(record, now)
        }
        for host_id in stored.keys() - self.others.keys():
            await self._bury(host_id, now)

    def _lives(self, record: Mapping[str, Any], now: int) -> bool:
        return _lives(record, now) or asyncio.get_running_loop().time() < self._patient_until

    def _was_buried(self) -> None:
        self._said = None
        self._on_buried()

    async def lives(self, host_id: str) -> bool:
        """Does it, as its record says now."""
        record = await self._shared.record(HOSTS, host_id)
        return record is not None and self._lives(record, self._shared.now())

    async def leave(self) -> None:
        """This host stops: nothing of it is left."""
        await self._shared.change(
            (HOSTS, self._shared.host_id, lambda stored: None), without_hosts({self._shared.host_id})
        )

    async def _bury(self, host_id: str, now: int) -> None:
        def remove(stored: dict[str, Any] | None) -> None:
            if stored is None or _lives(stored, now):
                raise Stale

        try:
            await self._shared.change((HOSTS, host_id, remove), without_hosts({host_id}))
        except Stale:
            return
        log.warning("host %s is gone without a word", host_id)


def _lives(record: Mapping[str, Any], now: int) -> bool:
    expires_at = record.get("expiresAt")
    return type(expires_at) is int and expires_at > now
