"""The host's real memory behind a face that counts, refuses, blocks, and copies the database after each write."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from attrs import define, field

import aalis_host.app
from aalis_api_session_manager.errors import StorageError
from aalis_api_session_manager.memory import Changeset, Outcome
from aalis_api_session_manager.message import Message
from aalis_host.memory import Memory, open_memory

__all__ = ["Watched", "copy_database", "rows", "watched_memory", "write_rows"]

NAMESPACES = ("sessions", "places", "turns", "deletions")
"""Where the session manager keeps its records."""


@define(eq=False)
class Watched:
    """A `MemoryService` around the real one; what others than the session manager commit goes by unseen.

    `commits` holds the changesets of every call, in order; `stored` those of calls that went through. `refuse`: how
    many commits more are refused; `refuse_clearing` the same for clearing. While `pass_commits` isn't set, commits
    wait; `waiting` is set when one does. While it is `deaf` it hears nothing of other processes. `after_write(what)`
    is called when a write has gone through.
    """

    inner: Memory
    commits: list[tuple[Changeset, ...]] = field(factory=list)
    stored: list[tuple[Changeset, ...]] = field(factory=list)
    refuse: float = 0
    refuse_clearing: float = 0
    pass_commits: asyncio.Event = field(factory=asyncio.Event)
    waiting: asyncio.Event = field(factory=asyncio.Event)
    deaf: bool = False
    after_write: Callable[[str], None] | None = None

    def __attrs_post_init__(self) -> None:
        self.pass_commits.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def __aenter__(self) -> Self:
        await self.inner.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.inner.close()

    async def commit_metadata(self, changesets: Sequence[Changeset]) -> tuple[Outcome, ...]:
        if not any(change.namespace in NAMESPACES for changeset in changesets for change in changeset.changes):
            return await self.inner.commit_metadata(changesets)
        self.commits.append(tuple(changesets))
        if not self.pass_commits.is_set():
            self.waiting.set()
            await self.pass_commits.wait()
        if self.refuse > 0:
            self.refuse -= 1
            raise StorageError("the disk is full")
        outcomes = await self.inner.commit_metadata(changesets)
        self.stored.append(tuple(changesets))
        self._written("commit")
        return outcomes

    async def save_message(self, session_id: str, message: Message, generation: int | None = None) -> Any:
        saved = await self.inner.save_message(session_id, message, generation)
        self._written("save")
        return saved

    async def clear_session(self, session_id: str, below_generation: int | None = None) -> int:
        if self.refuse_clearing > 0:
            self.refuse_clearing -= 1
            raise StorageError("the disk is full")
        removed = await self.inner.clear_session(session_id, below_generation)
        self._written(f"clear {session_id}")
        return removed

    async def wait_for_changes(self, after_revision: int, timeout: float) -> bool:
        while self.deaf:
            await asyncio.sleep(0.005)
        return await self.inner.wait_for_changes(after_revision, min(timeout, 0.05))

    def _written(self, what: str) -> None:
        if self.after_write is not None:
            self.after_write(what)

    def records(self, namespace: str = "sessions") -> list[str]:
        """The keys of the records that were written in one namespace, once for each writing, in order."""
        return [
            change.key
            for changesets in self.stored
            for changeset in changesets
            for change in changeset.changes
            if change.namespace == namespace
        ]

    def forget(self) -> None:
        """Begin counting anew."""
        self.commits.clear()
        self.stored.clear()


@contextmanager
def watched_memory(**fields: Any) -> Iterator[list[Watched]]:
    """While it lasts, every host that is opened has a `Watched` memory; the list holds them, oldest first."""
    made: list[Watched] = []

    def open_watched(db: str, *, read_only: bool = False, now: Callable[[], int]) -> Watched:
        made.append(Watched(open_memory(db, read_only=read_only, now=now), **fields))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aalis_host.app, "open_memory", open_watched)
        yield made


def rows(db: str, namespace: str) -> dict[str, str]:
    """What the file holds of a namespace: the JSON text by key."""
    with closing(sqlite3.connect(db)) as file:
        found = file.execute("SELECT key, data FROM metadata WHERE namespace = ? AND data IS NOT NULL", (namespace,))
        return dict(found.fetchall())


def write_rows(db: str, namespace: str, texts: Mapping[str, str]) -> None:
    """Put JSON texts into the file, as they are, as another program would."""
    with closing(sqlite3.connect(db)) as file, file:
        for key, text in texts.items():
            (revision,) = file.execute("UPDATE state SET revision = revision + 1 RETURNING revision").fetchone()
            file.execute(
                "INSERT INTO metadata VALUES (?, ?, ?, ?, NULL) ON CONFLICT (namespace, key) DO UPDATE"
                " SET revision = excluded.revision, data = excluded.data, removed_at = NULL",
                (namespace, key, revision, text),
            )


def copy_database(db: str, copy: Path) -> None:
    """A copy of the file as it is committed at this moment."""
    with closing(sqlite3.connect(db)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
