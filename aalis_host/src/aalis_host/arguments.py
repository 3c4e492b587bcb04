"""A tool's arguments, as a model sends them: read kindly where the schema says what was meant, else refused."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from aalis_host.words import did_you_mean

__all__ = ["lenient", "problems"]

_IS: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def lenient(value: Any, schema: Mapping[str, Any]) -> Any:
    """`value` with what the schema leaves no doubt about put right, at every depth; a new object.

    Text of digits where only a number fits, "true" and "false" where only a boolean does, a whole number written
    as 3.0, and null for a key that may be left out. What has a type of the schema already is never touched.
    """
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        return {
            key: lenient(item, properties.get(key, {}))
            for key, item in value.items()
            if item is not None or key in required or key not in properties or _fits(None, properties[key])
        }
    if isinstance(value, list):
        items = schema.get("items", {})
        return [lenient(item, items) for item in value]
    if _fits(value, schema):
        return value
    for kind in _types(schema):
        read = _READ.get(kind)
        if read is not None and (meant := read(value)) is not None:
            return meant
    return value


def problems(arguments: dict[str, Any], validator: Draft202012Validator) -> list[str]:
    """What is wrong with arguments, each in words that say what is allowed; unknown names first."""
    schema = cast(Mapping[str, Any], validator.schema)
    known = schema.get("properties", {})
    unknown = [] if schema.get("additionalProperties", False) else sorted(set(arguments) - set(known))
    found = [f"there is no argument {name!r}{did_you_mean(name, known)}" for name in unknown]
    for error in validator.iter_errors(arguments):
        if error.validator != "additionalProperties" or error.path:
            found.extend(_in_words(error))
    return found


def _types(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    kinds = _types(schema)
    return not kinds or any(_IS[kind](value) for kind in kinds)


def _integer(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", value):
        return int(value)
    return None


def _number(value: Any) -> float | None:
    whole = _integer(value)
    if whole is not None:
        return whole
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,19}\.[0-9]{1,19}\s*", value):
        return float(value)
    return None


def _boolean(value: Any) -> bool | None:
    return {"true": True, "false": False}.get(value.strip().lower()) if isinstance(value, str) else None


_READ: Mapping[str, Callable[[Any], Any]] = {"integer": _integer, "number": _number, "boolean": _boolean}


def _in_words(error: ValidationError) -> Iterator[str]:
    where = ".".join(map(str, error.path)) or "the arguments"
    allowed = cast(Any, error.validator_value)
    match error.validator:
        case "required":
            under = "".join(f"{part}." for part in error.path)
            yield from (
                f"the argument '{under}{name}' is missing" for name in allowed if name not in cast(Any, error.instance)
            )
        case "type":
            yield f"{where} must be {' or '.join(_types({'type': allowed}))}"
        case "enum":
            yield f"{where} must be one of {', '.join(map(repr, allowed))}"
        case "minimum":
            yield f"{where} must be at least {allowed}"
        case "maximum":
            yield f"{where} must be at most {allowed}"
        case "minLength" | "minItems":
            yield f"{where} must not be empty" if allowed == 1 else f"{where} must hold at least {allowed}"
        case "maxLength" | "maxItems":
            yield f"{where} must hold at most {allowed}"
        case _:
            yield f"{where}: {error.message[:200]}"
