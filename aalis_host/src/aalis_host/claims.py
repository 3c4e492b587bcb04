"""The right to run a turn: one host at a time for each session and source, over all that share a database.

A claim is a stored record with an expiry that its holder moves on while the turn runs; a killed holder's claim
expires within `TTL_MS`. Each holder gets a higher fencing number than the one before: one that was cut off and
overtaken finds another number stored, and stops before it writes. A host that waits puts its name down in the record;
the holder leaves the claim to it when its turn has ended, so that a busy room is no host's alone. Expiry compares the
hosts' wall clocks, which may differ by a few seconds.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import structlog
from attrs import define

from aalis_api_session_manager.errors import StorageError
from aalis_api_session_manager.memory import Change, Changeset, Fold, MemoryService, Outcome

__all__ = ["NAMESPACE", "TTL_MS", "Claim", "Claims"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

NAMESPACE = "claims"
TTL_MS = 10_000
"""How long a claim holds without being renewed."""
RENEW_SECONDS = TTL_MS / 3000
LOOK_SECONDS = 0.1
"""How often a claim that another host holds is looked at."""
NEXT_MS = 2_000
"""How long the name of a host that waits stays there without being put down again, and a claim that was left to it."""


class _Held(Exception):
    """Another host holds it, not expired."""


class _Overtaken(Exception):
    """Another host took it over."""


@define(eq=False)
class Claim:
    """A claim that is held. `fence` is its fencing number; `renewed` the loop's time of the last renewal.

    `on_lost` is called when another host took it over.
    """

    key: str
    fence: int
    renewed: float
    on_lost: Callable[[], None]


class Claims:
    """The claims of one host. `host_id` names it; `now` in milliseconds since the epoch."""

    def __init__(self, memory: Callable[[], MemoryService], host_id: str, now: Callable[[], int]) -> None:
        self._memory = memory
        self._host_id = host_id
        self._now = now
        self._held: set[Claim] = set()
        self._releasing: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def held(
        self, session_id: str, source: str | None, *, on_lost: Callable[[], None], given_up: Callable[[], bool]
    ) -> AsyncIterator[Claim | None]:
        """Hold the claim, after waiting for another host's; None when `given_up` said so meanwhile.

        `on_lost` is called when another host took it over. Raises StorageError when the back end fails.
        """
        claim = await self._acquire(json.dumps([session_id, source], ensure_ascii=False), on_lost, given_up)
        if claim is None:
            yield None
            return
        self._held.add(claim)
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="turn claims")
        try:
            yield claim
        finally:
            self._held.discard(claim)
            task = asyncio.create_task(self._release(claim))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    async def confirm(self, claim: Claim) -> None:
        """Before something is written that only the holder may write: `on_lost` is called if it was overtaken.

        Costs nothing while the last renewal is recent. Raises StorageError when the back end fails.
        """
        if asyncio.get_running_loop().time() - claim.renewed > TTL_MS / 2000:
            await self._renew([claim])

    async def close(self) -> None:
        """Let go of what is being let go."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        await asyncio.gather(*self._releasing, return_exceptions=True)

    async def _acquire(self, key: str, on_lost: Callable[[], None], given_up: Callable[[], bool]) -> Claim | None:
        while not given_up():
            begun = asyncio.get_running_loop().time()
            (outcome,) = await self._commit([(key, self._taken)])
            if outcome.error is None:
                data = outcome.records[0].data
                if data is not None and data["host"] == self._host_id:
                    return Claim(key=key, fence=data["fence"], renewed=begun, on_lost=on_lost)
            elif not isinstance(outcome.error, _Held):
                raise outcome.error
            await self._until_free(key, given_up)
        return None

    def _taken(self, stored: dict[str, Any] | None) -> dict[str, Any]:
        """The record when this host takes it, waits for it, or leaves the claim of its last turn to one that waits."""
        now = self._now()
        taken = self._record(max(now, 0 if stored is None else stored["fence"] + 1))
        if stored is None or stored["expiresAt"] <= now:
            return taken
        waits = self._waits(stored)
        if stored["host"] == self._host_id:
            if waits in (None, self._host_id):
                return taken
            if stored.get("left"):
                return {**taken, "next": waits, "nextUntil": stored["nextUntil"]}
            return self._left(stored, waits)
        if waits is not None:
            raise _Held
        return {**stored, "next": self._host_id, "nextUntil": now + NEXT_MS}

    def _waits(self, stored: dict[str, Any]) -> str | None:
        """The host that waits for the claim."""
        return stored["next"] if stored.get("nextUntil", 0) > self._now() else None

    def _left(self, stored: dict[str, Any], host: str) -> dict[str, Any]:
        return {"host": host, "fence": stored["fence"] + 1, "expiresAt": self._now() + NEXT_MS, "left": True}

    async def _until_free(self, key: str, given_up: Callable[[], bool]) -> None:
        while not given_up():
            row = await self._memory().get_metadata(NAMESPACE, key)
            data = None if row is None else row.data
            if data is None or data["host"] == self._host_id or data["expiresAt"] <= self._now():
                return
            if self._waits(data) is None:
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _record(self, fence: int) -> dict[str, Any]:
        return {"host": self._host_id, "fence": fence, "expiresAt": self._now() + TTL_MS}

    def _is_mine(self, stored: dict[str, Any] | None, claim: Claim) -> bool:
        return stored is not None and (stored["host"], stored["fence"]) == (self._host_id, claim.fence)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            if self._held:
                try:
                    await self._renew(list(self._held))
                except StorageError as error:
                    log.warning("turn claims can't be renewed, trying again", because=str(error))

    async def _renew(self, claims: Sequence[Claim]) -> None:
        begun = asyncio.get_running_loop().time()
        outcomes = await self._commit([(claim.key, partial(self._longer, claim)) for claim in claims])
        for claim, outcome in zip(claims, outcomes, strict=True):
            if outcome.error is None:
                claim.renewed = begun
            elif isinstance(outcome.error, _Overtaken):
                claim.on_lost()
            else:
                raise outcome.error

    def _longer(self, claim: Claim, stored: dict[str, Any] | None) -> dict[str, Any]:
        if stored is None or not self._is_mine(stored, claim):
            raise _Overtaken
        return {**stored, **self._record(claim.fence)}

    async def _release(self, claim: Claim) -> None:
        def free(stored: dict[str, Any] | None) -> dict[str, Any] | None:
            if stored is None or not self._is_mine(stored, claim):
                return stored
            waits = self._waits(stored)
            return None if waits in (None, self._host_id) else self._left(stored, waits)

        try:
            await self._commit([(claim.key, free)])
        except StorageError as error:
            log.warning("a turn claim wasn't let go, it expires", because=str(error))

    async def _commit(self, folds: Sequence[tuple[str, Fold]]) -> Sequence[Outcome]:
        return await self._memory().commit_metadata(
            [
                Changeset(changes=(Change(namespace=NAMESPACE, key=key, base=-1, data=None, fold=fold),))
                for key, fold in folds
            ]
        )
