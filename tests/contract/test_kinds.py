"""The pure rules on records: kinds, roots, audiences, origins, windows."""

from typing import Any, get_args

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from aalis_api_session_manager.kinds import (
    chat_scope_of,
    from_elsewhere,
    is_unfiled,
    origin_chat_of,
    room_class,
    root_session_of,
    session_kind,
    window_key,
)
from aalis_api_session_manager.model import (
    OriginChat,
    SessionCreation,
    SessionDraft,
    SessionInfo,
    SessionStatus,
    WorkBinding,
)
from tests.contract.kit import GROUP, PEER, Selection, Table, is_owner, message, room, session


@pytest.mark.rule("KIND-1")
@pytest.mark.parametrize(
    ("parent_id", "origin_platform", "kind"),
    [(None, None, "owner"), (None, "onebot", "room"), ("p", None, "task"), ("p", "onebot", "task")],
)
def test_kind_is_read_from_parent_then_origin(parent_id: str | None, origin_platform: str | None, kind: str) -> None:
    """A parent makes a task, else an origin platform a room, else it is the owner's."""
    assert session_kind(parent_id, origin_platform) == kind


@pytest.mark.rule("KIND-3", "KIND-4")
@pytest.mark.parametrize("session_id", ["workflow::nightly", "onebot:1:group:900", "mcp-server", "webui", "", "S", "s"])
def test_an_id_says_nothing(session_id: str) -> None:
    """A session made by id is `owner` kind and `internal`, however its id is spelled."""
    bare = session(session_id)
    table = Table(bare)
    assert session_kind(bare.parent_id, bare.origin_platform) == "owner"
    assert room_class(bare, table.get_session, is_owner) == "internal"
    assert origin_chat_of(session_id, Selection(table)) is None
    assert not from_elsewhere(message(session_id=session_id), Selection(table))


IDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@pytest.mark.rule("KIND-3")
@given(st.lists(IDS, min_size=4, max_size=4, unique=True))
def test_other_ids_give_the_same_answers(names: list[str]) -> None:
    """Renaming every session changes none of the answers; ids that differ in case alone are two ids."""
    before = Table(room("room"), session("task", parent_id="room"), session("own", created_from="cli"), session("bare"))
    rename = dict(zip(before.sessions, names, strict=True))
    after = before.renamed(rename)

    def answers(table: Table, session_id: str) -> Any:
        info = table.get_session(session_id)
        assert info is not None
        root = root_session_of(session_id, table.get_session)
        assert root is not None
        return (
            session_kind(info.parent_id, info.origin_platform),
            is_unfiled(root),
            room_class(info, table.get_session, is_owner),
            origin_chat_of(session_id, Selection(table)),
            from_elsewhere(message(session_id=session_id, platform="cli"), Selection(table)),
        )

    for old, new in rename.items():
        assert answers(before, old) == answers(after, new)


@pytest.mark.rule("KIND-6")
def test_statuses() -> None:
    """There are five statuses, and a draft takes no other."""
    assert set(get_args(SessionStatus)) == {"active", "waiting", "completed", "error", "archived"}
    for status in get_args(SessionStatus):
        assert SessionDraft(status=status).status == status
    with pytest.raises(ValueError, match="status"):
        SessionDraft(status="done")  # type: ignore[arg-type]


@pytest.mark.rule("CREATE-9")
def test_unfiled_is_a_root_of_which_nothing_is_known() -> None:
    """An origin platform, a creation source or a binding files a root; a workspace, name or directory doesn't."""
    assert is_unfiled(session())
    assert is_unfiled(session(name="n", title="t", current_dir="/d", metadata={"a": 1}, status="completed"))
    assert not is_unfiled(room())
    assert not is_unfiled(room(chat=None))
    assert not is_unfiled(session(created_from="cli"))
    assert not is_unfiled(session(work=WorkBinding(root="/repo")))
    assert not is_unfiled(session(parent_id="p"))


