"""Delegations to sessions whose adapter lives in another host on the same database.

One that no adapter here claims is offered, while there are others with adapters, as an `open` record. Each of those
hears of it: the first whose adapter claims the target takes it in a fold, so exactly one does, runs it as its own
and writes back what came of it; the others decline. When all have declined, or after two seconds, the one who
offered it takes it back, in a fold too, and runs it as it would alone.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from attrs import evolve

from aalis_api_session_manager.errors import AalisError
from aalis_api_session_manager.host import PlatformAdapter
from aalis_api_session_manager.wire import to_json
from aalis_plugin_tool_session.background import Background
from aalis_plugin_tool_session.dispatches import Delegation
from aalis_plugin_tool_session.kept import Kept, decoded
from aalis_plugin_tool_session.presence import Presence
from aalis_plugin_tool_session.sending import Sending, has_limit
from aalis_plugin_tool_session.shared import DELEGATIONS, Edit, Shared, Stale
from aalis_plugin_tool_session.texts import Refused, as_text, text

__all__ = ["Remote"]

log = logging.getLogger(__name__)

OFFER_SECONDS: Final = 2.0
"""How long an offer stands."""
ADMIT_SECONDS: Final = 30.0
"""How long the call that offered waits for the other host's platform to admit; then it is told that it runs."""
CLAIM_SECONDS: Final = 1.0
"""How long adapters may take to say whether a session is theirs."""


class Remote:
    """Offers delegations to other hosts, and takes theirs."""

    def __init__(
        self, shared: Shared, presence: Presence, kept: Kept, sending: Sending, background: Background
    ) -> None:
        self._shared = shared
        self._presence = presence
        self._kept = kept
        self._sending = sending
        self._background = background
        self._offered: set[Delegation] = set()

    async def offer(self, delegation: Delegation, task: str, hosts: set[str]) -> bool:
        """Let the adapters of these hosts have it, while it is watched; False: none of them wants it.

        Raises Refused when its platform there doesn't admit it, or the offer couldn't be stored.
        """
        delegation.state, delegation.task = "open", task
        offered: dict[str, Any] = to_json(delegation)
        self._offered.add(delegation)
        try:
            await self._shared.change((DELEGATIONS, delegation.id, lambda stored: offered))
            delegation.stored = delegation.stored or "open"
            with suppress(TimeoutError):
                async with asyncio.timeout(OFFER_SECONDS):
                    while _stands(delegation) and not hosts <= set(delegation.declined):
                        await delegation.news()
            if _stands(delegation) and await self._take_back(delegation):
                return False
            await self._until_admitted(delegation)
        except AalisError as error:
            log.warning("delegation %s couldn't be offered to other hosts: %s", delegation.id, error)
            raise Refused(text("delegate.store-failed")) from error
        finally:
            self._offered.discard(delegation)
            if _stands(delegation):
                self._background.start(self._withdraw(delegation))
        return True

    async def stop_offering(self) -> None:
        """Take back what is offered; who offered it is told that it wasn't taken up."""
        for delegation in list(self._offered):
            await self._withdraw(delegation)
            if delegation.state == "running":
                delegation.error = text("delegate.not-taken-up").source
                delegation.end("not_admitted", self._shared.now())

    async def _until_admitted(self, delegation: Delegation) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(ADMIT_SECONDS):
                while delegation.state in ("open", "taken") and not delegation.picked_up:
                    await delegation.news()
        if delegation.state == "not_admitted" and delegation.error is not None:
            await self._kept.pick_up(delegation)
            raise Refused(delegation.error)

    async def _take_back(self, delegation: Delegation) -> bool:
        """Nobody else shall take it any more; False: somebody has."""
        try:
            await self._shared.change(_if_open(delegation.id, lambda stored: None))
        except Stale:
            return False
        delegation.state, delegation.stored, delegation.task, delegation.declined = "running", None, None, ()
        return True

    async def _withdraw(self, delegation: Delegation) -> None:
        try:
            await self._take_back(delegation)
        except AalisError as error:
            log.warning("the offer of delegation %s couldn't be withdrawn: %s", delegation.id, error)

    def consider(self, delegation: Delegation) -> None:
        """Another host offers it: take it if an adapter here claims its target, else decline."""
        if self._presence.serves:
            self._background.start(self._consider(delegation))

    async def _consider(self, delegation: Delegation) -> None:
        adapter = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLAIM_SECONDS):
                    adapter = await self._sending.adapter_of(delegation.target)
            if not await self._presence.lives(delegation.host):
                return
            if adapter is None:
                await self._shared.change(_if_open(delegation.id, self._declined))
            else:
                await self._take(delegation, adapter)
        except Stale:
            pass
        except AalisError as error:
            log.warning("the offer of delegation %s couldn't be answered: %s", delegation.id, error)

    def _declined(self, stored: Delegation) -> Delegation:
        return evolve(stored, declined=(*stored.declined, self._shared.host_id))

    async def _take(self, delegation: Delegation, adapter: PlatformAdapter) -> None:
        task, delegation.task, delegation.declined = delegation.task or "", None, ()
        delegation.host, delegation.state = self._shared.host_id, "taken" if has_limit(adapter) else "running"
        await self._shared.change(_if_open(delegation.id, lambda stored: delegation))
        delegation.stored = delegation.state
        try:
            await self._sending.dispatch(delegation, task, adapter, None)
        except Refused as refused:
            delegation.error = as_text(refused.reason)
            delegation.end("not_admitted", self._shared.now())
        self._sending.keep_unless_awaited(delegation)


def _if_open(delegation_id: str, change: Callable[[Delegation], Delegation | None]) -> Edit:
    """Makes of an offer what `change` answers; Stale when it stands no longer."""

    def fold(stored: dict[str, Any] | None) -> dict[str, Any] | None:
        delegation = decoded(delegation_id, stored)
        if delegation is None or delegation.state != "open":
            raise Stale
        changed = change(delegation)
        return None if changed is None else to_json(changed)

    return (DELEGATIONS, delegation_id, fold)


def _stands(delegation: Delegation) -> bool:
    return delegation.state == "open" and not delegation.picked_up
