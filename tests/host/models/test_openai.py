"""The openai model against a server on the loopback: answers whole and in pieces, and everything that goes wrong."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from aalis_api_session_manager.errors import ConfigError
from aalis_api_session_manager.message import ToolCall
from aalis_host.config import ModelSettings
from aalis_host.models import open_model, openai
from aalis_host.models.base import Model, ModelError, ModelMessage, ModelReply
from tests.host.models.server import (
    SILENT,
    Answer,
    Server,
    body,
    broken,
    call_piece,
    event,
    openai_server,
    pieces,
    said,
    status,
    whole,
)

QUESTION = [ModelMessage(role="user", content="hello")]
TOOL = {"type": "function", "function": {"name": "ask", "description": "Ask.", "parameters": {"type": "object"}}}


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the client waited before it asked again; nothing really waits. And a key."""
    seen: list[float] = []

    async def sleep(seconds: float) -> None:
        seen.append(seconds)

    monkeypatch.setattr(anyio, "sleep", sleep)
    monkeypatch.setattr(openai, "_PAUSE", 0.0)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    return seen


@asynccontextmanager
async def talking(*answers: Answer, **settings: Any) -> AsyncIterator[tuple[Model, Server]]:
    async with openai_server(*answers) as server:
        model = open_model(ModelSettings(kind="openai", name="m", base_url=server.base_url, **settings))
        try:
            yield model, server
        finally:
            await model.close()


async def answer(*answers: Answer, **settings: Any) -> ModelReply:
    async with talking(*answers, **settings) as (model, _):
        return await model.complete(QUESTION, [TOOL])


async def error(*answers: Answer, **settings: Any) -> str:
    with pytest.raises(ModelError) as caught:
        await answer(*answers, **settings)
    assert "sk-secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_what_is_asked() -> None:
    """The model's name, the conversation with its calls and results, the tools, and only what is set."""
    conversation = [
        ModelMessage(role="system", content="Be kind."),
        *QUESTION,
        ModelMessage(role="assistant", content="", tool_calls=(ToolCall(id="c1", name="ask", arguments="{}"),)),
        ModelMessage(role="tool", content='{"a": 1}', tool_call_id="c1"),
    ]
    async with talking(whole("hi"), whole("hi"), stream=False) as (model, server):
        await model.complete(conversation, [TOOL])
        await model.complete(QUESTION, [])
    assert server.requests == [
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "hello"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ask", "arguments": "{}"}}],
                },
                {"role": "tool", "content": '{"a": 1}', "tool_call_id": "c1"},
            ],
            "tools": [TOOL],
        },
        {"model": "m", "messages": [{"role": "user", "content": "hello"}]},
    ]
    assert server.keys == ["bearer sk-secret"] * 2


async def test_streaming_asks_for_usage() -> None:
    """The temperature is sent when it is set."""
    async with talking(pieces(said("hi")), temperature=0.5) as (model, server):
        await model.complete(QUESTION, [])
    (request,) = server.requests
    assert (request["stream"], request["stream_options"], request["temperature"]) == (
        True,
        {"include_usage": True},
        0.5,
    )


async def test_a_whole_answer() -> None:
    """Text with its tokens; two calls with their ids."""
    assert await answer(whole("hi"), stream=False) == ModelReply(content="hi", input_tokens=11, output_tokens=7)
    reply = await answer(whole(None, ("c1", "ask", '{"a": 1}'), ("c2", "ask", "{}")), stream=False)
    assert [(call.id, call.name, call.arguments) for call in reply.tool_calls] == [
        ("c1", "ask", '{"a": 1}'),
        ("c2", "ask", "{}"),
    ]


async def test_an_answer_in_pieces() -> None:
    """Put together, with the tokens of the last piece; none is no error."""
    assert await answer(pieces(said("h"), said("é"), said("🙂"))) == ModelReply(
        content="hé🙂", input_tokens=11, output_tokens=7
    )
    assert await answer(pieces(said("hi"), usage=None)) == ModelReply(content="hi")


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param(
            (
                call_piece(0, "", call_id="c1", name="ask"),
                call_piece(1, "", call_id="c2", name="ask"),
                call_piece(0, '{"a"'),
                call_piece(1, "{"),
                call_piece(0, ": 1}"),
                call_piece(1, "}"),
            ),
            id="interleaved",
        ),
        pytest.param(
            (
                call_piece(0, '{"a": 1}', call_id="c1", name="ask"),
                call_piece(0, "{}", call_id="c2", name="ask"),
            ),
            id="index-repeated",
        ),
        pytest.param(
            (
                call_piece(0, '{"a": ', call_id="c1", name="ask"),
                call_piece(0, "1}", call_id="c1", name="ask"),
                call_piece(1, "{}", call_id="c2", name="ask"),
            ),
            id="name-repeated",
        ),
        pytest.param(
            (
                call_piece(None, '{"a": 1}', call_id="c1", name="ask"),
                call_piece(None, "{}", call_id="c2", name="ask"),
            ),
            id="no-index",
        ),
    ],
)
async def test_calls_in_pieces(deltas: tuple[dict[str, Any], ...]) -> None:
    """Two calls of one answer are told apart however a server cuts them."""
    reply = await answer(pieces(*deltas))
    assert [(call.id, call.name, call.arguments) for call in reply.tool_calls] == [
        ("c1", "ask", '{"a": 1}'),
        ("c2", "ask", "{}"),
    ]


