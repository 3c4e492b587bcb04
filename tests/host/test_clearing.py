"""Clearing: stopping a session's turns and holding it meanwhile; every store's own part of it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aalis_api_session_manager.errors import StorageError
from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.host import PluginMeta
from aalis_api_session_manager.message import (
    HISTORY_SOURCE,
    ClearRequest,
    ClearRow,
    ToolCallContext,
    TurnEnd,
)
from aalis_host import agent
from aalis_host.app import AalisHost
from tests.host.kit import Recorder, ScriptedModel, Sessions, calls, message, running, texts, tool


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(gate=asyncio.Event())


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def send(host: AalisHost, text: str, **rest: Any) -> asyncio.Task[None]:
    return asyncio.create_task(host.gateway.ingress(message(text, **rest)))


def open_gate(model: ScriptedModel) -> None:
    assert model.gate is not None
    model.gate.set()


@pytest.mark.rule("DELETE-2", "GEN-3")
async def test_clearing_stops_and_holds(tmp_path: Path, recorder: Recorder, model: ScriptedModel) -> None:
    """The running turns of every source end first; what arrives waits until clearing is done, and isn't stopped."""
    sessions = Sessions()
    async with running(tmp_path, recorder, sessions, model=model) as host:
        before = [
            send(host, "one"),
            send(host, "two"),
            send(host, "timed", source="timer"),
            send(host, "x", session_id="t"),
        ]
        await eventually(lambda: model.at_once == 3)
        arrived: list[asyncio.Task[None]] = []
        seen: list[Any] = []

        async def work() -> None:
            seen.append(sorted(str(outcome) for outcome in recorder.outcomes))
            sessions.generations["s"] = 1
            open_gate(model)
            arrived.append(send(host, "after"))
            await asyncio.sleep(0.01)
            seen.append([end.message.content for end in recorder.ends if end.message.session_id == "s"])
            await host.memory.clear_session("s")

        await host.agent.clearing("s", work)
        await asyncio.gather(*before, *arrived)
        assert seen[0] == ["aborted", "aborted"]
        assert sorted(seen[1]) == ["one", "timed"]
        assert await texts(host) == [("user", "after"), ("assistant", "ok")]
        assert await texts(host, "t") == [("user", "x"), ("assistant", "ok")]
        assert [end.outcome for end in recorder.ends if end.message.content in ("two", "after")] == ["replied"]
        assert recorder.paired()


@pytest.mark.rule("DELETE-2")
async def test_the_turns_end_is_told_before_the_clearing(
    tmp_path: Path, recorder: Recorder, model: ScriptedModel
) -> None:
    """Work begins only when the stopped turn's listeners have returned."""
    order: list[str] = []

    async def after(end: TurnEnd) -> None:
        await asyncio.sleep(0.005)
        order.append("told")

    recorder.on_after = after

    async def work() -> None:
        order.append("work")

    async with running(tmp_path, recorder, model=model) as host:
        task = send(host, "one")
        await eventually(lambda: model.at_once == 1)
        await host.agent.clearing("s", work)
        await task
    assert order == ["told", "work"]


async def test_what_fails_while_it_is_held(tmp_path: Path, recorder: Recorder) -> None:
    """The error reaches the caller, and the session is let go."""

    async def work() -> None:
        raise StorageError("disk full")

    async with running(tmp_path, recorder) as host:
        with pytest.raises(StorageError, match="disk full"):
            await host.agent.clearing("s", work)
        await host.gateway.ingress(message())
    assert recorder.outcomes == ["replied"]


@pytest.mark.parametrize("own_task", [True, False])
@pytest.mark.rule("DELETE-2")
async def test_from_inside_the_sessions_own_turn(tmp_path: Path, recorder: Recorder, own_task: bool) -> None:
    """A tool that clears the session of its own turn doesn't wait for itself; the turn ends as `aborted`."""
    model = ScriptedModel([calls(("clear", "{}")), "never"])
    done: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0.001)
        done.append("cleared")

    async with running(tmp_path, recorder, model=model) as host:

        async def clear(arguments: dict[str, Any], context: ToolCallContext) -> str:
            clearing = host.agent.clearing(context.session_id, work)
            await (asyncio.shield(asyncio.create_task(clearing)) if own_task else clearing)
            return "{}"

        host.tools.register(tool("clear", clear))
        await host.gateway.ingress(message())
        assert done == ["cleared"]
        assert (recorder.outcomes, len(model.asked)) == (["aborted"], 1)
        await host.gateway.ingress(message("again"))
        assert recorder.outcomes[-1] == "replied"


