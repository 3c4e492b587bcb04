"""The hooks. A plugin implements any of them, sync or async; the host awaits each and isolates each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from aalis_api_session_manager.host import Host, ToolRegistry
    from aalis_api_session_manager.message import (
        ClearRequest,
        ClearRow,
        IncomingMessage,
        LlmUsage,
        TurnEnd,
        TurnStart,
    )
    from aalis_api_session_manager.model import SessionInfo

__all__ = ["PROJECT", "hookimpl", "hookspec"]

PROJECT = "aalis"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def aalis_activate(host: "Host") -> None:
    """Start: provide services, load. Raising keeps the plugin out."""


@hookspec
def aalis_deactivate() -> None:
    """Stop: flush, release."""


@hookspec
def aalis_register_tools(registry: "ToolRegistry") -> None:
    """Register tools for models; called once everything is activated."""


@hookspec
def aalis_inbound(message: "IncomingMessage") -> int | None:
    """A message came in; awaited before anything reads it.

    The session manager files it here (`tryfirst`) and answers the session's generation at that moment (rule
    GEN-2); others answer None.
    """


@hookspec
def aalis_inbound_gate(message: "IncomingMessage") -> bool | None:
    """May this message pass? For commands, flow control, trigger policies.

    True: handled, no turn. False: let it pass, ask nobody else. None: no opinion.
    """


@hookspec
def aalis_turn_before(turn: "TurnStart") -> None:
    """A turn begins."""


@hookspec
def aalis_turn_after(turn: "TurnEnd") -> None:
    """A turn ended; always paired with `aalis_turn_before`."""


@hookspec
def aalis_llm_usage(usage: "LlmUsage") -> None:
    """A model call used tokens. Rule: USAGE-1."""


@hookspec
def aalis_memory_clear(request: "ClearRequest") -> "ClearRow | None":
    """Clear what you keep; a store that has nothing of the kind answers None. Raising is a failed row."""


@hookspec
def aalis_memory_cleared(request: "ClearRequest", rows: "Sequence[ClearRow]") -> None:
    """Every store has answered a clear request. Rule: CLEAR-1."""


@hookspec
def aalis_session_created(session: "SessionInfo") -> None:
    """A session was made and is durable. Rule: EVENT-1."""


@hookspec
def aalis_session_updated(session: "SessionInfo") -> None:
    """A session changed, or its list of children did. Rules: EVENT-1, DELETE-3."""


@hookspec
def aalis_session_completed(session: "SessionInfo") -> None:
    """`complete_session` set the result. Rule: CREATE-10."""


@hookspec
def aalis_session_deleted(session_id: str) -> None:
    """The session has left the table; its data isn't cleared yet. Stop what runs for it. Rule: DELETE-1."""
