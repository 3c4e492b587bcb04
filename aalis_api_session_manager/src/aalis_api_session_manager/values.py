"""Values made fit at the border, once: text that every store takes, JSON that nobody can change."""

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

__all__ = ["MAX_DEPTH", "clean_text", "freeze_decoded", "freeze_json", "freeze_object", "optional_text", "thaw_json"]

MAX_DEPTH = 100
"""How deep a JSON value may be nested. Writers of JSON have limits too; the nearest known is 254."""

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_EMPTY: Mapping[str, Any] = MappingProxyType({})

_CONTAINERS = (dict, list)
_LEAVES = (str, int, bool, float, type(None))


def clean_text(text: str) -> str:
    """`text` with lone surrogates and NUL replaced by U+FFFD: SQLite refuses the one, PostgreSQL the other.

    Raises TypeError for anything that isn't text.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected text, got {type(text).__name__}")
    text = str.__str__(text)
    if text.isascii() and "\x00" not in text:
        return text
    return _UNSTORABLE.sub("\ufffd", text)


def optional_text(text: str | None) -> str | None:
    """`clean_text`; None stays None."""
    return None if text is None else clean_text(text)


def freeze_json(value: Any, where: str = "metadata") -> Any:
    """A deep, read-only copy of a JSON value: mappings as `MappingProxyType`, sequences as tuples.

    Raises TypeError for what JSON doesn't have (other types, keys that aren't text) and ValueError for
    numbers that aren't finite or don't fit into 64 bits, and for keys that become equal when made storable;
    both name the path, such as `metadata.a[2]`. ValueError too for more than `MAX_DEPTH` levels.
    """
    return _freeze(value, where, MAX_DEPTH)


def _freeze(value: Any, where: str, levels: int) -> Any:
    match value:
        case None | bool():
            return value
        case str():
            return clean_text(value)
        case int():
            if not -(2**63) <= value < 2**64:
                raise ValueError(f"{where}: {value} doesn't fit into 64 bits")
            return int(value)
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{where}: {value} isn't a finite number")
            return float(value)
        case Mapping() | Sequence() if levels == 0:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        case Mapping():
            frozen = {}
            for key, item in value.items():
                if not isinstance(key, str):
                    raise TypeError(f"{where}: the key {key!r} isn't text")
                frozen[clean_text(key)] = _freeze(item, f"{where}.{key}", levels - 1)
            if len(frozen) < len(value):
                raise ValueError(f"{where}: two keys are equal once NUL and lone surrogates are replaced")
            return MappingProxyType(frozen) if frozen else _EMPTY
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            return tuple(_freeze(item, f"{where}[{i}]", levels - 1) for i, item in enumerate(value))
        case _:
            raise TypeError(f"{where}: {type(value).__name__} isn't a JSON value")


def freeze_object(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """`freeze_json` of a mapping; None stays None, anything else raises TypeError."""
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"expected an object, got {type(value).__name__}")
    frozen: Mapping[str, Any] | None = freeze_json(value)
    return frozen


def freeze_decoded(value: Any, depth: int = MAX_DEPTH) -> Any:
    """`freeze_json` for what a JSON decoder made: its values are good already, only its containers are replaced.

    Raises ValueError for a value that is nested deeper than `depth`.
    """
    if depth < 0:
        raise ValueError("it is nested too deep")
    kind, below = type(value), depth - 1
    if kind is dict:
        return MappingProxyType(
            {key: freeze_decoded(item, below) if type(item) in _CONTAINERS else item for key, item in value.items()}
        )
    if kind is list:
        return tuple([freeze_decoded(item, below) if type(item) in _CONTAINERS else item for item in value])
    return value


def thaw_json(value: Any) -> Any:
    """The plain form (dict, list) of a frozen JSON value; a copy that its caller may change."""
    kind = type(value)
    if kind is MappingProxyType or kind is dict:
        return {key: item if type(item) in _LEAVES else thaw_json(item) for key, item in value.items()}
    if kind is tuple or kind is list:
        return [item if type(item) in _LEAVES else thaw_json(item) for item in value]
    return value
