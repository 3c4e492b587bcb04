"""Which place a session has, and the records of places."""

import logging
from typing import Any

import pytest

from aalis_api_session_manager.errors import AalisError, PlaceNotFound
from aalis_api_session_manager.model import Identity, SessionCreation, SessionDraft, SessionInfo, WorkBinding
from aalis_api_session_manager.service import AUTHORITY
from tests.session_manager.kit import Adapter, Stack, group_message, private_message, running
from tests.session_manager.probes import read_stored, stored_keys, write_stored

DEFAULT = "workspace:default"
LOG = "aalis_plugin_session_manager"


def record(session_id: str, **fields: Any) -> dict[str, Any]:
    """A session as it stands in the file."""
    return {"id": session_id, "status": "completed", "createdAt": 1, "updatedAt": 1, **fields}


@pytest.mark.rule("PLACE-1", "PLACE-2")
async def test_every_session_has_its_roots_place(stack: Stack) -> None:
    """Children and grandchildren of a room are in its window, those of a workspace's session in the workspace."""
    stack.host.add_platform(Adapter())
    workspace = (await stack.sessions.add_workspace("/srv/project")).workspace.id
    creation = SessionCreation(workspace=workspace, work=WorkBinding(root="/srv/project"))
    project = await stack.sessions.create_session(creation=creation)
    await stack.sessions.record_inbound(group_message("room"))
    for root, key in ((project.id, f"workspace:{workspace}"), ("room", "onebot:group:g1")):
        child = await stack.sessions.create_child_session(root)
        grandchild = await stack.sessions.create_session(SessionDraft(parent_id=child.id))
        for session_id in (root, child.id, grandchild.id):
            place = stack.sessions.place_of(session_id)
            assert (place.key, place.kind) == (key, "window" if root == "room" else "workspace")


@pytest.mark.rule("PLACE-1")
async def test_places_give_no_permission(stack: Stack) -> None:
    """Two rooms of one window, and two of different ones, may take from each other alike."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(group_message("a", group_id="g1"))
    await stack.sessions.record_inbound(group_message("b", group_id="g1"))
    await stack.sessions.record_inbound(group_message("c", group_id="g2"))
    assert stack.sessions.place_of("a") == stack.sessions.place_of("b") != stack.sessions.place_of("c")
    assert stack.sessions.can_take("a", "b") == stack.sessions.can_take("a", "c")
    assert not stack.sessions.can_take("a", "b")
    web = [await stack.sessions.create_session(creation=SessionCreation(created_from="webui")) for _ in range(2)]
    workspace = (await stack.sessions.add_workspace("/srv/project")).workspace.id
    bound = SessionCreation(created_from="webui", workspace=workspace, work=WorkBinding(root="/srv/project"))
    apart = await stack.sessions.create_session(creation=bound)
    owner = Identity(platform="cli", user_id="owner")
    for who in (owner, None):
        together = stack.sessions.can_take(web[0].id, web[1].id, who)
        assert together == stack.sessions.can_take(web[0].id, apart.id, who)
        assert bool(together) is (who is owner)


@pytest.mark.rule("PLACE-2")
async def test_two_accounts_in_one_group_share_its_window(stack: Stack) -> None:
    """The key is platform, type and target; the bot's account isn't in it, a colon in the target stays."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(group_message("a", self_id="bot1", group_id="x:1"))
    await stack.sessions.record_inbound(group_message("b", self_id="bot2", group_id="x:1"))
    await stack.sessions.record_inbound(private_message("p", user_id="u7"))
    assert {stack.sessions.place_of(one).key for one in ("a", "b")} == {"onebot:group:x:1"}
    assert stack.sessions.place_of("p").key == "onebot:private:u7"


