"""What a caller may say, and what becomes of it: drafts, updates, bindings, messages."""

from typing import Any

import attrs
import pytest

from aalis_api_session_manager.message import IncomingMessage, Message, TurnEnd
from aalis_api_session_manager.model import (
    UNSET,
    Identity,
    LastTurn,
    SessionDraft,
    SessionInfo,
    SessionUpdates,
    WorkBinding,
)
from aalis_api_session_manager.text import TextRef
from aalis_api_session_manager.wire import from_json, to_json
from tests.contract.kit import message, session

DRAFT_FIELDS = {"name", "title", "parent_id", "status", "input_context", "result", "metadata"}
OWNED = {
    "kind": "room",
    "originPlatform": "onebot",
    "originChat": {"type": "group", "multiParty": True, "targetId": "1"},
    "originInstance": "onebot#1",
    "createdFrom": "cli",
    "workspace": "w",
    "work": {"root": "/w"},
    "currentDir": "/w",
    "lastReplyAt": 1,
    "lastTurn": {"outcome": "replied", "endedAt": 1},
    "tokens": {"input": 1, "output": 1},
    "id": "mine",
    "children": ["c"],
    "createdAt": 1,
    "updatedAt": 1,
}


@pytest.mark.rule("CREATE-2", "KIND-2")
def test_a_draft_has_no_field_that_the_session_manager_owns() -> None:
    """The type has seven fields; a JSON form that carries owned ones has them dropped, whatever they hold."""
    assert {field.name for field in attrs.fields(SessionDraft)} == DRAFT_FIELDS
    said = {"name": "n", "title": "t", "parentId": "p", "status": "waiting", "inputContext": "i", "result": "r"}
    draft = from_json({**said, "metadata": {"a": 1}, **OWNED}, SessionDraft)
    assert to_json(draft) == {**said, "metadata": {"a": 1}}
    assert from_json({**OWNED, "tokens": "nonsense", "kind": 3}, SessionDraft) == SessionDraft()


@pytest.mark.rule("CREATE-2")
@pytest.mark.parametrize("field", sorted({field.name for field in attrs.fields(SessionInfo)} - DRAFT_FIELDS))
def test_an_owned_field_cannot_be_passed(field: str) -> None:
    """Passing one to the type is an error of the call."""
    with pytest.raises(TypeError, match=field):
        SessionDraft(**{field: None})


@pytest.mark.rule("CREATE-6")
def test_metadata_is_kept_as_given() -> None:
    """Names of fields inside metadata stay what they are: data."""
    draft = SessionDraft(metadata={"title": "x", "inputContext": "y", "kind": "room"})
    assert (draft.title, draft.input_context) == (None, None)
    assert draft.metadata == {"title": "x", "inputContext": "y", "kind": "room"}


@pytest.mark.rule("CREATE-7")
def test_updates_tell_unset_from_none() -> None:
    """What is left out is `UNSET`; None is a value of its own, and both keep their meaning over the wire."""
    nothing = SessionUpdates()
    assert all(value is UNSET for value in attrs.astuple(nothing))
    assert to_json(nothing) == {}
    clearing = SessionUpdates(name=None, metadata=None)
    assert (clearing.name, clearing.title, clearing.metadata) == (None, UNSET, None)
    assert to_json(clearing) == {"name": None, "metadata": None}
    assert from_json({"name": None, "metadata": None}, SessionUpdates) == clearing
    assert from_json({"title": "t", "metadata": {"a": None}}, SessionUpdates) == SessionUpdates(
        title="t", metadata={"a": None}
    )


@pytest.mark.rule("CREATE-7")
@pytest.mark.parametrize(
    "fields", [{"status": None}, {"status": "done"}, {"name": 1}, {"metadata": []}, {"result": b""}]
)
def test_an_impossible_update_is_refused(fields: dict[str, Any]) -> None:
    """A status is never cleared, and nothing of a wrong type is taken, in Python as in JSON."""
    with pytest.raises((TypeError, ValueError)):
        SessionUpdates(**fields)
    with pytest.raises((TypeError, ValueError)):
        from_json(fields, SessionUpdates)


@pytest.mark.parametrize(
    "fields", [{"name": 1}, {"title": ["t"]}, {"parent_id": 2}, {"status": 1}, {"metadata": "x"}, {"metadata": {1: 2}}]
)
def test_a_draft_takes_nothing_of_a_wrong_type(fields: dict[str, Any]) -> None:
    """A wrong type is an error of the call, never a coercion."""
    with pytest.raises((TypeError, ValueError)):
        SessionDraft(**fields)


def test_a_binding_holds_paths_that_can_be_stored() -> None:
    """A path is a text as the file system has it; one that would have to be altered to be stored is refused."""
    assert WorkBinding(root="/r", extra_roots=["/a"], worktrees=("/b",)) == WorkBinding(
        root="/r", extra_roots=("/a",), worktrees=("/b",)
    )
    for path in ("", "/a\udcff", "/a\0b"):
        with pytest.raises(ValueError, match="isn't a path"):
            WorkBinding(root=path)
        with pytest.raises(ValueError, match="isn't a path"):
            WorkBinding(root="/r", extra_roots=[path])
    with pytest.raises(TypeError, match="several paths"):
        WorkBinding(root="/r", worktrees="/b")


def test_records_never_change() -> None:
    """A reader's record is frozen; an update makes another one."""
    record = session(name="n")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        record.name = "m"  # type: ignore[misc]
    assert attrs.evolve(record, name="m").name == "m"
    assert record.name == "n"


def test_what_comes_in_is_fit_to_store() -> None:
    """Texts of messages and errors have their lone surrogates and NUL replaced on the way in."""
    incoming = message(content="a\0", user_name="b\ud800", group_name="c\udfff")
    assert (incoming.content, incoming.user_name, incoming.group_name) == ("a\ufffd", "b\ufffd", "c\ufffd")
    stored = Message(session_id="s", role="user", content="\0", timestamp=1, metadata={"\ud800": "\0"})
    assert (stored.content, stored.metadata) == ("\ufffd", {"\ufffd": "\ufffd"})
    end = TurnEnd(turn_id="t", message=incoming, session_id="s", ended_at=1, outcome="error", error="e\0", reply="\0")
    assert (end.error, end.reply) == ("e\ufffd", "\ufffd")
    reason = TextRef("place.default")
    assert LastTurn(outcome="error", ended_at=1, error=reason).error is reason


@pytest.mark.rule("TAKE-8")
def test_whom_a_message_acts_for() -> None:
    """The actor when there is one, else the sender, else nobody; an empty account is nobody."""
    actor = Identity(platform="cli", user_id="owner")
    assert message(user_id="7").participants == (Identity(platform="onebot", user_id="7"),)
    assert message(user_id="7", actor=actor).participants == (actor,)
    assert message().participants == ()
    assert message(user_id="").participants == ()


def test_a_native_message_has_no_source() -> None:
    """An adapter's message is native; one that somebody made names its source."""
    assert IncomingMessage(session_id=None, platform="p", content="").native
    assert not message(source="delegate").native
