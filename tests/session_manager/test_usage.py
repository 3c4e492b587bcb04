"""Tokens of a session's own model calls."""

import asyncio
import time

import pytest

from aalis_api_session_manager.message import LlmUsage
from aalis_api_session_manager.model import SessionUpdates, TokenCount
from aalis_plugin_session_manager import store
from tests.session_manager.kit import Adapter, Stack, running
from tests.session_manager.probes import count_commits, flushed, read_stored, stored_keys


async def use(stack: Stack, session_id: str | None, input_tokens: int = 1, output_tokens: int = 1) -> None:
    """Tell of one model call."""
    usage = LlmUsage(session_id=session_id, input_tokens=input_tokens, output_tokens=output_tokens)
    await stack.host.hooks.call("aalis_llm_usage", usage=usage)


@pytest.mark.rule("USAGE-1")
async def test_a_sessions_own_calls_add_up(stack: Stack, db: str) -> None:
    """Whatever they were for; a child's are its own; shown at once, stored, told; `updated_at` stays."""
    parent = await stack.sessions.ensure_session("s")
    child = await stack.sessions.create_child_session("s")
    stack.recorder.events.clear()
    await use(stack, "s", 10, 1)
    await use(stack, "s", 20, 0)
    await use(stack, "s", 0, 5)
    await use(stack, child.id, 7, 7)
    assert stack.sessions.get_session("s").tokens == TokenCount(input=30, output=6)
    assert stack.sessions.get_session(child.id).tokens == TokenCount(input=7, output=7)
    assert stack.sessions.get_session("s").updated_at == parent.updated_at
    assert stack.sessions.get_session(child.id).updated_at == child.updated_at
    async with asyncio.timeout(30):
        while stack.recorder.names("s") + stack.recorder.names(child.id) != ["updated"] * 2:
            await asyncio.sleep(0.01)
    assert dict(stack.recorder.events)["updated"].tokens is not None
    assert read_stored(db, "sessions", "s")["tokens"] == {"input": 30, "output": 6}
    assert read_stored(db, "sessions", "s")["updatedAt"] == parent.updated_at


@pytest.mark.rule("USAGE-1")
async def test_a_turns_model_calls_are_counted(stack: Stack) -> None:
    """Through the agent: each answer's tokens, over two turns."""
    stack.host.add_platform(Adapter())
    await stack.say("s")
    await stack.say("s")
    assert stack.sessions.get_session("s").tokens == TokenCount(input=14, output=6)


@pytest.mark.rule("USAGE-1")
async def test_usage_makes_no_session(stack: Stack, db: str) -> None:
    """Calls without a session, of an unknown one, or without tokens leave nothing."""
    session = await stack.sessions.ensure_session("s")
    for session_id in (None, "", "unknown"):
        await use(stack, session_id, 5, 5)
    await use(stack, "s", 0, 0)
    await flushed(stack)
    assert stored_keys(db, "sessions") == ["s"]
    assert stack.sessions.list_sessions() == [session]


@pytest.mark.rule("USAGE-1", "STORE-2")
async def test_a_burst_is_gathered_into_one_record(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand calls: the record is written at most once in each tenth of a second that they took."""
    for session_id in ("s", "other"):
        await stack.sessions.ensure_session(session_id)
    commits = count_commits(stack, monkeypatch)
    began = time.monotonic()
    for _ in range(1000):
        await use(stack, "s")
    await use(stack, "other")
    took = time.monotonic() - began
    async with asyncio.timeout(30):
        while not commits.of("sessions", "other"):
            await asyncio.sleep(0.01)
    assert stack.sessions.get_session("s").tokens == TokenCount(input=1000, output=1000)
    assert 1 <= commits.of("sessions", "s") <= 1 + took / 0.1
    assert commits.of("sessions", "other") == 1


@pytest.mark.rule("USAGE-1", "STORE-2")
async def test_nothing_is_lost_at_stop(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was gathered and not yet stored is stored by the stop, in one write."""
    monkeypatch.setattr(store, "GATHER_DELAY", 3600)
    async with running(db) as stack:
        for session_id in ("s", "other"):
            await stack.sessions.ensure_session(session_id)
        commits = count_commits(stack, monkeypatch)
        for _ in range(1000):
            await use(stack, "s", 2, 1)
        await use(stack, "other", 1, 1)
        await flushed(stack)
        assert commits.of("sessions", "s") == 0
    assert commits.of("sessions", "s") == 1
    assert read_stored(db, "sessions", "s")["tokens"] == {"input": 2000, "output": 1000}
    assert read_stored(db, "sessions", "other")["tokens"] == {"input": 1, "output": 1}
    async with running(db) as stack:
        assert stack.sessions.get_session("s").tokens == TokenCount(input=2000, output=1000)


@pytest.mark.rule("USAGE-1", "STORE-2")
async def test_what_was_gathered_keeps_its_place_among_changes(stack: Stack) -> None:
    """An update between usage and its storing loses neither."""
    await stack.sessions.ensure_session("s")
    await use(stack, "s")
    await stack.sessions.update_session("s", SessionUpdates(title="T"))
    await use(stack, "s")
    await stack.sessions.complete_session("s", "R")
    session = stack.sessions.get_session("s")
    assert (session.tokens, session.title, session.result) == (TokenCount(input=2, output=2), "T", "R")


@pytest.mark.rule("USAGE-1", "DELETE-1")
async def test_tokens_go_with_the_session(stack: Stack, db: str) -> None:
    """Deleted with gathered usage, told of usage late, made again: no tokens, and it isn't brought back."""
    await stack.sessions.ensure_session("s")
    await use(stack, "s", 100, 100)
    await stack.sessions.delete_session("s")
    await use(stack, "s", 100, 100)
    await flushed(stack)
    assert stored_keys(db, "sessions") == []
    again = await stack.sessions.ensure_session("s")
    assert again.tokens is None
    await asyncio.sleep(0.15)
    await flushed(stack)
    assert stack.sessions.get_session("s").tokens is None
    assert "tokens" not in read_stored(db, "sessions", "s")
