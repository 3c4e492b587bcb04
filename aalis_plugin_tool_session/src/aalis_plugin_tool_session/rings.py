"""Who waits for whom. A wait that would close a ring is refused at once. Rule: DELEG-10.

Alone, a host keeps its waits in memory. While there are others, each wait is also an edge of one stored record, and
the fold that adds it looks for a ring: so two hosts can't close one together.
"""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Set
from contextlib import asynccontextmanager
from typing import Any, Final

from attrs import define, field

from aalis_api_session_manager.errors import AalisError
from aalis_plugin_tool_session.background import Background
from aalis_plugin_tool_session.shared import WAITS, Edit, Shared, Stale

__all__ = ["Ring", "Wait", "Waits", "without_hosts"]

log = logging.getLogger(__name__)

_KEY: Final = "all"
_GRACE_SECONDS: Final = 60
"""What a stored edge holds beyond its wait, for the dispatch ahead of it."""


class Ring(Exception):
    """Waiting would never end: the target waits for the source."""


@define(eq=False, kw_only=True)
class Wait:
    """One wait of a delegation's source for its target. `stored`: other hosts see it.

    `closed_ring`: it began before others could see it, and was found to close a ring with one of theirs; that ends
    `limit`, the time limit of the waiting.
    """

    id: str
    delegation_id: str
    source: str
    target: str
    expires_at: int
    stored: bool = False
    closed_ring: bool = False
    limit: asyncio.Timeout | None = field(default=None, repr=False)


class Waits:
    """The waits of this host."""

    def __init__(self, shared: Shared, background: Background) -> None:
        self._shared = shared
        self._background = background
        self._numbers = itertools.count(1)
        self._waits: set[Wait] = set()
        self._for: dict[str, Counter[str]] = {}
        self._company = False

    def __len__(self) -> int:
        return len(self._waits)

    @asynccontextmanager
    async def between(self, source: str, target: str, delegation_id: str, seconds: float) -> AsyncIterator[Wait]:
        """The source waits for the target inside. Raises Ring at once if that closes one."""
        if _reaches(self._for, target, source):
            raise Ring
        expires_at = self._shared.now() + int((seconds + _GRACE_SECONDS) * 1000)
        wait = Wait(
            id=f"{self._shared.host_id}:{next(self._numbers)}",
            delegation_id=delegation_id,
            source=source,
            target=target,
            expires_at=expires_at,
        )
        self._waits.add(wait)
        self._for.setdefault(source, Counter())[target] += 1
        try:
            if self._company:
                await self._store(wait)
            yield wait
        finally:
            self._forget(wait)

    async def share(self, company: bool) -> None:
        """There are other hosts, or not any more; what they don't see yet is shown to them."""
        self._company = company
        hidden = [wait for wait in self._waits if not wait.stored] if company else []
        results = await asyncio.gather(*map(self._store, hidden), return_exceptions=True)
        for wait, result in zip(hidden, results, strict=True):
            if isinstance(result, Ring):
                wait.closed_ring = True
                if wait.limit is not None:
                    wait.limit.reschedule(0)

    def hide(self) -> None:
        """Others took this host for dead and removed what they saw."""
        for wait in self._waits:
            wait.stored = False

    async def _store(self, wait: Wait) -> None:
        def add(stored: dict[str, Any] | None) -> dict[str, Any]:
            now = self._shared.now()
            edges = {key: edge for key, edge in _edges(stored).items() if edge["expiresAt"] > now}
            if _reaches(_neighbours(edges.values()), wait.target, wait.source):
                raise Ring
            edges[wait.id] = {
                "delegationId": wait.delegation_id,
                "source": wait.source,
                "target": wait.target,
                "host": self._shared.host_id,
                "expiresAt": wait.expires_at,
            }
            return {"edges": edges}

        if wait not in self._waits:
            return
        try:
            await self._shared.change((WAITS, _KEY, add))
        except AalisError as error:
            log.warning("other hosts can't see a wait of session %s yet: %s", wait.source, error)
        else:
            wait.stored = True

    def _forget(self, wait: Wait) -> None:
        self._waits.discard(wait)
        targets = self._for[wait.source]
        targets[wait.target] -= 1
        if not targets[wait.target]:
            del targets[wait.target]
        if not targets:
            del self._for[wait.source]
        if wait.stored or self._company:
            self._background.start(self._remove(wait))

    async def _remove(self, wait: Wait) -> None:
        def remove(stored: dict[str, Any] | None) -> dict[str, Any] | None:
            edges = dict(_edges(stored))
            if edges.pop(wait.id, None) is None:
                raise Stale
            return {"edges": edges} if edges else None

        try:
            await self._shared.change((WAITS, _KEY, remove))
        except Stale:
            pass
        except AalisError as error:
            log.warning("a wait of session %s is over but still stored, it expires: %s", wait.source, error)


def without_hosts(host_ids: Set[str]) -> Edit:
    """Takes the waits of these hosts out of what is stored."""

    def remove(stored: dict[str, Any] | None) -> dict[str, Any] | None:
        kept = {key: edge for key, edge in _edges(stored).items() if edge["host"] not in host_ids}
        return {"edges": kept} if kept else None

    return (WAITS, _KEY, remove)


def _edges(stored: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return {} if stored is None else stored["edges"]


def _neighbours(edges: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    neighbours: dict[str, list[str]] = {}
    for edge in edges:
        neighbours.setdefault(edge["source"], []).append(edge["target"])
    return neighbours


def _reaches(neighbours: Mapping[str, Iterable[str]], start: str, goal: str) -> bool:
    """Does the session `start` wait for `goal`, directly or through others."""
    seen, open_ = {start}, [start]
    while open_:
        for target in neighbours.get(open_.pop(), ()):
            if target == goal:
                return True
            if target not in seen:
                seen.add(target)
                open_.append(target)
    return False
