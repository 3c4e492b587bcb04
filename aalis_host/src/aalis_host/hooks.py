"""Calling hooks. pluggy is synchronous, so the host walks the implementations itself.

They are called in pluggy's order (tryfirst first, then the one registered last), awaited one after the other, and
each is isolated: an exception is logged with the plugin's name and reaches nobody else. Rule: EVENT-1.
"""

import asyncio
import difflib
import inspect
from typing import Any

import pluggy
import structlog

from aalis_api_session_manager import hookspecs
from aalis_api_session_manager.message import ClearRow

__all__ = ["HookError", "Hooks", "cancelled_from_outside"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class HookError(Exception):
    """A plugin's hooks can't be registered; the text says which and why."""


def cancelled_from_outside() -> bool:
    """Asked where a CancelledError arrived: was the running task itself cancelled?

    Else what it awaited was cancelled, which is that thing's own failure.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Hooks:
    """The registered implementations of project `aalis`."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)

    def register(self, plugin: object, name: str) -> None:
        """Add a plugin's hook implementations.

        Raises HookError, leaving nothing registered, for a name that is taken, a hook that isn't specified, an
        argument the hook doesn't have, and a wrapper: what is awaited can't be wrapped.
        """
        try:
            self._manager.register(plugin, name)
        except (ValueError, pluggy.PluginValidationError) as error:
            raise HookError(str(error)) from error
        for caller in self._manager.get_hookcallers(plugin) or ():
            for impl in caller.get_hookimpls():
                if impl.plugin is plugin and (problem := self._problem(caller, impl)) is not None:
                    self._manager.unregister(plugin)
                    raise HookError(problem)

    def _problem(self, caller: pluggy.HookCaller, impl: pluggy.HookImpl) -> str | None:
        if caller.spec is None and not impl.optionalhook:
            known = [name for name in dir(hookspecs) if name.startswith("aalis_")]
            near = difflib.get_close_matches(caller.name, known, n=1)
            return f"there is no hook {caller.name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        if impl.wrapper or impl.hookwrapper:
            return f"{caller.name!r} is awaited and can't have a wrapper"
        return None

    def unregister(self, name: str) -> None:
        """Take a plugin's implementations out; an unknown name is a no-op."""
        if self._manager.has_plugin(name):
            self._manager.unregister(name=name)

    async def call(self, hook: str, /, *, limit: float | None = None, **kwargs: Any) -> list[Any]:
        """Call every implementation; the results that aren't None, in call order.

        A raising `aalis_memory_clear` is a failed `ClearRow` of its plugin. `limit`: seconds that each
        implementation may take; then it is cancelled and left behind, as if it had raised.
        """
        results = []
        for impl in reversed(self._caller(hook).get_hookimpls()):
            result = await _isolated(hook, impl, kwargs, limit)
            if result is not None:
                results.append(result)
        return results

    async def first_result(self, hook: str, /, **kwargs: Any) -> Any:
        """The first result that isn't None, asking nobody after it; a raising implementation counts as None."""
        for impl in reversed(self._caller(hook).get_hookimpls()):
            result = await _isolated(hook, impl, kwargs)
            if result is not None:
                return result
        return None

    async def call_plugin(self, name: str, hook: str, /, **kwargs: Any) -> None:
        """Call one plugin's implementation, if it has one. Raises what it raises."""
        for impl in self._caller(hook).get_hookimpls():
            if impl.plugin_name == name:
                await _call(impl, kwargs)

    def _caller(self, hook: str) -> pluggy.HookCaller:
        caller: pluggy.HookCaller | None = getattr(self._manager.hook, hook, None)
        if caller is None or caller.spec is None:
            raise LookupError(f"there is no hook {hook!r}")
        return caller


async def _call(impl: pluggy.HookImpl, kwargs: dict[str, Any]) -> Any:
    result = impl.function(*(kwargs[name] for name in impl.argnames))
    return await result if inspect.isawaitable(result) else result


async def _call_within(impl: pluggy.HookImpl, kwargs: dict[str, Any], limit: float) -> Any:
    """In a task of its own: one that clings to its wait, whatever cancels it, keeps nobody either."""
    result = impl.function(*(kwargs[name] for name in impl.argnames))
    if not inspect.isawaitable(result):
        return result
    # As `asyncio.wait` does it, in half the time: a deletion calls many.
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(result)
    over: asyncio.Future[None] = loop.create_future()

    def end(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    task.add_done_callback(end)
    timer = loop.call_later(limit, end)
    try:
        await over
    finally:
        timer.cancel()
        if not task.done():
            task.cancel()
    if not task.done():
        raise TimeoutError(f"it took longer than {limit:g} s")
    return task.result()


async def _isolated(hook: str, impl: pluggy.HookImpl, kwargs: dict[str, Any], limit: float | None = None) -> Any:
    try:
        return await (_call(impl, kwargs) if limit is None else _call_within(impl, kwargs, limit))
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and cancelled_from_outside():
            raise
        log.error("a hook failed", plugin=impl.plugin_name, hook=hook, exc_info=error)
        if hook == "aalis_memory_clear":
            return ClearRow(source=impl.plugin_name, success=False, message=str(error) or type(error).__name__)
        return None
