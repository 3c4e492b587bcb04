"""`session_get_history`: the service's answer, as a model reads it. Rules: HIST-2, HIST-4, HIST-5, HIST-9."""

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from aalis_api_session_manager.memory import COUNT_LIMIT
from aalis_api_session_manager.message import Message, ToolCallContext
from aalis_api_session_manager.service import HistoryOptions, HistoryRange, HistoryResult, SessionHistoryService
from aalis_plugin_tool_session.arguments import read_integer, read_switch, read_text
from aalis_plugin_tool_session.cut import cut
from aalis_plugin_tool_session.texts import HISTORY_NOTICE, Refused, answer, refusal, text
from aalis_plugin_tool_session.timerange import local_iso, read_range

__all__ = ["HistoryTool"]


@frozen
class HistoryTool:
    """The handler. `max_chars` 0 cuts nothing; `now` in milliseconds."""

    _history: SessionHistoryService
    _max_chars: int
    _now: Callable[[], int]

    async def __call__(self, args: Mapping[str, Any], call: ToolCallContext) -> str:
        """The answer as JSON text; a refusal is `{"error": …}`."""
        try:
            options = self._options(args)
        except Refused as refused:
            return refusal(refused.reason)
        result = await self._history.get_history(options, call)
        if result.error is not None:
            return refusal(result.error, *([text("history.cure")] if result.denied else []))
        return answer(self._shown(result))

    def _options(self, args: Mapping[str, Any]) -> HistoryOptions:
        window = read_range(
            since=args.get("since"),
            until=args.get("until"),
            within_minutes=args.get("within_minutes"),
            now=self._now(),
        )
        return HistoryOptions(
            session_id=read_text(args, "session_id") or "",
            limit=read_integer(args, "limit"),
            include_archived=read_switch(args, "include_archived"),
            include_tools=read_switch(args, "include_tools"),
            since_ts=window.since_ts,
            until_ts=window.until_ts,
            cursor=read_text(args, "cursor"),
        )

    def _shown(self, result: HistoryResult) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "ok": True,
            "sessionId": result.session_id,
            "count": result.count,
            "limit": result.limit,
            "includeArchived": result.include_archived,
        }
        if result.range is not None:
            shown["range"] = _range(result.range)
        shown["truncated"] = result.truncated
        shown["complete"] = result.complete
        shown["leftOut"] = {"older": _counted(result.older), "newer": _counted(result.newer)}
        if result.older_cursor is not None:
            shown["olderCursor"] = result.older_cursor
        if result.newer_cursor is not None:
            shown["newerCursor"] = result.newer_cursor
        shown["notice"] = HISTORY_NOTICE
        shown["messages"] = [self._message(message, result.include_tools) for message in result.messages]
        return shown

    def _message(self, message: Message, with_calls: bool) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "time": local_iso(message.timestamp),
            "timestamp": message.timestamp,
            "role": message.role,
        }
        if message.user_id is not None:
            shown["userId"] = message.user_id
        if name := message.user_name or message.name:
            shown["name"] = name
        shown["content"], left_out = self._cut(message.content)
        if left_out:
            shown["charactersNotShown"] = left_out
        if message.archived:
            shown["archived"] = True
        if with_calls and message.tool_calls:
            shown["toolCalls"] = [self._tool_call(call.name, call.arguments) for call in message.tool_calls]
        return shown

    def _tool_call(self, name: str, arguments: str) -> dict[str, Any]:
        content, left_out = self._cut(arguments)
        return {"name": name, "arguments": content} | ({"charactersNotShown": left_out} if left_out else {})

    def _cut(self, content: str) -> tuple[str, int]:
        return cut(content, self._max_chars) if self._max_chars else (content, 0)


def _range(window: HistoryRange) -> dict[str, Any]:
    return {
        "since": None if window.since_ts is None else local_iso(window.since_ts),
        "until": None if window.until_ts is None else local_iso(window.until_ts),
        "sinceTs": window.since_ts,
        "untilTs": window.until_ts,
    }


def _counted(left_out: int) -> int | str:
    return left_out if left_out <= COUNT_LIMIT else f"more than {COUNT_LIMIT}"
