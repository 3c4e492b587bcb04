"""Words for a mistaken name, and for an error."""

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean", "said_by"]


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """`; did you mean 'x'?`, else `; there are a, b` — to stand behind the sentence that refuses `name`."""
    names = sorted(allowed)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; there are {', '.join(names)}" if names else "; there are none"


def said_by(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
