"""A host on a new SQLite file, with models, plugins and platforms that do as a test tells them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from attrs import define, field

from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import Host, PluginMeta, ToolSpec
from aalis_api_session_manager.message import (
    IncomingMessage,
    LlmUsage,
    Message,
    OutgoingMessage,
    ToolCall,
    ToolCallContext,
    TurnEnd,
    TurnStart,
)
from aalis_api_session_manager.model import SessionInfo
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_host.app import AalisHost
from aalis_host.config import Settings
from aalis_host.models.base import Model, ModelMessage, ModelReply, ToolSchema


def message(content: str = "hello", session_id: str | None = "s", **rest: Any) -> IncomingMessage:
    """A person's message, from the terminal unless said otherwise."""
    return IncomingMessage(session_id=session_id, content=content, **{"platform": "cli", "user_id": "owner", **rest})


def room_message(content: str = "hello", **rest: Any) -> IncomingMessage:
    """A message of a OneBot group."""
    window = {"platform": "onebot", "user_id": "7", "session_type": "group", "group_id": "1", "self_id": "99"}
    return message(content, **{**window, **rest})


def calls(*wanted: tuple[str, str]) -> ModelReply:
    """A model's answer that calls tools: (name, arguments) of each."""
    made = tuple(ToolCall(id=f"c{i}", name=name, arguments=text) for i, (name, text) in enumerate(wanted))
    return ModelReply(tool_calls=made, input_tokens=3, output_tokens=2)


@define(eq=False)
class ScriptedModel:
    """Gives its `replies` one after the other (an exception is raised, a function called), then "ok".

    While `gate` isn't set a turn waits in it; `asked` holds what each call was given.
    """

    replies: list[ModelReply | Exception | str] = field(factory=list)
    gate: asyncio.Event | None = None
    asked: list[list[ModelMessage]] = field(factory=list)
    offered: list[Sequence[ToolSchema]] = field(factory=list)
    inside: asyncio.Event = field(factory=asyncio.Event)
    at_once: int = 0
    most_at_once: int = 0
    closed: bool = False

    async def complete(self, messages: Sequence[ModelMessage], tools: Sequence[ToolSchema]) -> ModelReply:
        self.asked.append(list(messages))
        self.offered.append(tools)
        self.inside.set()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.gate is not None:
                await self.gate.wait()
            else:
                await asyncio.sleep(0)
        finally:
            self.at_once -= 1
        reply = self.replies.pop(0) if self.replies else "ok"
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, str):
            return ModelReply(content=reply, input_tokens=5, output_tokens=1)
        return reply

    async def close(self) -> None:
        self.closed = True


@define(eq=False)
class Recorder:
    """A plugin that writes down what happens, by kind; `on_before`, `on_after` and `gate` do as told."""

    meta: ClassVar[PluginMeta] = PluginMeta(name="recorder")
    turns: list[TurnStart | TurnEnd] = field(factory=list)
    usage: list[LlmUsage] = field(factory=list)
    inbound: list[IncomingMessage] = field(factory=list)
    gate: Callable[[IncomingMessage], bool | None] = lambda message: None
    on_before: Callable[[TurnStart], Awaitable[None]] | None = None
    on_after: Callable[[TurnEnd], Awaitable[None]] | None = None

    @property
    def ends(self) -> list[TurnEnd]:
        return [turn for turn in self.turns if isinstance(turn, TurnEnd)]

    @property
    def outcomes(self) -> list[str | None]:
        return [end.outcome for end in self.ends]

    def paired(self) -> bool:
        """Every start has one end, and every end its start."""
        starts = [turn.turn_id for turn in self.turns if isinstance(turn, TurnStart)]
        return sorted(starts) == sorted(end.turn_id for end in self.ends) and len(set(starts)) == len(starts)

    @hookimpl
    def aalis_inbound(self, message: IncomingMessage) -> None:
        self.inbound.append(message)

    @hookimpl
    def aalis_inbound_gate(self, message: IncomingMessage) -> bool | None:
        return self.gate(message)

    @hookimpl
    async def aalis_turn_before(self, turn: TurnStart) -> None:
        self.turns.append(turn)
        if self.on_before is not None:
            await self.on_before(turn)

    @hookimpl
    async def aalis_turn_after(self, turn: TurnEnd) -> None:
        self.turns.append(turn)
        if self.on_after is not None:
            await self.on_after(turn)

    @hookimpl
    def aalis_llm_usage(self, usage: LlmUsage) -> None:
        self.usage.append(usage)


@define(eq=False)
class Sessions:
    """As much of a session manager as the host reads: records, and generations that a test raises."""

    meta: ClassVar[PluginMeta] = PluginMeta(name="sessions", provides=("session-manager",))
    records: dict[str, SessionInfo] = field(factory=dict)
    generations: dict[str, int] = field(factory=dict)

    def get_session(self, session_id: str) -> SessionInfo | None:
        return self.records.get(session_id)

    def generation_of(self, session_id: str) -> int:
        return self.generations.get(session_id, 0)

    @hookimpl
    def aalis_activate(self, host: Host) -> None:
        host.provide(SESSION_MANAGER, self)  # type: ignore[arg-type]

    @hookimpl(tryfirst=True)
    def aalis_inbound(self, message: IncomingMessage) -> int | None:
        return None if message.session_id is None else self.generation_of(message.session_id)


@define(eq=False)
class Adapter:
    """A platform that claims what it is told to, and keeps what it sends."""

    platform: str = "onebot"
    session_types: Mapping[str, bool] = field(factory=lambda: {"group": True, "private": False})
    claimed: Callable[[str], bool] = lambda session_id: True
    error: Exception | None = None
    sent: list[OutgoingMessage] = field(factory=list)

    async def claims(self, session_id: str) -> bool:
        return self.claimed(session_id)

    async def send(self, message: OutgoingMessage) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append(message)


def tool(
    name: str = "echo",
    handler: Callable[[dict[str, Any], ToolCallContext], Awaitable[str]] | None = None,
    properties: Mapping[str, Any] | None = None,
    **schema: Any,
) -> ToolSpec:
    """A tool; its handler answers `{"done": true}` unless one is given."""

    async def done(arguments: dict[str, Any], context: ToolCallContext) -> str:
        return '{"done": true}'

    parameters = {"type": "object", "properties": properties or {}, **schema}
    return ToolSpec(
        name=name, group="test", description="A test's tool.", parameters=parameters, handler=handler or done
    )


@asynccontextmanager
async def running(
    folder: Path, *plugins: object, model: Model | None = None, **settings: Any
) -> AsyncIterator[AalisHost]:
    """A host on a database in `folder` with these plugins."""
    made = Settings(db=str(folder / "aalis.db"), **settings)
    async with AalisHost(made, plugins=plugins, model=model or ScriptedModel()) as host:
        assert [report.error for report in host.plugin_report] == [None] * len(plugins)
        yield host


async def history(host: AalisHost, session_id: str = "s") -> list[Message]:
    """Everything that is stored of a session, oldest first."""
    return list((await host.memory.history(session_id, 1000, include_archived=True)).messages)


async def texts(host: AalisHost, session_id: str = "s") -> list[tuple[str, str]]:
    """The stored messages as (role, content)."""
    return [(one.role, one.content) for one in await history(host, session_id)]
