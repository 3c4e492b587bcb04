"""Any model behind an OpenAI-compatible address. Imported only when the settings ask for it."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import structlog
from attrs import define, field
from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, AsyncOpenAI

from aalis_api_session_manager.errors import ConfigError
from aalis_api_session_manager.message import ToolCall
from aalis_api_session_manager.values import thaw_json
from aalis_host.models.base import ModelError, ModelMessage, ModelReply, ToolSchema
from aalis_host.settings import ModelSettings

__all__ = ["OpenAIModel"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_PAUSE = 0.5
"""Seconds before a broken stream is asked for again; doubled each time."""


class _Broken(Exception):
    """A stream ended before the answer did."""


class OpenAIModel:
    """A `Model` on the openai package.

    The client retries what didn't begin (refused connections, 429 and 5xx, waiting as `retry-after` says); a
    stream that breaks is asked for again here, for nobody has read a part of it yet.
    """

    def __init__(self, settings: ModelSettings) -> None:
        """Raises ConfigError when the environment holds no key."""
        self._settings = settings
        self._client = AsyncOpenAI(
            api_key=_key(settings),
            base_url=settings.base_url or None,
            timeout=settings.timeout,
            max_retries=settings.retries,
        )

    async def complete(self, messages: Sequence[ModelMessage], tools: Sequence[ToolSchema]) -> ModelReply:
        """The next message of the conversation. Raises ModelError, in words for a person."""
        request: dict[str, Any] = {"model": self._settings.name, "messages": [_plain(one) for one in messages]}
        if tools:
            request["tools"] = [thaw_json(tool) for tool in tools]
        if self._settings.temperature is not None:
            request["temperature"] = self._settings.temperature
        try:
            return await (self._in_pieces(request) if self._settings.stream else self._whole(request))
        except APIError as error:
            raise ModelError(self._in_words(error)) from error
        except ValueError as error:
            raise ModelError("its server answered something that can't be read") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _whole(self, request: dict[str, Any]) -> ModelReply:
        completions: Any = self._client.chat.completions
        answer = await completions.create(**request)
        if isinstance(answer, str) or not answer.choices:
            raise ModelError(f"its server gave no answer: {_said(getattr(answer, 'error', None) or answer)}")
        message = answer.choices[0].message
        pieces = _Pieces(usage=answer.usage)
        pieces.add(message)
        return pieces.reply()

    async def _in_pieces(self, request: dict[str, Any]) -> ModelReply:
        for attempt in range(self._settings.retries + 1):
            completions: Any = self._client.chat.completions
            stream = await completions.create(**request, stream=True, stream_options={"include_usage": True})
            try:
                return await _read(stream)
            except (APIConnectionError, _Broken) as error:
                if isinstance(error, APITimeoutError):
                    raise
                log.warning("a model's answer broke off", attempt=attempt + 1)
            await asyncio.sleep(_PAUSE * 2**attempt)
        raise ModelError("its connection broke off in the middle of the answer, each time it was tried")

    def _in_words(self, error: APIError) -> str:
        match error:
            case APITimeoutError():
                return f"its server was silent for {self._settings.timeout:g} seconds (model.timeout)"
            case APIConnectionError():
                cause = error.__cause__
                return f"{self._client.base_url} can't be reached: {cause or error}"
            case APIStatusError(status_code=401 | 403):
                return f"its server refused the key ({error.status_code}): {_said(error.body)}"
            case APIStatusError(status_code=429):
                return f"its server has too many requests (429): {_said(error.body)}"
            case APIStatusError():
                return f"its server answered {error.status_code}: {_said(error.body)}"
            case _:
                return f"its server reported: {_said(error.message)}"


def _key(settings: ModelSettings) -> str:
    if not settings.api_key_env:
        return "none"
    key = os.environ.get(settings.api_key_env, "").strip()
    if not key or not key.isascii():
        raise ConfigError(
            f"model.kind is 'openai', but the environment variable {settings.api_key_env} holds no key"
            " (model.api_key_env names another one; empty is for a server that wants none)"
        )
    return key


def _plain(message: ModelMessage) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _said(body: Any) -> str:
    """What a server said of its error, on one line: the message where there is one, else the start of the body."""
    message = body.get("message", body) if isinstance(body, dict) else body
    return " ".join(str(message).split())[:200] or "nothing more"


@define
class _Call:
    id: str = ""
    name: str = ""
    arguments: str = ""


@define
class _Pieces:
    """An answer as far as it has come."""

    usage: Any = None
    text: list[str] = field(factory=list)
    calls: list[_Call] = field(factory=list)
    _by_index: dict[int | None, _Call] = field(factory=dict)

    def add(self, piece: Any) -> None:
        """A whole message, or a piece of one."""
        self.text.append(piece.content or getattr(piece, "refusal", None) or "")
        for part in piece.tool_calls or ():
            call = self._call_of(getattr(part, "index", None), part.id or "")
            if part.function is not None:
                call.name = call.name or part.function.name or ""
                call.arguments += part.function.arguments or ""

    def _call_of(self, index: int | None, call_id: str) -> _Call:
        """The call that a piece belongs to: a new id begins a new one, even where a server repeats its index."""
        call = self._by_index.get(index)
        if call is None or (call_id and call.id and call_id != call.id):
            call = _Call()
            self._by_index[index] = call
            self.calls.append(call)
        call.id = call.id or call_id
        return call

    def reply(self) -> ModelReply:
        return ModelReply(
            content="".join(self.text),
            tool_calls=tuple(
                ToolCall(id=call.id or f"call_{uuid4().hex}", name=call.name, arguments=call.arguments)
                for call in self.calls
            ),
            input_tokens=getattr(self.usage, "prompt_tokens", None) or 0,
            output_tokens=getattr(self.usage, "completion_tokens", None) or 0,
        )


async def _read(stream: Any) -> ModelReply:
    pieces = _Pieces()
    finished = False
    async with stream:
        async for chunk in stream:
            pieces.usage = chunk.usage or pieces.usage
            for choice in (chunk.choices or ())[:1]:
                if choice.delta is not None:
                    pieces.add(choice.delta)
                finished = finished or choice.finish_reason is not None
    if not finished:
        raise _Broken
    return pieces.reply()
