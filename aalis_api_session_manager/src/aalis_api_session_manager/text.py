"""Texts that a person or a model reads, kept apart from the language they are read in.

A text is a key with parameters. Each package adds its dictionary (English and zh_CN) at import with
`add_texts`; a host renders a `TextRef` in its reader's language, everybody else takes `.source` (English).

A template holds `{name}` for a value, `{name:datetime}` and `{name:time}` for milliseconds since the epoch.
"""

import string
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from aalis_api_session_manager.values import clean_text, freeze_json

if TYPE_CHECKING:
    from aalis_api_session_manager.model import PlaceInfo, SessionInfo

__all__ = ["TextRef", "add_texts", "place_label", "session_label", "template_of", "text_or_ref", "texts"]

_DICTIONARY: dict[str, Mapping[str, str]] = {}


def add_texts(added: Mapping[str, Mapping[str, str]]) -> None:
    """Add a package's texts: key -> language ("en", "zh_CN") -> template.

    Raises ValueError for a text without "en", and for a key that stands for another text already.
    """
    for key, by_language in added.items():
        if "en" not in by_language:
            raise ValueError(f"the text {key!r} has no English source")
        if _DICTIONARY.setdefault(key, MappingProxyType(dict(by_language))) != by_language:
            raise ValueError(f"the text {key!r} is added twice, and differs")


def texts() -> Mapping[str, Mapping[str, str]]:
    """Every text of the packages imported so far, as given to `add_texts`. A read-only view."""
    return MappingProxyType(_DICTIONARY)


def template_of(key: str, language: str) -> str | None:
    """The template of a text in exactly this language ("en", "zh_CN"), or None."""
    return _DICTIONARY.get(key, {}).get(language)


class _SourceFormatter(string.Formatter):
    """Times as `2026-11-02 09:30` and `09:30` in the process's zone; no library needed. Rule: LABEL-1."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in ("datetime", "time"):
            pattern = "%Y-%m-%d %H:%M" if format_spec == "datetime" else "%H:%M"
            return datetime.fromtimestamp(value / 1000).strftime(pattern)
        return str(super().format_field(value, format_spec))


_SOURCE = _SourceFormatter()


def _params(params: Mapping[str, Any]) -> Any:
    return freeze_json(params, "params")


@frozen
class TextRef:
    """A text by key and parameters.

    `fallback` is the source text as it was stored, read when no package of this process knows the key or
    its parameters don't fit.
    """

    key: str
    params: Mapping[str, Any] = field(factory=dict, converter=_params, hash=False)
    fallback: str | None = field(default=None, eq=False, repr=False, kw_only=True)

    @property
    def source(self) -> str:
        """The English text. What a model is given; never raises. Rule: LABEL-2."""
        template = template_of(self.key, "en")
        if template is not None:
            with suppress(LookupError, TypeError, ValueError, OverflowError, OSError):
                return _SOURCE.vformat(template, (), self.params)
        return self.key if self.fallback is None else self.fallback


def text_or_ref(value: str | TextRef | None) -> str | TextRef | None:
    """`clean_text` of a text; a TextRef and None stay as they are."""
    return value if value is None or isinstance(value, TextRef) else clean_text(value)


add_texts(
    {
        "session.default-root": {"en": "Session {created_at:datetime}", "zh_CN": "会话 {created_at:datetime}"},
        "session.default-child": {"en": "Subtask {created_at:time}", "zh_CN": "子任务 {created_at:time}"},
        "place.default": {"en": "Default workspace", "zh_CN": "默认工作区"},
    }
)


def session_label(session: "SessionInfo") -> str | TextRef:
    """The name, else the default label of a root or a child; never stored. Rules: LABEL-1, LABEL-2."""
    if session.name:
        return session.name
    key = "session.default-root" if session.parent_id is None else "session.default-child"
    return TextRef(key, {"created_at": session.created_at})


def place_label(place: "PlaceInfo") -> str | TextRef:
    """The name of a place; the nameless one is the default workspace. Rule: LABEL-4."""
    return place.name or TextRef("place.default")
