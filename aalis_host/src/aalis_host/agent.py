"""Turns: history -> model -> tool calls -> reply.

A turn runs in a task of its own, so that stopping it never stops who asked for it, and what must follow (its
`aalis_turn_after`) can't be cut off.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from itertools import count
from typing import Any
from uuid import uuid4

import structlog
from attrs import define, evolve, field

from aalis_api_session_manager.errors import AalisError, ConfigError
from aalis_api_session_manager.message import (
    IncomingMessage,
    LlmUsage,
    Message,
    MessageRole,
    OutgoingMessage,
    ToolCall,
    ToolCallContext,
    TurnEnd,
    TurnStart,
)
from aalis_api_session_manager.model import TurnOutcome
from aalis_api_session_manager.service import GATEWAY, MEMORY
from aalis_api_session_manager.text import TextRef
from aalis_host.channels import Channels
from aalis_host.claims import Claim, Claims
from aalis_host.gateway import is_current, multi_party, stored
from aalis_host.hooks import Hooks
from aalis_host.models.base import Model, ModelError, ModelMessage, ModelReply
from aalis_host.prompt import prompt
from aalis_host.services import ServiceRegistry
from aalis_host.settings import AgentSettings
from aalis_host.texts import model_failed, not_sent, too_many_rounds
from aalis_host.tools import Tools

__all__ = ["Agent"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

PATIENCE = 10.0
"""Seconds that stopping waits for a turn; one that doesn't end by then can't write any more (rule GEN-5)."""


@define(eq=False, kw_only=True)
class _Turn:
    """A turn from the moment that it has its channel. `arrived`: when its message came to the agent."""

    id: str = field(factory=lambda: uuid4().hex)
    session_id: str
    message: IncomingMessage
    generation: int
    arrived: int
    stopped: bool = False
    shell: asyncio.Task[None] | None = None
    work: asyncio.Task[TurnOutcome] | None = None
    claim: Claim | None = None
    reply: str | None = None

    def stop(self) -> None:
        self.stopped = True
        if self.work is not None:
            self.work.cancel()


class _Failed(Exception):
    """A turn can't go on, and why."""

    def __init__(self, reason: TextRef) -> None:
        super().__init__(reason.source)
        self.reason = reason


_INSIDE: ContextVar[tuple[_Turn, ...]] = ContextVar("aalis_turns", default=())
"""The turns that the running code belongs to: a turn, and those that (through a tool) wait for it."""


