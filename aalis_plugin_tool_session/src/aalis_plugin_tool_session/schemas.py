"""What a model is told of the tools: names, descriptions, and JSON schemas of the arguments."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from aalis_api_session_manager.host import ToolSpec
from aalis_api_session_manager.message import ToolCallContext
from aalis_plugin_tool_session.config import MAX_TIMEOUT_SEC, ToolSessionConfig
from aalis_plugin_tool_session.dispatches import REPLY_MAX_CHARS
from aalis_plugin_tool_session.listing import DEFAULT_HOURS, DEFAULT_SESSIONS, MAX_SESSIONS, PREVIEW_CHARS

__all__ = ["DELEGATE", "HISTORY", "LIST", "delegate_spec", "history_spec", "list_spec"]

HISTORY: Final = "session_get_history"
LIST: Final = "list_known_sessions"
DELEGATE: Final = "delegate_to_session"
_HISTORY_GROUP: Final = "session-history"
_DELEGATE_GROUP: Final = "session-delegate"
_RECALL: Final = "memory_recall"

Handler = Callable[[dict[str, Any], ToolCallContext], Awaitable[str]]

_TIME: Final = (
    "ISO 8601 (2026-11-30, 2026-11-30T09:30, 2026-11-30T09:30+08:00), or digits: 8 a date, 9 or 10 seconds, "
    "12 to 14 milliseconds since 1970. Without an offset it is the server's local time"
)


def history_spec(handler: Handler, config: ToolSessionConfig) -> ToolSpec:
    """`session_get_history`. Rules: HIST-3, HIST-4, HIST-9, HIST-10."""

    def description(names: Sequence[str]) -> str:
        search = f"; to search by meaning use {_RECALL}" if _RECALL in names else ""
        return (
            "Read the messages of one session, by its id: the newest ones, or those of a stretch of time. For looking "
            f"up what was said in a session that is known. This is no search{search}.\n"
            "Without times: the newest `limit` messages. With within_minutes, or since and/or until (which win): the "
            "earliest `limit` of that stretch, and `truncated` says whether there are more. Messages come oldest "
            "first. `leftOut` counts what isn't shown; to read on, send session_id with olderCursor or newerCursor "
            "of the answer as cursor, and none of the times again."
        )

    return ToolSpec(
        name=HISTORY,
        group=_HISTORY_GROUP,
        description=description,
        parameters=_object(
            {
                "session_id": {"type": "string", "description": "The full id of the session to read."},
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "description": f"How many messages; default {config.default_limit}, at most {config.max_limit}.",
                },
                "within_minutes": {
                    "type": "number",
                    "description": "Only the last so many minutes; above 0.",
                },
                "since": {"type": ["string", "integer"], "description": f"Not before this time, inclusive: {_TIME}."},
                "until": {
                    "type": ["string", "integer"],
                    "description": "Not after this time, inclusive; a bare date includes that day. Written as since.",
                },
                "include_archived": {
                    "type": "boolean",
                    "description": f"Archived messages too; default {str(config.include_archived_default).lower()}.",
                },
                "include_tools": {
                    "type": "boolean",
                    "description": "Tool calls and their results too; default false.",
                },
                "cursor": {"type": "string", "description": "olderCursor or newerCursor of an earlier answer."},
            },
            "session_id",
        ),
        handler=handler,
    )


def list_spec(handler: Handler) -> ToolSpec:
    """`list_known_sessions`. Rule: LIST-1."""
    return ToolSpec(
        name=LIST,
        group=_DELEGATE_GROUP,
        description=(
            f"List the sessions that were active lately, newest first, to find the session_id for {DELEGATE} or "
            f"{HISTORY}. The current session is left out. Each entry: session_id, platform, last activity, and where "
            f"known label, kind, status and place; preview is the beginning of its newest message ({PREVIEW_CHARS} "
            "characters), or preview_withheld where it may not be read from here. `complete` says whether every "
            "known session is listed, `narrowed_by` which of limit, platform and since_hours left some out."
        ),
        parameters=_object(
            {
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_SESSIONS,
                    "description": f"How many sessions; default {DEFAULT_SESSIONS}.",
                },
                "platform": {
                    "type": "string",
                    "description": "Only sessions of this platform, exactly as entries show it.",
                },
                "since_hours": {
                    "type": "number",
                    "description": f"Only sessions active in the last so many hours, above 0; default {DEFAULT_HOURS}.",
                },
            }
        ),
        handler=handler,
    )


def delegate_spec(handler: Handler, config: ToolSessionConfig) -> ToolSpec:
    """`delegate_to_session`. Rules: DELEG-1, DELEG-7, DELEG-9."""
    default = f"{config.cross_session_default_timeout_sec:g}"
    return ToolSpec(
        name=DELEGATE,
        group=_DELEGATE_GROUP,
        description=(
            "Give the agent of another existing session a task. It runs one whole turn there, with that session's own "
            "history, tools and audience; what it says goes to that audience, and its reply comes back here (at most "
            f"{REPLY_MAX_CHARS} characters). A turn that is itself driven by a delegation can't delegate.\n"
            "`status` says what happened: answered (with outcome: replied, silent, aborted or error), running (no "
            "answer yet, the work may still go on), or not_admitted. While it is running, call again with the "
            "delegation_id alone to wait further or fetch the answer; never send the same task again for that."
        ),
        parameters=_object(
            {
                "target_session_id": {
                    "type": "string",
                    "description": f"The exact id of the session, as {LIST} gives it.",
                },
                "task": {
                    "type": "string",
                    "description": "What the agent there is to do or say: an instruction to it, not the words to send.",
                },
                "wait_for_result": {
                    "type": "boolean",
                    "description": "Wait for the answer; default true. false returns at once.",
                },
                "timeout_seconds": {
                    "type": "number",
                    "description": f"How long to wait, above 0; default {default}, at most {MAX_TIMEOUT_SEC}.",
                },
                "delegation_id": {
                    "type": "string",
                    "description": "An earlier delegation to ask for, without target_session_id and task.",
                },
            }
        ),
        handler=handler,
        risk="act",
    )


def _object(properties: Mapping[str, Any], *required: str) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
