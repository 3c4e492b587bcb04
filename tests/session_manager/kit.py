"""A real host with the session manager, a recording plugin, adapters and a model that do as they are told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from attrs import define, field

from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import PluginMeta
from aalis_api_session_manager.message import IncomingMessage, OutgoingMessage
from aalis_api_session_manager.model import SessionInfo
from aalis_api_session_manager.service import SESSION_MANAGER, SessionManagerService
from aalis_host.app import AalisHost
from aalis_host.config import AuthoritySettings, Settings
from aalis_host.models.base import ModelMessage, ModelReply
from aalis_plugin_session_manager.plugin import SessionManagerPlugin


@define(eq=False)
class Clock:
    """Milliseconds since the epoch; every look moves it on by one."""

    ms: int = 1_800_000_000_000

    def __call__(self) -> int:
        self.ms += 1
        return self.ms


@define(eq=False)
class Adapter:
    """A platform that claims what it is told to."""

    platform: str = "onebot"
    session_types: Mapping[str, bool] = field(factory=lambda: {"group": True, "private": False})
    claimed: Callable[[str], bool | Awaitable[bool]] = lambda session_id: True
    sent: list[OutgoingMessage] = field(factory=list)
    asked: int = 0

    async def claims(self, session_id: str) -> bool:
        self.asked += 1
        answer = self.claimed(session_id)
        return answer if isinstance(answer, bool) else await answer

    async def send(self, message: OutgoingMessage) -> None:
        self.sent.append(message)


@define(eq=False)
class Model:
    """Answers with `reply`; a turn waits while `hold` is set and not released."""

    reply: str = "ok"
    hold: asyncio.Event | None = None
    error: Exception | None = None
    asked: asyncio.Event = field(factory=asyncio.Event)

    async def complete(self, messages: Any, tools: Any) -> ModelReply:
        self.asked.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
        return ModelReply(content=self.reply, input_tokens=7, output_tokens=3)

    async def close(self) -> None:
        pass


@define(eq=False)
class Recorder:
    """Every event of the session manager in order: ("created", SessionInfo), ("deleted", id)…"""

    meta: ClassVar[PluginMeta] = PluginMeta(name="recorder")
    events: list[tuple[str, Any]] = field(factory=list)
    listener: Callable[[str, Any], Awaitable[None]] | None = None

    async def _heard(self, name: str, what: Any) -> None:
        self.events.append((name, what))
        if self.listener is not None:
            await self.listener(name, what)

    @hookimpl
    async def aalis_session_created(self, session: SessionInfo) -> None:
        await self._heard("created", session)

    @hookimpl
    async def aalis_session_updated(self, session: SessionInfo) -> None:
        await self._heard("updated", session)

    @hookimpl
    async def aalis_session_completed(self, session: SessionInfo) -> None:
        await self._heard("completed", session)

    @hookimpl
    async def aalis_session_deleted(self, session_id: str) -> None:
        await self._heard("deleted", session_id)

    def names(self, session_id: str) -> list[str]:
        """What happened to one session, in order."""
        return [name for name, what in self.events if (what if isinstance(what, str) else what.id) == session_id]


@define(eq=False)
class Stack:
    """A running host with its parts at hand."""

    host: AalisHost
    sessions: SessionManagerService
    plugin: SessionManagerPlugin
    recorder: Recorder
    model: Model
    clock: Clock

    async def say(self, session_id: str, content: str = "hello", **fields: Any) -> None:
        """One native message of a OneBot group through the gateway, addressed to the bot."""
        await self.host.gateway.ingress(group_message(session_id, content, **fields))


def group_message(session_id: str, content: str = "hello", **fields: Any) -> IncomingMessage:
    """A native message of a OneBot group, addressed to the bot; `fields` replace what it says."""
    said = {
        "platform": "onebot",
        "user_id": "u1",
        "user_name": "Uli",
        "session_type": "group",
        "group_id": "g1",
        "group_name": "The group",
        "self_id": "bot1",
        "mentioned": True,
    }
    return IncomingMessage(session_id=session_id, content=content, **{**said, **fields})


def private_message(session_id: str, content: str = "hello", **fields: Any) -> IncomingMessage:
    """A native message of a OneBot private chat."""
    said = {"session_type": "private", "group_id": None, "group_name": None}
    return group_message(session_id, content, **{**said, **fields})


@asynccontextmanager
async def running(
    db: str | str,
    *plugins: object,
    model: Model | None = None,
    recorder: Recorder | None = None,
    clock: Clock | None = None,
    read_only: bool = False,
    config: Mapping[str, Any] | None = None,
    owners: tuple[str, ...] = ("cli:owner", "onebot:owner"),
) -> AsyncIterator[Stack]:
    """A host on `db` with the session manager and `plugins`; `config` is the session manager's own table."""
    settings = Settings(
        db=str(db),
        authority=AuthoritySettings(owners=owners),
        plugins={"aalis-plugin-session-manager": dict(config or {})},
    )
    plugin, recorder, model, clock = SessionManagerPlugin(), recorder or Recorder(), model or Model(), clock or Clock()
    host = AalisHost(settings, plugins=(plugin, recorder, *plugins), model=model, now=clock, read_only=read_only)
    async with host:
        yield Stack(host, host.select(SESSION_MANAGER).use(), plugin, recorder, model, clock)


__all__ = [
    "Adapter",
    "Clock",
    "Model",
    "ModelMessage",
    "Recorder",
    "Stack",
    "group_message",
    "private_message",
    "running",
]
