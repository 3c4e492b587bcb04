"""Reading a tool's arguments. The registry has checked them against the schema; here nothing is believed."""

import math
from collections.abc import Mapping
from typing import Any

from aalis_plugin_tool_session.texts import Refused, text

__all__ = ["read_integer", "read_positive", "read_switch", "read_text"]


def read_text(args: Mapping[str, Any], name: str) -> str | None:
    """The text, or None when it is left out. Raises Refused for anything else."""
    value = args.get(name)
    if value is None or isinstance(value, str):
        return value
    raise Refused(text("argument.text", name=name))


def read_integer(args: Mapping[str, Any], name: str, low: int = 1) -> int | None:
    """The whole number, `low` or more, or None when it is left out. Raises Refused for anything else."""
    value = args.get(name)
    if value is None:
        return None
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or value < low:
        raise Refused(text("argument.integer", name=name, low=low))
    return value


def read_positive(args: Mapping[str, Any], name: str) -> float | None:
    """The number above 0, or None when it is left out. Raises Refused for anything else."""
    value = args.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not value > 0 or math.isinf(value):
        raise Refused(text("argument.positive", name=name))
    number: float = value
    return number


def read_switch(args: Mapping[str, Any], name: str) -> bool | None:
    """True or false, or None when it is left out. Raises Refused for anything else."""
    value = args.get(name)
    if value is None or type(value) is bool:
        return value
    raise Refused(text("argument.switch", name=name))
