"""May a session read another one? The one answer that history, previews and replies go by. Rule: HIST-6."""

import inspect
import logging
from collections.abc import Callable

from aalis_api_session_manager.kinds import root_session_of
from aalis_api_session_manager.message import ToolCallContext
from aalis_api_session_manager.model import SessionInfo
from aalis_api_session_manager.service import AccessChecker, AccessQuery, ServiceSelection, SessionManagerService
from aalis_api_session_manager.take import take_from
from aalis_api_session_manager.text import TextRef
from aalis_plugin_tool_session.config import Scope
from aalis_plugin_tool_session.texts import text

__all__ = ["Access", "platform_of"]

log = logging.getLogger(__name__)


def platform_of(root: SessionInfo | None) -> str | None:
    """A root's platform: the one it was born on, else the surface that made it. Rule: TAKE-4."""
    return None if root is None else root.origin_platform or root.created_from


class Access:
    """The conjunction of the take rule, the plugin's scope and the platforms' checkers."""

    def __init__(self, sessions: ServiceSelection[SessionManagerService], scope: Scope) -> None:
        self._sessions = sessions
        self._scope = scope
        self._checkers: list[AccessChecker] = []

    def root_of(self, session_id: str) -> SessionInfo | None:
        """The session's root; None without a session manager or when it can't be told."""
        return root_session_of(session_id, self._sessions.use().get_session) if self._sessions.present else None

    def add_checker(self, checker: AccessChecker) -> Callable[[], None]:
        """Add a platform's rule; the answer removes it, once. Rule: HIST-7."""
        self._checkers.append(checker)

        def remove() -> None:
            self._checkers = [one for one in self._checkers if one is not checker]

        return remove

    async def refusal(self, target_id: str, call: ToolCallContext) -> TextRef | str | None:
        """Why the calling session may not read the target for everybody it acts for; None when it may."""
        for principal in call.approve_for or (None,):
            verdict = take_from(self._sessions, call.session_id, target_id, principal)
            if not verdict:
                return verdict.reason or text("access.denied")
        target = self.root_of(target_id)
        return self._out_of_scope(target_id, target, call) or await self._denied(target_id, target, call)

    def _out_of_scope(self, target_id: str, target: SessionInfo | None, call: ToolCallContext) -> TextRef | None:
        if self._scope == "all" or call.session_id == target_id:
            return None
        current = self.root_of(call.session_id)
        if current is not None and target is not None and current.id == target.id:
            return None
        if self._scope == "current":
            return text("access.scope-current")
        platform = platform_of(current)
        return None if platform is not None and platform == platform_of(target) else text("access.scope-platform")

    async def _denied(self, target_id: str, target: SessionInfo | None, call: ToolCallContext) -> TextRef | str | None:
        platform = platform_of(target) or call.platform or ""
        query = AccessQuery(
            current_id=call.session_id, target_id=target_id, platform=platform, participants=call.approve_for
        )
        for checker in [one for one in self._checkers if one.platform == platform]:
            try:
                reason = checker.check(query)
                if inspect.isawaitable(reason):
                    reason = await reason
            except Exception:
                log.exception("the access checker %s failed for session %s", checker.name, target_id)
                return text("access.checker-failed")
            if reason is not None:
                return reason or text("access.denied")
        return None
