"""The services that a plugin may find, by typed key."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from attrs import field, frozen

from aalis_api_session_manager.message import IncomingMessage, Message, ToolCallContext
from aalis_api_session_manager.model import (
    UNSET,
    Identity,
    PlaceInfo,
    SessionCreation,
    SessionDraft,
    SessionInfo,
    SessionPlace,
    SessionStatus,
    SessionUpdates,
    Unset,
    WorkspaceAdded,
    WorkspaceInfo,
)
from aalis_api_session_manager.text import TextRef, add_texts

if TYPE_CHECKING:
    from aalis_api_session_manager.host import (
        AgentService,
        AuthorityService,
        GatewayService,
        PlatformAdapter,
        ToolRegistry,
    )
    from aalis_api_session_manager.memory import MemoryService

__all__ = [
    "AGENT",
    "AUTHORITY",
    "GATEWAY",
    "MEMORY",
    "PLATFORM",
    "SESSION_HISTORY",
    "SESSION_MANAGER",
    "TAKE_UNKNOWN",
    "TOOLS",
    "AccessChecker",
    "AccessQuery",
    "HistoryOptions",
    "HistoryRange",
    "HistoryResult",
    "ServiceKey",
    "ServiceSelection",
    "SessionHistoryService",
    "SessionManagerService",
    "TakeVerdict",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@frozen
class ServiceKey(Generic[T]):
    """The name of a service with the type of what provides it."""

    name: str


class ServiceSelection(Protocol[T_co]):
    """A service looked up at each use, so that it may come and go."""

    @property
    def present(self) -> bool:
        """Somebody provides it now."""
        ...

    def use(self) -> T_co:
        """The provider. Raises ServiceNotFound when absent."""
        ...


@frozen
class TakeVerdict:
    """May it be taken, and if not, why. Its truth value is `ok`. Rule: TAKE-7."""

    ok: bool
    reason: TextRef | None = None

    def __bool__(self) -> bool:
        return self.ok


add_texts(
    {
        "take.unknown": {
            "en": "It can't be told where one of the two sessions comes from, so nothing can be taken from it.",
            "zh_CN": "判不出其中一个会话的来历,不能取它的东西。",
        }
    }
)
TAKE_UNKNOWN = TextRef("take.unknown")
"""The reason when a root can't be told. Rules: TAKE-1, TAKE-3."""


class SessionManagerService(Protocol):
    """Which sessions exist, where each was born, and what may be taken from it.

    Awaited changes return when they are durable and their event was handled (rules STORE-2, EVENT-1). A
    change to an id that isn't in the table raises SessionNotFound unless it says otherwise; a change the
    back end refuses raises StorageError with `pending=True` (STORE-3).
    """

    async def create_session(
        self, draft: SessionDraft | None = None, creation: SessionCreation | None = None
    ) -> SessionInfo:
        """A new session with a fresh id. Rules: CREATE-1, CREATE-3, CREATE-4, BIND-1, BIND-2.

        Raises InvalidSession for a creation beside a parent or a binding that can't be, WorkspaceNotFound
        for an unknown workspace, SessionNotFound for an unknown parent.
        """
        ...

    def get_session(self, session_id: str) -> SessionInfo | None:
        """The session, or None."""
        ...

    def list_sessions(
        self, *, parent_id: str | None | Unset = UNSET, status: SessionStatus | None = None
    ) -> list[SessionInfo]:
        """Newest `updated_at` first, then by id. `parent_id` None: roots only; left out: all levels."""
        ...

    async def update_session(self, session_id: str, updates: SessionUpdates) -> SessionInfo:
        """Merge the updates. Rule: CREATE-7."""
        ...

    async def ensure_session(
        self, session_id: str, patch: SessionDraft | None = None, creation: SessionCreation | None = None
    ) -> SessionInfo:
        """The session with exactly this id, made as an active root when missing. Rules: CREATE-5, CREATE-8.

        Raises InvalidSession for an empty id, a `parent_id` in the patch, a workspace or binding in the
        creation, or from inside this session's own deletion (DELETE-5).
        """
        ...

    async def delete_session(self, session_id: str) -> None:
        """Delete it with everything below it and all data kept for it. Unknown: no-op. Rules: DELETE-1 to -5."""
        ...

    async def record_inbound(self, message: IncomingMessage) -> None:
        """File or back-fill the session of a native message. Never raises. Rules: INTAKE-1 to -8."""
        ...

    def generation_of(self, session_id: str) -> int:
        """Changes exactly when a deletion starts; compare for equality only; never deleted = 0. Rule: GEN-1."""
        ...

    def can_take(self, current_id: str, target_id: str, principal: Identity | None = None) -> TakeVerdict:
        """May the one session take the other's things. Synchronous, never raises. Rules: TAKE-1 to -8."""
        ...

    async def create_child_session(self, parent_id: str, draft: SessionDraft | None = None) -> SessionInfo:
        """A child; a parent that isn't in the table is made first, as a bare root. Rules: CREATE-3, CREATE-4."""
        ...

    def get_children(self, parent_id: str) -> list[SessionInfo]:
        """The direct children, oldest first; an unknown id has none."""
        ...

    async def complete_session(self, session_id: str, result: str | None = None) -> None:
        """Set `completed` and the result. Rule: CREATE-10."""
        ...

    async def set_current_dir(self, session_id: str, directory: str) -> None:
        """The session's own current directory. Rule: BIND-4."""
        ...

    async def set_extra_roots(self, session_id: str, extra_roots: Sequence[str]) -> None:
        """Replace the further writable directories, on the root of a project session. Rule: BIND-3."""
        ...

    async def add_worktree(self, session_id: str, path: str) -> None:
        """Add a worktree once, on the root of a project session. Rule: BIND-3."""
        ...

    def place_of(self, session_id: str) -> SessionPlace:
        """The one place of a session, known or not. Rules: PLACE-1 to -4."""
        ...

    def get_place(self, key: str) -> PlaceInfo | None:
        """The place record, or None."""
        ...

    def list_places(self) -> list[PlaceInfo]:
        """Every place record: the default workspace first, then by key. Rule: PLACE-5."""
        ...

    async def update_place(self, key: str, metadata: Mapping[str, Any]) -> PlaceInfo:
        """Merge metadata by top-level key. Raises PlaceNotFound. Rule: PLACE-5."""
        ...

    async def add_workspace(self, root: str) -> WorkspaceAdded:
        """Register a real path, once; returns when durable. Rule: WS-1."""
        ...

    def list_workspaces(self) -> list[WorkspaceInfo]:
        """The default first, then in order of registration. Rule: WS-2."""
        ...

    async def remove_workspace(self, workspace_id: str) -> None:
        """Forget it; no file is touched. Raises WorkspaceNotFound, InvalidSession for the default. Rule: WS-3."""
        ...

    async def update_session_title(self, session_id: str, title: str) -> None:
        """Set the title. Rule: CREATE-10."""
        ...


