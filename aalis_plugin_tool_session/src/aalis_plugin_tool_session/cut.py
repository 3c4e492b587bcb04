"""Cutting text for a reader. Rules: HIST-5, DELEG-8."""

import regex

__all__ = ["cut"]

_GRAPHEME = regex.compile(r"\X")


def cut(text: str, limit: int) -> tuple[str, int]:
    """The longest beginning of at most `limit` characters that ends between graphemes, and how many are left out.

    Characters are code points. A first grapheme longer than `limit` is left out whole.
    """
    if len(text) <= limit:
        return text, 0
    end = 0
    for grapheme in _GRAPHEME.finditer(text):
        if grapheme.end() > limit:
            break
        end = grapheme.end()
    return text[:end], len(text) - end
