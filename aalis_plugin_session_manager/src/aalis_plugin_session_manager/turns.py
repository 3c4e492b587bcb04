"""Running turns: status, last turn, last reply, tokens, and the leases that outlive a crash.

Rules: TURN-1 to TURN-6, USAGE-1.
"""

import logging
from collections.abc import Callable
from itertools import chain
from typing import Any

import regex
from attrs import evolve

from aalis_api_session_manager.message import LlmUsage, TurnEnd, TurnStart
from aalis_api_session_manager.model import LastTurn, TokenCount, TurnOutcome
from aalis_api_session_manager.text import TextRef
from aalis_plugin_session_manager.change import Edit
from aalis_plugin_session_manager.collection import Collection
from aalis_plugin_session_manager.records import SessionRecord, TurnLease
from aalis_plugin_session_manager.store import RecordStore
from aalis_plugin_session_manager.texts import INTERRUPTED

__all__ = ["LEASE_MS", "RENEW_MS", "Turns", "cut_graphemes"]

log = logging.getLogger(__name__)

LEASE_MS = 15_000
"""How long a lease holds without being renewed."""
RENEW_MS = 5_000
"""How often it is renewed."""
ERROR_LIMIT = 200
"""Characters of an error that are kept. Rule: TURN-2."""


def cut_graphemes(text: str, limit: int) -> str:
    """At most `limit` code points, never ending inside a grapheme."""
    if len(text) <= limit:
        return text
    end = 0
    for match in regex.finditer(r"\X", text):
        if match.end() > limit:
            break
        end = match.end()
    return text[:end]


