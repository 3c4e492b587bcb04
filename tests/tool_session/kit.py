"""The whole stack on a file, with a platform and a model that do what the test says."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from attrs import define, field

from aalis_api_session_manager.errors import ServiceNotFound
from aalis_api_session_manager.message import IncomingMessage, Message, OutgoingMessage, ToolCallContext
from aalis_api_session_manager.model import Identity
from aalis_api_session_manager.service import ServiceKey
from aalis_host.app import AalisHost, wall_clock
from aalis_host.config import AuthoritySettings, ModelSettings, Settings
from aalis_host.models.base import ModelMessage, ModelReply
from aalis_plugin_session_manager.plugin import SessionManagerPlugin
from aalis_plugin_tool_session.delegation import DelegateTool
from aalis_plugin_tool_session.plugin import ToolSessionPlugin

T = TypeVar("T")
NAME = "aalis-plugin-tool-session"
BOT = "100"
OWNER = Identity(platform="onebot", user_id="1")
"""The owner's account on the platform; `cli:owner` is the terminal's."""
TERMINAL = Identity(platform="cli", user_id="owner")

HISTORY, LIST, DELEGATE = "session_get_history", "list_known_sessions", "delegate_to_session"


class Chats:
    """An IM platform: it claims the ids that begin with its name, and remembers what it was told to send."""

    session_types: Mapping[str, bool] = {"group": True, "private": False}

    def __init__(self, platform: str = "onebot") -> None:
        self.platform = platform
        self.sent: list[OutgoingMessage] = []

    async def claims(self, session_id: str) -> bool:
        """By prefix."""
        return session_id.startswith(f"{self.platform}:")

    async def send(self, message: OutgoingMessage) -> None:
        """Remember it."""
        self.sent.append(message)


class Limited(Chats):
    """Admits as often as it is told to."""

    def __init__(self, *reasons: str | None) -> None:
        super().__init__()
        self.reasons = list(reasons)
        self.asked: list[str] = []

    async def check_and_record_proactive_send(self, session_id: str) -> str | None:
        """The next reason, None to admit."""
        self.asked.append(session_id)
        return self.reasons.pop(0)


Answer = Callable[[str], Awaitable[str | ModelReply]]


@define
class Script:
    """A model that answers the last message with what `answers` has for a part of it, else with "ok"."""

    answers: dict[str, str | Answer] = field(factory=dict)
    asked: list[list[ModelMessage]] = field(factory=list)

    async def complete(self, messages: Sequence[ModelMessage], tools: Sequence[Any]) -> ModelReply:
        """The scripted reply."""
        self.asked.append(list(messages))
        text = messages[-1].content
        for part, answer in self.answers.items():
            if part in text:
                reply = answer if isinstance(answer, str) else await answer(text)
                return reply if isinstance(reply, ModelReply) else ModelReply(content=reply)
        return ModelReply(content="ok")

    async def close(self) -> None:
        """It holds nothing."""


class Held:
    """An answer of the model that comes when it is released."""

    def __init__(self, reply: str = "done") -> None:
        self.reply, self.started, self.released = reply, asyncio.Event(), asyncio.Event()

    async def __call__(self, _: str) -> str:
        """Wait, and answer."""
        self.started.set()
        await self.released.wait()
        return self.reply


@define
class Stack:
    """A running host with the session tools."""

    host: AalisHost
    plugin: ToolSessionPlugin
    chats: Chats
    model: Script

    @property
    def delegate(self) -> DelegateTool:
        """The tool, for what it keeps."""
        assert self.plugin._parts is not None
        return self.plugin._parts.delegate

    async def raw(self, tool: str, arguments: Any, session_id: str, *participants: Identity, **more: Any) -> str:
        """A call through the registry, as a model makes it; `arguments` a JSON text or what makes one."""
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call = ToolCallContext(session_id=session_id, approve_for=participants, **{"platform": "onebot", **more})
        return await self.host.tools.call(tool, text, call)

    async def call(self, tool: str, arguments: Any, session_id: str, *participants: Identity, **more: Any) -> Any:
        """The same, its answer read."""
        return json.loads(await self.raw(tool, arguments, session_id, *participants, **more))

    async def ingress(self, *messages: IncomingMessage) -> None:
        """Let messages in, one after the other."""
        for message in messages:
            await self.host.gateway.ingress(message)

    async def save(self, session_id: str, *contents: str, start: int, step: int = 1000, **fields: Any) -> None:
        """Put messages into the history, past the agent."""
        await self.save_all(
            message(session_id, content, start + i * step, **fields) for i, content in enumerate(contents)
        )

    async def save_all(self, messages: Iterable[Message]) -> None:
        """Put many messages into the history, in groups that share commits; within a group in their order."""
        held = list(messages)
        for i in range(0, len(held), 2000):
            await asyncio.gather(*(self.host.memory.save_message(m.session_id, m) for m in held[i : i + 2000]))


@define
class Services:
    """A host with nothing but the services it is given, by name; `config` is the plugin's table."""

    provided: dict[str, Any] = field(factory=dict)
    config: Mapping[str, Any] = field(factory=dict)
    instance_id: str = "host"
    read_only: bool = False

    def select(self, key: ServiceKey[T]) -> "Selected":
        """Looked up at each use."""
        return Selected(self.provided, key.name)

    def all(self, key: ServiceKey[T]) -> tuple[()]:
        """Nobody provides many."""
        return ()

    def provide(self, key: ServiceKey[T], instance: T) -> Callable[[], None]:
        """Provide a service."""
        self.provided[key.name] = instance
        return lambda: self.provided.pop(key.name, None)

    async def emit(self, hook: str, *, limit: float | None = None, **kwargs: Any) -> list[Any]:
        """Nobody listens."""
        return []

    def now(self) -> int:
        """The wall clock."""
        return wall_clock()


