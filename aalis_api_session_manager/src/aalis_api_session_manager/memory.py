"""The memory service: messages, and metadata with revisions. What a back end must do.

Times are milliseconds since the epoch. A back end keeps its promises across processes: two that share one
database see one truth.

Revisions. Every stored metadata record carries the number that one counter row had in the transaction that
wrote it; the counter is raised in that transaction, so that numbers appear in the order of commits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from attrs import field, frozen

from aalis_api_session_manager.message import Message

__all__ = [
    "COUNT_LIMIT",
    "Change",
    "Changes",
    "Changeset",
    "Fold",
    "MemoryService",
    "MetadataRow",
    "Outcome",
    "Page",
    "Position",
    "RecentSession",
    "SaveResult",
]

COUNT_LIMIT = 10_000
"""Left-out messages are counted exactly up to here; one more stands for "more". Rule: HIST-9."""

Fold = Callable[[dict[str, Any] | None], dict[str, Any] | None]
"""A pure change of a stored record's plain JSON: None in is "absent", None out is "remove".

It may run in another thread, more than once, and on another record than the one it was made for. It must not
change what it is given. Raising rejects its changeset alone.
"""


@frozen(order=True)
class Position:
    """A place in a session's history. Order is (timestamp, id); ids of stored messages begin at 1."""

    timestamp: int
    id: int


@frozen(kw_only=True)
class SaveResult:
    """`saved` with the store's id; `duplicate`: the session has a message of this `message_id`; `refused`: its
    generation is lower than the stored one (rule GEN-5)."""

    status: Literal["saved", "duplicate", "refused"]
    id: int = 0


@frozen(kw_only=True)
class Page:
    """Messages of one session, oldest first, with the number of shown ones of the same window left out on
    each side: exact up to `COUNT_LIMIT`, `COUNT_LIMIT + 1` for "more"."""

    messages: tuple[Message, ...]
    older: int
    newer: int


@frozen(kw_only=True)
class RecentSession:
    """A session's newest shown message (no control mark, no tool call or result, not archived)."""

    session_id: str
    message: Message

    @property
    def position(self) -> Position:
        """Where that message stands among all messages."""
        return Position(self.message.timestamp, self.message.id)


@frozen(kw_only=True)
class MetadataRow:
    """A stored record. `data` None: it was removed (only in `Changes`), or `damaged` holds its unreadable text."""

    namespace: str
    key: str
    revision: int
    data: dict[str, Any] | None
    damaged: str | None = None


@frozen(kw_only=True)
class Change:
    """One record's change: built on revision `base` (0: absent), giving `data` (None: remove).

    Where `base` isn't the stored revision any more, `fold` is applied to the stored record instead.
    """

    namespace: str
    key: str
    base: int
    data: dict[str, Any] | None
    fold: Fold


@frozen(kw_only=True)
class Changeset:
    """Changes that are stored together or not at all. `generations`: ids whose stored generation rises, to
    the higher of this number and one more than stored."""

    changes: tuple[Change, ...]
    generations: Mapping[str, int] = field(factory=dict)


@frozen(kw_only=True)
class Outcome:
    """What became of a changeset: the records as committed (in the order of its changes) and the generations
    it raised, or the error: StorageError when the back end refused it (it may be tried again), anything else
    when a fold, or a stored record that can't be read, rejected it."""

    records: tuple[MetadataRow, ...] = ()
    generations: Mapping[str, int] = field(factory=dict)
    error: Exception | None = None


@frozen(kw_only=True)
class Changes:
    """Records changed since a revision, in the order of revisions; a removed one has `data` None.

    `complete` False: older removals were pruned, reload everything.
    """

    rows: tuple[MetadataRow, ...]
    generations: Mapping[str, int]
    revision: int
    complete: bool = True


class MemoryService(Protocol):
    """Messages and metadata. Every method raises StorageError when the back end fails."""

    async def save_message(self, session_id: str, message: Message, generation: int | None = None) -> SaveResult:
        """Store a message durably. `generation` None: the id's stored one. Rule: GEN-5."""
        ...

    async def history(
        self,
        session_id: str,
        limit: int,
        *,
        include_archived: bool = False,
        before: Position | None = None,
        after: Position | None = None,
        since_ts: int | None = None,
        until_ts: int | None = None,
        include_tools: bool = True,
    ) -> Page:
        """At most `limit` shown messages of the window (`since_ts`, `until_ts`, both inclusive), oldest first.

        With `after`: the earliest behind it. Else the newest, ahead of `before` if given. Control marks are
        never shown; tool results, and calls without text, only with `include_tools`. Rules: HIST-3, HIST-9.
        """
        ...

    async def recent_sessions(
        self,
        limit: int,
        *,
        since_ts: int,
        platform: str | None = None,
        exclude: Sequence[str] = (),
        before: Position | None = None,
    ) -> list[RecentSession]:
        """The newest shown message of each session, newest first, from `since_ts` on (inclusive).

        `platform`: of that message. `before`: only those behind this position in the list. Costs what is
        returned. Rule: LIST-3.
        """
        ...

    async def archive(self, session_id: str, keep: int) -> int:
        """Mark all but the newest `keep` shown messages as archived; answers how many were."""
        ...

    async def clear_session(self, session_id: str, below_generation: int | None = None) -> int:
        """Remove the messages, or only those of a lower generation; answers how many. Rule: GEN-5."""
        ...

    async def clear_all(self) -> int:
        """Remove every message; answers how many."""
        ...

    async def get_metadata(self, namespace: str, key: str) -> MetadataRow | None:
        """The stored record, or None."""
        ...

    async def list_metadata(
        self, namespace: str, *, after_key: str | None = None, limit: int | None = None
    ) -> list[MetadataRow]:
        """The records of a namespace by key, in slices: at most `limit` behind `after_key`."""
        ...

    async def commit_metadata(self, changesets: Sequence[Changeset]) -> tuple[Outcome, ...]:
        """Store each changeset whole or not at all, durably, sharing transactions; an outcome for each.

        Raises OutcomeUnknown when no answer comes in time; until it is settled, doing it again might do it twice.
        """
        ...

    async def generations(self) -> Mapping[str, int]:
        """The stored generation of every id that was ever deleted."""
        ...

    async def changes(self, after_revision: int) -> Changes:
        """What was committed after a revision, by this process and others."""
        ...

    async def wait_for_changes(self, after_revision: int, timeout: float) -> bool:
        """Wait, at most `timeout` seconds, until something above this revision may be stored."""
        ...
