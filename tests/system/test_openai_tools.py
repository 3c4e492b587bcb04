"""The whole: plugins by entry point, a model behind a socket, and one turn that uses all three session tools."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from aalis_api_session_manager.message import IncomingMessage, Message
from aalis_api_session_manager.model import SessionCreation, TokenCount
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_host.app import AalisHost
from aalis_host.config import ModelSettings, Settings
from aalis_host.models import openai
from tests.host.models.server import Answer, broken, call_piece, openai_server, pieces, said, status, whole

LIST, HISTORY, DELEGATE = "list_known_sessions", "session_get_history", "delegate_to_session"
MALFORMED = '{"session_id": "kitchen"'
TASK = {"target_session_id": "kitchen", "task": "Is the soup ready?"}


def answers(stream: bool) -> list[Answer]:
    """What the model says, request by request, with everything that may go wrong on the way."""
    if not stream:
        return [
            status(429, "slow down", retry_after="7"),
            whole(None, ("c1", LIST, '{"limit": "5"}'), ("c2", HISTORY, MALFORMED)),
            broken(),
            whole(None, ("c3", HISTORY, '{"session_id": "kitchen"}'), ("c4", DELEGATE, json.dumps(TASK))),
            whole("Yes, it is."),
            whole("The kitchen says that it is ready."),
        ]
    task = json.dumps(TASK)
    return [
        status(429, "slow down", retry_after="7"),
        pieces(
            call_piece(0, "", call_id="c1", name=LIST),
            call_piece(1, MALFORMED[:7], call_id="c2", name=HISTORY),
            call_piece(0, '{"limit"'),
            call_piece(0, ': "5"}'),
            call_piece(1, MALFORMED[7:]),
        ),
        broken(said("I"), call_piece(0, '{"session', call_id="c0", name=HISTORY)),
        pieces(
            call_piece(0, '{"session_id": ', call_id="c3", name=HISTORY),
            call_piece(0, '"kitchen"}'),
            call_piece(1, task[:20], call_id="c4", name=DELEGATE),
            call_piece(1, task[20:]),
        ),
        pieces(said("Yes, "), said("it is.")),
        pieces(said("The kitchen says "), said("that it is ready.")),
    ]


def result(stored: list[Message], call_id: str) -> dict[str, Any]:
    (found,) = [message.content for message in stored if message.tool_call_id == call_id]
    answer = json.loads(found)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("stream", [True, False], ids=["in-pieces", "whole"])
@pytest.mark.rule("HIST-1", "LIST-1", "DELEG-7", "USAGE-1")
async def test_all_three_tools_in_one_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """The agent lists, reads and asks another session in one turn, through a 429, a dropped connection and malformed
    arguments, and each session counts its own tokens."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(anyio, "sleep", sleep)
    monkeypatch.setattr(openai, "_PAUSE", 0.0)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    async with openai_server(*answers(stream)) as server:
        model = ModelSettings(kind="openai", name="m", base_url=server.base_url, stream=stream)
        settings = Settings(db=str(tmp_path / "aalis.db"), model=model)
        async with AalisHost(settings) as host:
            assert [report.error for report in host.plugin_report] == [None, None]
            sessions = host.select(SESSION_MANAGER).use()
            for session_id in ("desk", "kitchen"):
                await sessions.ensure_session(session_id, creation=SessionCreation(created_from="cli"))
            soup = Message(session_id="kitchen", role="user", content="The soup is on.", timestamp=host.now())
            await host.memory.save_message("kitchen", soup)
            await host.gateway.ingress(
                IncomingMessage(session_id="desk", platform="cli", user_id="owner", content="How is the soup?")
            )
            desk = list((await host.memory.history("desk", 100)).messages)
            kitchen = list((await host.memory.history("kitchen", 100)).messages)
            tokens = [getattr(sessions.get_session(session_id), "tokens", None) for session_id in ("desk", "kitchen")]

    assert desk[-1].content == "The kitchen says that it is ready."
    (listed,) = result(desk, "c1")["sessions"]
    assert (listed["session_id"], listed["preview"]) == ("kitchen", "The soup is on.")
    assert "aren't JSON" in result(desk, "c2")["error"]
    assert [message["content"] for message in result(desk, "c3")["messages"]] == ["The soup is on."]
    answered = result(desk, "c4")
    assert (answered["status"], answered["outcome"], answered["reply"]) == ("answered", "replied", "Yes, it is.")
    assert [message.content for message in kitchen] == ["The soup is on.", "Is the soup ready?", "Yes, it is."]
    assert tokens == [TokenCount(input=33, output=21), TokenCount(input=11, output=7)]
    assert 7.0 in waits
    assert len(server.requests) == 6
    assert sorted(tool["function"]["name"] for tool in server.requests[0]["tools"]) == [DELEGATE, LIST, HISTORY]
    results = [message["tool_call_id"] for message in server.requests[-1]["messages"] if message["role"] == "tool"]
    assert results == ["c1", "c2", "c3", "c4"]
