"""One cattrs converter: records to and from the documents' camelCase JSON.

Nothing is coerced: None, "false" or 3.9 never become something else. A field that says nothing (None, or
`UNSET` where that is the default) is left out.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from aalis_api_session_manager.model import UNSET, Unset
from aalis_api_session_manager.text import TextRef
from aalis_api_session_manager.values import clean_text, freeze_json, thaw_json

__all__ = ["camel", "converter", "from_json", "to_json"]

T = TypeVar("T")


def camel(name: str) -> str:
    """`last_reply_at` -> `lastReplyAt`."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _exactly(kind: type) -> Any:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
        return value

    return structure


def _text(value: Any, _: Any) -> str:
    return clean_text(value)


def _float(value: Any, _: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    return float(value)


def _is_literal(cls: Any) -> bool:
    return get_origin(cls) is Literal


def _structure_literal(value: Any, cls: Any) -> Any:
    if not isinstance(value, str) or value not in get_args(cls):
        raise ValueError(f"expected one of {', '.join(get_args(cls))}, got {value!r}")
    return value


def _is_mapping(cls: Any) -> bool:
    origin = get_origin(cls)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _structure_mapping(value: Any, _: Any) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected an object, got {type(value).__name__}")
    return freeze_json(value)


def _is_tuple(cls: Any) -> bool:
    return get_origin(cls) is tuple


def _structure_tuple(value: Any, cls: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    (item_type, _) = get_args(cls)
    return tuple(converter.structure(item, item_type) for item in value)


def _unstructure_tuple(value: Any) -> Any:
    return [converter.unstructure(item) for item in value]


def _members(cls: Any) -> tuple[Any, ...]:
    return get_args(cls) if get_origin(cls) in (Union, UnionType) else ()


def _is_text_or_ref(cls: Any) -> bool:
    return {str, TextRef} <= set(_members(cls))


def _structure_text_or_ref(value: Any, cls: Any) -> Any:
    if value is None and type(None) in get_args(cls):
        return None
    return clean_text(value) if isinstance(value, str) else converter.structure(value, TextRef)


def _is_update(cls: Any) -> bool:
    return Unset in _members(cls)


def _structure_update(value: Any, cls: Any) -> Any:
    (given,) = (member for member in get_args(cls) if member not in (Unset, type(None)))
    optional = type(None) in get_args(cls)
    return None if optional and value is None else converter.structure(value, given)


def _structure_text_ref(value: Any, _: Any) -> TextRef:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected a text, got {type(value).__name__}")
    key, params, source = value["key"], value.get("params", {}), value.get("source")
    if not isinstance(key, str) or not isinstance(params, Mapping) or not isinstance(source, str | None):
        raise TypeError("a text has a key, params and a source")
    return TextRef(key, params, fallback=source)


def _unstructure_text_ref(ref: TextRef) -> dict[str, Any]:
    return {"key": ref.key, "params": thaw_json(ref.params), "source": ref.source}


def _record_hooks(made: Converter) -> None:
    def names(cls: type) -> dict[str, Any]:
        return {a.name: override(rename=camel(a.name)) for a in attrs.fields(cls)}

    def unstructure(cls: type) -> Any:
        to_object: Callable[[Any], dict[str, Any]] = make_dict_unstructure_fn(cls, made, **names(cls))
        silent = {camel(a.name): a.default for a in attrs.fields(cls) if a.default in (None, UNSET)}

        def to_value(record: Any) -> dict[str, Any]:
            return {
                name: item for name, item in to_object(record).items() if item is not silent.get(name, attrs.NOTHING)
            }

        return to_value

    def structure(cls: type) -> Any:
        from_object: Callable[[Any, Any], Any] = make_dict_structure_fn(cls, made, **names(cls))

        def from_value(value: Any, _: Any) -> Any:
            if not isinstance(value, Mapping):
                raise TypeError(f"expected an object, got {type(value).__name__}")
            return from_object(value, cls)

        return from_value

    made.register_unstructure_hook_factory(attrs.has, unstructure)
    made.register_structure_hook_factory(attrs.has, structure)
    made.register_unstructure_hook(TextRef, _unstructure_text_ref)
    made.register_structure_hook(TextRef, _structure_text_ref)


def _make_converter() -> Converter:
    made = Converter(detailed_validation=False)
    made.register_structure_hook(str, _text)
    made.register_structure_hook(int, _exactly(int))
    made.register_structure_hook(bool, _exactly(bool))
    made.register_structure_hook(float, _float)
    made.register_structure_hook_func(_is_literal, _structure_literal)
    made.register_structure_hook_func(_is_mapping, _structure_mapping)
    made.register_structure_hook_func(_is_tuple, _structure_tuple)
    made.register_structure_hook_func(_is_text_or_ref, _structure_text_or_ref)
    made.register_structure_hook_func(_is_update, _structure_update)
    made.register_unstructure_hook_func(_is_tuple, _unstructure_tuple)
    made.register_unstructure_hook_func(_is_mapping, thaw_json)
    made.register_unstructure_hook(MappingProxyType, thaw_json)
    made.register_unstructure_hook(Unset, lambda unset: unset)
    _record_hooks(made)
    return made


converter = _make_converter()


def to_json(record: Any) -> Any:
    """A record as plain JSON with the documents' camelCase names."""
    return converter.unstructure(record)


def from_json(data: Any, cls: type[T]) -> T:
    """A record from plain JSON. Unknown names are ignored. Rule: CREATE-2.

    Raises TypeError for a wrong type, KeyError for a missing field, ValueError for an impossible value.
    """
    return converter.structure(data, cls)