class Agent:
    """The `AgentService` of a host. `model` gives the model, or raises ConfigError."""

    def __init__(
        self,
        *,
        services: ServiceRegistry,
        hooks: Hooks,
        tools: Tools,
        model: Callable[[], Model],
        settings: AgentSettings,
        now: Callable[[], int],
        host_id: str,
    ) -> None:
        self._services = services
        self._hooks = hooks
        self._tools = tools
        self._model = model
        self._settings = settings
        self._now = now
        self._channels = Channels()
        self._claims = Claims(services.select(MEMORY).use, host_id, now)
        self._running: dict[str, set[_Turn]] = {}
        self._closing = False

    async def handle_message(self, message: IncomingMessage, generation: int) -> None:
        """Run the message's turn, after earlier ones of its session and source; returns when it has ended.

        Dropped, unarchived, when `generation` isn't the session's any more (rule GEN-2); without a turn when the
        session has the message already, or when the agent is closing. Cancelling it stops the turn. Raises
        StorageError when the message couldn't be stored.
        """
        session_id = message.session_id
        if session_id is None:
            raise ValueError("a message without a session has no turn")
        arrived = self._now()
        async with self._channels.turn(session_id, message.source):
            turn = _Turn(session_id=session_id, message=message, generation=generation, arrived=arrived)
            turn.stopped = self._closing
            turn.shell = asyncio.create_task(self._run(turn), name=f"turn {turn.id}")
            running = self._running.setdefault(session_id, set())
            running.add(turn)
            try:
                await _outlive(turn.shell, turn.stop)
            finally:
                running.discard(turn)
                if not running:
                    del self._running[session_id]

    async def clearing(self, session_id: str, work: Callable[[], Awaitable[None]]) -> None:
        """Stop the session's turns, hold it while `work` runs, then let go. Raises what `work` raises. Rule: DELETE-2.

        Called from inside a turn of the session (a tool that deletes it), that turn isn't waited for: it is
        stopped when `work` has ended.
        """
        async with self._channels.hold(session_id):
            turns = self._turns(session_id)
            around = [turn for turn in turns if turn in _INSIDE.get()]
            for turn in around:
                turn.stopped = True
            await _stop([turn for turn in turns if turn not in around])
            await work()
        for turn in around:
            turn.stop()

    def abort(self, session_id: str) -> None:
        """Stop the session's running turns."""
        for turn in self._turns(session_id):
            turn.stop()

    async def close(self) -> None:
        """Stop every turn and wait for their ends; what waits or still comes in is stored without a turn."""
        self._closing = True
        for session_id in list(self._running):
            self.abort(session_id)
        try:
            async with asyncio.timeout(PATIENCE):
                await self._channels.idle()
        except TimeoutError:
            log.warning("turns don't end", sessions=list(self._running), seconds=PATIENCE)
        await self._claims.close()

    def _turns(self, session_id: str) -> list[_Turn]:
        return list(self._running.get(session_id, ()))

    async def _run(self, turn: _Turn) -> None:
        _INSIDE.set((*_INSIDE.get(), turn))
        async with self._claims.held(
            turn.session_id, turn.message.source, on_lost=turn.stop, given_up=lambda: turn.stopped
        ) as turn.claim:
            if not is_current(self._services, turn.session_id, turn.generation):
                log.info("a message of a deleted session was dropped", session=turn.session_id)
                return
            question = stored(turn.message, turn.session_id, self._now())
            if turn.message.timestamp is None:
                turn.arrived = question.timestamp
            saved = await self._services.select(MEMORY).use().save_message(turn.session_id, question, turn.generation)
            if saved.status != "saved":
                log.info("a message has no turn", session=turn.session_id, because=saved.status)
            elif not turn.stopped:
                await self._turn(turn, evolve(question, id=saved.id))

    async def _turn(self, turn: _Turn, question: Message) -> None:
        outcome: TurnOutcome = "aborted"
        error: str | TextRef | None = None
        try:
            start = TurnStart(turn_id=turn.id, message=turn.message, session_id=turn.session_id, started_at=self._now())
            await self._hooks.call("aalis_turn_before", turn=start)
            if not turn.stopped:
                turn.work = asyncio.create_task(self._work(turn, question))
                await asyncio.wait([turn.work])
                outcome, error = _result(turn, turn.work)
        finally:
            if turn.work is not None:
                turn.work.cancel()
            end = TurnEnd(
                turn_id=turn.id,
                message=turn.message,
                session_id=turn.session_id,
                ended_at=self._now(),
                outcome=outcome,
                reply=turn.reply,
                error=error,
            )
            await self._hooks.call("aalis_turn_after", turn=end)

    async def _work(self, turn: _Turn, question: Message) -> TurnOutcome:
        messages = await self._prompt(turn, question)
        for rounds in count():
            reply = await self._ask(turn, messages)
            if not reply.tool_calls:
                return await self._answer(turn, question, reply.content)
            if rounds == self._settings.max_tool_rounds:
                raise _Failed(too_many_rounds(rounds))
            await self._save(turn, question, "assistant", reply.content, tool_calls=reply.tool_calls)
            messages.append(ModelMessage(role="assistant", content=reply.content, tool_calls=reply.tool_calls))
            for call in reply.tool_calls:
                messages.append(await self._call(turn, question, call))
        raise AssertionError("count() never ends")

    async def _prompt(self, turn: _Turn, question: Message) -> list[ModelMessage]:
        """The history with the message to answer last, whatever its own time is."""
        memory = self._services.select(MEMORY).use()
        page = await memory.history(turn.session_id, self._settings.history_messages)
        return prompt(
            [*(message for message in page.messages if message.id != question.id), question],
            system_prompt=self._settings.system_prompt,
            multi_party=multi_party(turn.message, self._services),
        )

    async def _ask(self, turn: _Turn, messages: Sequence[ModelMessage]) -> ModelReply:
        try:
            reply = await self._model().complete(messages, self._tools.describe())
        except (ModelError, ConfigError) as error:
            raise _Failed(model_failed(str(error))) from error
        if is_current(self._services, turn.session_id, turn.generation):
            usage = LlmUsage(
                session_id=turn.session_id, input_tokens=reply.input_tokens, output_tokens=reply.output_tokens
            )
            await self._hooks.call("aalis_llm_usage", usage=usage)
        return reply

    async def _call(self, turn: _Turn, question: Message, call: ToolCall) -> ModelMessage:
        context = ToolCallContext(
            session_id=turn.session_id,
            platform=turn.message.platform,
            approve_for=turn.message.participants,
            turn_id=turn.id,
        )
        result = await self._tools.call(call.name, call.arguments, context)
        await self._save(turn, question, "tool", result, tool_call_id=call.id, name=call.name)
        return ModelMessage(role="tool", content=result, tool_call_id=call.id)

    async def _answer(self, turn: _Turn, question: Message, text: str) -> TurnOutcome:
        if not text.strip():
            return "silent"
        await self._save(turn, question, "assistant", text)
        turn.reply = text
        outgoing = OutgoingMessage(
            session_id=turn.session_id, content=text, turn_id=turn.id, reply_to=turn.message.message_id
        )
        try:
            await self._services.select(GATEWAY).use().dispatch(outgoing)
        except Exception as error:
            raise _Failed(not_sent(str(error) or type(error).__name__)) from error
        return "replied"

    async def _save(self, turn: _Turn, question: Message, role: MessageRole, content: str, **rest: Any) -> None:
        """Store what the turn says, as long after its question as it took.

        By the question's own clock, so that a conversation stays in order when its messages carry times of their
        own. A turn that was stopped, or whose session is gone, ends here.
        """
        message = Message(
            session_id=turn.session_id,
            role=role,
            content=content,
            timestamp=question.timestamp + max(0, self._now() - turn.arrived),
            platform=turn.message.platform,
            **rest,
        )
        if turn.claim is not None:
            await self._claims.confirm(turn.claim)
        if turn.stopped:
            raise asyncio.CancelledError
        saved = await self._services.select(MEMORY).use().save_message(turn.session_id, message, turn.generation)
        if saved.status == "refused":
            raise asyncio.CancelledError


