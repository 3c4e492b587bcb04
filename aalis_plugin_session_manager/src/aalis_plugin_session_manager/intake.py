"""Filing and back-fill of native inbound messages. Rules: INTAKE-1 to -8, ORIGIN-1, ORIGIN-2, ORIGIN-6."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from attrs import frozen

from aalis_api_session_manager.errors import InvalidSession
from aalis_api_session_manager.host import PlatformAdapter, Provided
from aalis_api_session_manager.kinds import chat_scope_of, is_unfiled, session_kind, window_key
from aalis_api_session_manager.message import IncomingMessage
from aalis_api_session_manager.model import OriginChat, SessionInfo
from aalis_plugin_session_manager.change import Edit
from aalis_plugin_session_manager.collection import Collection
from aalis_plugin_session_manager.deletion import Deletions
from aalis_plugin_session_manager.places import Places
from aalis_plugin_session_manager.records import SessionRecord, new_life
from aalis_plugin_session_manager.store import RecordStore

__all__ = ["Intake"]

log = logging.getLogger(__name__)

CLAIM_LIMIT = 10.0
"""Seconds that adapters may take to say whether an id is theirs."""


@frozen
class _Claim:
    """Whose window an id is. `instance`: the first adapter that claimed it, None when nobody did."""

    mine: bool
    instance: str | None


class Intake:
    """Files rooms; each id at most once at a time."""

    def __init__(
        self,
        store: RecordStore,
        sessions: Collection[SessionRecord],
        places: Places,
        deletions: Deletions,
        adapters: Callable[[], Sequence[Provided[PlatformAdapter]]],
        now: Callable[[], int],
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._places = places
        self._deletions = deletions
        self._adapters = adapters
        self._now = now
        self._filings: dict[str, asyncio.Task[None]] = {}
        self._resolving: set[str] = set()
        self._background: set[asyncio.Task[None]] = set()

    async def record_inbound(self, message: IncomingMessage) -> None:
        """Resolves when what must be filed is filed and durable. Never raises for a failed filing."""
        session_id = message.session_id
        if not session_id:
            return
        while True:
            try:
                await self._deletions.gate(session_id)
            except InvalidSession as error:
                log.warning("a message isn't filed: %s", error)
                return
            if message.source is not None:
                return
            record = self._sessions.get(session_id)
            if record is not None and not is_unfiled(record.info):
                if record.info.parent_id is None and record.info.origin_platform is not None:
                    self._refresh(record.info, record.info.origin_platform, message)
                return
            if not self._from_a_window(message):
                return
            generation = self._deletions.generation_of(session_id)
            await self._file_once(session_id, message)
            if self._deletions.generation_of(session_id) == generation:
                return

    def _declared(self, platform: str) -> dict[str, bool] | None:
        """The window types of a platform; None when it has no adapter."""
        adapters = [a.instance for a in self._adapters() if a.instance.platform == platform]
        if not adapters:
            return None
        return {name: multi for adapter in reversed(adapters) for name, multi in adapter.session_types.items()}

    def _from_a_window(self, message: IncomingMessage) -> bool:
        """It came through an IM window, not through an owner's own surface. Rule: INTAKE-3."""
        declared = self._declared(message.platform)
        if declared is None:
            return message.session_type is not None
        return bool(declared)

    async def _file_once(self, session_id: str, message: IncomingMessage) -> None:
        """Rule: INTAKE-7."""
        filing = self._filings.get(session_id)
        if filing is None:
            filing = asyncio.create_task(self._file(session_id, message), name=f"filing {session_id!r}")
            self._filings[session_id] = filing
            filing.add_done_callback(lambda _: self._filings.pop(session_id, None))
        await asyncio.wait([filing])

    async def _file(self, session_id: str, message: IncomingMessage) -> None:
        try:
            generation = self._deletions.generation_of(session_id)
            claim = await self._claim(session_id, message.platform)
            if claim is None or self._deletions.generation_of(session_id) != generation:
                return
            record = self._sessions.get(session_id)
            if record is not None and not (claim.mine and is_unfiled(record.info)):
                return
            chat = chat_scope_of(message, self._declared(message.platform) or {})
            if message.own and not chat.multi_party and message.peer_id is None:
                return
            await self._store.apply(session_id, *self._filing(session_id, message, chat, claim))
        except Exception as error:
            log.warning("session %r: filing failed: %s", session_id, error)

    async def _claim(self, session_id: str, platform: str) -> _Claim | None:
        """None: it can't be told whose window it is. Rule: INTAKE-5."""
        claimants = []
        for adapter in self._adapters():
            try:
                async with asyncio.timeout(CLAIM_LIMIT):
                    if await adapter.instance.claims(session_id):
                        claimants.append(adapter)
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and _being_cancelled():
                    raise
                log.warning("session %r: %s can't say whether it is its own: %r", session_id, adapter.context_id, error)
        platforms = {claimant.instance.platform for claimant in claimants}
        if not platforms:
            return _Claim(mine=False, instance=None)
        if platforms != {platform}:
            log.warning("session %r: not filed, it is claimed by %s", session_id, ", ".join(sorted(platforms)))
            return None
        return _Claim(mine=True, instance=claimants[0].context_id)

    def _filing(self, session_id: str, message: IncomingMessage, chat: OriginChat, claim: _Claim) -> list[Edit]:
        now, life, platform = self._now(), new_life(), message.platform
        window_key(platform, chat.type, chat.target_id)
        origin: dict[str, Any] = {
            "origin_platform": platform,
            "origin_chat": chat,
            "origin_instance": claim.instance,
            "kind": session_kind(None, platform),
        }
        name = _shown_name(message, chat)

        def fold(record: SessionRecord | None) -> SessionRecord:
            if record is None:
                info = SessionInfo(id=session_id, name=name, created_at=now, updated_at=now, **origin)
                return SessionRecord(info, life)
            if not is_unfiled(record.info):
                return record
            return record.with_info(
                name=record.info.name or name, updated_at=max(now, record.info.updated_at), **origin
            )

        edits = [Edit(self._sessions, session_id, fold)]
        if not self._places.is_owners_own(platform, chat):
            place = self._places.place_of_root(fold(None).info)
            edits += self._places.window_edits(place, name, chat.target_id)
        return edits

    # --- what a filed session still gets, unawaited (INTAKE-6)

    def _refresh(self, info: SessionInfo, platform: str, message: IncomingMessage) -> None:
        if message.platform != platform:
            return
        name = _shown_name(message, info.origin_chat)
        if name is not None:
            self._follow_name(info, name)
        if info.origin_instance is None and not message.own and info.id not in self._resolving:
            self._resolving.add(info.id)
            self._start(self._resolve_instance(info.id, platform))

    def _follow_name(self, info: SessionInfo, name: str) -> None:
        edits = []
        if not info.name:
            now = self._now()

            def named(record: SessionRecord | None) -> SessionRecord | None:
                if record is None or record.info.name:
                    return record
                return record.with_info(name=name, updated_at=max(now, record.info.updated_at))

            edits.append(Edit(self._sessions, info.id, named))
        place = self._places.get(self._places.place_of_root(info).key)
        if place is not None and place.kind == "window" and place.name != name:
            edits += self._places.window_edits(place, name, name)
        if edits:
            self._store.change(info.id, *edits)

    async def _resolve_instance(self, session_id: str, platform: str) -> None:
        try:
            claim = await self._claim(session_id, platform)
            if claim is None or claim.instance is None:
                return

            def resolved(record: SessionRecord | None) -> SessionRecord | None:
                if record is None or record.info.origin_platform != platform or record.info.origin_instance:
                    return record
                return record.with_info(origin_instance=claim.instance)

            self._store.change(session_id, Edit(self._sessions, session_id, resolved))
        except Exception as error:
            log.warning("session %r: its adapter can't be told: %s", session_id, error)
        finally:
            self._resolving.discard(session_id)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def stop(self) -> None:
        """End what runs in the background; nothing of it was promised to anybody."""
        for task in [*self._background, *self._filings.values()]:
            task.cancel()
        await asyncio.gather(*self._background, *self._filings.values(), return_exceptions=True)


def _being_cancelled() -> bool:
    """Asked where a CancelledError arrived: was this very task cancelled, or only what it awaited?"""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _shown_name(message: IncomingMessage, chat: OriginChat | None) -> str | None:
    """The group's name, or the peer's nickname. Rule: INTAKE-6."""
    if chat is None:
        return None
    if chat.multi_party:
        return message.group_name or None
    return None if message.own else message.user_name or None