@pytest.mark.rule("PLACE-2", "PLACE-6")
async def test_the_owners_own_chat_is_in_the_default_workspace(stack: Stack) -> None:
    """One-to-one with an owner identity: the default workspace and no window's record; a group with the owner isn't."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(private_message("p", user_id="owner"))
    await stack.sessions.record_inbound(group_message("g", user_id="owner", group_id="owner"))
    assert stack.sessions.get_session("p").kind == "room"
    assert stack.sessions.place_of("p").key == DEFAULT
    assert stack.sessions.place_of("g").key == "onebot:group:owner"
    assert [place.key for place in stack.sessions.list_places()] == [DEFAULT, "onebot:group:owner"]


@pytest.mark.rule("PLACE-2")
async def test_without_an_authority_every_one_to_one_is_a_window(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can say who the owner is."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(private_message("p", user_id="owner"))
    stack.host.services.withdraw("aalis-host")
    assert not stack.host.select(AUTHORITY).present
    assert stack.sessions.place_of("p").key == "onebot:private:owner"


BROKEN = {
    "no window": ({"originPlatform": "onebot"}, "onebot::"),
    "a window that isn't one": ({"originPlatform": "onebot", "originChat": "group 7"}, "onebot::"),
    "a target of a wrong type": (
        {"originPlatform": "onebot", "originChat": {"type": "group", "multiParty": True, "targetId": 7}},
        "onebot::",
    ),
    "no target": (
        {"originPlatform": "onebot", "originChat": {"type": "group", "multiParty": True, "targetId": ""}},
        "onebot:group:",
    ),
    "no peer": (
        {"originPlatform": "onebot", "originChat": {"type": "private", "multiParty": False, "targetId": ""}},
        "onebot:private:",
    ),
    "no type": (
        {"originPlatform": "onebot", "originChat": {"type": "", "multiParty": True, "targetId": "7"}},
        "onebot::7",
    ),
}


@pytest.mark.rule("PLACE-3", "STORE-4")
@pytest.mark.parametrize(("fields", "key"), BROKEN.values(), ids=BROKEN)
async def test_a_damaged_window_is_still_a_window(
    db: str, caplog: pytest.LogCaptureFixture, fields: dict[str, Any], key: str
) -> None:
    """Missing parts are empty; never the default workspace; one warning that names the session, once per activation."""
    async with running(db):
        pass
    write_stored(db, "sessions", "hurt", record("hurt", **fields))
    for _ in range(2):
        caplog.clear()
        async with running(db) as stack:
            with caplog.at_level(logging.WARNING, LOG):
                caplog.clear()
                places = {stack.sessions.place_of("hurt") for _ in range(3)}
                child = await stack.sessions.create_child_session("hurt")
                places.add(stack.sessions.place_of(child.id))
        assert {(place.key, place.kind) for place in places} == {(key, "window")}
        said = [one for one in caplog.records if one.levelno == logging.WARNING and "'hurt'" in one.getMessage()]
        assert len(said) == (0 if key == "onebot::7" else 1)


@pytest.mark.rule("PLACE-4")
async def test_without_an_origin_the_roots_workspace_decides(stack: Stack) -> None:
    """Made by id, by a surface, unknown, or below a parent that is gone: the default; bound: the workspace alone."""
    workspace = (await stack.sessions.add_workspace("/srv/project")).workspace.id
    creation = SessionCreation(workspace=workspace, work=WorkBinding(root="/somewhere/else/a-worktree"))
    bound = await stack.sessions.create_session(creation=creation)
    plain = await stack.sessions.create_session(creation=SessionCreation(created_from="cli", workspace="default"))
    await stack.sessions.ensure_session("by id")
    await stack.sessions.set_current_dir("by id", "/srv/project")
    assert stack.sessions.place_of(bound.id).key == f"workspace:{workspace}"
    for session_id in (plain.id, "by id", "unknown", ""):
        assert stack.sessions.place_of(session_id).key == DEFAULT


@pytest.mark.rule("PLACE-4")
async def test_a_workspace_without_a_record_counts_as_the_default(db: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the session and the workspace."""
    async with running(db):
        pass
    write_stored(db, "sessions", "s", record("s", workspace="gone", work={"root": "/x"}))
    async with running(db) as stack:
        with caplog.at_level(logging.WARNING, LOG):
            assert stack.sessions.place_of("s").key == DEFAULT
    assert any("'s'" in one.getMessage() and "'gone'" in one.getMessage() for one in caplog.records)