async def test_calls_without_an_id() -> None:
    """Some servers give none: each call gets its own."""
    reply = await answer(pieces(call_piece(0, "{}", name="ask"), call_piece(1, "{}", name="ask")))
    first, second = reply.tool_calls
    assert first.id
    assert first.id != second.id


async def test_malformed_arguments_are_passed_on() -> None:
    """They are the tool registry's to refuse, and the model's to mend."""
    reply = await answer(whole(None, ("c1", "ask", '{"a": ')), stream=False)
    assert reply.tool_calls[0].arguments == '{"a": '


@pytest.mark.parametrize("stream", [True, False])
async def test_too_many_requests(waits: list[float], stream: bool) -> None:
    """A 429 is asked again after as long as the server says, and no longer than the setting is in words."""
    good = pieces(said("hi")) if stream else whole("hi")
    reply = await answer(status(429, "slow down", retry_after="7"), good, stream=stream)
    assert (reply.content, waits) == ("hi", [7.0])
    words = await error(*[status(429, "slow down", retry_after="7")] * 2, stream=stream, retries=1)
    assert words == "its server has too many requests (429): slow down"


@pytest.mark.parametrize("stream", [True, False])
async def test_dropped_connections(stream: bool) -> None:
    """A connection that drops before the answer began is asked again; one that never holds is an error in words."""
    good = pieces(said("hi")) if stream else whole("hi")
    assert (await answer(broken(), broken(), good, stream=stream)).content == "hi"
    words = await error(broken(), broken(), stream=stream, retries=1)
    assert words.startswith("http://127.0.0.1:")
    assert "can't be reached" in words


@pytest.mark.parametrize("torn", [broken(said("he")), pieces(said("he"), finish=False)], ids=["dropped", "ended"])
async def test_a_stream_that_breaks(torn: Answer) -> None:
    """One that drops, or ends before the answer does, is asked again as a whole; nothing of its start stays."""
    assert (await answer(torn, pieces(said("hi")))).content == "hi"
    assert "broke off" in await error(torn, torn, retries=1)
    assert "broke off" in await error(torn, retries=0)


async def test_a_server_that_is_not_there() -> None:
    """The address is named."""
    async with openai_server() as server:
        address = server.base_url
    model = open_model(ModelSettings(kind="openai", base_url=address, retries=0))
    with pytest.raises(ModelError, match=f"^{address}/? can't be reached: "):
        await model.complete(QUESTION, [])
    await model.close()


async def test_a_silent_server() -> None:
    """After the time-out an error that names the setting."""
    words = await error(SILENT, timeout=0.05, retries=0)
    assert words == "its server was silent for 0.05 seconds (model.timeout)"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (status(401, "bad key"), "its server refused the key (401): bad key"),
        (status(403, "not yours"), "its server refused the key (403): not yours"),
        (status(404, "no model m"), "its server answered 404: no model m"),
        (status(500, "oops\n  twice"), "its server answered 500: oops twice"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_refusals(given: Answer, words: str, stream: bool) -> None:
    """What the server said, in one line."""
    assert await error(given, stream=stream, retries=0) == words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (body('{"error": {"message": "out of credit"}}'), "its server gave no answer: out of credit"),
        (body("<html>hello</html>", "text/html"), "its server gave no answer: <html>hello</html>"),
        (body("{broken"), "its server answered something that can't be read"),
    ],
)
async def test_answers_that_are_none(given: Answer, words: str) -> None:
    """An error with status 200, a proxy's page, and what isn't JSON."""
    assert await error(given, stream=False, retries=0) == words


async def test_an_answer_without_a_choice() -> None:
    """JSON that is no answer."""
    assert (await error(body('{"choices": []}'), stream=False)).startswith("its server gave no answer")


@pytest.mark.parametrize("given", [event({"error": {"message": "out of credit"}}), event("{broken")])
async def test_streams_that_are_none(given: Answer) -> None:
    """An error inside the stream, and what can't be read."""
    words = await error(given, retries=0)
    assert words in ("its server reported: out of credit", "its server answered something that can't be read")


async def test_a_refusal_is_the_answer() -> None:
    """What a model says instead of an answer is what it said."""
    assert (await answer(pieces({"refusal": "I won't"}))).content == "I won't"


async def test_cancelled() -> None:
    """A turn that is stopped stops waiting for its model."""
    async with talking(SILENT) as (model, server):
        task = asyncio.create_task(model.complete(QUESTION, []))
        while not server.requests:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the variable that the setting names; a missing one is a mistake in one line; none can be wanted."""
    monkeypatch.setenv("MY_KEY", " sk-mine\n")
    async with talking(whole("hi"), stream=False, api_key_env="MY_KEY") as (model, server):
        await model.complete(QUESTION, [])
    assert server.keys == ["bearer sk-mine"]
    monkeypatch.setenv("MY_KEY", "")
    with pytest.raises(ConfigError, match=r"^model\.kind is 'openai', but .* MY_KEY holds no key"):
        open_model(ModelSettings(kind="openai", api_key_env="MY_KEY"))
    monkeypatch.setenv("MY_KEY", "ключ")
    with pytest.raises(ConfigError, match="MY_KEY holds no key"):
        open_model(ModelSettings(kind="openai", api_key_env="MY_KEY"))
    monkeypatch.delenv("OPENAI_API_KEY")
    assert (await answer(whole("hi"), stream=False, api_key_env="")).content == "hi"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to install."""
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.delitem(sys.modules, "aalis_host.models.openai")
    with pytest.raises(ConfigError, match=r"the package 'openai' is missing: pip install 'aalis-host\[openai\]'"):
        open_model(ModelSettings(kind="openai"))
