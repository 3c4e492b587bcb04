"""Records to and from JSON: every one comes back as it went, and nothing becomes something else."""

import json
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aalis_api_session_manager import host, memory, message, model, service, text
from aalis_api_session_manager.message import ClearRequest, Message
from aalis_api_session_manager.model import (
    LastTurn,
    OriginChat,
    SessionCreation,
    SessionInfo,
    TokenCount,
    Unset,
    WorkBinding,
)
from aalis_api_session_manager.text import TextRef
from aalis_api_session_manager.values import freeze_json
from aalis_api_session_manager.wire import camel, from_json, to_json

NO_DATA = {
    # They hold functions, live objects or a back end's own rows.
    host.Inject, host.PluginMeta, host.Provided, host.ToolSpec, service.AccessChecker, service.ServiceKey,
    memory.Change, memory.Changes, memory.Changeset, memory.MetadataRow, memory.Outcome,
}  # fmt: skip
RECORDS = sorted(
    {
        value
        for module in (host, memory, message, model, service, text)
        for value in vars(module).values()
        if isinstance(value, type) and attrs.has(value)
    }
    - NO_DATA,
    key=lambda cls: cls.__name__,
)

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
NUMBER = st.integers(-(2**63), 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: NUMBER,
    bool: st.booleans(),
    NoneType: st.none(),
    Unset: st.sampled_from(Unset),
    TextRef: st.builds(TextRef, TEXT.map("unknown.".__add__), st.dictionaries(TEXT, JSON, max_size=2)),
    SessionCreation: st.builds(SessionCreation, created_from=st.none() | TEXT.map("by-".__add__)),
    WorkBinding: st.builds(WorkBinding, root=TEXT.map("/".__add__), extra_roots=st.lists(TEXT.map("/".__add__))),
    ClearRequest: st.builds(ClearRequest, scope=st.just("session"), session_id=TEXT, types=st.lists(TEXT))
    | st.builds(ClearRequest, scope=st.just("all"), below_generation=st.none() | NUMBER),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Every value that a field of this type may hold."""
    if kind in BY_TYPE:
        return BY_TYPE[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return st.one_of(*map(values_of, args))
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(values_of(args[0]), max_size=3).map(tuple)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(TEXT, JSON, max_size=3).map(freeze_json)
    assert attrs.has(kind), f"no values for {kind}"
    return st.builds(kind, **{field.name: values_of(field.type) for field in attrs.fields(kind)})


@pytest.mark.parametrize("kind", RECORDS)
@settings(max_examples=50)
@given(data=st.data())
def test_every_record_comes_back_as_it_went(kind: type, data: st.DataObject) -> None:
    """Record -> JSON text -> record gives an equal one, down to the types inside it, under the documents' names."""
    record = data.draw(values_of(kind))
    written = json.dumps(to_json(record), allow_nan=False)
    back = from_json(json.loads(written), kind)
    assert back == record
    assert type(back) is type(record)
    assert json.dumps(to_json(back)) == written
    if kind is not TextRef:
        assert set(json.loads(written)) <= {camel(field.name) for field in attrs.fields(kind)}


def test_the_documents_names() -> None:
    """Fields stand in the documents' order and spelling; those that say nothing are left out."""
    record = SessionInfo(
        id="s",
        parent_id="p",
        created_at=1,
        updated_at=2,
        created_from="cli",
        metadata={"snake_case": {"stays_so": (1, 2)}},
        origin_chat=OriginChat(type="group", multi_party=True, target_id="9", self_id="4"),
        work=WorkBinding(root="/r"),
        last_turn=LastTurn(outcome="error", ended_at=3, error=TextRef("place.default")),
        tokens=TokenCount(input=1),
    )
    assert json.dumps(to_json(record)) == json.dumps(
        {
            "id": "s",
            "parentId": "p",
            "children": [],
            "status": "active",
            "createdAt": 1,
            "updatedAt": 2,
            "createdFrom": "cli",
            "metadata": {"snake_case": {"stays_so": [1, 2]}},
            "kind": "owner",
            "originChat": {"type": "group", "multiParty": True, "targetId": "9", "selfId": "4"},
            "work": {"root": "/r", "extraRoots": [], "worktrees": []},
            "lastTurn": {
                "outcome": "error",
                "endedAt": 3,
                "error": {"key": "place.default", "params": {}, "source": "Default workspace"},
            },
            "tokens": {"input": 1, "output": 0},
        }
    )


BASE = {"id": "s", "createdAt": 1, "updatedAt": 1}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", None),
        ("id", 5),
        ("name", True),
        ("name", 5),
        ("name", {"key": "place.default"}),
        ("createdAt", None),
        ("createdAt", "1"),
        ("createdAt", 3.9),
        ("createdAt", 3.0),
        ("createdAt", True),
        ("children", "abc"),
        ("children", {"a": 1}),
        ("children", [1]),
        ("children", None),
        ("status", None),
        ("status", "ACTIVE"),
        ("status", ["active"]),
        ("kind", True),
        ("metadata", []),
        ("metadata", "x"),
        ("metadata", {"a": float("nan")}),
        ("originChat", []),
        ("originChat", "group"),
        ("originChat", {"type": "group", "multiParty": "false", "targetId": "1"}),
        ("originChat", {"type": "group", "multiParty": 0, "targetId": "1"}),
        ("originChat", {"type": "group", "multiParty": None, "targetId": "1"}),
        ("originChat", {"type": "group", "multiParty": True, "targetId": 1}),
        ("originChat", {"type": "group", "multiParty": True}),
        ("tokens", []),
        ("tokens", ""),
        ("tokens", {"input": "5"}),
        ("tokens", {"input": True}),
        ("tokens", {"input": None}),
        ("lastTurn", {"outcome": "replied"}),
        ("lastTurn", {"outcome": "replied", "endedAt": 1, "error": 5}),
        ("lastTurn", {"outcome": "replied", "endedAt": 1, "error": {"params": {}}}),
        ("lastTurn", {"outcome": "replied", "endedAt": 1, "error": {"key": "k", "params": []}}),
        ("work", {"root": "/r", "extraRoots": "/a"}),
        ("work", {"root": ""}),
        ("lastReplyAt", "soon"),
    ],
)
def test_nothing_is_coerced(field: str, value: Any) -> None:
    """A value of another type is refused, however near it looks."""
    with pytest.raises((TypeError, ValueError, KeyError)):
        from_json({**BASE, field: value}, SessionInfo)


