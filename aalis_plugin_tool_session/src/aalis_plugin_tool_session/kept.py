"""Delegations in the store: what a call that ends leaves behind, found from every host, until it is picked up.

Rule: DELEG-9. A delegation that is waited for and answered in time is never stored.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from aalis_api_session_manager.errors import AalisError
from aalis_api_session_manager.memory import Fold
from aalis_api_session_manager.wire import from_json, to_json
from aalis_plugin_tool_session.dispatches import Delegation
from aalis_plugin_tool_session.shared import DELEGATIONS, Edit, Shared, Stale

__all__ = ["PRUNE_MS", "Kept", "decoded"]

log = logging.getLogger(__name__)

PRUNE_MS: Final = 60 * 60 * 1000
"""How often expired ones are removed; one that is asked for is never given out after its time."""


def decoded(delegation_id: str, data: Mapping[str, Any] | None) -> Delegation | None:
    """The stored delegation; None for one that is missing or can't be read."""
    if data is None:
        return None
    try:
        delegation = from_json(data, Delegation)
    except (TypeError, KeyError, ValueError) as error:
        log.warning("the stored delegation %s can't be read: %r", delegation_id, error)
        return None
    delegation.stored = delegation.state
    return delegation


class Kept:
    """Writes, finds and removes them."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._pruned_at: int | None = None

    def wants(self, delegation: Delegation) -> bool:
        """The store doesn't have its state, and it is for this host to write it."""
        own = delegation.host == self._shared.host_id or delegation.ended
        return own and delegation.stored != delegation.state and not delegation.picked_up and self._shared.available

    async def keep(self, delegation: Delegation) -> None:
        """Store where it stands. One that was removed meanwhile stays so; a failing store is logged."""
        async with delegation.storing:
            while self.wants(delegation):
                state, is_known = delegation.state, delegation.stored is not None
                try:
                    await self._shared.change((DELEGATIONS, delegation.id, _put(to_json(delegation), is_known)))
                except Stale:
                    delegation.picked_up = True
                    delegation.tell()
                except AalisError as error:
                    log.warning("delegation %s isn't stored yet: %s", delegation.id, error)
                    return
                else:
                    delegation.stored = state

    async def pick_up(self, delegation: Delegation) -> bool:
        """Remove it, its answer is handed over; False: somebody else has it."""
        async with delegation.storing:
            if delegation.stored is not None:
                state, delegation.stored = delegation.stored, None  # a call cancelled here leaves it to be kept again
                try:
                    await self._shared.change(self._removal(delegation.id, lambda stored: True))
                except Stale:
                    delegation.picked_up = True
                    return False
                except AalisError as error:
                    delegation.stored = state
                    log.warning("delegation %s is picked up but still stored: %s", delegation.id, error)
            delegation.picked_up = True
            return True

    async def find(self, delegation_id: str) -> Delegation | None:
        """The stored one; None also for one that is too old."""
        delegation = decoded(delegation_id, await self._shared.record(DELEGATIONS, delegation_id))
        return None if delegation is None or delegation.expires_at < self._shared.now() else delegation

    async def prune(self, lives: Callable[[str], bool]) -> None:
        """Remove what has expired, if that wasn't done lately; a running one only when its host is gone."""
        now = self._shared.now()
        if self._pruned_at is not None and now < self._pruned_at + PRUNE_MS:
            return
        await self._remove_where(lambda one: one.expires_at < now and (one.ended or not lives(one.host)))
        self._pruned_at = now

    async def clear(self, session_id: str | None, below_generation: int | None) -> int:
        """Remove what a session (None: any) sent: answers, and of a deleted one everything; answers how many."""

        def is_cleared(one: Delegation) -> bool:
            return one.ended if below_generation is None else one.source_generation < below_generation

        return await self._remove_where(is_cleared, session_id)

    async def _remove_where(self, condition: Callable[[Delegation], bool], source: str | None = None) -> int:
        stored = await self._shared.records(DELEGATIONS)
        found = [
            key
            for key, data in stored.items()
            if source in (None, data.get("source")) and (one := decoded(key, data)) is not None and condition(one)
        ]
        errors = await self._shared.change_each([[self._removal(key, condition)] for key in found])
        for error in errors:
            if error is not None and not isinstance(error, Stale):
                raise error
        return errors.count(None)

    def _removal(self, delegation_id: str, condition: Callable[[Delegation], bool]) -> Edit:
        def remove(stored: dict[str, Any] | None) -> None:
            delegation = decoded(delegation_id, stored)
            if delegation is None or not condition(delegation):
                raise Stale

        return (DELEGATIONS, delegation_id, remove)


def _put(data: dict[str, Any], is_known: bool) -> Fold:
    def put(stored: dict[str, Any] | None) -> dict[str, Any]:
        if is_known and stored is None:
            raise Stale
        return data

    return put
