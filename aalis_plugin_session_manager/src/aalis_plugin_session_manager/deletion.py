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


@define(eq=False)
class Deletion:
    """A deletion under way. `job` is the removal of the records; None when it was stored by an earlier run."""

    intent: DeletionIntent
    job: Job | None
    told: set[str] = field(factory=set)
    opened: asyncio.Event = field(factory=asyncio.Event)
    durable: asyncio.Future[None] = field(factory=lambda: asyncio.get_running_loop().create_future())
    done: asyncio.Future[None] = field(factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def root_id(self) -> str:
        """The session that was asked to be deleted."""
        return self.intent.levels[-1][0]

    @property
    def ids(self) -> Iterable[str]:
        """Every session of the tree."""
        return (session_id for level in self.intent.levels for session_id in level)

    async def over(self) -> None:
        """Wait until new arrivals are let in again."""
        await self.opened.wait()

    def settle(self, error: Exception | None = None) -> None:
        """Answer whoever waits."""
        for future in (self.durable, self.done):
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
                    future.exception()


_inside: ContextVar[frozenset[int]] = ContextVar("inside_deletions", default=frozenset())
"""The deletions in whose own listeners the current code runs."""


_Work = Callable[[], Awaitable[None]]
_Hold = Callable[[str, _Work], Awaitable[None]]


async def _at_once(session_id: str, work: _Work) -> None:
    await work()


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
        self._generations: dict[str, int] = {}
        self._gates: dict[str, Deletion] = {}
        self._working: dict[str, Deletion] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- generations and the gate

    def generation_of(self, session_id: str) -> int:
        """Rule: GEN-1."""
        return self._generations.get(session_id, 0)

    def adopt(self, generations: Mapping[str, int]) -> None:
        """Take over stored generations; never back."""
        for session_id, generation in generations.items():
            if generation > self._generations.get(session_id, 0):
                self._generations[session_id] = generation

    async def gate(self, session_id: str) -> None:
        """Wait while the session is being deleted. Raises InvalidSession from inside that deletion's listeners."""
        while (deletion := self._gates.get(session_id)) is not None:
            if id(deletion) in _inside.get():
                raise InvalidSession(session_id, "it is being deleted, and this runs inside that deletion")
            await deletion.over()

    # --- deleting

    async def delete(self, session_id: str) -> None:
        """Rule: DELETE-1."""
        deletion = self._gates.get(session_id) or self._start(session_id)
        if deletion is None or id(deletion) in _inside.get():
            return
        await asyncio.shield(deletion.durable if in_listener.get() else deletion.done)

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
        removals = [Edit(self._sessions, one, lambda record: None) for one in ids]
        job = self._store.change(
            session_id, *removals, Edit(self._intents, session_id, lambda _: intent), generations=generations
        )
        self._generations.update(generations)
        deletion = Deletion(intent, job)
        self._gates.update(dict.fromkeys(ids, deletion))
        self._begin(deletion)
        return deletion

    def _begin(self, deletion: Deletion) -> None:
        self._working[deletion.root_id] = deletion
        self._run(self._delete(deletion), f"deletion of {deletion.root_id!r}")

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _delete(self, deletion: Deletion) -> None:
        _inside.set(_inside.get() | {id(deletion)})
        delay, hold = FIRST_RETRY, self._held if deletion.job is not None else _at_once
        try:
            while True:
                try:
                    await hold(deletion.root_id, partial(self._finish, deletion, hold))
                    break
                except Exception as error:
                    log.warning("session %r: its deletion waits and is tried again: %s", deletion.root_id, error)
                    self._open(deletion)
                    deletion.settle(StorageError(str(error), session_id=deletion.root_id, pending=True))
                    hold = _at_once
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, LAST_RETRY)
            self._open(deletion)
            if deletion.intent.parent_id is not None:
                await self._parent_changed(deletion.intent.parent_id)
        finally:
            self._working.pop(deletion.root_id, None)
            stopped = StorageError("stopped; the next start goes on", session_id=deletion.root_id, pending=True)
            deletion.settle(None if deletion.opened.is_set() else stopped)
            self._open(deletion)

    async def _held(self, session_id: str, work: _Work) -> None:
        """Through the agent, which stops the session's turns and holds it. Rule: DELETE-2."""
        if self._agent.present:
            await self._agent.use().clearing(session_id, work)
        else:
            await work()

    async def _finish(self, deletion: Deletion, hold: _Hold) -> None:
        """Records gone, then level by level, deepest first: told, then cleared. The intent goes last.

        `hold` is the agent's at the first try only: what arrives later isn't stopped by this deletion (GEN-3).
        """
        if deletion.job is not None:
            await self._store.settled(deletion.job, durable=True)
        if not deletion.durable.done():
            deletion.durable.set_result(None)
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
        forgotten = self._store.change(root_id, Edit(self._intents, root_id, lambda intent: None))
        await self._store.settled(forgotten, durable=True)

    async def _clear(self, deletion: Deletion, session_id: str) -> None:
        """Tell, and when every listener has returned clear what was kept. Rule: DELETE-1."""
        if session_id not in self._table and session_id not in deletion.told:
            deletion.told.add(session_id)
            await self._store.in_turn(f"sessions {session_id!r}", partial(self._tell_deleted, deletion, session_id))
        generation = max(deletion.intent.generations.get(session_id, 0), 1)
        request = ClearRequest(scope="session", session_id=session_id, below_generation=generation)
        rows: list[ClearRow] = await self._emit("aalis_memory_clear", request=request)
        await self._emit("aalis_memory_cleared", request=request, rows=rows)
        failed = [f"{row.source}: {row.message}" for row in rows if not row.success]
        if failed:
            raise StorageError(f"{session_id!r} isn't cleared yet: {'; '.join(failed)}")

    async def _tell_deleted(self, deletion: Deletion, session_id: str) -> None:
        token = _inside.set(_inside.get() | {id(deletion)})
        try:
            await self._emit("aalis_session_deleted", session_id=session_id)
        finally:
            _inside.reset(token)

    def _open(self, deletion: Deletion) -> None:
        for session_id in deletion.ids:
            if self._gates.get(session_id) is deletion:
                del self._gates[session_id]
        deletion.opened.set()

    # --- what other runs and other processes left or do

    def resume(self) -> None:
        """Finish the deletions that an earlier run stored. Rule: DELETE-4."""
        for intent in list(self._intents.values()):
            self._take_over(intent)

    def resume_abandoned(self) -> None:
        """The same for those of a process that is gone."""
        oldest = self._now() - ABANDONED_MS
        for intent in list(self._intents.values()):
            if intent.started_at < oldest and intent.levels[-1][0] not in self._working:
                self._take_over(intent)

    def _take_over(self, intent: DeletionIntent) -> None:
        deletion = Deletion(intent, job=None)
        earlier = self._gates.get(deletion.root_id)
        if earlier is not None:
            self._open(earlier)
        self._gates.update({one: deletion for one in deletion.ids if one not in self._table})
        self._begin(deletion)

    def removed_elsewhere(self, session_id: str) -> None:
        """Another process deleted it: its turns here stop; what they still write is refused (GEN-5)."""
        if session_id not in self._table and self._agent.present:
            self._agent.use().abort(session_id)

    def began_elsewhere(self, intent: DeletionIntent) -> None:
        """Another process deletes: hold new arrivals and the agent here too until it has ended."""
        deletion = Deletion(intent, job=None)
        if deletion.root_id in self._working or deletion.root_id in self._gates:
            return
        self._gates.update({one: deletion for one in deletion.ids if one not in self._table})
        for one in deletion.ids:
            self._run(self._held(one, deletion.over), f"hold {one!r}")

    def ended_elsewhere(self, root_id: str) -> None:
        """That deletion has ended."""
        deletion = self._gates.get(root_id)
        if deletion is not None and root_id not in self._working:
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
