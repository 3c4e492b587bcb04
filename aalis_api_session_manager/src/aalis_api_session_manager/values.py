"""Values made fit at the border, once: text that every store takes, JSON that nobody can change."""

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

__all__ = ["clean_text", "freeze_json", "thaw_json"]

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_EMPTY: Mapping[str, Any] = MappingProxyType({})


def clean_text(text: str) -> str:
    """`text` with lone surrogates and NUL replaced by U+FFFD: SQLite refuses the one, PostgreSQL the other."""
    if text.isascii() and "\x00" not in text:
        return text
    return _UNSTORABLE.sub("\ufffd", text)


def freeze_json(value: Any, where: str = "metadata") -> Any:
    """A deep, read-only copy of a JSON value: mappings as `MappingProxyType`, sequences as tuples.

    Raises TypeError for what JSON doesn't have (other types, keys that aren't text) and ValueError for
    numbers that aren't finite or don't fit into 64 bits; both name the path, such as `metadata.a[2]`.
    """
    match value:
        case None | bool():
            return value
        case str():
            return clean_text(str(value))
        case int():
            if not -(2**63) <= value < 2**64:
                raise ValueError(f"{where}: {value} doesn't fit into 64 bits")
            return int(value)
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{where}: {value} isn't a finite number")
            return float(value)
        case Mapping():
            frozen = {}
            for key, item in value.items():
                if not isinstance(key, str):
                    raise TypeError(f"{where}: the key {key!r} isn't text")
                frozen[clean_text(key)] = freeze_json(item, f"{where}.{key}")
            return MappingProxyType(frozen) if frozen else _EMPTY
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            return tuple(freeze_json(item, f"{where}[{i}]") for i, item in enumerate(value))
        case _:
            raise TypeError(f"{where}: {type(value).__name__} isn't a JSON value")


def thaw_json(value: Any) -> Any:
    """The plain form (dict, list) of a frozen JSON value; a copy that its caller may change."""
    if isinstance(value, Mapping):
        return {key: thaw_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [thaw_json(item) for item in value]
    return value
