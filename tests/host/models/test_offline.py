"""The model that needs nothing: what it says, and the tools it calls."""

from aalis_api_session_manager.message import ToolCall
from aalis_host.config import ModelSettings
from aalis_host.models import open_model
from aalis_host.models.base import ModelMessage, ModelReply

TOOLS = [{"type": "function", "function": {"name": "list_known_sessions", "description": "", "parameters": {}}}]


async def ask(*contents: str, results: tuple[str, ...] = ()) -> ModelReply:
    messages = [ModelMessage(role="user", content=content) for content in contents]
    messages += [ModelMessage(role="tool", content=result, tool_call_id="c") for result in results]
    return await open_model(ModelSettings()).complete(messages, TOOLS)


def called(reply: ModelReply) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in reply.tool_calls]


async def test_it_says_what_it_read() -> None:
    """The last message, and how to call a tool; the same each time, with tokens counted."""
    first, second = await ask("one", "hello"), await ask("one", "hello")
    assert first == second
    assert first.content.startswith("You wrote: hello\n")
    assert "/list_known_sessions {}" in first.content
    assert first.tool_calls == ()
    assert first.input_tokens > 0
    assert first.output_tokens > 0


async def test_a_line_that_is_a_call() -> None:
    """With JSON any name, without it a tool's own; behind a sender's name too; several lines are several calls."""
    assert called(await ask('/list_known_sessions {"limit": 3}')) == [("list_known_sessions", '{"limit": 3}')]
    assert called(await ask("/list_known_sessions")) == [("list_known_sessions", "{}")]
    assert called(await ask("Ann: /list_known_sessions {}")) == [("list_known_sessions", "{}")]
    assert called(await ask("/nothing {}")) == [("nothing", "{}")]
    assert called(await ask('first\n/nothing {"a": 1}\n/list_known_sessions {broken}')) == [
        ("nothing", '{"a": 1}'),
        ("list_known_sessions", "{broken}"),
    ]
    reply = await ask("/list_known_sessions {}")
    assert reply.content == ""
    assert reply.output_tokens > 0


async def test_what_is_no_call() -> None:
    """Paths, unknown words and sentences are answered."""
    for text in ("/help", "/usr/bin", "see /list_known_sessions {}?", "a / b", ""):
        assert called(await ask(text)) == [], text


async def test_results_are_the_answer() -> None:
    """The results of this round, in order, as they are."""
    reply = await ask("/nothing {}", results=('{"a": 1}', '{"error": "x"}'))
    assert (reply.content, reply.tool_calls) == ('{"a": 1}\n{"error": "x"}', ())


async def test_call_ids_differ() -> None:
    """Two calls are never mixed up."""
    first, second = (await ask("/nothing {}\n/nothing {}")).tool_calls
    assert isinstance(first, ToolCall)
    assert first.id != second.id
