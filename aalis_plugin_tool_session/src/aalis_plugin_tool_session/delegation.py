"""`delegate_to_session`: admission, waiting, late pick-up. Rules: DELEG-1 to DELEG-11.

A delegation is `not_admitted`, `running` or `answered`; `sending.py` runs it in this host, `remote.py` in another.
"""

import asyncio
import logging
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from aalis_api_session_manager.errors import AalisError
from aalis_api_session_manager.host import Host
from aalis_api_session_manager.message import ClearRequest, ToolCallContext, TurnEnd
from aalis_api_session_manager.service import GATEWAY, MEMORY, PLATFORM, SESSION_MANAGER
from aalis_plugin_tool_session.access import Access
from aalis_plugin_tool_session.arguments import read_positive, read_switch, read_text
from aalis_plugin_tool_session.background import Background
from aalis_plugin_tool_session.config import MAX_TIMEOUT_SEC, ToolSessionConfig
from aalis_plugin_tool_session.depth import DepthLock
from aalis_plugin_tool_session.dispatches import Delegation
from aalis_plugin_tool_session.following import Following
from aalis_plugin_tool_session.kept import Kept
from aalis_plugin_tool_session.presence import Presence
from aalis_plugin_tool_session.remote import Remote
from aalis_plugin_tool_session.rings import Ring, Wait, Waits
from aalis_plugin_tool_session.sending import Sending
from aalis_plugin_tool_session.shared import Shared
from aalis_plugin_tool_session.texts import REPLY_NOTICE, Refused, answer, as_text, refusal, sentence, text

__all__ = ["DelegateTool"]

log = logging.getLogger(__name__)

STOP_SECONDS: Final = 6.0
"""How long stopping waits for answers to be stored."""


