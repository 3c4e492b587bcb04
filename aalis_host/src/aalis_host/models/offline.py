"""A model without a key and without a network: it says what it read, and calls a tool when a line asks for it."""

import re
from collections.abc import Sequence
from itertools import takewhile
from uuid import uuid4

from aalis_api_session_manager.message import ToolCall
from aalis_host.models.base import ModelMessage, ModelReply, ToolSchema

__all__ = ["OfflineModel"]

_LINE = re.compile(r"^(?:[^\n/]*: )?/([A-Za-z0-9_-]+)[ \t]*(\{.*\})?[ \t]*$", re.MULTILINE)
"""`/tool_name {json}`, behind the sender's name where one stands ahead."""


class OfflineModel:
    """A deterministic `Model`.

    Each line `/tool_name {json}` of the message calls that tool (the JSON may be left out for a tool that
    exists), and the results are the answer. Anything else is answered with what was read.
    """

    async def complete(self, messages: Sequence[ModelMessage], tools: Sequence[ToolSchema]) -> ModelReply:
        """The answer to the last message. Tokens are counted as one for four characters, and at least one."""
        results = [message.content for message in takewhile(lambda m: m.role == "tool", reversed(messages))]
        names = [tool["function"]["name"] for tool in tools]
        asked = messages[-1].content if messages else ""
        calls = () if results else _calls(asked, names)
        text = "\n".join(reversed(results)) if results else "" if calls else _answer(asked, names)
        return ModelReply(
            content=text,
            tool_calls=calls,
            input_tokens=_tokens(*(message.content for message in messages)),
            output_tokens=_tokens(text, *(call.arguments for call in calls)),
        )

    async def close(self) -> None:
        """It holds nothing."""


def _calls(text: str, names: Sequence[str]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(id=f"call_{uuid4().hex}", name=line[1], arguments=line[2] or "{}")
        for line in _LINE.finditer(text)
        if line[2] or line[1] in names
    )


def _answer(text: str, names: Sequence[str]) -> str:
    hint = f" A line such as /{names[0]} {{}} calls a tool." if names else ""
    return f"You wrote: {text}\n(This is the offline model.{hint})"


def _tokens(*texts: str) -> int:
    return max(1, sum(map(len, texts)) // 4)
