"""What a host offers a plugin, and what the parts of a host offer each other."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

from attrs import field, frozen

from aalis_api_session_manager.message import IncomingMessage, OutgoingMessage, ToolCallContext
from aalis_api_session_manager.service import ServiceKey, ServiceSelection

__all__ = [
    "AgentService",
    "AuthorityService",
    "GatewayService",
    "Host",
    "Inject",
    "PlatformAdapter",
    "PluginMeta",
    "Provided",
    "ToolRegistry",
    "ToolSpec",
]

T = TypeVar("T")


@frozen(kw_only=True)
class Inject:
    """The names of services that a plugin needs: `required` ones before it is activated."""

    required: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    optional: tuple[str, ...] = field(default=(), converter=tuple[str, ...])


@frozen(kw_only=True)
class PluginMeta:
    """What a plugin says of itself, in its class attribute `meta`. Rule: META-1.

    `config`: an attrs class of its settings, for a host that lists them (field metadata "help" explains one).
    """

    name: str
    subsystem: str | None = None
    provides: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    inject: Inject = field(factory=Inject)
    config: type | None = None


@frozen(kw_only=True)
class Provided(Generic[T]):
    """One provider of a service. `context_id` names the plugin instance that provides it."""

    instance: T
    context_id: str


class Host(Protocol):
    """The host, as one plugin sees it."""

    @property
    def config(self) -> Mapping[str, Any]:
        """This plugin's own table of the configuration."""
        ...

    @property
    def instance_id(self) -> str:
        """Names this running host; no two have the same."""
        ...

    @property
    def read_only(self) -> bool:
        """Only reading: nothing may be made, closed, resumed or repaired in the store."""
        ...

    def select(self, key: ServiceKey[T]) -> ServiceSelection[T]:
        """A service, looked up at each use."""
        ...

    def all(self, key: ServiceKey[T]) -> Sequence[Provided[T]]:
        """Every provider of a service, in the order of registration."""
        ...

    def provide(self, key: ServiceKey[T], instance: T) -> Callable[[], None]:
        """Provide a service; the answer takes it back."""
        ...

    async def emit(self, hook: str, *, limit: float | None = None, **kwargs: Any) -> list[Any]:
        """Call a hook: each implementation awaited, one after the other, isolated; the results but None.

        `limit`: seconds that each may take; one that takes longer is left behind, as if it had raised.
        """
        ...

    def now(self) -> int:
        """Milliseconds since the epoch."""
        ...


class PlatformAdapter(Protocol):
    """A way in and out. It may also have `async check_and_record_proactive_send(session_id) -> str | None`,
    which answers None to allow a proactive message, else the reason (rule DELEG-5)."""

    @property
    def platform(self) -> str:
        """Its name; without a colon."""
        ...

    @property
    def session_types(self) -> Mapping[str, bool]:
        """Its window types: type name -> multi-party."""
        ...

    async def claims(self, session_id: str) -> bool:
        """Does this id belong to this adapter now."""
        ...

    async def send(self, message: OutgoingMessage) -> None:
        """Deliver to the session's audience. Raises when it can't."""
        ...


class AuthorityService(Protocol):
    """Who is an owner."""

    def is_owner(self, platform: str, user_id: str) -> bool:
        """Is this account one of the owner's."""
        ...


class AgentService(Protocol):
    """Turns."""

    async def handle_message(self, message: IncomingMessage, generation: int) -> None:
        """Run the message's turn, after earlier ones of its session and source; returns when it has ended.

        Dropped, unarchived, when `generation` isn't the session's any more. Rule: GEN-2.
        """
        ...

    async def clearing(self, session_id: str, work: Callable[[], Awaitable[None]]) -> None:
        """Stop the session's turns, hold it while `work` runs, then let go. Rule: DELETE-2.

        Raises what `work` raises.
        """
        ...

    def abort(self, session_id: str) -> None:
        """Stop the session's running turns."""
        ...


class GatewayService(Protocol):
    """The way of every message."""

    async def ingress(self, message: IncomingMessage) -> None:
        """Take a message in; returns when its turn has ended, or it was stored or dropped without one."""
        ...

    async def dispatch(self, message: OutgoingMessage) -> None:
        """Send to the first adapter that claims the session; without one it is only logged (a session without
        an audience of its own). Raises what the adapter raises."""
        ...


@frozen(kw_only=True)
class ToolSpec:
    """A tool that a model may call.

    `description` may be a function of the names registered. `parameters` is a JSON schema of an object;
    arguments are checked against it before `handler` runs. The handler returns a JSON text.
    """

    name: str
    group: str
    description: str | Callable[[Sequence[str]], str]
    parameters: Mapping[str, Any]
    handler: Callable[[dict[str, Any], ToolCallContext], Awaitable[str]]
    risk: Literal["read", "act"] = "read"


class ToolRegistry(Protocol):
    """The tools that models are given."""

    def register(self, tool: ToolSpec) -> Callable[[], None]:
        """Add a tool; the answer removes it. Raises ValueError for a name that is taken."""
        ...

    def names(self) -> Sequence[str]:
        """The registered names, sorted."""
        ...
