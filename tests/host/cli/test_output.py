"""What is shown is harmless, fits, and reads the same for people and programs."""

import pytest

from aalis_host.cli.arguments import identity, moment
from aalis_host.cli.base import Mistake
from aalis_host.cli.output import age, block, compact, one_line
from aalis_host.cli.tables import show_captioned, show_facts, show_table


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


def test_captions_stay_whole_while_cells_are_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a narrow terminal the flexible columns lose their ends, wide characters counted as two; ids don't."""
    rows = [("新手交流群的名字很长", "5"), ("x", "12")]
    captions = ("an-id-that-is-longer-than-the-terminal", "b")

    def shown(width: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        show_captioned(("label", "count"), rows, captions, right=(1,), flexible=(0,))
        return capsys.readouterr().out.splitlines()

    assert shown(30) == [
        "label                 count",
        "新手交流群的名字很长      5",
        "  an-id-that-is-longer-than-the-terminal",
        "x                        12",
        "  b",
    ]
    assert shown(20)[1] == "新手交流群的…      5"


def test_a_table_for_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    """Aligned by the width of characters, one line a row, nothing cut."""
    show_table(("name", "n"), [("新手", "5"), ("x" * 200, "12"), ("👩‍👩‍👧‍👦", "7")], right=(1,))
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"name{' ' * 198} n",
        f"新手{' ' * 198} 5",
        f"{'x' * 200}  12",
        f"👩‍👩‍👧‍👦{' ' * 200} 7",
    ]


def test_facts_for_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    """A value's further lines stand under its first."""
    show_facts([("a", "1"), ("longer", "2\n3")])
    assert capsys.readouterr().out == "a       1\nlonger  2\n        3\n"


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
