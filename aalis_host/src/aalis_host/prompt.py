"""What the model is given of a conversation. Pure."""

from collections import deque
from collections.abc import Sequence

from aalis_api_session_manager.message import Message
from aalis_host.models.base import ModelMessage

__all__ = ["prompt"]


def prompt(history: Sequence[Message], *, system_prompt: str, multi_party: bool) -> list[ModelMessage]:
    """A history, oldest first, as a model takes it.

    Every call of a tool stands directly ahead of its results, whatever came in between (a parallel turn, a page
    that begins in the middle, a turn that was stopped); calls without all their results are left out. In a
    window of several people the sender's name stands ahead of what they wrote.
    """
    results: dict[str, deque[tuple[int, Message]]] = {}
    for index, message in enumerate(history):
        if message.role == "tool" and message.tool_call_id is not None:
            results.setdefault(message.tool_call_id, deque()).append((index, message))
    made = [ModelMessage(role="system", content=system_prompt)] if system_prompt else []
    for index, message in enumerate(history):
        if message.role == "tool":
            continue
        answers = [_result_after(results, call.id, index) for call in message.tool_calls]
        found = [answer for answer in answers if answer is not None]
        if message.tool_calls and len(found) == len(answers):
            made.append(ModelMessage(role="assistant", content=message.content, tool_calls=message.tool_calls))
            made += [
                ModelMessage(role="tool", content=answer.content, tool_call_id=answer.tool_call_id) for answer in found
            ]
        elif message.content:
            made.append(ModelMessage(role=message.role, content=_spoken(message) if multi_party else message.content))
    return made


def _result_after(results: dict[str, deque[tuple[int, Message]]], call_id: str, index: int) -> Message | None:
    """The next unused result of a call; some servers give the same ids again and again."""
    waiting = results.get(call_id, deque())
    while waiting:
        position, message = waiting.popleft()
        if position > index:
            return message
    return None


def _spoken(message: Message) -> str:
    speaker = " ".join((message.user_name or message.user_id or "").split())
    return f"{speaker}: {message.content}" if message.role == "user" and speaker else message.content
