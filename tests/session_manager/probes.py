"""Looking at the database file from outside, and plugins that look on or get in the way."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, ClassVar

from attrs import define, field

from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import PluginMeta
from aalis_api_session_manager.memory import Changeset, Outcome
from aalis_api_session_manager.message import IncomingMessage, TurnEnd, TurnStart
from aalis_host.models.base import ModelReply
from tests.session_manager.kit import Stack

__all__ = [
    "Commits",
    "Looker",
    "Replies",
    "count_commits",
    "end_turn",
    "flushed",
    "new_turn",
    "read_stored",
    "start_turn",
    "stored_keys",
    "write_stored",
]


def read_stored(db: str, namespace: str, key: str) -> dict[str, Any] | None:
    """A record as any other program would read it from the file now; None when it isn't there."""
    with closing(sqlite3.connect(db)) as file:
        query = "SELECT data FROM metadata WHERE namespace = ? AND key = ? AND data IS NOT NULL"
        row = file.execute(query, (namespace, key)).fetchone()
    return None if row is None else json.loads(row[0])


def stored_keys(db: str, namespace: str) -> list[str]:
    """The keys of a namespace in the file, sorted."""
    with closing(sqlite3.connect(db)) as file:
        query = "SELECT key FROM metadata WHERE namespace = ? AND data IS NOT NULL ORDER BY key"
        return [key for (key,) in file.execute(query, (namespace,))]


def write_stored(db: str, namespace: str, key: str, data: dict[str, Any] | str) -> None:
    """Put a record (or a text that is none) into the file, as another program would; nobody may be running on it."""
    text = data if isinstance(data, str) else json.dumps(data)
    with closing(sqlite3.connect(db)) as file, file:
        file.execute("UPDATE state SET revision = revision + 1")
        file.execute(
            "INSERT OR REPLACE INTO metadata (namespace, key, revision, data)"
            " VALUES (?, ?, (SELECT revision FROM state), ?)",
            (namespace, key, text),
        )


@define(eq=False)
class Commits:
    """What was committed through a memory service: (namespace, key) of each record, a list for each call.

    While `held` isn't set, commits wait.
    """

    calls: list[list[tuple[str, str]]] = field(factory=list)
    held: asyncio.Event = field(factory=asyncio.Event)

    def __attrs_post_init__(self) -> None:
        self.held.set()

    def of(self, namespace: str, key: str) -> int:
        """How often one record was written."""
        return sum(call.count((namespace, key)) for call in self.calls)


def count_commits(stack: Stack, monkeypatch: Any) -> Commits:
    """Count from now on what the host's memory service is given to commit."""
    commits = Commits()
    commit = stack.host.memory.commit_metadata

    async def counted(changesets: Sequence[Changeset]) -> tuple[Outcome, ...]:
        commits.calls.append([(change.namespace, change.key) for one in changesets for change in one.changes])
        await commits.held.wait()
        return await commit(changesets)

    monkeypatch.setattr(stack.host.memory, "commit_metadata", counted)
    return commits


@define(eq=False)
class Replies:
    """A model that gives these replies, one after the other."""

    replies: list[ModelReply]

    async def complete(self, messages: Any, tools: Any) -> ModelReply:
        return self.replies.pop(0)

    async def close(self) -> None:
        pass


@define(eq=False)
class Looker:
    """A plugin that calls `look(where)` in the gate and at turn start."""

    meta: ClassVar[PluginMeta] = PluginMeta(name="looker")
    look: Callable[[str, str], None]

    @hookimpl
    async def aalis_inbound_gate(self, message: IncomingMessage) -> bool | None:
        self.look("gate", message.session_id or "")
        return None

    @hookimpl
    async def aalis_turn_before(self, turn: TurnStart) -> None:
        self.look("turn", turn.session_id)


def new_turn(session_id: str, turn_id: str, at: int = 0, **fields: Any) -> TurnStart:
    """The start of a turn that a message of the terminal drives."""
    message = IncomingMessage(session_id=session_id, platform="cli", content="hello", user_id="owner", **fields)
    return TurnStart(turn_id=turn_id, message=message, session_id=session_id, started_at=at)


async def start_turn(stack: Stack, session_id: str, turn_id: str, **fields: Any) -> TurnStart:
    """Let a turn begin, as an agent does."""
    turn = new_turn(session_id, turn_id, stack.clock(), **fields)
    await stack.host.hooks.call("aalis_turn_before", turn=turn)
    return turn


async def end_turn(stack: Stack, turn: TurnStart, **fields: Any) -> TurnEnd:
    """Let a turn end, as an agent does."""
    end = TurnEnd(
        turn_id=turn.turn_id,
        message=turn.message,
        session_id=turn.session_id,
        **{"ended_at": stack.clock(), **fields},
    )
    await stack.host.hooks.call("aalis_turn_after", turn=end)
    return end


async def flushed(stack: Stack) -> None:
    """Wait until every change so far is stored and told; no session is touched."""
    await stack.sessions.update_place("workspace:default", {})
