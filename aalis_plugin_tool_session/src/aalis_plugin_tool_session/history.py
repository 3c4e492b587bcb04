"""The service `session-history`: reading a session's messages, within what may be read. Rules: HIST-1 to HIST-9."""

import logging
from collections.abc import Callable

from attrs import frozen

from aalis_api_session_manager.memory import MemoryService, Page, Position
from aalis_api_session_manager.message import ToolCallContext
from aalis_api_session_manager.service import (
    AccessChecker,
    HistoryOptions,
    HistoryRange,
    HistoryResult,
    ServiceSelection,
)
from aalis_plugin_tool_session.access import Access
from aalis_plugin_tool_session.config import ToolSessionConfig
from aalis_plugin_tool_session.cursor import Cursor, Side, read_cursor
from aalis_plugin_tool_session.texts import Refused, text
from aalis_plugin_tool_session.timerange import local_iso

__all__ = ["SessionHistory"]

log = logging.getLogger(__name__)
_BEGINNING = -(2**63)


@frozen(kw_only=True)
class _Reading:
    """One read of the memory service: a window (open in count mode), switches, and the side to read from."""

    limit: int
    window: HistoryRange
    include_archived: bool
    include_tools: bool
    before: Position | None = None
    after: Position | None = None

    @property
    def ranged(self) -> bool:
        return self.window != HistoryRange()

    def cursor(self, side: Side, position: Position) -> Cursor:
        return Cursor(
            side,
            position,
            since_ts=self.window.since_ts,
            until_ts=self.window.until_ts,
            include_archived=self.include_archived,
            include_tools=self.include_tools,
        )


class SessionHistory:
    """`SessionHistoryService` on the memory service."""

    def __init__(self, memory: ServiceSelection[MemoryService], access: Access, config: ToolSessionConfig) -> None:
        self._memory = memory
        self._access = access
        self._config = config

    async def get_history(self, options: HistoryOptions, call: ToolCallContext) -> HistoryResult:
        """Count mode or range mode, or on from a cursor. Never raises; the result says what is wrong. Rule: HIST-2."""
        try:
            return await self._read(options, call)
        except Refused as refused:
            return HistoryResult(ok=False, session_id=options.session_id, error=refused.reason)

    def register_access_checker(self, checker: AccessChecker) -> Callable[[], None]:
        """Add a platform's rule; the answer removes it again. Rule: HIST-7."""
        return self._access.add_checker(checker)

    async def _read(self, options: HistoryOptions, call: ToolCallContext) -> HistoryResult:
        if not options.session_id.strip():
            raise Refused(text("history.no-session"))
        reason = await self._access.refusal(options.session_id, call)
        if reason is not None:
            return HistoryResult(ok=False, session_id=options.session_id, error=reason, denied=True)
        reading = self._from_start(options) if options.cursor is None else self._from_cursor(options, options.cursor)
        return _result(options.session_id, reading, await self._page(options.session_id, reading))

    def _limit(self, options: HistoryOptions) -> int:
        limit = self._config.default_limit if options.limit is None else options.limit
        if limit < 1:
            raise Refused(text("argument.integer", name="limit", low=1))
        return min(limit, self._config.max_limit)

    def _from_start(self, options: HistoryOptions) -> _Reading:
        since_ts, until_ts, archived = options.since_ts, options.until_ts, options.include_archived
        if since_ts is not None and until_ts is not None and since_ts > until_ts:
            raise Refused(text("time.backwards", since=local_iso(since_ts), until=local_iso(until_ts)))
        window = HistoryRange(since_ts=since_ts, until_ts=until_ts)
        return _Reading(
            limit=self._limit(options),
            window=window,
            include_archived=self._config.include_archived_default if archived is None else archived,
            include_tools=bool(options.include_tools),
            after=None if window == HistoryRange() else Position(_BEGINNING, 0),
        )

    def _from_cursor(self, options: HistoryOptions, token: str) -> _Reading:
        cursor = read_cursor(token, options.session_id)
        for asked, made_for in (
            (options.since_ts, cursor.since_ts),
            (options.until_ts, cursor.until_ts),
            (options.include_archived, cursor.include_archived),
            (options.include_tools, cursor.include_tools),
        ):
            if asked is not None and asked != made_for:
                raise Refused(text("cursor.other-window"))
        return _Reading(
            limit=self._limit(options),
            window=HistoryRange(since_ts=cursor.since_ts, until_ts=cursor.until_ts),
            include_archived=cursor.include_archived,
            include_tools=cursor.include_tools,
            before=cursor.position if cursor.side == "older" else None,
            after=cursor.position if cursor.side == "newer" else None,
        )

    async def _page(self, session_id: str, reading: _Reading) -> Page:
        if not self._memory.present:
            raise Refused(text("no-memory"))
        try:
            return await self._memory.use().history(
                session_id,
                reading.limit,
                include_archived=reading.include_archived,
                include_tools=reading.include_tools,
                before=reading.before,
                after=reading.after,
                since_ts=reading.window.since_ts,
                until_ts=reading.window.until_ts,
            )
        except Exception:
            log.exception("the history of session %s couldn't be read", session_id)
            raise Refused(text("memory-failed")) from None


def _result(session_id: str, reading: _Reading, page: Page) -> HistoryResult:
    first, last = _edges(reading, page)
    return HistoryResult(
        ok=True,
        session_id=session_id,
        limit=reading.limit,
        include_archived=reading.include_archived,
        include_tools=reading.include_tools,
        range=reading.window if reading.ranged else None,
        truncated=reading.ranged and page.older + page.newer > 0,
        older=page.older,
        newer=page.newer,
        older_cursor=reading.cursor("older", first).token(session_id) if page.older else None,
        newer_cursor=reading.cursor("newer", last).token(session_id) if page.newer else None,
        messages=page.messages,
    )


def _edges(reading: _Reading, page: Page) -> tuple[Position, Position]:
    """What the neighbouring pages begin at; on an empty page both sides meet at its own position."""
    if page.messages:
        first, last = page.messages[0], page.messages[-1]
        return Position(first.timestamp, first.id), Position(last.timestamp, last.id)
    if reading.after is not None:
        return Position(reading.after.timestamp, reading.after.id + 1), reading.after
    if reading.before is not None:
        return reading.before, Position(reading.before.timestamp, reading.before.id - 1)
    return Position(_BEGINNING, 0), Position(_BEGINNING, 0)
