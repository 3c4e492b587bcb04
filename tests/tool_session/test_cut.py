"""Cuts between graphemes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aalis_plugin_tool_session.cut import cut

FLAG = "\U0001f1f0\U0001f1f7"  # two regional indicators
FAMILY = "\U0001f468‍\U0001f469‍\U0001f467"  # three persons joined: 5 code points
ACCENT = "ẹ́"  # a letter with two marks
JAMO = "각"  # one Hangul syllable of three jamo
SKIN = "\U0001f44d\U0001f3fd"
CRLF = "\r\n"

pytestmark = pytest.mark.rule("HIST-5", "DELEG-8")


@pytest.mark.parametrize("grapheme", [FLAG, FAMILY, ACCENT, JAMO, SKIN, CRLF], ids=ascii)
def test_a_grapheme_is_shown_whole_or_not_at_all(grapheme: str) -> None:
    """Whatever the limit; the numbers are code points."""
    text = "ab" + grapheme + "c"
    for limit in range(len(text) + 2):
        shown, left_out = cut(text, limit)
        assert shown in ("", "a", "ab", "ab" + grapheme, text)
        assert len(shown) <= limit and len(shown) + left_out == len(text)
    assert cut(text, 2 + len(grapheme)) == ("ab" + grapheme, 1)
    assert cut(text, 1 + len(grapheme)) == ("ab", len(grapheme) + 1)


def test_flags_in_a_row_are_cut_between_flags() -> None:
    """Not between the indicators of the second one."""
    assert cut(FLAG * 3, 5) == (FLAG * 2, 2)
    assert cut(FLAG * 3, 3) == (FLAG, 4)


def test_what_fits_is_not_touched() -> None:
    assert cut("abc", 3) == ("abc", 0)
    assert cut("", 0) == ("", 0)


def test_a_first_grapheme_that_is_too_long_is_left_out_whole() -> None:
    """A letter under a thousand marks."""
    assert cut("a" + "̃" * 1000, 80) == ("", 1001)


@given(st.text(), st.integers(0, 40))
def test_nothing_is_lost_or_added(text: str, limit: int) -> None:
    shown, left_out = cut(text, limit)
    assert text.startswith(shown) and len(shown) <= limit
    assert len(shown) + left_out == len(text)
