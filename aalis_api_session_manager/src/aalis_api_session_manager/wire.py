"""One cattrs converter: records to and from the documents' camelCase JSON.

Nothing is coerced: None, "false" or 3.9 never become something else. Fields that are None are left out.
"""

from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from aalis_api_session_manager.text import TextRef
from aalis_api_session_manager.values import freeze_json, thaw_json

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


def _float(value: Any, _: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    return float(value)


def _is_mapping(cls: Any) -> bool:
    return get_origin(cls) is not None and isinstance(get_origin(cls), type) and issubclass(get_origin(cls), Mapping)


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


def _is_text_or_ref(cls: Any) -> bool:
    return get_origin(cls) in (Union, UnionType) and {str, TextRef} <= set(get_args(cls))


def _structure_text_or_ref(value: Any, cls: Any) -> Any:
    if isinstance(value, str) or (value is None and type(None) in get_args(cls)):
        return value
    return converter.structure(value, TextRef)


def _unstructure_text_or_ref(value: Any) -> Any:
    return converter.unstructure(value, TextRef) if isinstance(value, TextRef) else value


def _make_converter() -> Converter:
    made = Converter(detailed_validation=False)
    for kind in (str, int, bool):
        made.register_structure_hook(kind, _exactly(kind))
    made.register_structure_hook(float, _float)
    made.register_structure_hook_func(_is_mapping, _structure_mapping)
    made.register_unstructure_hook_func(_is_mapping, thaw_json)
    made.register_structure_hook_func(_is_tuple, _structure_tuple)
    made.register_structure_hook_func(_is_text_or_ref, _structure_text_or_ref)
    made.register_unstructure_hook_func(_is_text_or_ref, _unstructure_text_or_ref)

    def renamed(cls: type) -> dict[str, Any]:
        return {a.name: override(rename=camel(a.name)) for a in attrs.fields(cls)}

    def unstructure_record(cls: type) -> Any:
        plain: Callable[[Any], dict[str, Any]] = make_dict_unstructure_fn(cls, made, **renamed(cls))
        return lambda record: {key: value for key, value in plain(record).items() if value is not None}

    def structure_record(cls: type) -> Any:
        return make_dict_structure_fn(cls, made, **renamed(cls))

    made.register_unstructure_hook_factory(attrs.has, unstructure_record)
    made.register_structure_hook_factory(attrs.has, structure_record)
    made.register_unstructure_hook(
        TextRef, lambda ref: {"key": ref.key, "params": thaw_json(ref.params), "source": ref.source}
    )
    made.register_structure_hook(TextRef, _structure_text_ref)
    return made


def _structure_text_ref(value: Any, _: Any) -> TextRef:
    key, params, source = value["key"], value.get("params", {}), value.get("source")
    if not isinstance(key, str) or not isinstance(params, Mapping) or not isinstance(source, str | None):
        raise TypeError("a text has a key, params and a source")
    return TextRef(key, params, fallback=source)


converter = _make_converter()


def to_json(record: Any) -> Any:
    """A record as plain JSON with the documents' camelCase names."""
    return converter.unstructure(record)


def from_json(data: Any, cls: type[T]) -> T:
    """A record from plain JSON. Unknown names are ignored; a wrong type raises TypeError, a missing or
    impossible value KeyError or ValueError."""
    return converter.structure(data, cls)