class DelegateTool:
    """The handler, and everything that it keeps while delegations are open."""

    def __init__(self, host: Host, access: Access, config: ToolSessionConfig) -> None:
        self._host = host
        self._access = access
        self._config = config
        self.background = Background()
        self.lock = DepthLock()
        self._shared = shared = Shared(host)
        self._kept = Kept(shared)
        self.waits = Waits(shared, self.background)
        self.sending = Sending(host, access, self._kept, self.background)
        self.presence = Presence(shared, self._platforms, self.waits.hide)
        self.remote = Remote(shared, self.presence, self._kept, self.sending, self.background)
        self.following = Following(shared, self.presence, self.waits, self._kept, self.sending, self.remote.consider)

    async def __call__(self, args: Mapping[str, Any], call: ToolCallContext) -> str:
        """Delegate, or ask for an earlier delegation. The answer as JSON text; a refusal is `{"error": …}`."""
        try:
            delegation_id = read_text(args, "delegation_id")
            if delegation_id is not None:
                return await self._ask_again(delegation_id, args, call)
        except Refused as refused:
            return refusal(refused.reason)
        try:
            return await self._delegate(args, call)
        except Refused as refused:
            return refusal(refused.reason, status="not_admitted")

    def turn_ended(self, turn: TurnEnd) -> None:
        """A turn of any session ended; perhaps it is a delegation's."""
        self.lock.end(turn)
        self.sending.turn_ended(turn)

    async def clear(self, request: ClearRequest) -> int:
        """Remove the answers that wait to be picked up; answers how many. Rule: CLEAR-1.

        Raises StorageError.
        """
        return await self._kept.clear(request.session_id, request.below_generation) if self._shared.available else 0

    def start(self) -> None:
        """Be there for other hosts on the same database, if there is one."""
        self.following.start()

    async def stop(self) -> None:
        """Stop what is on its way, each target's turn ends as `aborted`; store what wasn't picked up, and leave."""
        await self.remote.stop_offering()
        await self.sending.stop()
        await self.background.settled(STOP_SECONDS)
        await self.following.stop()

    def _platforms(self) -> tuple[str, ...]:
        return tuple(provided.instance.platform for provided in self._host.all(PLATFORM))

    def _seconds(self, args: Mapping[str, Any]) -> float:
        """How long to wait; 0: not at all."""
        asked = read_positive(args, "timeout_seconds")
        if read_switch(args, "wait_for_result") is False:
            return 0
        return min(self._config.cross_session_default_timeout_sec if asked is None else asked, MAX_TIMEOUT_SEC)

    async def _delegate(self, args: Mapping[str, Any], call: ToolCallContext) -> str:
        seconds = self._seconds(args)
        target, task = read_text(args, "target_session_id") or "", read_text(args, "task") or ""
        if not target.strip():
            raise Refused(text("delegate.no-target"))
        if not task.strip():
            raise Refused(text("delegate.no-task"))
        if target == call.session_id:
            raise Refused(text("delegate.self"))
        if self.lock.holds(call.session_id):
            raise Refused(text("delegate.driven"))
        if not self._host.select(GATEWAY).present:
            raise Refused(text("delegate.no-gateway"))
        if not await self._is_known(target):
            raise Refused(text("delegate.unknown", target=repr(target)))
        delegation = Delegation(
            id=uuid.uuid4().hex,
            source=call.session_id,
            target=target,
            at=self._host.now(),
            generation=self.sending.generation_of(target),
            source_generation=self.sending.generation_of(call.session_id),
            host=self._host.instance_id,
        )
        await self.following.know_the_others()
        if not seconds:
            return await self._run(delegation, task, call, seconds)
        try:
            async with self.waits.between(call.session_id, target, delegation.id, seconds) as wait:
                return await self._run(delegation, task, call, seconds, wait)
        except Ring:
            raise Refused(text("delegate.ring")) from None

    async def _run(
        self, delegation: Delegation, task: str, call: ToolCallContext, seconds: float, wait: Wait | None = None
    ) -> str:
        """Here, where an adapter claims the target or nobody does; else in the host whose adapter does."""
        adapter = await self.sending.adapter_of(delegation.target)
        if adapter is None and (hosts := self.following.hosts_with_platforms()):
            with self.following.watching(delegation):
                if await self.remote.offer(delegation, task, hosts):
                    return await self._wait(delegation, call, seconds, wait, sent=True)
        await self.sending.dispatch(delegation, task, adapter, call.platform)
        return await self._wait(delegation, call, seconds, wait, sent=True)

    async def _ask_again(self, delegation_id: str, args: Mapping[str, Any], call: ToolCallContext) -> str:
        if args.get("target_session_id") is not None or args.get("task") is not None:
            raise Refused(text("delegate.id-alone"))
        seconds = self._seconds(args)
        await self.following.know_the_others()
        delegation = await self._find(delegation_id, call.session_id)
        if not seconds or delegation.ended:
            return await self._wait(delegation, call, 0, None)
        try:
            async with self.waits.between(delegation.source, delegation.target, delegation.id, seconds) as wait:
                if delegation.host == self._host.instance_id:
                    return await self._wait(delegation, call, seconds, wait)
                with self.following.watching(delegation):
                    with suppress(AalisError):
                        await self.following.refresh(delegation)
                    return await self._wait(delegation, call, seconds, wait)
        except Ring:
            return _would_close_ring(delegation)

    async def _find(self, delegation_id: str, source: str) -> Delegation:
        """An open delegation, for the session that sent it alone, from whichever host. Raises Refused."""
        now = self._host.now()
        found = self.sending.dispatches.find(delegation_id, now)
        try:
            if found is None and self._shared.available:
                found = await self._kept.find(delegation_id)
                if found is not None and not found.ended and not await self.presence.lives(found.host):
                    await self.following.refresh(found)  # its host may have stored the answer before it left
                    if not found.ended:
                        found.interrupted(now)
        except AalisError:
            log.exception("delegation %s couldn't be looked for", delegation_id)
            raise Refused(text("memory-failed")) from None
        if found is None or found.picked_up or found.source != source:
            raise Refused(text("delegate.unknown-id"))
        if found.source_generation != self.sending.generation_of(source):
            raise Refused(text("delegate.unknown-id"))
        return found

    async def _is_known(self, target: str) -> bool:
        sessions, memory = self._host.select(SESSION_MANAGER), self._host.select(MEMORY)
        if sessions.present and sessions.use().get_session(target) is not None:
            return True
        if not memory.present:
            return False
        try:
            return bool((await memory.use().history(target, 1, include_archived=True)).messages)
        except Exception:
            log.exception("the history of session %s couldn't be read", target)
            raise Refused(text("memory-failed")) from None

    async def _wait(
        self, delegation: Delegation, call: ToolCallContext, seconds: float, wait: Wait | None, *, sent: bool = False
    ) -> str:
        """Wait, and answer; if the answer isn't handed over then, it is kept for a later call.

        `wait` None: don't wait. One that was only just `sent` is running then, however soon it ended.
        """
        delegation.waiters += 1
        try:
            if wait is not None:
                await _wait(delegation, seconds, wait)
            if delegation.ended and not (sent and wait is None):
                return await self._answer(delegation, call)
            await self.sending.keep(delegation)
            return self._running(delegation, seconds, wait)
        finally:
            delegation.waiters -= 1
            self.sending.keep_unless_awaited(delegation)

    def _running(self, delegation: Delegation, waited: float, wait: Wait | None) -> str:
        """It runs, and may be asked for again."""
        if delegation.picked_up:
            return refusal(text("delegate.unknown-id"))
        if wait is not None and wait.closed_ring:
            return _would_close_ring(delegation)
        head = {**_head(delegation), "status": "running"}
        if wait is None:
            return answer({**head, "note": text("delegate.dispatched").source})
        return answer({**head, "waited_seconds": waited, "note": text("delegate.running").source})

    async def _answer(self, delegation: Delegation, call: ToolCallContext) -> str:
        """What came of it; with that, it is picked up."""
        head = {**_head(delegation), "status": delegation.state}
        withheld = await self._withheld(delegation, call)
        if not await self.sending.pick_up(delegation):
            return refusal(text("delegate.unknown-id"))
        deleted = self.sending.generation_of(delegation.target) != delegation.generation
        if delegation.state == "not_admitted":
            reason = text("delegate.deleted" if deleted else "delegate.not-taken-up")
            return refusal(delegation.error or reason, **head)
        shown: dict[str, Any] = {**head, "outcome": delegation.outcome}
        if deleted:
            shown["note"] = text("delegate.deleted").source
        elif note := _note(delegation, withheld is None):
            shown["note"] = note
        if delegation.reply and withheld is not None:
            shown["reply_withheld"] = text("delegate.withheld", reason=withheld).source
        elif delegation.reply:
            shown["notice"] = REPLY_NOTICE
            shown["reply"] = delegation.reply
            if delegation.reply_left_out:
                shown["reply_characters_not_shown"] = delegation.reply_left_out
        return answer(shown)

    async def _withheld(self, delegation: Delegation, call: ToolCallContext) -> str | None:
        """Why the reply may not be returned; None when it may. Rule: DELEG-11."""
        if self._config.delegate_reply == "always":
            return None
        reason = await self._access.refusal(delegation.target, call)
        return None if reason is None else as_text(reason)


def _note(delegation: Delegation, open_: bool) -> str | None:
    match delegation.outcome:
        case "silent":
            return text("delegate.silent").source
        case "aborted":
            return delegation.error or text("delegate.aborted").source
        case "error":
            reason = delegation.error if open_ else None
            return text("delegate.error", reason=sentence(reason or text("delegate.error-untold"))).source
    return None


def _head(delegation: Delegation) -> dict[str, Any]:
    return {"delegation_id": delegation.id, "target_session_id": delegation.target}


def _would_close_ring(delegation: Delegation) -> str:
    return refusal(text("delegate.ring-pick-up"), delegation_id=delegation.id, status="running")


async def _wait(delegation: Delegation, seconds: float, wait: Wait) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds) as wait.limit:
            if not wait.closed_ring:
                await delegation.over()
    wait.limit = None