@frozen(kw_only=True)
class HistoryOptions:
    """What to read of a session. Rules: HIST-2, HIST-3, HIST-4, HIST-9.

    `since_ts` and `until_ts` in milliseconds, both inclusive. `cursor` is one that an earlier result gave.
    Left out: `limit` is the configured default, `include_archived` too, `include_tools` False; with a cursor,
    the window and both switches are the cursor's.
    """

    session_id: str
    limit: int | None = None
    include_archived: bool | None = None
    include_tools: bool | None = None
    since_ts: int | None = None
    until_ts: int | None = None
    cursor: str | None = None


@frozen(kw_only=True)
class HistoryRange:
    """The window that was used, milliseconds, both inclusive; None is open."""

    since_ts: int | None = None
    until_ts: int | None = None


@frozen(kw_only=True)
class HistoryResult:
    """The answer of `get_history`: messages oldest first, or `error` (then `ok` is False). Rules: HIST-2, HIST-9.

    `denied`: the error is that this session may not be read (HIST-6).

    `older` and `newer` count the shown messages of the window that are left out before and after, exact up
    to 10,000 (10,001 stands for "more"). A cursor is given on each side where something is left out.
    """

    ok: bool
    session_id: str
    error: TextRef | str | None = None
    denied: bool = False
    limit: int = 0
    include_archived: bool = False
    include_tools: bool = False
    range: HistoryRange | None = None
    truncated: bool = False
    older: int = 0
    newer: int = 0
    older_cursor: str | None = None
    newer_cursor: str | None = None
    messages: tuple[Message, ...] = field(default=(), converter=tuple[Message, ...])

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return len(self.messages)

    @property
    def complete(self) -> bool:
        """Nothing of the window is left out."""
        return self.older == 0 and self.newer == 0


@frozen(kw_only=True)
class AccessQuery:
    """What an access checker is asked: this session wants to read that one, for these participants."""

    current_id: str
    target_id: str
    platform: str
    participants: tuple[Identity, ...] = ()


@frozen(kw_only=True)
class AccessChecker:
    """A platform's own rule on reading its sessions. Rules: HIST-6, HIST-7.

    `check` (sync or async) answers None to allow, else the reason; raising refuses.
    """

    name: str
    platform: str
    check: Callable[[AccessQuery], str | TextRef | None | Awaitable[str | TextRef | None]]


class SessionHistoryService(Protocol):
    """Reading a session's messages, within what may be read. Rule: HIST-1."""

    async def get_history(self, options: HistoryOptions, call: ToolCallContext) -> HistoryResult:
        """Never raises for what the caller did wrong; the result says so. Rules: HIST-2 to HIST-9."""
        ...

    def register_access_checker(self, checker: AccessChecker) -> Callable[[], None]:
        """Add a platform's rule; the answer removes it again. Rule: HIST-7."""
        ...


SESSION_MANAGER: ServiceKey["SessionManagerService"] = ServiceKey("session-manager")
SESSION_HISTORY: ServiceKey["SessionHistoryService"] = ServiceKey("session-history")
MEMORY: ServiceKey["MemoryService"] = ServiceKey("memory")
PLATFORM: ServiceKey["PlatformAdapter"] = ServiceKey("platform")
"""Many providers: one for each adapter."""
AUTHORITY: ServiceKey["AuthorityService"] = ServiceKey("authority")
AGENT: ServiceKey["AgentService"] = ServiceKey("agent")
GATEWAY: ServiceKey["GatewayService"] = ServiceKey("gateway")
TOOLS: ServiceKey["ToolRegistry"] = ServiceKey("tools")