def test_root_is_where_the_parent_chain_ends() -> None:
    """A chain of any length ends in its root; a broken chain and a cycle end in None."""
    table = Table(
        session("root"),
        *(session(f"c{n}", parent_id="root" if n == 0 else f"c{n - 1}") for n in range(50)),
        session("orphan", parent_id="gone"),
        session("a", parent_id="b"),
        session("b", parent_id="a"),
        session("below", parent_id="a"),
        session("self", parent_id="self"),
    )
    assert root_session_of("root", table.get_session) == table.sessions["root"]
    assert root_session_of("c49", table.get_session) == table.sessions["root"]
    for broken in ("orphan", "a", "b", "below", "self", "unknown"):
        assert root_session_of(broken, table.get_session) is None


OWNERS = OriginChat(type="private", multi_party=False, target_id="1")


@pytest.mark.rule("ROOM-1", "ROOM-2", "ROOM-3")
@pytest.mark.parametrize(
    ("root", "expected"),
    [
        pytest.param(room(), "room", id="multi-party"),
        pytest.param(room(chat=PEER), "room", id="a stranger's one-to-one"),
        pytest.param(room(chat=OWNERS), "owner-only", id="owner's"),
        pytest.param(room(chat=evolve(OWNERS, type="group")), "owner-only", id="type name"),
        pytest.param(room(chat=evolve(OWNERS, multi_party=True)), "room", id="mark counts"),
        pytest.param(
            room(chat=OWNERS, origin_platform="other"),
            "room",
            id="the owner's number on another platform",
        ),
        pytest.param(room(created_from="cli"), "room", id="origin before creation source"),
        pytest.param(room(chat=None), "room", id="damaged"),
        pytest.param(session(created_from="cli"), "owner-only", id="made by the owner"),
        pytest.param(session(), "internal", id="made by id"),
        pytest.param(session(workspace="w", work=WorkBinding(root="/w")), "internal", id="bound, nobody's"),
    ],
)
def test_room_class_of_a_root_and_of_what_is_below_it(root: SessionInfo, expected: str) -> None:
    """The root decides who listens; a child at any depth has its root's class, whatever it carries itself."""
    child = session("child", parent_id=root.id, created_from="cli")
    below = session("below", parent_id="child", origin_platform="onebot", origin_chat=PEER)
    table = Table(root, child, below)
    assert room_class(root, table.get_session, is_owner) == expected
    assert room_class(child, table.get_session, is_owner) == expected
    assert room_class(below, table.get_session, is_owner) == expected


@pytest.mark.rule("ROOM-2")
def test_room_class_without_a_root_is_internal() -> None:
    """A session that isn't in the table, a broken chain and a cycle have no audience that is known of."""
    table = Table(session("a", parent_id="a"))
    assert room_class(None, table.get_session, is_owner) == "internal"
    assert room_class(table.sessions["a"], table.get_session, is_owner) == "internal"
    assert room_class(session("x", parent_id="gone", created_from="cli"), table.get_session, is_owner) == "internal"


FOUR = (
    room("r"),
    session("c", parent_id="r"),
    session("own", created_from="cli"),
    session("o", parent_id="x"),
)


@pytest.mark.rule("ORIGIN-4")
def test_origin_chat_is_the_roots() -> None:
    """The window of a session and of what is below it; None when the manager, the record or the window is missing."""
    table = Table(
        room("r"), session("c", parent_id="r"), session("own", created_from="cli"), session("o", parent_id="x")
    )
    assert origin_chat_of("r", Selection(table)) == GROUP
    assert origin_chat_of("c", Selection(table)) == GROUP
    for without in ("own", "o", "unknown"):
        assert origin_chat_of(without, Selection(table)) is None
    assert origin_chat_of("r", Selection()) is None


