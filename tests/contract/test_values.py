"""Values made fit at the border."""

import enum
import json
import math
from collections import UserDict, UserList
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aalis_api_session_manager.values import (
    MAX_DEPTH,
    clean_text,
    freeze_json,
    freeze_object,
    optional_text,
    thaw_json,
)


def test_text_is_made_storable() -> None:
    """NUL and lone surrogates become U+FFFD; everything else, astral characters too, stays as it is."""
    assert clean_text("plain") == "plain"
    assert clean_text("") == ""
    assert clean_text("a\x00b") == "a\ufffdb"
    assert clean_text("a\ud83db\udc4dc") == "a\ufffdb\ufffdc"
    assert clean_text("\U0001f44d \u00e9 e\u0301 \x01") == "\U0001f44d \u00e9 e\u0301 \x01"
    assert optional_text("\x00") == "\ufffd"
    assert optional_text(None) is None


@given(st.text(st.characters(codec=None)))
def test_cleaned_text_can_be_encoded_and_is_kept_thereafter(text: str) -> None:
    """Cleaning gives UTF-8 without NUL, of the same length, and a second cleaning changes nothing."""
    cleaned = clean_text(text)
    assert b"\0" not in cleaned.encode("utf-8")
    assert len(cleaned) == len(text)
    assert clean_text(cleaned) == cleaned


@pytest.mark.parametrize("value", [None, 1, b"bytes", ["a"], 1.5, True])
def test_only_text_is_text(value: Any) -> None:
    """Nothing else is turned into text."""
    with pytest.raises(TypeError, match="expected text, got"):
        clean_text(value)


class Shown(str):
    """A text that shows itself as another."""

    def __str__(self) -> str:
        return "shown"


class Level(enum.IntEnum):
    HIGH = 3


def test_subclasses_become_plain() -> None:
    """What is a text or a number by inheritance is stored as exactly that."""
    frozen = freeze_json({Shown("red"): Shown("red"), "level": Level.HIGH})
    assert thaw_json(frozen) == {"red": "red", "level": 3}
    assert [type(item) for item in (*frozen, *frozen.values())] == [str, str, str, int]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)  # fmt: skip


@given(JSON.filter(lambda value: "\\u0000" not in json.dumps(value)))
def test_json_comes_back_as_it_went_in(value: Any) -> None:
    """Freezing and thawing give the same plain JSON, which every writer takes."""
    thawed = thaw_json(freeze_json(value))
    assert json.dumps(thawed) == json.dumps(value)
    assert orjson.loads(orjson.dumps(thawed)) == value


def test_nobody_can_change_it_afterwards() -> None:
    """The frozen value shares nothing with what was given, and has no way to be changed."""
    inner: dict[str, Any] = {"list": [1, {"deep": True}]}
    frozen = freeze_json({"inner": inner})
    inner["list"].append(2)
    inner["new"] = 1
    assert thaw_json(frozen) == {"inner": {"list": [1, {"deep": True}]}}
    with pytest.raises(TypeError):
        frozen["inner"] = {}
    with pytest.raises(TypeError):
        frozen["inner"]["list"][1]["deep"] = False
    assert isinstance(frozen["inner"]["list"], tuple)


def test_thawing_gives_a_copy() -> None:
    """Changing what was thawed changes the frozen value in nothing."""
    frozen = freeze_json({"a": [1]})
    thaw_json(frozen)["a"].append(2)
    assert thaw_json(frozen) == {"a": [1]}


def test_any_mapping_and_sequence_will_do() -> None:
    """The value may come in other containers than dict and list."""
    assert thaw_json(freeze_json(UserDict({"a": UserList([1, (2,)])}))) == {"a": [1, [2]]}


@pytest.mark.parametrize(
    ("value", "error", "where"),
    [
        ({"a": [1, {"b": object()}]}, TypeError, r"metadata\.a\[1\]\.b: object isn't a JSON value"),
        ({"a": b"x"}, TypeError, r"metadata\.a: bytes isn't"),
        ({"a": {1, 2}}, TypeError, r"metadata\.a: set isn't"),
        ({"a": {1: 2}}, TypeError, r"metadata\.a: the key 1 isn't text"),
        ({None: 2}, TypeError, "metadata: the key None isn't text"),
        ({"a": math.nan}, ValueError, r"metadata\.a: nan isn't a finite number"),
        ([-math.inf], ValueError, r"metadata\[0\]: -inf isn't a finite number"),
        ({"a": 2**64}, ValueError, r"metadata\.a: 18446744073709551616 doesn't fit into 64 bits"),
        ([-(2**63) - 1], ValueError, r"metadata\[0\]: .* doesn't fit"),
        ({"\0": 1, "\ufffd": 2}, ValueError, "metadata: two keys are equal"),
    ],
)
def test_what_json_does_not_have_is_refused_by_its_path(value: Any, error: type[Exception], where: str) -> None:
    """The error names where in the value the fault is."""
    with pytest.raises(error, match=where):
        freeze_json(value)


def nested(levels: int) -> Any:
    """Lists in lists, `levels` of them."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_nesting_has_an_end() -> None:
    """As deep as `MAX_DEPTH` is taken and can be written; deeper, and a cycle, is refused."""
    orjson.dumps(thaw_json(freeze_json(nested(MAX_DEPTH))))
    cycle: list[Any] = []
    cycle.append(cycle)
    for value in (nested(MAX_DEPTH + 1), cycle):
        with pytest.raises(ValueError, match="deeper than 100 levels"):
            freeze_json(value)


def test_an_object_is_a_mapping_or_none() -> None:
    """Metadata is a mapping; a list, a text or a number is refused."""
    assert freeze_object(None) is None
    assert freeze_object({}) == {}
    not_objects: list[Any] = [[], "text", 1, True]
    for value in not_objects:
        with pytest.raises(TypeError, match="expected an object, got"):
            freeze_object(value)
