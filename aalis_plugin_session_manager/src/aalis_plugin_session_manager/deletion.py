"""Deleting a session with everything below it: generations, the gate, clearing, and finishing after a crash.

The records leave the table and every generation rises in one synchronous step; the transaction that stores
this also stores the intent, which goes last. So a crash leaves the whole tree, or a deletion that the next
start finishes. Rules: DELETE-1 to -5, GEN-1 to -5, CLEAR-1, CLEAR-2.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

from attrs import define, field

from aalis_api_session_manager.errors import InvalidSession, StorageError
from aalis_api_session_manager.host import AgentService
from aalis_api_session_manager.kinds import history_cleared
from aalis_api_session_manager.message import ClearRequest, ClearRow
from aalis_api_session_manager.service import ServiceSelection
from aalis_plugin_session_manager.change import Edit, Job, in_listener
from aalis_plugin_session_manager.collection import Collection
from aalis_plugin_session_manager.records import DeletionIntent, SessionRecord
from aalis_plugin_session_manager.store import RecordStore
from aalis_plugin_session_manager.table import SessionTable

__all__ = ["Deletions"]

log = logging.getLogger(__name__)

FIRST_RETRY, LAST_RETRY = 0.5, 30.0
"""Seconds between tries to finish a deletion whose clearing failed."""
ABANDONED_MS = 30_000
"""A stored intent this old that nobody here works on was left behind by a process that is gone."""


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@define(eq=False)
class Deletion:
    """A deletion under way. `job` is the removal of the records; None when it was stored by an earlier run.

    `opened`: new arrivals are let in again. `attempt` ends with the try that is under way.
    """

    intent: DeletionIntent
    job: Job | None
    told: set[str] = field(factory=set)
    opened: asyncio.Event = field(factory=asyncio.Event)
    attempt: asyncio.Future[None] = field(factory=_future)

    @property
    def root_id(self) -> str:
        """The session that was asked to be deleted."""
        return self.intent.levels[-1][0]

    @property
    def key(self) -> str:
        """Where the intent is stored. Of each deletion its own: an id may be deleted again before the first ends."""
        return f"{self.root_id}@{self.intent.generations.get(self.root_id, 0)}@{self.intent.host}"

    @property
    def ids(self) -> Iterable[str]:
        """Every session of the tree, deepest first."""
        return (session_id for level in self.intent.levels for session_id in level)

    @property
    def removed(self) -> bool:
        """The records are gone from the store."""
        return self.job is None or self.job.durable

    async def over(self) -> None:
        """Wait until new arrivals are let in again."""
        await self.opened.wait()

    def failed(self, error: Exception) -> None:
        """Answer whoever waits for the try that was under way."""
        self.attempt.set_exception(StorageError(str(error), session_id=self.root_id, pending=True))
        self.attempt.exception()
        self.attempt = _future()


_inside: ContextVar[frozenset[int]] = ContextVar("inside_deletions", default=frozenset())
"""The deletions in whose own listeners the current code runs."""


_Work = Callable[[], Awaitable[None]]
_Hold = Callable[[str, _Work], Awaitable[None]]


async def _at_once(session_id: str, work: _Work) -> None:
    await work()


async def _nothing() -> None:
    pass


class Deletions:
    """What is being deleted, and the generation of every id."""

    def __init__(
        self,
        store: RecordStore,
        table: SessionTable,
        sessions: Collection[SessionRecord],
        intents: Collection[DeletionIntent],
        agent: ServiceSelection[AgentService],
        emit: Callable[..., Awaitable[list[Any]]],
        parent_changed: Callable[[str], Awaitable[None]],
        host_id: str,
        now: Callable[[], int],
    ) -> None:
        self._store = store
        self._table = table
        self._sessions = sessions
        self._intents = intents
        self._agent = agent
        self._emit = emit
        self._parent_changed = parent_changed
        self._host_id = host_id
        self._now = now
        self._stored: dict[str, int] = {}
        self._begun: dict[str, int] = {}
        self._gates: dict[str, Deletion] = {}
        self._working: dict[str, Deletion] = {}
        self._elsewhere: dict[str, Deletion] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- generations and the gate

    def generation_of(self, session_id: str) -> int:
        """Rule: GEN-1."""
        return self._begun.get(session_id) or self._stored.get(session_id, 0)

    def generation_of_turn(self, session_id: str) -> int:
        """The generation of a turn that starts now: one that no record has when the session is being deleted, for
        what arrived later would wait."""
        return -1 if session_id in self._gates else self.generation_of(session_id)

    def adopt(self, generations: Mapping[str, int]) -> None:
        """Take over stored generations; never back."""
        for session_id, generation in generations.items():
            if generation > self._stored.get(session_id, 0):
                self._stored[session_id] = generation
            if generation >= self._begun.get(session_id, 0):
                self._begun.pop(session_id, None)

    async def gate(self, session_id: str) -> None:
        """Wait while the session is being deleted. Raises InvalidSession from inside that deletion's listeners."""
        while (deletion := self._gates.get(session_id)) is not None:
            if id(deletion) in _inside.get():
                raise InvalidSession(session_id, "it is being deleted, and this runs inside that deletion")
            await deletion.over()

    # --- deleting

    async def delete(self, session_id: str) -> None:
        """Rule: DELETE-1."""
        deletion = self._gates.get(session_id) or self._start(session_id) or self._unfinished(session_id)
        if deletion is None or id(deletion) in _inside.get():
            return
        if not in_listener.get():
            await asyncio.shield(deletion.attempt)
        elif deletion.job is not None:
            await self._store.settled(deletion.job, durable=True)

    def _unfinished(self, session_id: str) -> Deletion | None:
        """A deletion of the session that was refused and is tried again."""
        return next((deletion for deletion in self._working.values() if session_id in deletion.ids), None)

    def _start(self, session_id: str) -> Deletion | None:
        """The synchronous step: out of the table, new generations, gates closed."""
        session = self._table.get(session_id)
        if session is None:
            return None
        levels = self._table.levels(session_id)
        ids = [one for level in levels for one in level]
        generations = {one: self.generation_of(one) + 1 for one in ids}
        intent = DeletionIntent(
            levels=tuple(tuple(level) for level in reversed(levels)),
            generations=generations,
            parent_id=session.parent_id,
            host=self._host_id,
            started_at=self._now(),
        )
        deletion = Deletion(intent, job=None)
        removals = [Edit(self._sessions, one, lambda record: None) for one in ids]
        noted = Edit(self._intents, deletion.key, lambda _: intent)
        deletion.job = self._store.change(session_id, *removals, noted, generations=generations)
        self._begun.update(generations)
        self._gates.update(dict.fromkeys(ids, deletion))
        self._begin(deletion)
        return deletion

    def _begin(self, deletion: Deletion) -> None:
        self._working[deletion.key] = deletion
        self._run(self._delete(deletion), f"deletion of {deletion.root_id!r}")

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _delete(self, deletion: Deletion) -> None:
        """Rule: DELETE-5. Only the first try stops turns: what arrives later isn't stopped by this deletion (GEN-3)."""
        waited_for_by = frozenset() if in_listener.get() else _inside.get()
        in_listener.set(False)
        _inside.set(_inside.get() | {id(deletion)})
        delay, hold = FIRST_RETRY, self._held if deletion.job is not None else _at_once
        try:
            while True:
                try:
                    await hold(deletion.root_id, partial(self._finish, deletion, hold, waited_for_by))
                    break
                except Exception as error:
                    log.warning("session %r: its deletion waits and is tried again: %s", deletion.root_id, error)
                    if not deletion.opened.is_set():
                        await self._let_in(deletion, hold)
                    deletion.failed(error)
                    hold = _at_once
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, LAST_RETRY)
            self._open(deletion)
            try:
                if deletion.intent.parent_id is not None:
                    await self._parent_changed(deletion.intent.parent_id)
            finally:
                deletion.attempt.set_result(None)
        finally:
            del self._working[deletion.key]
            self._open(deletion)
            if not deletion.attempt.done():
                deletion.failed(StorageError("stopped; the next start goes on"))

    async def _let_in(self, deletion: Deletion, hold: _Hold) -> None:
        """Let new arrivals in though it isn't finished: with the old turns ended, and everybody told who can be."""
        await asyncio.gather(*(hold(one, _nothing) for one in deletion.ids), return_exceptions=True)
        if deletion.removed:
            for session_id in deletion.ids:
                await self._tell_deleted(deletion, session_id)
        self._open(deletion)

    async def _held(self, session_id: str, work: _Work) -> None:
        """Through the agent, which stops the session's turns and holds it. Rule: DELETE-2."""
        if self._agent.present:
            await self._agent.use().clearing(session_id, work)
        else:
            await work()

    async def _finish(self, deletion: Deletion, hold: _Hold, waited_for_by: frozenset[int]) -> None:
        """Records gone, then level by level, deepest first: told, then cleared. The intent goes last.

        A child whose own deletion began before is below too, unless that deletion waits for this one.
        """
        if deletion.job is not None:
            await self._store.settled(deletion.job, durable=True)
        ids = set(deletion.ids)
        for other in list(self._working.values()):
            if other.intent.parent_id in ids and other is not deletion and id(other) not in waited_for_by:
                await other.over()
        *below, (root_id,) = deletion.intent.levels
        for level in below:
            results = await asyncio.gather(
                *(hold(one, partial(self._clear, deletion, one)) for one in level),
                return_exceptions=True,
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        await self._clear(deletion, root_id)
        forgotten = self._store.change(root_id, Edit(self._intents, deletion.key, lambda intent: None))
        await self._store.settled(forgotten, durable=True)

    async def _clear(self, deletion: Deletion, session_id: str) -> None:
        """Tell, and when every listener has returned clear what was kept. Rules: DELETE-1, GEN-5."""
        await self._tell_deleted(deletion, session_id)
        request = ClearRequest(
            scope="session", session_id=session_id, below_generation=max(self._stored.get(session_id, 0), 1)
        )
        rows: list[ClearRow] = await self._emit("aalis_memory_clear", request=request)
        await self._emit("aalis_memory_cleared", request=request, rows=rows)
        failed = [f"{row.source}: {row.message}" for row in rows if not row.success]
        if failed:
            raise StorageError(f"{session_id!r} isn't cleared yet: {'; '.join(failed)}")

    async def _tell_deleted(self, deletion: Deletion, session_id: str) -> None:
        """Once, and only while the id isn't taken again: then what listeners run is the new session's."""
        if session_id in deletion.told or session_id in self._table:
            return
        deletion.told.add(session_id)
        await self._store.in_turn(f"sessions {session_id!r}", partial(self._emit_deleted, deletion, session_id))

    async def _emit_deleted(self, deletion: Deletion, session_id: str) -> None:
        token = _inside.set(_inside.get() | {id(deletion)})
        try:
            await self._emit("aalis_session_deleted", session_id=session_id)
        finally:
            _inside.reset(token)

    async def removed(self, session_id: str) -> None:
        """The removal of a record was committed: a deletion that lets arrivals in already tells of it here, in the
        order of commits; else it tells when it comes to this session."""
        for deletion in list(self._working.values()):
            if deletion.opened.is_set() and session_id in deletion.ids and session_id not in deletion.told:
                deletion.told.add(session_id)
                await self._emit_deleted(deletion, session_id)

    def _open(self, deletion: Deletion) -> None:
        for session_id in deletion.ids:
            if self._gates.get(session_id) is deletion:
                del self._gates[session_id]
        deletion.opened.set()

    # --- what other runs and other processes left or do

    def resume(self) -> None:
        """Finish the deletions that an earlier run stored. Rule: DELETE-4."""
        for intent in list(self._intents.values()):
            self._take_over(Deletion(intent, job=None))

    def resume_abandoned(self) -> None:
        """The same for those of a process that is gone; what it removed was told here when this process saw it."""
        oldest = self._now() - ABANDONED_MS
        for intent in list(self._intents.values()):
            if intent.started_at < oldest:
                deletion = Deletion(intent, job=None)
                deletion.told.update(deletion.ids)
                self._take_over(deletion)

    def _take_over(self, deletion: Deletion) -> None:
        if deletion.key in self._working:
            return
        self.ended_elsewhere(deletion.key)
        self._gates.update({one: deletion for one in deletion.ids if one not in self._table})
        self._begin(deletion)

    def removed_elsewhere(self, session_id: str) -> None:
        """Another process deleted it: its turns here stop; what they still write is refused (GEN-5).

        A child that it had not heard of goes too.
        """
        if session_id in self._table:
            return
        if self._agent.present:
            self._agent.use().abort(session_id)
        for child in self._table.children(session_id):
            self._start(child.id)

    def began_elsewhere(self, intent: DeletionIntent) -> None:
        """Another process deletes: hold new arrivals and the agent here too until it has ended."""
        deletion = Deletion(intent, job=None)
        if deletion.root_id in self._gates:
            return
        self._elsewhere[deletion.key] = deletion
        self._gates.update({one: deletion for one in deletion.ids if one not in self._table})
        for one in deletion.ids:
            self._run(self._held(one, deletion.over), f"hold {one!r}")

    def ended_elsewhere(self, key: str) -> None:
        """That deletion has ended; `key` is its intent's."""
        deletion = self._elsewhere.pop(key, None)
        if deletion is not None:
            self._open(deletion)

    # --- clearing deletes children

    async def memory_cleared(self, request: ClearRequest, rows: Iterable[ClearRow]) -> None:
        """Rules: CLEAR-1, CLEAR-2."""
        if request.below_generation is not None or not history_cleared(request, rows):
            return
        if request.scope == "all":
            children = [info.id for info in self._table.all() if info.parent_id is not None]
        elif request.session_id is not None:
            children = [info.id for info in self._table.children(request.session_id)]
        else:
            return
        results = await asyncio.gather(*map(self.delete, children), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                log.warning("a child isn't deleted yet: %s", result)

    # --- stopping

    async def stop(self, limit: float) -> None:
        """Let deletions end, for at most `limit` seconds; what doesn't is finished by the next start."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