@pytest.mark.rule("ORIGIN-5")
def test_from_elsewhere_compares_with_the_roots_origin() -> None:
    """True exactly when the room's origin platform is known and another than the message's."""
    table = Table(
        room("r"), session("c", parent_id="r"), session("own", created_from="cli"), session("o", parent_id="x")
    )
    sessions = Selection(table)
    assert from_elsewhere(message(session_id="r", platform="webui"), sessions)
    assert from_elsewhere(message(session_id="c", platform="webui"), sessions)
    assert not from_elsewhere(message(session_id="r", platform="onebot"), sessions)
    assert not from_elsewhere(message(session_id="c", platform="onebot"), sessions)
    for unknown in ("own", "o", "unknown", None):
        assert not from_elsewhere(message(session_id=unknown, platform="webui"), sessions)
    assert not from_elsewhere(message(session_id="r", platform="webui"), Selection())


TYPES = {"group": True, "private": False, "channel": True}


@pytest.mark.rule("ORIGIN-2")
def test_chat_scope_is_read_by_the_declarations() -> None:
    """A declared multi-party type has the group as its target, a one-to-one the peer; the bot's account if known."""
    in_group = message(session_type="group", group_id="900", user_id="7", self_id="42")
    assert chat_scope_of(in_group, TYPES) == OriginChat(type="group", multi_party=True, target_id="900", self_id="42")
    in_private = message(session_type="private", user_id="7")
    assert chat_scope_of(in_private, TYPES) == OriginChat(type="private", multi_party=False, target_id="7")
    with_group = message(session_type="private", user_id="7", group_id="900")
    assert chat_scope_of(with_group, TYPES) == OriginChat(type="private", multi_party=False, target_id="7")


@pytest.mark.rule("ORIGIN-2")
def test_chat_scope_of_an_own_message_names_the_peer() -> None:
    """What the bot's own account wrote in a one-to-one belongs to the peer's window, not to the bot's."""
    own = message(session_type="private", user_id="42", self_id="42", peer_id="7", own=True)
    assert chat_scope_of(own, TYPES).target_id == "7"


@pytest.mark.rule("PLACE-3")
def test_chat_scope_of_a_type_that_is_not_declared() -> None:
    """A group on the message makes it multi-party, an unknown type is kept, and a missing part is empty."""
    odd = message(session_type="thread", group_id="5", user_id="7")
    assert chat_scope_of(odd, TYPES) == OriginChat(type="thread", multi_party=True, target_id="5")
    assert chat_scope_of(message(user_id="7"), TYPES) == OriginChat(type="", multi_party=False, target_id="7")
    assert chat_scope_of(message(session_type="group"), TYPES) == OriginChat(
        type="group", multi_party=True, target_id=""
    )


@pytest.mark.rule("PLACE-2", "PLACE-3")
def test_window_key() -> None:
    """`platform:type:target`; a missing part is an empty string, and only the target may hold a colon."""
    assert window_key("onebot", "group", "900") == "onebot:group:900"
    assert window_key("onebot", "", "") == "onebot::"
    assert window_key("matrix", "room", "!a:example.org") == "matrix:room:!a:example.org"
    for platform, type_name in (("one:bot", "group"), ("onebot", "gr:oup")):
        with pytest.raises(ValueError, match="colon"):
            window_key(platform, type_name, "900")


PARTS = st.text(alphabet="ab:", max_size=3)


@pytest.mark.rule("PLACE-2")
@given(st.tuples(PARTS, PARTS, PARTS), st.tuples(PARTS, PARTS, PARTS))
def test_two_windows_never_share_a_key(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    """Keys are equal only for equal platform, type and target."""
    try:
        keys = window_key(*one), window_key(*other)
    except ValueError:
        return
    assert (keys[0] == keys[1]) == (one == other)


def test_a_creation_has_a_source_or_none() -> None:
    """An empty creation source would file a root without saying by whom."""
    with pytest.raises(ValueError, match="created_from"):
        SessionCreation(created_from="")
