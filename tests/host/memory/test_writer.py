"""The writer and reader threads, whatever their back end does."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from aalis_api_session_manager.errors import OutcomeUnknown, StorageError
from aalis_host.memory import Memory, readers, writer
from tests.host.memory.kit import add, by_key, contents, put, text


class Slow:
    """A fold that waits until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()

    def __call__(self, stored: dict[str, Any] | None) -> dict[str, Any] | None:
        self.begun.set()
        assert self.go.wait(20)
        return add()(stored)


@pytest.fixture
def database(tmp_path: Any) -> Any:
    """These don't depend on the back end: the quick one will do."""
    return tmp_path / "memory.db"


@pytest.mark.rule("STORE-3")
async def test_no_answer_in_time(open_again: Callable[..., Memory], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way goes on, and its caller can wait for its end; what wasn't begun is told and never done."""
    monkeypatch.setattr(writer, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(writer, "MAX_WAITING", 2)
    slow = Slow()
    async with open_again() as memory:
        await memory.commit_metadata([put("k", {"n": 1})])
        calls: list[asyncio.Task[Any]] = [asyncio.create_task(memory.commit_metadata([put("k", {}, 0, slow)]))]
        await asyncio.to_thread(slow.begun.wait, 5)
        calls += [
            asyncio.create_task(memory.save_message("s", text(words))) for words in ("never", "no room", "cancelled")
        ]
        await asyncio.sleep(0.05)
        calls[3].cancel()
        under_way, never, no_room, _ = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(under_way, OutcomeUnknown)
        assert [type(error) for error in (never, no_room)] == [StorageError] * 2
        slow.go.set()
        async with asyncio.timeout(5):
            (outcome,) = await under_way.settled()
            assert (await under_way.settled()) == (outcome,)
        assert outcome.records[0].data == {"n": 2}
        assert (await memory.save_message("s", text("after"))).status == "saved"
        assert contents((await memory.history("s", 5)).messages) == ["after"]


@pytest.mark.rule("STORE-3")
async def test_closing_says_what_could_not_be_stored(
    open_again: Callable[..., Memory], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After its time the callers get a StorageError, also those that wait for room, and the log names each change,
    without any message's text."""
    monkeypatch.setattr(writer, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(writer, "MAX_WAITING", 3)
    memory = open_again()
    await memory.open()
    await memory.commit_metadata([put("k", {"n": 1})])
    slow = Slow()
    waiting = [
        asyncio.create_task(memory.commit_metadata([put("k", {}, 0, slow)])),
        asyncio.create_task(memory.save_message("room", text("secret"))),
        asyncio.create_task(memory.clear_session("old")),
        asyncio.create_task(memory.archive("outside", 1)),
        asyncio.create_task(memory.archive("outside too", 1)),
    ]
    await asyncio.to_thread(slow.begun.wait, 5)
    with caplog.at_level(logging.ERROR):
        await memory.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [StorageError] * 5
    (record,) = caplog.records
    assert "things/k; a message of session 'room'; clearing session 'old'" in record.getMessage()
    assert "secret" not in record.getMessage()
    slow.go.set()
    async with open_again() as again:  # it was late, not lost
        async with asyncio.timeout(5):
            while by_key(await again.list_metadata("things")) != {"k": {"n": 2}}:
                await asyncio.sleep(0.01)


async def test_the_queue_is_bounded(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """More callers than there is room for wait their turn; none is refused, none is lost, the order stays."""
    monkeypatch.setattr(memory._writer, "_free", asyncio.Semaphore(3))
    slow = Slow()
    await memory.commit_metadata([put("k", {"n": 0})])
    first = asyncio.create_task(memory.commit_metadata([put("k", {}, 0, slow)]))
    await asyncio.to_thread(slow.begun.wait, 5)
    rest = [asyncio.create_task(memory.commit_metadata([put("k", {}, 0, add())])) for _ in range(10)]
    await asyncio.sleep(0.01)
    assert memory._writer is not None
    assert len(memory._writer._pending) == 3
    cancelled = rest.pop()  # it isn't in the queue yet: nothing of it will be stored
    cancelled.cancel()
    slow.go.set()
    outcomes = [(await task)[0] for task in (first, *rest)]
    assert [outcome.records[0].data for outcome in outcomes] == [{"n": n} for n in range(1, 11)]


async def test_a_read_that_no_thread_can_begin_is_given_up(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """While every reader is busy, the next read is an error in time; afterwards reading goes on."""
    all_begun, go = threading.Barrier(3), threading.Event()

    def busy(_: Any) -> None:
        all_begun.wait(20)
        go.wait(20)

    assert memory._readers is not None
    blocked = [asyncio.create_task(memory._readers.read(busy)) for _ in range(2)]
    await asyncio.to_thread(all_begun.wait, 20)
    monkeypatch.setattr(readers, "WAIT_SECONDS", 0.0)
    late = asyncio.create_task(memory.get_metadata("things", "k"))
    await asyncio.sleep(0.01)
    monkeypatch.undo()
    go.set()
    with pytest.raises(StorageError, match="no reader was free"):
        await late
    await asyncio.gather(*blocked)
    assert await memory.get_metadata("things", "k") is None


async def test_a_cancelled_read_is_skipped(memory: Memory) -> None:
    """And the threads go on."""
    for _ in range(20):
        task = asyncio.create_task(memory.get_metadata("things", "k"))
        await asyncio.sleep(0)
        task.cancel()
    assert await memory.get_metadata("things", "k") is None


@pytest.mark.rule("STORE-3")
async def test_a_failure_that_nobody_expected(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the store's own code breaks, callers get an error and the thread lives."""
    assert memory._writer is not None
    store = memory._writer._store
    with monkeypatch.context() as patch:
        patch.setattr(store, "undo", lambda: 1 / 0)
        patch.setattr(store, "begin", lambda: 1 / 0)
        outcomes = await memory.commit_metadata([put("k", {}), put("l", {})])
        assert [type(outcome.error) for outcome in outcomes] == [StorageError] * 2
    assert (await memory.commit_metadata([put("k", {})]))[0].error is None