@define
class Selected:
    """A service selection of `Services`."""

    provided: dict[str, Any]
    name: str

    @property
    def present(self) -> bool:
        """It is there."""
        return self.name in self.provided

    def use(self) -> Any:
        """It, or ServiceNotFound."""
        if not self.present:
            raise ServiceNotFound(self.name)
        return self.provided[self.name]


async def until(condition: Any) -> None:
    """Let the loop run until it is so."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def message(session_id: str, content: str, timestamp: int, **fields: Any) -> Message:
    """A stored message of somebody on the platform."""
    return Message(
        **{
            "session_id": session_id,
            "role": "user",
            "content": content,
            "timestamp": timestamp,
            "platform": "onebot",
            **fields,
        }
    )


def group(group_id: str, user_id: str = "7", content: str = "hello", *, bot: str = BOT, **more: Any) -> IncomingMessage:
    """A person writes in a group, to the bot."""
    return IncomingMessage(
        **{
            "session_id": f"onebot:{bot}:group:{group_id}",
            "platform": "onebot",
            "content": content,
            "user_id": user_id,
            "session_type": "group",
            "group_id": group_id,
            "self_id": bot,
            "mentioned": True,
            **more,
        }
    )


def private(user_id: str, content: str = "hello", *, bot: str = BOT, **more: Any) -> IncomingMessage:
    """A person writes to the bot alone."""
    return IncomingMessage(
        **{
            "session_id": f"onebot:{bot}:private:{user_id}",
            "platform": "onebot",
            "content": content,
            "user_id": user_id,
            "session_type": "private",
            "self_id": bot,
            **more,
        }
    )


def person(user_id: str) -> Identity:
    """An account on the platform."""
    return Identity(platform="onebot", user_id=user_id)


@asynccontextmanager
async def stack(
    folder: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    manager: Mapping[str, Any] | None = None,
    with_manager: bool = True,
    others: Sequence[object] = (),
    now: Callable[[], int] = wall_clock,
    chats: Chats | None = None,
    db: str | None = None,
    model_settings: ModelSettings | None = None,
    read_only: bool = False,
) -> AsyncIterator[Stack]:
    """The host with both plugins (and `others`); `settings` are this plugin's, `manager` the session manager's.

    With `model_settings` its model is a real one, else the script.
    """
    plugin, chats, model = ToolSessionPlugin(), chats or Chats(), Script()
    host = AalisHost(
        Settings(
            db=db or str(folder / "aalis.db"),
            authority=AuthoritySettings(owners=("cli:owner", f"{OWNER.platform}:{OWNER.user_id}")),
            model=model_settings or ModelSettings(),
            plugins={NAME: settings or {}, "aalis-plugin-session-manager": manager or {}},
        ),
        plugins=[*([SessionManagerPlugin()] if with_manager else []), plugin, *others],
        model=model if model_settings is None else None,
        now=now,
        read_only=read_only,
    )
    async with host:
        failed = [report for report in host.plugin_report if report.error is not None]
        assert not failed, failed
        host.add_platform(chats)
        yield Stack(host, plugin, chats, model)
