"""The way of every message: in through the hooks, the gate and the agent; out through the adapter that claims it."""

from collections.abc import Callable

import structlog
from attrs import frozen

from aalis_api_session_manager.host import PlatformAdapter
from aalis_api_session_manager.kinds import chat_scope_of, from_elsewhere, origin_chat_of
from aalis_api_session_manager.message import IncomingMessage, Message, OutgoingMessage
from aalis_api_session_manager.service import AGENT, MEMORY, PLATFORM, SESSION_MANAGER
from aalis_host.hooks import Hooks
from aalis_host.services import ServiceRegistry
from aalis_host.settings import Trigger

__all__ = ["Gateway", "is_current", "multi_party", "stored"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def stored(message: IncomingMessage, session_id: str, now: int) -> Message:
    """An incoming message as the history keeps it; `now` is its time when it has none of its own.

    What the bot's own account sent is the assistant's.
    """
    made_by = {"source": message.source, "triggerType": message.trigger_type}
    return Message(
        session_id=session_id,
        role="assistant" if message.own else "user",
        content=message.content,
        timestamp=now if message.timestamp is None else message.timestamp,
        platform=message.platform,
        user_id=message.user_id,
        user_name=message.user_name,
        message_id=message.message_id,
        metadata={key: value for key, value in made_by.items() if value} or None,
    )


def is_current(services: ServiceRegistry, session_id: str, generation: int) -> bool:
    """Is this still the session's generation; without a session manager nothing is compared. Rules: GEN-2, GEN-4."""
    sessions = services.select(SESSION_MANAGER)
    return not sessions.present or sessions.use().generation_of(session_id) == generation


def multi_party(message: IncomingMessage, services: ServiceRegistry) -> bool:
    """Do several people share the message's window: as its session was filed, else as its platform declares it."""
    chat = None if message.session_id is None else origin_chat_of(message.session_id, services.select(SESSION_MANAGER))
    if chat is None:
        types = next(
            (one.instance.session_types for one in services.all(PLATFORM) if one.instance.platform == message.platform),
            {},
        )
        chat = chat_scope_of(message, types)
    return chat.multi_party


@frozen
class Gateway:
    """The `GatewayService` of a host."""

    _services: ServiceRegistry
    _hooks: Hooks
    _now: Callable[[], int]
    _trigger: Trigger

    async def ingress(self, message: IncomingMessage) -> None:
        """Take a message in; returns when its turn has ended, or it was stored or dropped without one.

        Raises StorageError when the message couldn't be stored.
        """
        answers = await self._hooks.call("aalis_inbound", message=message)
        session_id = message.session_id
        if session_id is None:
            return
        generation = next((answer for answer in answers if type(answer) is int), 0)
        memory = self._services.select(MEMORY).use()
        if message.own:
            await memory.save_message(session_id, stored(message, session_id, self._now()), generation)
        elif not await self._wanted(message):
            await memory.save_message(session_id, stored(message, session_id, self._now()))
        elif is_current(self._services, session_id, generation):
            await self._services.select(AGENT).use().handle_message(message, generation)

    async def _wanted(self, message: IncomingMessage) -> bool:
        """Shall the message have a turn: the gate's first word, else the trigger setting. Rule: ORIGIN-7."""
        swallowed = await self._hooks.first_result("aalis_inbound_gate", message=message)
        if swallowed is not None:
            return not swallowed
        elsewhere = not message.native or from_elsewhere(message, self._services.select(SESSION_MANAGER))
        if elsewhere or self._trigger == "always" or not multi_party(message, self._services):
            return True
        return self._trigger == "mentioned" and message.mentioned

    async def dispatch(self, message: OutgoingMessage) -> None:
        """Send to the first adapter that claims the session; raises what it raises.

        Without one it is only logged: a session without an audience of its own.
        """
        for provided in self._services.all(PLATFORM):
            if await _claims(provided.instance, message.session_id):
                await provided.instance.send(message)
                return
        log.debug("nobody to send to", session=message.session_id, turn=message.turn_id)


async def _claims(adapter: PlatformAdapter, session_id: str) -> bool:
    try:
        return await adapter.claims(session_id)
    except Exception as error:
        log.error("an adapter can't tell its sessions", platform=adapter.platform, session=session_id, exc_info=error)
        return False