@pytest.mark.rule("PLACE-5", "STORE-1")
async def test_places_are_stored_and_listed(db: str) -> None:
    """The default first, then by key; the record holds key, kind, name, root, metadata and times; readers get less."""
    async with running(db) as stack:
        stack.host.add_platform(Adapter())
        workspace = (await stack.sessions.add_workspace("/srv/project")).workspace
        for group in ("g2", "g10", "A"):
            await stack.sessions.record_inbound(
                group_message(f"s {group}", group_id=group, group_name=f"Group {group}")
            )
        await stack.sessions.update_place("onebot:group:g2", {"a": 1})
    stored = read_stored(db, "places", "onebot:group:g2")
    assert isinstance(stored.pop("createdAt"), int)
    assert stored.pop("updatedAt") > 0
    assert stored == {"key": "onebot:group:g2", "kind": "window", "name": "Group g2", "metadata": {"a": 1}}
    assert read_stored(db, "places", f"workspace:{workspace.id}")["root"] == "/srv/project"
    async with running(db) as stack:
        keys = [place.key for place in stack.sessions.list_places()]
        assert keys == [DEFAULT, "onebot:group:A", "onebot:group:g10", "onebot:group:g2", f"workspace:{workspace.id}"]
        place = stack.sessions.get_place("onebot:group:g2")
        assert (place.kind, place.name, place.metadata) == ("window", "Group g2", {"a": 1})
        assert not hasattr(stack.sessions.get_place(f"workspace:{workspace.id}"), "root")
        assert stack.sessions.list_workspaces()[1] == workspace
        assert stack.sessions.get_place("onebot:group:unknown") is None


@pytest.mark.rule("PLACE-5")
async def test_update_place_merges_whole_values(stack: Stack, db: str) -> None:
    """Top-level keys are replaced, others stay; a key without a record raises PlaceNotFound and makes none."""
    await stack.sessions.update_place(DEFAULT, {"a": {"x": 1}, "b": 1})
    updated = await stack.sessions.update_place(DEFAULT, {"a": {"y": 2}, "c": None})
    assert updated.metadata == {"a": {"y": 2}, "b": 1, "c": None}
    assert stack.sessions.get_place(DEFAULT) == updated
    assert read_stored(db, "places", DEFAULT)["metadata"] == {"a": {"y": 2}, "b": 1, "c": None}
    with pytest.raises(PlaceNotFound) as caught:
        await stack.sessions.update_place("onebot:group:none", {"a": 1})
    assert caught.value.key == "onebot:group:none"
    assert stored_keys(db, "places") == [DEFAULT]


@pytest.mark.rule("PLACE-6")
async def test_the_default_workspaces_record_is_made_once(db: str) -> None:
    """On activation; a later one keeps what is there; a reader makes none."""
    async with running(db) as stack:
        place = await stack.sessions.update_place(DEFAULT, {"kept": True})
        assert (place.kind, place.name) == ("workspace", None)
    async with running(db) as stack:
        assert stack.sessions.get_place(DEFAULT).metadata == {"kept": True}


@pytest.mark.rule("PLACE-6")
async def test_a_windows_record_comes_with_the_filing(stack: Stack) -> None:
    """Not before, not for a bare root; its name is the group's, the peer's, or else the target."""
    stack.host.add_platform(Adapter())
    await stack.sessions.ensure_session("onebot:group:g1")
    await stack.sessions.ensure_session("bare")
    assert [place.key for place in stack.sessions.list_places()] == [DEFAULT]
    await stack.sessions.record_inbound(group_message("bare", group_id="g1", group_name="One"))
    await stack.sessions.record_inbound(private_message("p", user_id="u7", user_name="Uli"))
    await stack.sessions.record_inbound(private_message("q", user_id="u8", user_name=None))
    names = {place.key: place.name for place in stack.sessions.list_places()}
    assert names == {DEFAULT: None, "onebot:group:g1": "One", "onebot:private:u7": "Uli", "onebot:private:u8": "u8"}


