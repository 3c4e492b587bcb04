"""Knowing the other hosts on the same database, and hearing what they make of delegations."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from aalis_api_session_manager.errors import AalisError
from aalis_plugin_tool_session.dispatches import Delegation
from aalis_plugin_tool_session.kept import Kept, decoded
from aalis_plugin_tool_session.presence import Presence
from aalis_plugin_tool_session.rings import Waits
from aalis_plugin_tool_session.sending import Sending
from aalis_plugin_tool_session.shared import DELEGATIONS, HOSTS, Shared

__all__ = ["Following"]

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
"""How often hosts are looked for."""
GATHER_SECONDS: Final = 0.02
"""Between hearing of a commit and reading it, so that a busy store is read in slices."""
RETRY_SECONDS: Final = 1.0


class Following:
    """`on_offer` hears of each delegation that another host offers."""

    def __init__(
        self,
        shared: Shared,
        presence: Presence,
        waits: Waits,
        kept: Kept,
        sending: Sending,
        on_offer: Callable[[Delegation], None],
    ) -> None:
        self._shared = shared
        self._presence = presence
        self._waits = waits
        self._kept = kept
        self._sending = sending
        self._on_offer = on_offer
        self._watched: dict[str, set[Delegation]] = {}
        self._offers: set[str] = set()
        self._revision: int | None = None
        self._looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._watched)

    def start(self) -> None:
        """Be there for other hosts, if there is a store to share."""
        if self._shared.available:
            self._task = asyncio.create_task(self._run(), name="delegations of other hosts")

    async def stop(self) -> None:
        """Nothing of this host is left for the others to see."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._looked.set()
        try:
            await self._presence.leave()
        except AalisError as error:
            log.warning("other hosts will take this one for alive a little longer: %s", error)

    async def know_the_others(self) -> None:
        """Right after the start: wait until it has been looked for them once."""
        if self._task is not None:
            await self._looked.wait()

    def hosts_with_platforms(self) -> set[str]:
        """The others that serve any."""
        return {host_id for host_id, platforms in self._presence.others.items() if platforms}

    @contextmanager
    def watching(self, delegation: Delegation) -> Iterator[None]:
        """Inside, what other hosts make of it is heard."""
        self._watched.setdefault(delegation.id, set()).add(delegation)
        try:
            yield
        finally:
            watched = self._watched[delegation.id]
            watched.discard(delegation)
            if not watched:
                del self._watched[delegation.id]

    async def refresh(self, delegation: Delegation) -> None:
        """Take over what is stored of it now. Raises AalisError."""
        delegation.take_over(decoded(delegation.id, await self._shared.record(DELEGATIONS, delegation.id)))

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
                if self._presence.others:
                    await self._hear()
                else:
                    self._revision = None
                    self._offers.clear()
                    self._looked.set()
                    await asyncio.sleep(LOOK_SECONDS)
            except Exception as error:
                log.warning("can't follow the other hosts, trying again: %s", error)
                self._looked.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _look(self) -> None:
        """See which hosts live; what a dead one ran is over."""
        if await self._presence.beat():
            self._sending.keep_all()
        # Those of before: a host that came meanwhile may have taken one, and isn't seen yet.
        elsewhere = [one for same in self._watched.values() for one in same if one.state in ("taken", "running")]
        await self._presence.look()
        for one in elsewhere:
            if not self._lives(one.host):
                await self.refresh(one)  # its host may have stored the answer before it left
                if not one.ended and not self._lives(one.host):
                    one.interrupted(self._shared.now())
        await self._waits.share(bool(self._presence.others))
        await self._kept.prune(self._lives)

    def _lives(self, host_id: str) -> bool:
        return host_id == self._shared.host_id or host_id in self._presence.others

    async def _hear(self) -> None:
        """What others commit, until it is time to look for hosts again."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LOOK_SECONDS
        if self._revision is None:
            self._revision = await self._shared.newest()
            await self._hear_all()
        self._looked.set()
        while (seconds := until - loop.time()) > 0:
            if await self._shared.wait_for_changes(self._revision, seconds):
                await asyncio.sleep(GATHER_SECONDS)
                changes = await self._shared.changes(self._revision)
                if not changes.complete:
                    await self._hear_all()
                for row in changes.rows:
                    if row.namespace == DELEGATIONS:
                        self._heard(row.key, row.data)
                    elif row.namespace == HOSTS and (row.data is None or row.key not in self._presence.others):
                        until = 0
                self._revision = changes.revision

    async def _hear_all(self) -> None:
        stored = await self._shared.records(DELEGATIONS)
        for delegation_id in self._watched.keys() - stored.keys():
            self._heard(delegation_id, None)
        for delegation_id, data in stored.items():
            self._heard(delegation_id, data)

    def _heard(self, delegation_id: str, data: Mapping[str, Any] | None) -> None:
        is_open = data is not None and data.get("state") == "open"
        watched = self._watched.get(delegation_id, ())
        if not is_open:
            self._offers.discard(delegation_id)
        if not is_open and not watched:
            return
        stored = decoded(delegation_id, data)
        for one in watched:
            if data is not None or one.stored is not None:
                one.take_over(stored)
        if is_open and stored is not None and stored.host != self._shared.host_id and delegation_id not in self._offers:
            self._offers.add(delegation_id)
            self._on_offer(stored)
