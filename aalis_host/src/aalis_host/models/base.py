"""What a model is, for the agent: messages and tools in, a reply with its usage out."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from attrs import field, frozen

from aalis_api_session_manager.errors import AalisError
from aalis_api_session_manager.message import ToolCall

__all__ = ["Model", "ModelError", "ModelMessage", "ModelReply", "ToolSchema"]

ToolSchema = Mapping[str, Any]
"""A tool as OpenAI's function schema: `{"type": "function", "function": {name, description, parameters}}`."""


class ModelError(AalisError):
    """The model gave no reply; the text says why, for a person."""


@frozen(kw_only=True)
class ModelMessage:
    """One message of the conversation. A `tool` one answers the call with its `tool_call_id`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = field(default=(), converter=tuple[ToolCall, ...])
    tool_call_id: str | None = None


@frozen(kw_only=True)
class ModelReply:
    """A whole answer: text, calls of tools, and the tokens it took."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = field(default=(), converter=tuple[ToolCall, ...])
    input_tokens: int = 0
    output_tokens: int = 0


class Model(Protocol):
    """A language model."""

    async def complete(self, messages: Sequence[ModelMessage], tools: Sequence[ToolSchema]) -> ModelReply:
        """The next message of the conversation. Raises ModelError."""
        ...

    async def close(self) -> None:
        """Release what it holds."""
        ...
