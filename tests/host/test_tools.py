"""The tool registry: what models are given, and calls that never raise."""

import asyncio
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from aalis_api_session_manager.errors import StorageError
from aalis_api_session_manager.host import ToolSpec
from aalis_api_session_manager.message import ToolCallContext
from aalis_host.tools import Tools
from tests.host.kit import tool

CONTEXT = ToolCallContext(session_id="s")


async def error(tools: Tools, name: str, arguments: str) -> str:
    answer = json.loads(await tools.call(name, arguments, CONTEXT))
    assert list(answer) == ["error"]
    text = answer["error"]
    assert isinstance(text, str)
    return text


async def test_a_call() -> None:
    """The handler is given the arguments, read kindly, and the context; its answer is passed on as it is."""
    given: list[Any] = []

    async def handler(arguments: dict[str, Any], context: ToolCallContext) -> str:
        given.append((arguments, context))
        return '{"answer": 42}'

    tools = Tools()
    tools.register(tool("ask", handler, {"limit": {"type": "integer"}, "other": {"type": "string"}}))
    assert await tools.call("ask", '{"limit": "20", "other": null}', CONTEXT) == '{"answer": 42}'
    assert await tools.call("ask", "", CONTEXT) == '{"answer": 42}'
    assert given == [({"limit": 20}, CONTEXT), ({}, CONTEXT)]


async def test_refusals() -> None:
    """Unknown tools, what isn't JSON or no object, and wrong arguments say what is allowed."""
    tools = Tools()
    tools.register(tool("list_known_sessions", properties={"limit": {"type": "integer"}}, required=["limit"]))
    assert await error(tools, "list_known_session", "{}") == (
        "there is no tool 'list_known_session'; did you mean 'list_known_sessions'?"
    )
    assert await error(tools, "zzz", "{}") == "there is no tool 'zzz'; there are list_known_sessions"
    for broken in ('{"limit": 2', "{'limit': 2}", '{"limit": NaN}', "limit=2"):
        assert "aren't JSON" in await error(tools, "list_known_sessions", broken)
    for other in ("[]", "null", '"x"', "3"):
        assert "must be one JSON object" in await error(tools, "list_known_sessions", other)
    assert await error(tools, "list_known_sessions", '{"limt": 3}') == (
        "there is no argument 'limt'; did you mean 'limit'?; the argument 'limit' is missing"
    )


async def test_a_failing_tool() -> None:
    """An error inside a tool is logged; the model is told its kind, and the words only of a known error."""

    async def broken(arguments: dict[str, Any], context: ToolCallContext) -> str:
        raise ValueError("a secret path")

    async def stuck(arguments: dict[str, Any], context: ToolCallContext) -> str:
        raise StorageError("the database is locked")

    async def inner(arguments: dict[str, Any], context: ToolCallContext) -> str:
        raise asyncio.CancelledError

    tools = Tools()
    for name, handler in (("broken", broken), ("stuck", stuck), ("inner", inner)):
        tools.register(tool(name, handler))
    with capture_logs() as logs:
        assert await error(tools, "broken", "{}") == "broken failed: an error inside it (ValueError)"
        assert await error(tools, "stuck", "{}") == "stuck failed: the database is locked"
        assert await error(tools, "inner", "{}") == "inner failed: an error inside it (CancelledError)"
    assert [(entry["tool"], entry["session"]) for entry in logs] == [("broken", "s"), ("stuck", "s"), ("inner", "s")]


async def test_cancelling_a_call() -> None:
    """Who calls a tool can be cancelled while it runs."""

    async def slow(arguments: dict[str, Any], context: ToolCallContext) -> str:
        await asyncio.sleep(60)
        return "{}"

    tools = Tools()
    tools.register(tool("slow", slow))
    task = asyncio.create_task(tools.call("slow", "{}", CONTEXT))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_registering() -> None:
    """A taken or impossible name and a schema that is none are refused; a removed tool's name is free."""
    tools = Tools()
    remove = tools.register(tool("a"))
    with pytest.raises(ValueError, match="'a' is registered already"):
        tools.register(tool("a"))
    with pytest.raises(ValueError, match="can't name a tool"):
        tools.register(tool("a tool"))
    with pytest.raises(ValueError, match="aren't the schema of an object"):
        tools.register(tool("b", type="string"))
    with pytest.raises(ValueError, match="aren't a JSON schema"):
        tools.register(tool("b", properties={"x": {"type": "text"}}))
    remove()
    tools.register(tool("a"))
    remove()
    assert tools.names() == ["a"]


def test_what_a_model_is_given() -> None:
    """OpenAI's function schema of every tool, by name; a description may speak of the tools that are there."""

    async def handler(arguments: dict[str, Any], context: ToolCallContext) -> str:
        return "{}"

    tools = Tools()
    tools.register(
        ToolSpec(
            name="b",
            group="g",
            description=lambda names: f"beside {', '.join(names)}",
            parameters={"type": "object", "properties": {}},
            handler=handler,
        )
    )
    tools.register(tool("a"))
    assert tools.describe() == [
        {
            "type": "function",
            "function": {
                "name": "a",
                "description": "A test's tool.",
                "parameters": {"type": "object", "properties": {}},
            },
        },
        {
            "type": "function",
            "function": {
                "name": "b",
                "description": "beside a, b",
                "parameters": {"type": "object", "properties": {}},
            },
        },
    ]
    assert [spec.name for spec in tools.specs()] == ["a", "b"]
