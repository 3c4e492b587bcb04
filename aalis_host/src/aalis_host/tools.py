"""The tool registry: what models may call, and calling it.

A call never raises: what is wrong is answered as `{"error": ...}`, in words that tell a model what is allowed.
"""

import asyncio
import re
from collections.abc import Callable, Sequence

import orjson
import structlog
from attrs import frozen
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from aalis_api_session_manager.errors import AalisError
from aalis_api_session_manager.host import ToolSpec
from aalis_api_session_manager.message import ToolCallContext
from aalis_host.arguments import lenient, problems
from aalis_host.hooks import cancelled_from_outside
from aalis_host.models.base import ToolSchema
from aalis_host.words import did_you_mean

__all__ = ["Tools"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@frozen
class _Tool:
    spec: ToolSpec
    validator: Draft202012Validator


class Tools:
    """The `ToolRegistry` of a host."""

    def __init__(self) -> None:
        self._tools: dict[str, _Tool] = {}

    def register(self, tool: ToolSpec) -> Callable[[], None]:
        """Add a tool; the answer removes it.

        Raises ValueError for a name that is taken or that models can't be given, and for parameters that aren't
        the JSON schema of an object.
        """
        if not _NAME.fullmatch(tool.name):
            raise ValueError(f"{tool.name!r} can't name a tool: 1 to 64 letters, digits, '_' or '-'")
        if tool.name in self._tools:
            raise ValueError(f"a tool {tool.name!r} is registered already")
        if tool.parameters.get("type") != "object":
            raise ValueError(f"the parameters of {tool.name!r} aren't the schema of an object")
        try:
            Draft202012Validator.check_schema(tool.parameters)
        except SchemaError as error:
            raise ValueError(f"the parameters of {tool.name!r} aren't a JSON schema: {error.message}") from error
        made = _Tool(tool, Draft202012Validator(tool.parameters))
        self._tools[tool.name] = made

        def remove() -> None:
            if self._tools.get(tool.name) is made:
                del self._tools[tool.name]

        return remove

    def names(self) -> Sequence[str]:
        """The registered names, sorted."""
        return sorted(self._tools)

    def specs(self) -> Sequence[ToolSpec]:
        """The registered tools, by name."""
        return [self._tools[name].spec for name in self.names()]

    def description(self, tool: ToolSpec) -> str:
        """What a model is told of a tool, given the tools that are there now."""
        return tool.description if isinstance(tool.description, str) else tool.description(self.names())

    def describe(self) -> Sequence[ToolSchema]:
        """Every tool as a model is given it."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": self.description(tool),
                    "parameters": tool.parameters,
                },
            }
            for tool in self.specs()
        ]

    async def call(self, name: str, arguments_json: str, ctx: ToolCallContext) -> str:
        """Call a tool as a model would; its answer, or `{"error": ...}`. Never raises, unless it is cancelled."""
        tool = self._tools.get(name)
        if tool is None:
            return _error(f"there is no tool {name!r}{did_you_mean(name, self.names())}")
        try:
            arguments = orjson.loads(arguments_json or "{}")
        except orjson.JSONDecodeError as error:
            return _error(f"the arguments of {name} aren't JSON ({error}); send one JSON object")
        if not isinstance(arguments, dict):
            return _error(f"the arguments of {name} must be one JSON object")
        arguments = lenient(arguments, tool.spec.parameters)
        wrong = problems(arguments, tool.validator)
        if wrong:
            return _error("; ".join(wrong))
        try:
            answer = await tool.spec.handler(arguments, ctx)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and cancelled_from_outside():
                raise
            log.error("a tool failed", tool=name, session=ctx.session_id, exc_info=error)
            reason = str(error) if isinstance(error, AalisError) else f"an error inside it ({type(error).__name__})"
            return _error(f"{name} failed: {reason}")
        return answer


def _error(reason: str) -> str:
    return orjson.dumps({"error": reason}).decode()