@pytest.mark.rule("PLACE-6")
async def test_a_windows_name_follows_its_platform_only(stack: Stack) -> None:
    """Messages of the origin platform rename it; those of another platform, without a name, or made don't."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(group_message("s", group_name="One"))
    await stack.sessions.record_inbound(group_message("s", platform="telegram", group_name="Wrong"))
    await stack.sessions.record_inbound(group_message("s", source="timer", group_name="Wrong"))
    await stack.sessions.record_inbound(group_message("s", group_name=None, user_name="Wrong"))
    assert stack.sessions.get_place("onebot:group:g1").name == "One"
    await stack.sessions.record_inbound(group_message("s", group_name="Two"))
    assert stack.sessions.get_place("onebot:group:g1").name == "Two"
    await stack.sessions.record_inbound(private_message("p", user_id="u7", user_name="Uli"))
    await stack.sessions.record_inbound(private_message("p", own=True, user_id="bot1", peer_id="u7", user_name="Bot"))
    assert stack.sessions.get_place("onebot:private:u7").name == "Uli"


@pytest.mark.rule("PLACE-6")
async def test_a_deleted_session_leaves_its_window_and_the_next_finds_it(stack: Stack, db: str) -> None:
    """Data stays; the name is what the platform shows at the new filing."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(group_message("s", group_name="One"))
    await stack.sessions.update_place("onebot:group:g1", {"kept": True})
    await stack.sessions.delete_session("s")
    assert stack.sessions.get_place("onebot:group:g1").metadata == {"kept": True}

    await stack.sessions.record_inbound(group_message("new", group_name="Two"))
    place = stack.sessions.get_place(stack.sessions.place_of("new").key)
    assert (place.key, place.metadata, place.name) == ("onebot:group:g1", {"kept": True}, "Two")
    assert read_stored(db, "places", "onebot:group:g1")["name"] == "Two"


@pytest.mark.rule("PLACE-6")
@pytest.mark.parametrize("key", ["onebot:group:g1", "group:g1", "g1"])
async def test_windows_cant_be_deleted(stack: Stack, key: str) -> None:
    """The only thing that removes a place takes workspaces alone, also when a platform is called `workspace`."""
    stack.host.add_platform(Adapter())
    stack.host.add_platform(Adapter("workspace", claimed=lambda session_id: session_id == "w"))
    await stack.sessions.record_inbound(group_message("w", platform="workspace"))
    await stack.sessions.record_inbound(group_message("s"))
    before = stack.sessions.list_places()
    with pytest.raises(AalisError):
        await stack.sessions.remove_workspace(key)
    assert stack.sessions.list_places() == before


@pytest.mark.rule("STORE-4", "PLACE-6", "INTAKE-3")
async def test_damaged_place_records_stop_nobody(db: str, caplog: pytest.LogCaptureFixture) -> None:
    """The default's and a window's record are unreadable: sessions are there, a room of that window is filed, and
    both texts stay on disk as they are."""
    async with running(db) as stack:
        stack.host.add_platform(Adapter())
        await stack.sessions.record_inbound(group_message("s"))
    damaged = {"key": "onebot:group:g1", "kind": 7}
    write_stored(db, "places", DEFAULT, {"key": "another"})
    write_stored(db, "places", "onebot:group:g1", damaged)
    with caplog.at_level(logging.WARNING, LOG):
        async with running(db) as stack:
            stack.host.add_platform(Adapter())
            known: SessionInfo | None = stack.sessions.get_session("s")
            assert known is not None
            assert stack.sessions.place_of("s").key == "onebot:group:g1"
            await stack.sessions.record_inbound(group_message("new"))
            assert stack.sessions.get_session("new").origin_chat.target_id == "g1"
            assert (await stack.sessions.create_session()).kind == "owner"
    assert all(any(key in one.getMessage() for one in caplog.records) for key in (DEFAULT, "onebot:group:g1"))
    assert read_stored(db, "places", DEFAULT) == {"key": "another"}
    assert read_stored(db, "places", "onebot:group:g1") == damaged