def _result(turn: _Turn, work: asyncio.Task[TurnOutcome]) -> tuple[TurnOutcome, str | TextRef | None]:
    if work.cancelled():
        return "aborted", None
    match work.exception():
        case None:
            return work.result(), None
        case _Failed() as failed:
            log.warning("a turn failed", session=turn.session_id, turn=turn.id, reason=str(failed))
            return "error", failed.reason
        case error:
            log.error("a turn failed", session=turn.session_id, turn=turn.id, exc_info=error)
            return "error", str(error) if isinstance(error, AalisError) else f"{type(error).__name__}: {error}"


async def _outlive(task: asyncio.Task[None], stop: Callable[[], None]) -> None:
    """Wait until the task has ended, whatever happens; being cancelled meanwhile calls `stop` and is raised then."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            stop()
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # it was looked at: whoever was cancelled doesn't want to know
        raise cancelled
    await task


async def _stop(turns: Sequence[_Turn]) -> None:
    """Stop turns and wait for their ends, as long as there is patience."""
    for turn in turns:
        turn.stop()
    shells = [turn.shell for turn in turns if turn.shell is not None]
    if shells:
        _, stuck = await asyncio.wait(shells, timeout=PATIENCE)
        if stuck:
            log.warning("turns don't end", turns=[turn.id for turn in turns if turn.shell in stuck], seconds=PATIENCE)