async def test_from_inside_a_turn_that_it_waits_for(tmp_path: Path, recorder: Recorder) -> None:
    """A turn of another session, which the cleared one's tool waits for, clears it without a knot."""
    model = ScriptedModel([calls(("ask", "{}")), calls(("clear", "{}")), "b's answer"])
    done: list[str] = []

    async def work() -> None:
        done.append("cleared")

    async with running(tmp_path, recorder, model=model) as host:

        async def ask(arguments: dict[str, Any], context: ToolCallContext) -> str:
            await host.gateway.ingress(message("for b", "b", source="a"))
            return "{}"

        async def clear(arguments: dict[str, Any], context: ToolCallContext) -> str:
            await host.agent.clearing("a", work)
            return "{}"

        host.tools.register(tool("ask", ask))
        host.tools.register(tool("clear", clear))
        async with asyncio.timeout(5):
            await host.gateway.ingress(message("for a", "a"))
        assert done == ["cleared"]
        outcomes = {end.session_id: end.outcome for end in recorder.ends}
        assert outcomes["a"] == "aborted"
        assert recorder.paired()


async def test_a_turn_that_does_not_end(
    tmp_path: Path, recorder: Recorder, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clearing goes on after a while; what the stuck turn writes later is refused by its generation."""
    monkeypatch.setattr(agent, "PATIENCE", 0.02)
    stuck = asyncio.Event()

    async def after(end: TurnEnd) -> None:
        await stuck.wait()

    recorder.on_after = after
    done: list[str] = []

    async def work() -> None:
        done.append("cleared")

    async with running(tmp_path, recorder, model=model) as host:
        task = send(host, "one")
        await eventually(lambda: model.at_once == 1)
        await host.agent.clearing("s", work)
        assert done == ["cleared"]
        stuck.set()
        await task


class Media:
    """A store of something else."""

    meta = PluginMeta(name="media")

    def __init__(self) -> None:
        self.told: list[tuple[ClearRequest, tuple[ClearRow, ...]]] = []
        self.error: Exception | None = None

    @hookimpl
    async def aalis_memory_clear(self, request: ClearRequest) -> ClearRow | None:
        if self.error is not None:
            raise self.error
        return None if request.types and "media" not in request.types else ClearRow(source="media", success=True)

    @hookimpl
    def aalis_memory_cleared(self, request: ClearRequest, rows: Any) -> None:
        self.told.append((request, rows))


@pytest.mark.rule("CLEAR-1", "DELETE-1")
async def test_clearing_memory(tmp_path: Path) -> None:
    """Everyone clears its own and answers a row, and then all are told; only the asked session's messages go."""
    media = Media()
    async with running(tmp_path, media) as host:
        for session_id in ("s", "t"):
            await host.gateway.ingress(message(session_id=session_id))
        request = ClearRequest(scope="session", session_id="s")
        rows = await host.clear_memory(request)
        assert {(row.source, row.success) for row in rows} == {(HISTORY_SOURCE, True), ("media", True)}
        assert media.told == [(request, tuple(rows))]
        assert (await texts(host), len(await texts(host, "t"))) == ([], 2)
        await host.clear_memory(ClearRequest(scope="all", types=("context",)))
        assert await texts(host, "t") == []


@pytest.mark.rule("CLEAR-2")
async def test_clearing_other_types(tmp_path: Path) -> None:
    """A request that doesn't name the context leaves the messages, without a row of the history."""
    async with running(tmp_path, Media()) as host:
        await host.gateway.ingress(message())
        rows = await host.clear_memory(ClearRequest(scope="all", types=("media",)))
        assert [row.source for row in rows] == ["media"]
        assert len(await texts(host)) == 2


@pytest.mark.rule("CLEAR-2")
async def test_failed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that raises, and the history's back end that fails, are failed rows under their names."""
    media = Media()
    media.error = ValueError("disk full")

    async def refuse(*_: object) -> int:
        raise StorageError("the database is locked")

    async with running(tmp_path, media) as host:
        monkeypatch.setattr(type(host.memory), "clear_session", refuse)
        rows = await host.clear_memory(ClearRequest(scope="session", session_id="s"))
        assert {(row.source, row.success, row.message) for row in rows} == {
            (HISTORY_SOURCE, False, "the database is locked"),
            ("media", False, "disk full"),
        }
        assert len(media.told) == 1


@pytest.mark.rule("GEN-5")
async def test_clearing_lower_generations(tmp_path: Path) -> None:
    """A deletion's clearing leaves what came in after it began."""
    async with running(tmp_path) as host:
        await host.agent.handle_message(message("old"), 0)
        await host.agent.handle_message(message("new"), 1)
        await host.clear_memory(ClearRequest(scope="session", session_id="s", below_generation=1))
        assert [text for _, text in await texts(host)] == ["new", "ok"]
