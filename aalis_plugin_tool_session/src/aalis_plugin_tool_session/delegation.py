"""`delegate_to_session`: admission, dispatch, waiting, late pick-up. Rules: DELEG-1 to DELEG-11.

A delegation is `not_admitted`, `running` or `answered`. The dispatch runs in a task of its own, so that a caller
that is cancelled loses only its waiting.
"""

import asyncio
import contextvars
import logging
import uuid
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

from aalis_api_session_manager.host import Host, PlatformAdapter
from aalis_api_session_manager.message import IncomingMessage, ToolCallContext, TurnEnd
from aalis_api_session_manager.service import GATEWAY, MEMORY, PLATFORM, SESSION_MANAGER
from aalis_plugin_tool_session.access import Access, platform_of
from aalis_plugin_tool_session.arguments import read_positive, read_switch, read_text
from aalis_plugin_tool_session.config import MAX_TIMEOUT_SEC, ToolSessionConfig
from aalis_plugin_tool_session.depth import DepthLock
from aalis_plugin_tool_session.dispatches import Delegation, Dispatches, Ring, Waits
from aalis_plugin_tool_session.recent import RecentDispatches
from aalis_plugin_tool_session.texts import REPLY_NOTICE, Refused, answer, as_text, refusal, sentence, text

__all__ = ["DelegateTool"]

log = logging.getLogger(__name__)


class DelegateTool:
    """The handler, and everything that it keeps while delegations are open."""

    def __init__(self, host: Host, access: Access, config: ToolSessionConfig) -> None:
        self._host = host
        self._access = access
        self._config = config
        self.lock = DepthLock()
        self.dispatches = Dispatches()
        self.waits = Waits()
        self.recent = RecentDispatches()
        self.tasks: set[asyncio.Task[None]] = set()

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
        self.dispatches.turn_ended(turn, self._host.now())

    async def stop(self) -> None:
        """Stop what is on its way; each target's turn ends as `aborted`."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

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
        adapter = await self._adapter_of(target)
        if not seconds:
            return await self._answer(await self._dispatch(target, task, call, adapter), call, seconds)
        try:
            with self.waits.between(call.session_id, target):
                delegation = await self._dispatch(target, task, call, adapter)
                await _wait(delegation, seconds)
        except Ring:
            raise Refused(text("delegate.ring")) from None
        return await self._answer(delegation, call, seconds)

    async def _ask_again(self, delegation_id: str, args: Mapping[str, Any], call: ToolCallContext) -> str:
        if args.get("target_session_id") is not None or args.get("task") is not None:
            raise Refused(text("delegate.id-alone"))
        seconds = self._seconds(args)
        delegation = self.dispatches.find(delegation_id, call.session_id, self._host.now())
        if delegation is None:
            raise Refused(text("delegate.unknown-id"))
        if seconds and delegation.state == "running":
            try:
                with self.waits.between(call.session_id, delegation.target):
                    await _wait(delegation, seconds)
            except Ring:
                return refusal(text("delegate.ring-pick-up"), delegation_id=delegation.id, status=delegation.state)
        return await self._answer(delegation, call, seconds)

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

    def _generation_of(self, session_id: str) -> int:
        sessions = self._host.select(SESSION_MANAGER)
        return sessions.use().generation_of(session_id) if sessions.present else 0

    async def _adapter_of(self, target: str) -> PlatformAdapter | None:
        """The first adapter that claims the session, as for any delivery."""
        for provided in self._host.all(PLATFORM):
            try:
                if await provided.instance.claims(target):
                    return provided.instance
            except Exception:
                log.exception("%s couldn't say whether session %s is its own", provided.context_id, target)
        return None

    async def _dispatch(
        self, target: str, task: str, call: ToolCallContext, adapter: PlatformAdapter | None
    ) -> Delegation:
        """Ask the platform, last and once, and send. Rules: DELEG-2, DELEG-5, DELEG-6."""
        check = getattr(adapter, "check_and_record_proactive_send", None)
        if check is not None:
            try:
                reason = await check(target)
            except Exception:
                log.exception("the platform couldn't say whether it admits a delegation to session %s", target)
                raise Refused(text("delegate.platform-failed")) from None
            if reason is not None:
                raise Refused(text("delegate.platform", reason=sentence(reason)))
        now = self._host.now()
        delegation = Delegation(
            id=uuid.uuid4().hex,
            source=call.session_id,
            target=target,
            at=now,
            generation=self._generation_of(target),
        )
        message = IncomingMessage(
            session_id=target,
            platform=platform_of(self._access.root_of(target))
            or (adapter.platform if adapter is not None else call.platform)
            or "internal",
            content=self.recent.reminder(target, now) + task,
            source=delegation.message_source,
            trigger_type="proactive",
            proactive_depth=1,
        )
        self.recent.add(delegation)
        self.dispatches.add(delegation)
        log.info("delegation %s: %s -> %s", delegation.id, delegation.source, target)
        self._start(self._send(delegation, message))
        return delegation

    def _start(self, sending: Coroutine[Any, Any, None]) -> None:
        # An empty context: what the calling turn carries in its own isn't the target's.
        task = asyncio.create_task(sending, context=contextvars.Context())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _send(self, delegation: Delegation, message: IncomingMessage) -> None:
        try:
            await self._host.select(GATEWAY).use().ingress(message)
        except Exception:
            log.exception("delegation %s to session %s couldn't be sent", delegation.id, delegation.target)
        finally:
            self.dispatches.ingress_ended(delegation, self._host.now())

    async def _answer(self, delegation: Delegation, call: ToolCallContext, waited: float) -> str:
        """Where the delegation stands; with the answer, it is picked up."""
        head = {"delegation_id": delegation.id, "target_session_id": delegation.target, "status": delegation.state}
        if delegation.state == "running":
            if not waited:
                return answer({**head, "note": text("delegate.dispatched").source})
            return answer({**head, "waited_seconds": waited, "note": text("delegate.running").source})
        withheld = await self._withheld(delegation, call)
        self.dispatches.picked_up(delegation)
        deleted = self._generation_of(delegation.target) != delegation.generation
        if delegation.state == "not_admitted":
            return refusal(text("delegate.deleted" if deleted else "delegate.not-taken-up"), **head)
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
            return text("delegate.aborted").source
        case "error":
            reason = delegation.error if open_ else None
            return text("delegate.error", reason=sentence(reason or text("delegate.error-untold"))).source
    return None


async def _wait(delegation: Delegation, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await delegation.ended.wait()