class Turns:
    """The turns of this process by id, and the leases of all processes."""

    def __init__(
        self,
        store: RecordStore,
        sessions: Collection[SessionRecord],
        leases: Collection[TurnLease],
        host_id: str,
        now: Callable[[], int],
        generation_of_turn: Callable[[str], int],
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._leases = leases
        self._host_id = host_id
        self._now = now
        self._generation_of_turn = generation_of_turn
        self._running: dict[str, TurnLease] = {}
        self._turns_of: dict[str, set[str]] = {}
        self._leases_of: dict[str, dict[str, TurnLease]] = {}
        self._session_of: dict[str, str] = {}

    # --- the hooks

    def started(self, turn: TurnStart) -> None:
        """The session is active; a lease says who runs it. Rules: TURN-1, TURN-6."""
        now, record = self._now(), self._sessions.get(turn.session_id)
        lease = TurnLease(
            turn_id=turn.turn_id,
            session_id=turn.session_id,
            life=None if record is None else record.life,
            generation=self._generation_of_turn(turn.session_id),
            source=turn.message.source,
            host=self._host_id,
            expires_at=now + LEASE_MS,
        )
        self._running[turn.turn_id] = lease
        self._turns_of.setdefault(turn.session_id, set()).add(turn.turn_id)

        def activate(record: SessionRecord | None) -> SessionRecord | None:
            if record is None or record.life != lease.life:
                return record
            return record.with_info(status="active", updated_at=max(now, record.info.updated_at))

        self._change(turn.session_id, activate, Edit(self._leases, turn.turn_id, lambda _: lease))

    def ended(self, turn: TurnEnd) -> None:
        """Outcome, reply time, and the status when it was the last. Rules: TURN-1 to TURN-5."""
        lease = self._running.pop(turn.turn_id, None)
        if lease is None:
            return
        turns = self._turns_of[lease.session_id]
        turns.remove(turn.turn_id)
        if not turns:
            del self._turns_of[lease.session_id]
        outcome = turn.outcome or "silent"
        error = _kept(turn.error) if outcome == "error" else None
        self._close(lease, outcome, error, turn.ended_at)

    def used(self, usage: LlmUsage) -> None:
        """Rule: USAGE-1."""
        session_id = usage.session_id
        session = None if session_id is None else self._sessions.get(session_id)
        if session_id is None or session is None:
            return
        input_tokens, output_tokens = max(usage.input_tokens, 0), max(usage.output_tokens, 0)
        if not input_tokens and not output_tokens:
            return

        def add(record: SessionRecord | None) -> SessionRecord | None:
            if record is None or record.life != session.life:
                return record
            tokens = record.info.tokens or TokenCount()
            return record.with_info(
                tokens=TokenCount(input=tokens.input + input_tokens, output=tokens.output + output_tokens)
            )

        self._store.soon(Edit(self._sessions, session_id, add))

    # --- closing

    def _close(
        self,
        lease: TurnLease,
        outcome: TurnOutcome,
        error: str | TextRef | None,
        ended_at: int,
        lease_fold: Callable[[Any], Any] = lambda lease: None,
    ) -> None:
        life = self._life_of(lease)
        last = not self._others_run(lease, life)
        last_turn = LastTurn(outcome=outcome, ended_at=ended_at, error=error)

        def close(record: SessionRecord | None) -> SessionRecord | None:
            if record is None or record.life != life:
                return record
            changes: dict[str, Any] = {"last_turn": last_turn, "updated_at": max(ended_at, record.info.updated_at)}
            if outcome == "replied":
                changes["last_reply_at"] = ended_at
            if last and record.info.status == "active":
                changes["status"] = _closed_status(outcome)
            return record.with_info(**changes)

        self._change(lease.session_id, close, Edit(self._leases, lease.turn_id, lease_fold))

    def _change(self, session_id: str, fold: Callable[[Any], Any], lease: Edit) -> None:
        """Change session and lease together; where the session's record is damaged and kept as it is, the lease."""
        edits = [] if session_id in self._sessions.damaged else [Edit(self._sessions, session_id, fold)]
        self._store.change(session_id, *edits, lease)

    def _life_of(self, lease: TurnLease) -> str | None:
        """Which session a turn is of: one that outlives its session has no part in the next one of that id."""
        record = self._sessions.get(lease.session_id)
        if lease.life is not None or record is None:
            return lease.life
        return record.life if self._generation_of_turn(lease.session_id) == lease.generation else None

    def _others_run(self, leaving: TurnLease, life: str | None) -> bool:
        """Does another turn of this life of the session run, in any process."""
        here = (self._running[turn_id] for turn_id in self._turns_of.get(leaving.session_id, ()))
        stored = self._leases_of.get(leaving.session_id, {}).values()
        return any(lease.turn_id != leaving.turn_id and self._life_of(lease) == life for lease in chain(here, stored))

    def lease_shown(self, turn_id: str, lease: TurnLease | None) -> None:
        """Leases by session, as they come and go."""
        session_id = self._session_of.pop(turn_id, None)
        if session_id is not None:
            leases = self._leases_of[session_id]
            del leases[turn_id]
            if not leases:
                del self._leases_of[session_id]
        if lease is not None:
            self._session_of[turn_id] = lease.session_id
            self._leases_of.setdefault(lease.session_id, {})[turn_id] = lease

    def lease_ended_elsewhere(self, lease: TurnLease) -> None:
        """Another process removed a lease. Two that end at once may each have seen the other's turn still
        running, and neither closed the session: then it is closed here."""
        record, life = self._sessions.get(lease.session_id), self._life_of(lease)
        if record is None or record.info.status != "active" or record.life != life:
            return
        if self._others_run(lease, life):
            return

        def close(record: SessionRecord | None) -> SessionRecord | None:
            if record is None or record.life != life or record.info.status != "active" or record.info.last_turn is None:
                return record
            return record.with_info(status=_closed_status(record.info.last_turn.outcome))

        self._store.change(lease.session_id, Edit(self._sessions, lease.session_id, close))

    def renew(self) -> None:
        """Keep the leases of this process alive. One commit for all."""
        expires_at = self._now() + LEASE_MS

        def longer(lease: TurnLease | None) -> TurnLease | None:
            return None if lease is None else evolve(lease, expires_at=expires_at)

        mine = [lease.turn_id for lease in self._leases.values() if lease.turn_id in self._running]
        if mine:
            self._store.change(self._host_id, *(Edit(self._leases, turn_id, longer) for turn_id in mine))

    def close_expired(self) -> None:
        """Close the turns whose process is gone. Rule: TURN-6."""
        now = self._now()
        for lease in list(self._leases.values()):
            if lease.expires_at >= now or lease.turn_id in self._running:
                continue
            log.warning("session %r: a turn was interrupted, its process is gone", lease.session_id)

            def still_expired(stored: TurnLease | None) -> TurnLease | None:
                if stored is None or stored.expires_at >= now:
                    raise LookupError("the turn was renewed or closed meanwhile")
                return None

            self._close(lease, "aborted", INTERRUPTED, now, still_expired)

    @property
    def lease_count(self) -> int:
        """How many turns run, in all processes."""
        return sum(1 for _ in self._leases.values())


def _closed_status(outcome: TurnOutcome) -> str:
    return "error" if outcome == "error" else "completed"


def _kept(error: str | TextRef | None) -> str | TextRef | None:
    """What is kept of an error: at most `ERROR_LIMIT` characters, None for an empty one. Rule: TURN-2."""
    if isinstance(error, TextRef):
        return error if len(error.source) <= ERROR_LIMIT else _shorter(error)
    return cut_graphemes(error or "", ERROR_LIMIT) or None


def _shorter(ref: TextRef) -> str | TextRef | None:
    """Cut the longest parameters, so that it can still be read in any language; plain text where that isn't enough."""
    params = dict(ref.params)
    for name in sorted((n for n, value in params.items() if isinstance(value, str)), key=lambda n: -len(params[n])):
        excess = len(TextRef(ref.key, params).source) - ERROR_LIMIT
        params[name] = cut_graphemes(params[name], len(params[name]) - max(excess, 0))
    shorter = TextRef(ref.key, params)
    return shorter if len(shorter.source) <= ERROR_LIMIT else cut_graphemes(ref.source, ERROR_LIMIT) or None
