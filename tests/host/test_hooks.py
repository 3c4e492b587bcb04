"""Hooks are awaited one after the other, in pluggy's order, each isolated."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from aalis_api_session_manager.hookspecs import hookimpl
from aalis_api_session_manager.message import HISTORY_SOURCE, ClearRequest, ClearRow
from aalis_host.hooks import HookError, Hooks
from tests.host.kit import message


class Sync:
    @hookimpl
    def aalis_inbound(self, message: Any) -> int:
        return 1


class Async:
    @hookimpl
    async def aalis_inbound(self, message: Any) -> int:
        await asyncio.sleep(0)
        return 2


class First:
    @hookimpl(tryfirst=True)
    async def aalis_inbound(self) -> int:
        return 3


class Raising:
    @hookimpl
    async def aalis_inbound(self, message: Any) -> int:
        raise ValueError("broken")

    @hookimpl
    def aalis_inbound_gate(self, message: Any) -> bool:
        raise ValueError("broken gate")

    @hookimpl
    def aalis_memory_clear(self, request: Any) -> ClearRow:
        raise ValueError("disk full")


async def test_order_and_results() -> None:
    """tryfirst comes first, then the one registered last; sync and async alike, asking only for what they take."""
    hooks = Hooks()
    for plugin in (Sync(), First(), Async()):
        hooks.register(plugin, type(plugin).__name__)
    assert await hooks.call("aalis_inbound", message=message()) == [3, 2, 1]


@pytest.mark.rule("EVENT-1")
async def test_isolation() -> None:
    """An exception is logged with the plugin's name and the hook, and reaches neither the others nor the caller."""
    hooks = Hooks()
    for plugin in (Sync(), Raising(), Async()):
        hooks.register(plugin, type(plugin).__name__)
    with capture_logs() as logs:
        assert await hooks.call("aalis_inbound", message=message()) == [2, 1]
    assert [(entry["plugin"], entry["hook"]) for entry in logs] == [("Raising", "aalis_inbound")]


async def test_first_result() -> None:
    """The walk stops at the first result that isn't None, False too; a raising implementation counts as None."""
    asked = []

    class Gate:
        def __init__(self, name: str, answer: bool | None) -> None:
            self.name, self.answer = name, answer

        @hookimpl
        async def aalis_inbound_gate(self, message: Any) -> bool | None:
            asked.append(self.name)
            return self.answer

    hooks = Hooks()
    hooks.register(Gate("third", True), "third")
    hooks.register(Gate("second", False), "second")
    hooks.register(Gate("first", None), "first")
    hooks.register(Raising(), "raising")
    assert await hooks.first_result("aalis_inbound_gate", message=message()) is False
    assert asked == ["first", "second"]


async def test_raising_clear_is_a_failed_row() -> None:
    """A store that raises while it clears has a failed row in its plugin's name; the others are asked all the same."""

    class Store:
        @hookimpl
        def aalis_memory_clear(self, request: Any) -> ClearRow:
            return ClearRow(source=HISTORY_SOURCE, success=True)

    hooks = Hooks()
    hooks.register(Store(), "store")
    hooks.register(Raising(), "media")
    rows = await hooks.call("aalis_memory_clear", request=ClearRequest(scope="all"))
    assert rows == [
        ClearRow(source="media", success=False, message="disk full"),
        ClearRow(source=HISTORY_SOURCE, success=True),
    ]


async def test_cancelling_the_caller() -> None:
    """A caller that is cancelled while an implementation runs is cancelled; nobody else is called."""
    inside, called = asyncio.Event(), []

    class Slow:
        @hookimpl
        async def aalis_inbound(self, message: Any) -> None:
            inside.set()
            await asyncio.sleep(60)

    class Later:
        @hookimpl(trylast=True)
        def aalis_inbound(self, message: Any) -> None:
            called.append(message)

    hooks = Hooks()
    hooks.register(Slow(), "slow")
    hooks.register(Later(), "later")
    task = asyncio.create_task(hooks.call("aalis_inbound", message=message()))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert called == []


async def test_what_an_implementation_awaits_is_cancelled() -> None:
    """An implementation whose own work was cancelled has failed like any other; its caller goes on."""

    class Waiting:
        @hookimpl
        async def aalis_inbound(self, message: Any) -> None:
            inner = asyncio.ensure_future(asyncio.sleep(60))
            asyncio.get_running_loop().call_soon(inner.cancel)
            await inner

    hooks = Hooks()
    hooks.register(Sync(), "sync")
    hooks.register(Waiting(), "waiting")
    assert await hooks.call("aalis_inbound", message=message()) == [1]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
async def test_the_end_of_the_program_is_not_swallowed(stop: type[BaseException]) -> None:
    """What isn't an error of the plugin goes through."""

    class Stopping:
        @hookimpl
        def aalis_inbound(self, message: Any) -> None:
            raise stop

    hooks = Hooks()
    hooks.register(Stopping(), "stopping")
    with pytest.raises(stop):
        await hooks.call("aalis_inbound", message=message())


async def test_refused_at_registration() -> None:
    """Wrappers, misspelt hooks, unknown arguments and taken names are refused, and leave nothing registered."""

    class Wrapper:
        @hookimpl
        def aalis_turn_before(self, turn: Any) -> None:
            raise AssertionError("registered")

        @hookimpl(wrapper=True)
        def aalis_inbound(self, message: Any) -> Any:
            return (yield)

    class Misspelt:
        @hookimpl
        def aalis_inbuond(self, message: Any) -> None: ...

    class Greedy:
        @hookimpl
        def aalis_inbound(self, message: Any, session: Any) -> None: ...

    hooks = Hooks()
    hooks.register(Sync(), "sync")
    with pytest.raises(HookError, match=r"'aalis_inbound' is awaited and can't have a wrapper"):
        hooks.register(Wrapper(), "wrapper")
    with pytest.raises(HookError, match=r"no hook 'aalis_inbuond'; did you mean 'aalis_inbound'\?"):
        hooks.register(Misspelt(), "misspelt")
    with pytest.raises(HookError, match="session"):
        hooks.register(Greedy(), "greedy")
    with pytest.raises(HookError, match="sync"):
        hooks.register(Async(), "sync")
    assert await hooks.call("aalis_inbound", message=message()) == [1]
    assert await hooks.call("aalis_turn_before", turn=None) == []
    with pytest.raises(LookupError, match="aalis_inbuond"):
        await hooks.call("aalis_inbuond", message=message())


async def test_unregister() -> None:
    """A plugin that was taken out isn't called; taking it out again is a no-op."""
    hooks = Hooks()
    hooks.register(Sync(), "sync")
    hooks.unregister("sync")
    hooks.unregister("sync")
    assert await hooks.call("aalis_inbound", message=message()) == []
