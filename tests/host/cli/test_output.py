"""What is shown is harmless, fits, and reads the same for people and programs."""

import pytest

from aalis_host.cli.arguments import identity, moment
from aalis_host.cli.base import Mistake
from aalis_host.cli.output import age, block, compact, one_line, with_captions


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mred\x1b[0m", "a\ufffd[31mred\ufffd[0m"),
        ("bell\x07 \x9b2J", "bell\ufffd \ufffd2J"),
        ("a\r\nb\tc", "a\nb\tc"),
        ("over\rwrite", "over\ufffdwrite"),
        ("abc\u202edef", "abcdef"),
        ("👩‍👩‍👧‍👦 é ש\u200f", "👩‍👩‍👧‍👦 é ש\u200f"),
    ],
)
def test_other_peoples_text_cannot_steer_the_terminal(text: str, shown: str) -> None:
    """Control characters and direction overrides are taken out; everything else stays as it was said."""
    assert block(text) == shown


def test_one_line() -> None:
    """A name with lines in it stays in its row."""
    assert one_line(" a\n\n b\x1b ") == "a b\ufffd"


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [(-5, "0s"), (59_999, "59s"), (60_000, "1m"), (7_200_000, "2h"), (6 * 86_400_000, "6d"), (70 * 86_400_000, "10w")],
)
def test_age(milliseconds: int, shown: str) -> None:
    """A span in its largest unit."""
    assert age(milliseconds) == shown


@pytest.mark.parametrize(("number", "shown"), [(0, "0"), (999, "999"), (12_345, "12.3k"), (4_000_000, "4.0M")])
def test_compact(number: int, shown: str) -> None:
    """Large numbers in a few characters."""
    assert compact(number) == shown


def test_captions_stay_whole_while_cells_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a narrow terminal the flexible columns lose their ends, wide characters counted as two; ids don't."""
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr("aalis_host.cli.output.on_terminal", lambda: True)
    rows = [(("新手交流群的名字很长", "5"), "an-id-that-is-longer-than-the-terminal"), (("x", "12"), "b")]
    lines = with_captions(("label", "count"), rows, right=(1,), flexible=(0,))
    assert [line.plain for line in lines] == [
        "label                 count",
        "新手交流群的名字很长      5",
        "  an-id-that-is-longer-than-the-terminal",
        "x                        12",
        "  b",
    ]
    monkeypatch.setenv("COLUMNS", "20")
    narrow = with_captions(("label", "count"), rows, right=(1,), flexible=(0,))
    assert narrow[1].plain == "新手交流群的…      5"


NOW = 1_796_000_000_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("90s", NOW - 90_000),
        ("2h", NOW - 7_200_000),
        ("1w", NOW - 604_800_000),
        ("2026-11-30T09:30+08:00", 1_796_002_200_000),
        ("1970-01-01T00:00:01+00:00", 1_000),
    ],
)
def test_moment(value: str, expected: int) -> None:
    """A span before now, or an ISO time."""
    assert moment("--since", value, NOW) == expected


@pytest.mark.parametrize("value", ["", "yesterday", "5", "5x", "-5m", "2026-13-01", "9" * 30 + "-01-01"])
def test_no_moment(value: str) -> None:
    """Anything else is refused with the option's name and what is allowed."""
    with pytest.raises(Mistake, match="--since"):
        moment("--since", value, NOW)


def test_identity() -> None:
    """`platform:user`; the user may hold colons."""
    account = identity("matrix:@a:b.c")
    assert (account.platform, account.user_id) == ("matrix", "@a:b.c")
    for wrong in ("", "onebot", "onebot:", ":7"):
        with pytest.raises(Mistake, match="platform:user"):
            identity(wrong)
