"""The dictionaries: complete in both languages, the same values in each."""

import importlib
import pkgutil
import string
from collections.abc import Iterator
from pathlib import PosixPath

import pytest

from aalis_api_session_manager import text
from aalis_api_session_manager.text import TextRef, add_texts, template_of, text_or_ref, texts

PACKAGES = ("aalis_api_session_manager", "aalis_plugin_session_manager", "aalis_plugin_tool_session", "aalis_host")


@pytest.fixture
def dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test adds is gone after it."""
    monkeypatch.setattr(text, "_DICTIONARY", dict(texts()))


def modules() -> Iterator[str]:
    """The name of every module of the four distributions."""
    for package in PACKAGES:
        yield package
        path = importlib.import_module(package).__path__
        yield from (found.name for found in pkgutil.walk_packages(path, f"{package}."))


def values_in(template: str) -> set[tuple[str, str]]:
    """The values that a template shows, with how they are formatted."""
    return {(name, spec or "") for _, name, spec, _ in string.Formatter().parse(template) if name is not None}


@pytest.mark.rule("LABEL-2")
def test_every_text_is_complete() -> None:
    """Each text of the four packages has an English source and a Chinese one that shows the same values."""
    for name in modules():
        if not name.endswith("__main__"):
            importlib.import_module(name)
    assert {"session.default-root", "session.default-child", "place.default", "take.unknown"} <= texts().keys()
    for key, by_language in texts().items():
        assert by_language.keys() == {"en", "zh_CN"}, key
        assert all(by_language.values()), key
        assert values_in(by_language["en"]) == values_in(by_language["zh_CN"]), key
        assert by_language["en"].isascii() or by_language["en"] != by_language["zh_CN"], key


def test_a_text_needs_its_source(dictionary: None) -> None:
    """Without English there is nothing to fall back on."""
    with pytest.raises(ValueError, match=r"'test\.x' has no English"):
        add_texts({"test.x": {"zh_CN": "x"}})


def test_a_key_stands_for_one_text(dictionary: None) -> None:
    """Adding the same text again is fine; another under its key is refused and changes nothing."""
    add_texts({"test.x": {"en": "one", "zh_CN": "一"}})
    add_texts({"test.x": {"en": "one", "zh_CN": "一"}})
    with pytest.raises(ValueError, match=r"'test\.x' is added twice"):
        add_texts({"test.x": {"en": "two", "zh_CN": "二"}})
    assert TextRef("test.x").source == "one"
    assert template_of("test.x", "zh_CN") == "一"
    assert template_of("test.x", "fr") is None
    assert template_of("test.unknown", "en") is None


def test_values_are_shown_as_they_are(dictionary: None) -> None:
    """Braces in a value are text, and formats work as Python's."""
    add_texts({"test.x": {"en": "{who} has {n:,} of {share:.0%}", "zh_CN": "{who}{n:,}{share:.0%}"}})
    assert TextRef("test.x", {"who": "{n}", "n": 12345, "share": 0.5}).source == "{n} has 12,345 of 50%"


@pytest.mark.parametrize("params", [{}, {"n": "many"}, {"n": None}, {"n": 2**62}])
def test_a_source_is_always_readable(dictionary: None, params: dict[str, object]) -> None:
    """Where the values don't fit the template, the stored source is read, else the key."""
    add_texts({"test.x": {"en": "at {n:datetime}", "zh_CN": "{n:datetime}"}})
    assert TextRef("test.x", params).source == "test.x"
    assert TextRef("test.x", params, fallback="as stored").source == "as stored"


def test_refs_compare_by_key_and_values() -> None:
    """Equal texts are equal and hash alike, whatever source they were stored with."""
    one, other = TextRef("k", {"a": [1]}), TextRef("k", {"a": (1,)}, fallback="x")
    assert one == other
    assert hash(one) == hash(other)
    assert one != TextRef("k", {"a": [2]})


def test_a_value_that_cannot_be_stored_is_named() -> None:
    """A text is stored with its values, so each must be a JSON value."""
    with pytest.raises(TypeError, match=r"params\.path: PosixPath isn't a JSON value"):
        TextRef("k", {"path": PosixPath("x")})


def test_a_text_or_a_ref() -> None:
    """A text is made fit to store, a ref and None pass, anything else is refused."""
    ref = TextRef("k")
    assert (text_or_ref("a\0"), text_or_ref(ref), text_or_ref(None)) == ("a\ufffd", ref, None)
    with pytest.raises(TypeError, match="expected text, got int"):
        text_or_ref(5)  # type: ignore[arg-type]
