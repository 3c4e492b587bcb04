"""Running delegations in this host: the platform is asked, the message goes in, the answer is kept or handed over.

Rules: DELEG-2, DELEG-5, DELEG-6. Each dispatch runs in a task of its own, so that a caller that is cancelled loses
only its waiting.
"""

import asyncio
import logging

from aalis_api_session_manager.host import Host, PlatformAdapter
from aalis_api_session_manager.message import IncomingMessage, TurnEnd
from aalis_api_session_manager.service import GATEWAY, PLATFORM, SESSION_MANAGER
from aalis_plugin_tool_session.access import Access, platform_of
from aalis_plugin_tool_session.background import Background
from aalis_plugin_tool_session.dispatches import Delegation, Dispatches
from aalis_plugin_tool_session.kept import Kept
from aalis_plugin_tool_session.recent import RecentDispatches
from aalis_plugin_tool_session.texts import Refused, sentence, text

__all__ = ["Sending", "has_limit"]

log = logging.getLogger(__name__)


class Sending:
    """What runs here, and what of it nobody has picked up yet."""

    def __init__(self, host: Host, access: Access, kept: Kept, background: Background) -> None:
        self._host = host
        self._access = access
        self._kept = kept
        self._background = background
        self._ingresses: set[asyncio.Task[None]] = set()
        self.dispatches = Dispatches()
        self.recent = RecentDispatches()

    async def adapter_of(self, target: str) -> PlatformAdapter | None:
        """The first adapter here that claims the session, as for any delivery."""
        for provided in self._host.all(PLATFORM):
            try:
                if await provided.instance.claims(target):
                    return provided.instance
            except Exception:
                log.exception("%s couldn't say whether session %s is its own", provided.context_id, target)
        return None

    async def dispatch(
        self, delegation: Delegation, task: str, adapter: PlatformAdapter | None, platform: str | None
    ) -> None:
        """Ask the target's platform, last and once, and send. Raises Refused. `platform` is the caller's."""
        await self._admit(delegation.target, adapter)
        delegation.at = now = self._host.now()
        message = IncomingMessage(
            session_id=delegation.target,
            platform=platform_of(self._access.root_of(delegation.target))
            or (adapter.platform if adapter is not None else platform)
            or "internal",
            content=self.recent.reminder(delegation.target, now) + task,
            source=delegation.message_source,
            trigger_type="proactive",
            proactive_depth=1,
        )
        delegation.state = "running"
        self.recent.add(delegation)
        self.dispatches.add(delegation)
        log.info("delegation %s: %s -> %s", delegation.id, delegation.source, delegation.target)
        ingress = self._background.start(self._ingress(delegation, message))
        self._ingresses.add(ingress)
        ingress.add_done_callback(self._ingresses.discard)

    def turn_ended(self, turn: TurnEnd) -> None:
        """A turn of any session ended; perhaps it is a delegation's."""
        self.dispatches.turn_ended(turn, self._host.now())

    def generation_of(self, session_id: str) -> int:
        """The session's; 0 without a session manager. Rule: GEN-1."""
        sessions = self._host.select(SESSION_MANAGER)
        return sessions.use().generation_of(session_id) if sessions.present else 0

    async def keep(self, delegation: Delegation) -> None:
        """Store where it stands. What a deleted session sent is nobody's, not even a new session's of the same id."""
        if delegation.stored is None and self.generation_of(delegation.source) != delegation.source_generation:
            delegation.picked_up = True
        await self._kept.keep(delegation)
        if delegation.ended and (delegation.picked_up or delegation.stored == delegation.state):
            self.dispatches.drop(delegation)

    def keep_unless_awaited(self, delegation: Delegation) -> None:
        """It ended, or a call stopped waiting for it: if no other waits, the store gets it soon."""
        if not delegation.waiters and not delegation.storing.locked() and self._kept.wants(delegation):
            self._background.start(self.keep(delegation))

    def keep_all(self) -> None:
        """Try again with what couldn't be stored."""
        for delegation in self.dispatches.held():
            self.keep_unless_awaited(delegation)

    async def pick_up(self, delegation: Delegation) -> bool:
        """Its source has the answer now; False: it was picked up already."""
        picked_up = await self._kept.pick_up(delegation)
        self.dispatches.drop(delegation)
        return picked_up

    async def stop(self) -> None:
        """Stop what is on its way; each target's turn ends as `aborted`."""
        for ingress in self._ingresses:
            ingress.cancel()
        await asyncio.gather(*self._ingresses, return_exceptions=True)

    async def _admit(self, target: str, adapter: PlatformAdapter | None) -> None:
        check = getattr(adapter, "check_and_record_proactive_send", None)
        if check is None:
            return
        try:
            reason = await check(target)
        except Exception:
            log.exception("the platform couldn't say whether it admits a delegation to session %s", target)
            raise Refused(text("delegate.platform-failed")) from None
        if reason is not None:
            raise Refused(text("delegate.platform", reason=sentence(reason)))

    async def _ingress(self, delegation: Delegation, message: IncomingMessage) -> None:
        try:
            await self._host.select(GATEWAY).use().ingress(message)
        except Exception:
            log.exception("delegation %s to session %s couldn't be sent", delegation.id, delegation.target)
        finally:
            self.dispatches.ingress_ended(delegation, self._host.now())
            self.keep_unless_awaited(delegation)


def has_limit(adapter: PlatformAdapter) -> bool:
    """Does it have to be asked before a proactive message."""
    return hasattr(adapter, "check_and_record_proactive_send")
