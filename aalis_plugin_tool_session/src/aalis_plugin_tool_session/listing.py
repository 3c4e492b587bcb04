"""`list_known_sessions`: the sessions that were active lately, newest first. Rules: LIST-1, LIST-2, LIST-3."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen

from aalis_api_session_manager.host import Host
from aalis_api_session_manager.kinds import is_unfiled
from aalis_api_session_manager.memory import MemoryService, Position, RecentSession
from aalis_api_session_manager.message import ToolCallContext
from aalis_api_session_manager.model import SessionInfo, SessionPlace
from aalis_api_session_manager.service import MEMORY, SESSION_MANAGER, SessionManagerService
from aalis_api_session_manager.text import place_label, session_label
from aalis_plugin_tool_session.access import Access, platform_of
from aalis_plugin_tool_session.arguments import read_integer, read_positive, read_text
from aalis_plugin_tool_session.cut import cut
from aalis_plugin_tool_session.texts import LIST_NOTICE, LIST_WITHHELD, Refused, answer, as_text, refusal, text
from aalis_plugin_tool_session.timerange import local_iso

__all__ = ["DEFAULT_HOURS", "DEFAULT_SESSIONS", "MAX_SESSIONS", "PREVIEW_CHARS", "ListTool"]

log = logging.getLogger(__name__)

MAX_SESSIONS: Final = 100
DEFAULT_SESSIONS: Final = 20
DEFAULT_HOURS: Final = 168
PREVIEW_CHARS: Final = 80
_BATCH: Final = 1000
_HOUR_MS: Final = 3_600_000


@frozen
class _Found:
    """One entry: a session's newest message, the root if it can be told, and the platform that is shown."""

    recent: RecentSession
    root: SessionInfo | None
    platform: str | None


@frozen
class ListTool:
    """The handler."""

    _host: Host
    _access: Access

    async def __call__(self, args: Mapping[str, Any], call: ToolCallContext) -> str:
        """The answer as JSON text; a refusal is `{"error": …}`."""
        try:
            return answer(await self._list(args, call))
        except Refused as refused:
            return refusal(refused.reason)

    async def _list(self, args: Mapping[str, Any], call: ToolCallContext) -> dict[str, Any]:
        limit = min(read_integer(args, "limit") or DEFAULT_SESSIONS, MAX_SESSIONS)
        hours = read_positive(args, "since_hours") or DEFAULT_HOURS
        platform = read_text(args, "platform")
        memory = self._host.select(MEMORY)
        if not memory.present:
            raise Refused(text("no-memory"))
        now = self._host.now()
        since_ts = now - int(min(hours * _HOUR_MS, now))
        try:
            found, others = await self._find(memory.use(), limit + 1, since_ts, platform, call)
            older = await memory.use().recent_sessions(
                1, since_ts=0, exclude=(call.session_id,), before=Position(since_ts, 0)
            )
        except Exception:
            log.exception("the recent sessions couldn't be read for session %s", call.session_id)
            raise Refused(text("memory-failed")) from None
        narrowed = {"limit": len(found) > limit, "platform": others, "since_hours": bool(older)}
        places: dict[str, dict[str, str]] = {}
        sessions = [await self._entry(one, call, places) for one in found[:limit]]
        shown: dict[str, Any] = {
            "count": len(sessions),
            "complete": not any(narrowed.values()),
            "narrowed_by": [name for name, left_out in narrowed.items() if left_out],
            "limit": limit,
            "since_hours": hours,
        }
        if platform is not None:
            shown["platform"] = platform
        shown["notice"] = LIST_NOTICE
        if any("preview_withheld" in session for session in sessions):
            shown["withheld"] = LIST_WITHHELD
        return {**shown, "sessions": sessions}

    async def _find(
        self, memory: MemoryService, wanted: int, since_ts: int, platform: str | None, call: ToolCallContext
    ) -> tuple[list[_Found], bool]:
        """The newest `wanted` of the platform that is shown for them, and whether others were passed over."""
        found: list[_Found] = []
        others, before, batch = False, None, wanted
        while True:
            rows = await memory.recent_sessions(batch, since_ts=since_ts, exclude=(call.session_id,), before=before)
            for row in rows:
                root = self._access.root_of(row.session_id)
                shown = platform_of(root) or row.message.platform
                if platform is not None and shown != platform:
                    others = True
                    continue
                found.append(_Found(row, root, shown))
                if len(found) == wanted:
                    return found, others
            if len(rows) < batch:
                return found, others
            before, batch = rows[-1].position, min(batch * 2, _BATCH)

    async def _entry(self, found: _Found, call: ToolCallContext, places: dict[str, dict[str, str]]) -> dict[str, Any]:
        """The entry; `places` holds those that were shown already, by key."""
        session_id, message = found.recent.session_id, found.recent.message
        entry: dict[str, Any] = {
            "session_id": session_id,
            "platform": found.platform,
            "last_activity_ts": message.timestamp,
            "last_activity": local_iso(message.timestamp),
        }
        sessions = self._host.select(SESSION_MANAGER)
        if sessions.present and (info := sessions.use().get_session(session_id)) is not None:
            entry["label"] = info.title or as_text(session_label(info))
            entry["kind"] = info.kind
            entry["status"] = info.status
            if found.root is not None and not is_unfiled(found.root):
                place = sessions.use().place_of(session_id)
                entry["place"] = places.get(place.key) or places.setdefault(place.key, _place(sessions.use(), place))
        if await self._access.refusal(session_id, call) is not None:
            entry["preview_withheld"] = True
            return entry
        entry["preview"], left_out = cut(message.content, PREVIEW_CHARS)
        if left_out:
            entry["preview_characters_not_shown"] = left_out
        return entry


def _place(sessions: SessionManagerService, place: SessionPlace) -> dict[str, str]:
    info = sessions.get_place(place.key)
    shown = {"kind": place.kind, "key": place.key}
    return shown if info is None else {**shown, "label": as_text(place_label(info))}
