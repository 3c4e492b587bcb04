"""Arguments as models send them: read kindly where the schema leaves no doubt, else refused in words."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from aalis_host.arguments import lenient, problems

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "session_id": {"type": "string", "minLength": 1},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "hours": {"type": "number", "minimum": 0},
        "wait": {"type": "boolean"},
        "since": {"type": ["string", "integer"]},
        "mode": {"enum": ["a", "b"]},
        "cleared": {"type": ["string", "null"]},
        "ids": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "window": {
            "type": "object",
            "properties": {"days": {"type": "integer"}},
            "required": ["days"],
            "additionalProperties": False,
        },
    },
    "required": ["session_id"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"limit": "20"}, {"limit": 20}),
        ({"limit": " -7 "}, {"limit": -7}),
        ({"limit": 20.0}, {"limit": 20}),
        ({"hours": "1.5"}, {"hours": 1.5}),
        ({"hours": "2"}, {"hours": 2}),
        ({"wait": "true"}, {"wait": True}),
        ({"wait": " False"}, {"wait": False}),
        ({"limit": None, "wait": None, "mode": None}, {"mode": None}),
        ({"ids": ["1", 2, "3"]}, {"ids": [1, 2, 3]}),
        ({"window": {"days": "3"}}, {"window": {"days": 3}}),
    ],
)
def test_read_kindly(sent: dict[str, Any], meant: dict[str, Any]) -> None:
    """Digits where only a number fits, true and false, whole floats, and null for what may be left out."""
    read = lenient(sent, SCHEMA)
    assert read == meant
    assert [type(value) for value in read.values()] == [type(value) for value in meant.values()]


@pytest.mark.parametrize(
    "sent",
    [
        {"since": "20261102"},
        {"since": 1796073374819},
        {"session_id": "123"},
        {"session_id": None},
        {"cleared": None},
        {"cleared": "7"},
        {"limit": "many"},
        {"limit": "1e3"},
        {"limit": "9" * 20},
        {"limit": 2.5},
        {"limit": True},
        {"limit": "٣"},
        {"wait": 1},
        {"wait": "yes"},
        {"window": {"days": None}},
        {"unknown": None},
        {"unknown": "5"},
    ],
)
def test_left_as_it_is(sent: dict[str, Any]) -> None:
    """What fits already, what isn't clearly meant, and what must be there is never touched."""
    assert lenient(sent, SCHEMA) == sent


@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "other"]), st.none() | st.text() | st.integers()))
def test_valid_arguments_are_never_changed(sent: dict[str, Any]) -> None:
    """Whatever the schema allows already comes through the same."""
    if Draft202012Validator(SCHEMA).is_valid(sent):
        assert lenient(sent, SCHEMA) == sent


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"sesion_id": "x"}, ["there is no argument 'sesion_id'; did you mean 'session_id'?"]),
        ({"session_id": ""}, ["session_id must not be empty"]),
        ({"session_id": 5}, ["session_id must be string"]),
        ({"session_id": "x", "limit": 500}, ["limit must be at most 100"]),
        ({"session_id": "x", "limit": 0}, ["limit must be at least 1"]),
        ({"session_id": "x", "since": []}, ["since must be string or integer"]),
        ({"session_id": "x", "mode": "c"}, ["mode must be one of 'a', 'b'"]),
        ({"session_id": "x", "ids": [1, 2, 3, 4]}, ["ids must hold at most 3"]),
        ({"session_id": "x", "ids": [1, "b"]}, ["ids.1 must be integer"]),
        ({"session_id": "x", "window": {}}, ["the argument 'window.days' is missing"]),
    ],
)
def test_refusals(sent: dict[str, Any], expected: list[str]) -> None:
    """Each says where and what is allowed, and never repeats a long value."""
    found = problems(sent, Draft202012Validator(SCHEMA))
    missing = ["the argument 'session_id' is missing"]
    assert found == [*expected, *(missing if "session_id" not in sent else [])]


def test_unknown_key_without_a_near_one() -> None:
    """The allowed names are listed."""
    (found, _) = problems({"zzz": 1}, Draft202012Validator(SCHEMA))
    assert found.startswith("there is no argument 'zzz'; there are cleared, hours, ids, limit, mode")


def test_open_schemas() -> None:
    """Unknown keys pass where the schema lets them, and are refused where it says nothing."""
    silent = {"type": "object", "properties": {}}
    assert problems({"a": 1}, Draft202012Validator({**silent, "additionalProperties": True})) == []
    assert problems({"a": 1}, Draft202012Validator(silent)) == ["there is no argument 'a'; there are none"]
