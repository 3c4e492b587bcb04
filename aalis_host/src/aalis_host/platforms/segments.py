"""The two forms of a OneBot v11 message: an array of segments, and a string with CQ codes."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import frozen

__all__ = ["MessageText", "parse_cq", "read_message"]

_CQ = re.compile(r"\[CQ:([\w.-]+)((?:,[^\[\],=]+=[^\[\],]*)*)\]")
_ESCAPE = re.compile("&(amp|#91|#93|#44);")
_ESCAPED = {"amp": "&", "#91": "[", "#93": "]", "#44": ","}
_NAMES = {"record": "voice", "mface": "sticker", "share": "link", "forward": "forwarded messages", "json": "card"}
"""What a reader is shown instead of the segment's own type name."""
_DETAILS = {
    "face": ("id",),
    "file": ("name", "file"),
    "image": ("summary",),
    "location": ("title",),
    "mface": ("summary",),
    "music": ("title",),
    "reply": ("id",),
    "share": ("title",),
}
_DETAIL_LENGTH = 60

Segment = tuple[str, Mapping[str, Any]]


@frozen
class MessageText:
    """A message as text, and the accounts that it addresses."""

    text: str
    mentions: frozenset[str]


def read_message(message: Any) -> MessageText:
    """The text of either form; what isn't text stands as a short mark such as `[image]` or `[reply 17]`.

    `@all` addresses nobody in particular. Raises ValueError for what has neither form.
    """
    segments = parse_cq(message) if isinstance(message, str) else _array(message)
    parts: list[str] = []
    mentions: set[str] = set()
    for kind, data in segments:
        if kind == "at":
            account = str(data.get("qq", ""))
            parts.append(f"@{data.get('name') or account}")
            if account != "all":
                mentions.add(account)
        elif kind == "text":
            parts.append(str(data.get("text", "")))
        else:
            parts.append(_mark(kind, data))
    return MessageText("".join(parts), frozenset(mentions))


def parse_cq(text: str) -> Iterator[Segment]:
    """The segments of a string with CQ codes. What doesn't close as a code is text, brackets and all."""
    end = 0
    for code in _CQ.finditer(text):
        if code.start() > end:
            yield "text", {"text": _unescape(text[end : code.start()])}
        pairs = (pair.split("=", 1) for pair in code[2].split(",")[1:])
        yield code[1], {key: _unescape(value) for key, value in pairs}
        end = code.end()
    if end < len(text):
        yield "text", {"text": _unescape(text[end:])}


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPED[found[1]], text) if "&" in text else text


def _array(message: Any) -> Iterable[Segment]:
    if not isinstance(message, list):
        raise ValueError("message is neither text nor an array of segments")
    for index, segment in enumerate(message):
        kind, data = (segment.get("type"), segment.get("data")) if isinstance(segment, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(data, dict | None):
            raise ValueError(f"message[{index}] isn't a segment with a type and data")
        yield kind, data or {}


def _mark(kind: str, data: Mapping[str, Any]) -> str:
    found = next((str(data[key]) for key in _DETAILS.get(kind, ()) if data.get(key)), "")
    detail = " ".join(found.split()).strip(" []")
    name = _NAMES.get(kind, kind)
    return f"[{name} {detail[:_DETAIL_LENGTH]}]" if detail else f"[{name}]"
