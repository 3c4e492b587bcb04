"""The three tools in turns of a model that speaks OpenAI's protocol, over the loopback.

The server's answers come in the order of what is asked of it: while a turn waits for a delegation, the next
question is the target's.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_host.config import ModelSettings
from aalis_host.models import openai
from tests.host.models.server import Answer, Server, broken, call_piece, openai_server, pieces, said, status, whole
from tests.tool_session.kit import DELEGATE, HISTORY, LIST, Stack, group, private, stack

HERE, THERE, MINE = "onebot:100:group:1", "onebot:100:group:2", "onebot:100:private:7"


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the client was told to wait; nothing really waits."""
    seen: list[float] = []

    async def sleep(seconds: float) -> None:
        seen.append(seconds)

    monkeypatch.setattr(anyio, "sleep", sleep)
    monkeypatch.setattr(openai, "_PAUSE", 0.0)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    return seen


@asynccontextmanager
async def talking(folder: Path, *answers: Answer, stream: bool) -> AsyncIterator[tuple[Stack, Server]]:
    """A group that the bot is asked in, one it may send a task to, and a person's own private chat."""
    async with openai_server(*answers) as server:
        settings = ModelSettings(kind="openai", name="m", base_url=server.base_url, stream=stream)
        async with stack(folder, model_settings=settings) as s:
            for message in (group("1", mentioned=False), group("2", "8", mentioned=False)):
                await s.ingress(message)
            await s.host.select(SESSION_MANAGER).use().record_inbound(private("7"))
            await s.save(MINE, "my own notes", start=s.host.now())
            yield s, server


def results(server: Server, request: int) -> list[Any]:
    """The answers of tools that a request shows to the model behind its last calls, in order."""
    messages = server.requests[request]["messages"]
    last = max(i for i, one in enumerate(messages) if one.get("tool_calls"))
    return [json.loads(one["content"]) for one in messages[last + 1 :] if one["role"] == "tool"]


def as_json(**arguments: Any) -> str:
    return json.dumps(arguments)


@pytest.mark.rule("HIST-2", "LIST-1", "LIST-2", "DELEG-2", "DELEG-7")
async def test_all_three_in_one_turn(tmp_path: Path, waits: list[float]) -> None:
    """Two calls in one answer, in pieces; malformed arguments put right; a 429; a stream that breaks off."""
    answers = (
        pieces(
            call_piece(0, call_id="a", name=LIST),
            call_piece(0, '{"lim'),
            call_piece(1, call_id="b", name=HISTORY),
            call_piece(0, 'it": "5"}'),
            call_piece(1, '{"session_id": "onebot:100:private:7", "limit"'),
            call_piece(1, ": null}"),
        ),
        pieces(call_piece(0, '{"target_session_id": "onebot:100:group:2", "task"', call_id="c", name=DELEGATE)),
        status(429, "slow down", retry_after="3"),
        pieces(call_piece(0, as_json(target_session_id=THERE, task="Greet them."), call_id="d", name=DELEGATE)),
        broken(said("Hello, ro")),
        pieces(said("Hello, "), said("room.")),
        pieces(said("They were greeted.")),
    )
    async with talking(tmp_path, *answers, stream=True) as (s, server):
        await s.ingress(group("1", "7", "Find the other group and greet it."))
        assert not server.answers and len(server.requests) == 7
        listed, read = results(server, 1)
        assert [entry["session_id"] for entry in listed["sessions"]] == [MINE, THERE]
        assert [("preview" in entry) for entry in listed["sessions"]] == [True, False]
        assert [one["content"] for one in read["messages"]] == ["my own notes"]
        assert "aren't JSON" in results(server, 2)[0]["error"]
        assert 3.0 in waits
        (answered,) = results(server, 6)
        assert (answered["status"], answered["outcome"], answered["reply"]) == ("answered", "replied", "Hello, room.")
        assert [(sent.session_id, sent.content) for sent in s.chats.sent] == [
            (THERE, "Hello, room."),
            (HERE, "They were greeted."),
        ]
        asked = server.requests[4]["messages"][-1]
        assert asked == {"role": "user", "content": "Greet them."}


@pytest.mark.rule("DELEG-3", "DELEG-7")
async def test_without_streaming_a_driven_turn_is_told_that_it_cant_delegate(tmp_path: Path) -> None:
    """And what it says then is the reply."""
    answers = (
        whole(None, ("a", DELEGATE, as_json(target_session_id=THERE, task="Ask group 1.", timeout_seconds="5"))),
        whole(None, ("b", DELEGATE, as_json(target_session_id=HERE, task="What?"))),
        whole("I can't ask them."),
        whole("They couldn't."),
    )
    async with talking(tmp_path, *answers, stream=False) as (s, server):
        await s.ingress(group("1", "7", "Let them ask us."))
        assert not server.answers
        (refused,) = results(server, 2)
        assert refused["error"].startswith("This turn is driven by a delegation and can't delegate again")
        (answered,) = results(server, 3)
        assert answered["reply"] == "I can't ask them."


@pytest.mark.rule("DELEG-9")
async def test_a_targets_model_that_fails_is_reported_in_words(tmp_path: Path) -> None:
    """The source's turn goes on and can say so."""
    answers = (
        whole(None, ("a", DELEGATE, as_json(target_session_id=THERE, task="Greet them."))),
        status(400, "the context is too long"),
        whole("It didn't work."),
    )
    async with talking(tmp_path, *answers, stream=False) as (s, server):
        await s.ingress(group("1", "7", "Greet them."))
        (answered,) = results(server, 2)
        assert (answered["status"], answered["outcome"]) == ("answered", "error")
        assert "the context is too long" in answered["note"]
        assert [sent.content for sent in s.chats.sent] == ["It didn't work."]


@pytest.mark.rule("HIST-10", "LIST-1", "DELEG-1")
async def test_the_schemas_are_given_as_the_protocol_wants_them(tmp_path: Path) -> None:
    async with talking(tmp_path, whole("hi"), stream=False) as (s, server):
        await s.ingress(group("1", "7", "hello"))
        tools = {tool["function"]["name"]: tool["function"] for tool in server.requests[0]["tools"]}
        assert set(tools) == {HISTORY, LIST, DELEGATE}
        assert tools[HISTORY]["parameters"]["required"] == ["session_id"]
        assert set(tools[LIST]["parameters"]["properties"]) == {"limit", "platform", "since_hours"}
        assert set(tools[DELEGATE]["parameters"]["properties"]) == {
            "target_session_id",
            "task",
            "wait_for_result",
            "timeout_seconds",
            "delegation_id",
        }