@pytest.mark.parametrize("value", [None, [], "", "id", 1, True])
@pytest.mark.parametrize("kind", [SessionInfo, TokenCount, TextRef])
def test_a_record_is_an_object(value: Any, kind: type) -> None:
    """Nothing but a JSON object is read as a record, not even where every field has a default."""
    with pytest.raises(TypeError, match="expected a"):
        from_json(value, kind)


@pytest.mark.parametrize("missing", BASE)
def test_a_required_field_is_required(missing: str) -> None:
    """A record without it is refused by the field's name."""
    with pytest.raises(KeyError, match=missing):
        from_json({name: value for name, value in BASE.items() if name != missing}, SessionInfo)


def test_null_is_as_good_as_left_out_where_none_is_allowed() -> None:
    """An explicit null of an optional field reads as None."""
    nulls = {"name": None, "tokens": None, "metadata": None}
    assert from_json({**BASE, **nulls}, SessionInfo) == from_json(BASE, SessionInfo)


def test_what_is_read_is_fit_to_store_and_frozen() -> None:
    """Lone surrogates of a JSON text are replaced when read; nobody can change the metadata."""
    metadata = {"a": [1]}
    data = {
        "sessionId": "s",
        "role": "user",
        "content": json.loads('"\\ud800"'),
        "timestamp": 1,
        "metadata": metadata,
    }
    stored = from_json(data, Message)
    assert stored.content == "\ufffd"
    assert stored.metadata is not None
    with pytest.raises(TypeError):
        stored.metadata["a"] = 2  # type: ignore[index]
    metadata["a"].append(2)
    assert stored.metadata == {"a": (1,)}


def test_a_text_of_another_package_keeps_its_source() -> None:
    """A TextRef whose key nobody here knows reads as it was written, and is written so again."""
    data = {"key": "other.package", "params": {"n": 1}, "source": "One of another package"}
    ref = from_json(data, TextRef)
    assert ref == TextRef("other.package", {"n": 1})
    assert ref.source == "One of another package"
    assert to_json(ref) == data
