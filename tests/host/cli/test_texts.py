"""The command line's texts are complete in both languages, and all are used."""

import re
import string
from pathlib import Path

import pytest

import aalis_host.cli
from aalis_host.cli.texts import _TEXTS, text

SOURCES = [
    path.read_text("utf-8") for path in Path(aalis_host.cli.__file__).parent.glob("*.py") if path.name != "texts.py"
]


def placeholders(template: str) -> set[tuple[str | None, str | None]]:
    return {(name, spec) for _, name, spec, _ in string.Formatter().parse(template) if name}


@pytest.mark.parametrize("key", _TEXTS)
def test_both_languages_say_the_same(key: str) -> None:
    """English and simplified Chinese, with the same parameters."""
    languages = _TEXTS[key]
    assert set(languages) == {"en", "zh_CN"}
    assert placeholders(languages["en"]) == placeholders(languages["zh_CN"])


def test_no_text_without_a_reader() -> None:
    """Each key stands in the code, whole or put together from its group."""
    literals = {literal for source in SOURCES for literal in re.findall(r'"([a-z][a-z.-]+)"', source)}
    groups = {group for source in SOURCES for group in re.findall(r'f["\']([a-z-]+)\.\{', source)}
    unused = [key for key in _TEXTS if key not in literals and key.split(".")[0] not in groups]
    assert unused == []


def test_a_parameter_may_be_anything() -> None:
    """A path or an error stands in a text as its words."""
    assert text("unreadable", path=Path("a/b"), reason=OSError("gone")).source == "a/b: gone"
