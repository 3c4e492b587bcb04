"""The records of the contract: frozen, keyword-only, sequences as tuples.

What a reader holds never changes under it; an update makes a new record. All times are integers,
milliseconds since the Unix epoch, UTC.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, Literal, get_args

from attrs import field, frozen
from attrs.validators import in_, instance_of, min_len, optional

from aalis_api_session_manager.text import TextRef, text_or_ref
from aalis_api_session_manager.values import clean_text, freeze_object, optional_text

__all__ = [
    "DEFAULT_WORKSPACE",
    "UNSET",
    "Identity",
    "LastTurn",
    "OriginChat",
    "PlaceInfo",
    "PlaceKind",
    "SessionCreation",
    "SessionDraft",
    "SessionInfo",
    "SessionKind",
    "SessionPlace",
    "SessionStatus",
    "SessionUpdates",
    "TokenCount",
    "TurnOutcome",
    "Unset",
    "WorkBinding",
    "WorkspaceAdded",
    "WorkspaceInfo",
]

SessionKind = Literal["owner", "room", "task"]
"""Rule: KIND-1."""
SessionStatus = Literal["active", "waiting", "completed", "error", "archived"]
"""Rule: KIND-6."""
TurnOutcome = Literal["replied", "silent", "aborted", "error"]
PlaceKind = Literal["window", "workspace"]

DEFAULT_WORKSPACE: Final = "default"
"""The id of the workspace that always exists. Its place has the key `workspace:default`."""


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
""""Not given", where None means "clear"."""


_STATUSES = get_args(SessionStatus)


def _path(path: str) -> str:
    if not path or clean_text(path) != path:
        raise ValueError(f"{path!r} isn't a path that can be stored")
    return path


def _paths(paths: Iterable[str]) -> tuple[str, ...]:
    if isinstance(paths, str):
        raise TypeError("expected several paths, got one text")
    return tuple(_path(path) for path in paths)


@frozen(kw_only=True)
class Identity:
    """An account on a platform: who speaks, or who a tool call is made for."""

    platform: str
    user_id: str


@frozen(kw_only=True)
class OriginChat:
    """The chat window a room was born in, as declared at that moment. Rule: ORIGIN-2.

    `type` is the platform's own type name; `target_id` the group's id of a multi-party window, the peer's
    account of a one-to-one; `self_id` the bot's account when the message carried one.
    """

    type: str
    multi_party: bool
    target_id: str
    self_id: str | None = None


@frozen(kw_only=True)
class WorkBinding:
    """The directories of a project session, real paths that the caller checked. Rules: BIND-2, BIND-3.

    Raises ValueError for a path that is empty or can't be stored as text.
    """

    root: str = field(converter=_path)
    extra_roots: tuple[str, ...] = field(default=(), converter=_paths)
    worktrees: tuple[str, ...] = field(default=(), converter=_paths)


@frozen(kw_only=True)
class LastTurn:
    """The turn that ended last. `error` only with the outcome `error`, at most 200 characters. Rule: TURN-2."""

    outcome: TurnOutcome
    ended_at: int
    error: str | TextRef | None = field(default=None, converter=text_or_ref)


@frozen(kw_only=True)
class TokenCount:
    """Tokens of a session's own model calls, children not included. Rule: USAGE-1."""

    input: int = 0
    output: int = 0


@frozen(kw_only=True)
class SessionInfo:
    """A session, as a reader sees it.

    `kind` is derived (rule KIND-2), `children` too (newest last). Origin fields stand only on the root of
    an IM room (ORIGIN-1); `workspace` and `work` only on roots (BIND-1, BIND-3).
    """

    id: str
    name: str | None = None
    title: str | None = None
    parent_id: str | None = None
    children: tuple[str, ...] = ()
    status: SessionStatus = "active"
    created_at: int
    updated_at: int
    created_from: str | None = None
    input_context: str | None = None
    result: str | None = None
    metadata: Mapping[str, Any] | None = field(default=None, hash=False)
    kind: SessionKind = "owner"
    origin_platform: str | None = None
    origin_chat: OriginChat | None = None
    workspace: str | None = None
    work: WorkBinding | None = None
    current_dir: str | None = None
    origin_instance: str | None = None
    last_reply_at: int | None = None
    last_turn: LastTurn | None = None
    tokens: TokenCount | None = None


@frozen(kw_only=True)
class SessionDraft:
    """What a caller may say of a session it makes. Fields the session manager owns aren't here. Rule: CREATE-2."""

    name: str | None = field(default=None, converter=optional_text)
    title: str | None = field(default=None, converter=optional_text)
    parent_id: str | None = field(default=None, converter=optional_text)
    status: SessionStatus | None = field(default=None, validator=optional(in_(_STATUSES)))
    input_context: str | None = field(default=None, converter=optional_text)
    result: str | None = field(default=None, converter=optional_text)
    metadata: Mapping[str, Any] | None = field(default=None, converter=freeze_object, hash=False)


@frozen(kw_only=True)
class SessionCreation:
    """What only the maker of a root may say, beside the draft. Rules: CREATE-1, CREATE-11, BIND-1, BIND-2."""

    created_from: str | None = field(default=None, converter=optional_text, validator=optional(min_len(1)))
    workspace: str | None = field(default=None, converter=optional_text)
    work: WorkBinding | None = field(default=None, validator=optional(instance_of(WorkBinding)))


def _text_update(value: str | Unset | None) -> str | Unset | None:
    return value if isinstance(value, Unset) else optional_text(value)


def _metadata_update(value: Mapping[str, Any] | Unset | None) -> Mapping[str, Any] | Unset | None:
    return value if isinstance(value, Unset) else freeze_object(value)


@frozen(kw_only=True)
class SessionUpdates:
    """Changes to a session: `UNSET` leaves a field, None clears it.

    `metadata` merges by top-level key, whole values replaced; None clears all of it. Rule: CREATE-7.
    """

    name: str | Unset | None = field(default=UNSET, converter=_text_update)
    title: str | Unset | None = field(default=UNSET, converter=_text_update)
    status: SessionStatus | Unset = field(default=UNSET, validator=in_((*_STATUSES, UNSET)))
    input_context: str | Unset | None = field(default=UNSET, converter=_text_update)
    result: str | Unset | None = field(default=UNSET, converter=_text_update)
    metadata: Mapping[str, Any] | Unset | None = field(default=UNSET, converter=_metadata_update, hash=False)


@frozen(kw_only=True)
class SessionPlace:
    """Where a session belongs: `platform:type:target` of a window, `workspace:<id>` of a workspace. Rule: PLACE-1."""

    kind: PlaceKind
    key: str


@frozen(kw_only=True)
class PlaceInfo(SessionPlace):
    """A place with what plugins keep for it. Rule: PLACE-5."""

    name: str | None = None
    metadata: Mapping[str, Any] | None = field(default=None, hash=False)


@frozen(kw_only=True)
class WorkspaceInfo:
    """A workspace; the default one has neither name nor root. Rules: WS-1, WS-2."""

    id: str
    name: str | None = None
    root: str | None = None


@frozen(kw_only=True)
class WorkspaceAdded:
    """The answer of `add_workspace`. Rule: WS-1."""

    workspace: WorkspaceInfo
    existed: bool
