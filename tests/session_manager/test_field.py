"""The per-session settings of taking: where they stand, and which of them counts."""

import asyncio
from typing import Any

import pytest

from aalis_api_session_manager.model import Identity, SessionCreation, SessionUpdates
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_host.app import AalisHost
from aalis_host.config import Settings
from aalis_plugin_session_manager.plugin import SessionManagerPlugin
from tests.session_manager.kit import Adapter, Stack, group_message, private_message, running

OWNER = Identity(platform="cli", user_id="owner")
LAYERS = ["session", "place", "type", "platform", "plugin"]
"""Nearest first; a root's own metadata is its session layer."""


def metadata(**values: Any) -> dict[str, Any]:
    """The settings as they stand in a session's or a place's metadata."""
    return {"settings": {"session-manager": values}, "other": {"session-manager": {"takeScope": "all"}}}


def configured(values: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The plugin's table of these values by layer."""
    profile = {**values.get("platform", {}), "types": {"group": values.get("type", {})}}
    return {**values.get("plugin", {}), "profiles": {"onebot": profile}}


async def filed(stack: Stack) -> None:
    """Two groups of one bot, `a` and `b`, and one of another platform, `t`."""
    stack.host.add_platform(Adapter(claimed=lambda session_id: session_id != "t"))
    stack.host.add_platform(Adapter("telegram", claimed=lambda session_id: session_id == "t"))
    await stack.sessions.record_inbound(group_message("a", group_id="ga"))
    await stack.sessions.record_inbound(group_message("b", group_id="gb"))
    await stack.sessions.record_inbound(group_message("t", platform="telegram", group_id="gt"))


async def give(stack: Stack, values: dict[str, dict[str, Any]]) -> None:
    """Put the values of the session and the place layer of `a` where they belong."""
    if "session" in values:
        await stack.sessions.update_session("a", SessionUpdates(metadata=metadata(**values["session"])))
    if "place" in values:
        await stack.sessions.update_place("onebot:group:ga", metadata(**values["place"]))


@pytest.mark.rule("FIELD-1", "TAKE-6")
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("value", [True, False])
async def test_the_nearest_value_of_a_switch_counts(db: str, layer: str, value: bool) -> None:
    """A layer says the one thing, every farther one the other, every nearer one nothing."""
    values = {name: {"takeOtherGroups": not value} for name in LAYERS[LAYERS.index(layer) + 1 :]}
    values[layer] = {"takeOtherGroups": value}
    async with running(db, config=configured(values)) as stack:
        await filed(stack)
        await give(stack, values)
        assert bool(stack.sessions.can_take("a", "b")) is value


@pytest.mark.rule("FIELD-1", "TAKE-6", "TAKE-4")
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("value", ["all", "platform", "current"])
async def test_the_nearest_scope_counts(db: str, layer: str, value: str) -> None:
    """The same for the scope, with each other value farther away."""
    other = {"all": "current", "platform": "all", "current": "all"}[value]
    values: dict[str, dict[str, Any]] = {name: {"takeScope": other} for name in LAYERS[LAYERS.index(layer) + 1 :]}
    values[layer] = {"takeScope": value}
    values.setdefault("plugin", {})["takeOtherGroups"] = True
    async with running(db, config=configured(values)) as stack:
        await filed(stack)
        await give(stack, values)
        assert bool(stack.sessions.can_take("a", "b")) is (value != "current")
        assert bool(stack.sessions.can_take("a", "t")) is (value == "all")


@pytest.mark.rule("FIELD-1")
async def test_each_setting_is_found_on_its_own(db: str) -> None:
    """The scope from the session, one switch from the place, one from the type, one from the platform."""
    values: dict[str, dict[str, Any]] = {
        "session": {"takeScope": "all"},
        "place": {"takeOtherGroups": True},
        "type": {"takeCrossAccount": True},
        "platform": {"takeOtherPrivates": True},
        "plugin": {"takeScope": "current"},
    }
    async with running(db, config=configured(values)) as stack:
        await filed(stack)
        await stack.sessions.record_inbound(group_message("c", group_id="gc", self_id="bot2"))
        await stack.sessions.record_inbound(private_message("p", user_id="u5", self_id="bot2"))
        await give(stack, values)
        assert all(stack.sessions.can_take("a", target) for target in ("b", "c", "p", "t"))


@pytest.mark.rule("FIELD-1")
@pytest.mark.parametrize(("root", "own"), [(True, True), (True, False), (False, True), (False, False)])
async def test_a_childs_own_switch_can_only_narrow(stack: Stack, root: bool, own: bool) -> None:
    """It takes away what its root has, and gives nothing that its root hasn't."""
    await filed(stack)
    child = await stack.sessions.create_child_session("a")
    assert not stack.sessions.can_take(child.id, "b")
    await stack.sessions.update_session("a", SessionUpdates(metadata=metadata(takeOtherGroups=root)))
    assert bool(stack.sessions.can_take(child.id, "b")) is root
    await stack.sessions.update_session(child.id, SessionUpdates(metadata=metadata(takeOtherGroups=own)))
    assert bool(stack.sessions.can_take(child.id, "b")) is (root and own)
    assert bool(stack.sessions.can_take("a", "b")) is root


@pytest.mark.rule("FIELD-1")
@pytest.mark.parametrize("root", ["current", "platform", "all", None])
@pytest.mark.parametrize("own", ["current", "platform", "all"])
async def test_a_childs_own_scope_can_only_narrow(db: str, root: str | None, own: str) -> None:
    """Narrowest first: current, platform, all. A root's may come from any layer."""
    config = {"takeOtherGroups": True} if root else {"takeOtherGroups": True, "takeScope": "platform"}
    async with running(db, config=config) as stack:
        await filed(stack)
        child = await stack.sessions.create_child_session("a")
        if root is not None:
            await stack.sessions.update_session("a", SessionUpdates(metadata=metadata(takeScope=root)))
        await stack.sessions.update_session(child.id, SessionUpdates(metadata=metadata(takeScope=own)))
        order = ["current", "platform", "all"]
        effective = min(root or "platform", own, key=order.index)
        assert bool(stack.sessions.can_take(child.id, "b")) is (effective != "current")
        assert bool(stack.sessions.can_take(child.id, "t")) is (effective == "all")


@pytest.mark.rule("FIELD-1")
async def test_a_grandchild_has_its_own_and_its_roots(stack: Stack) -> None:
    """What stands on the session between them is that session's alone."""
    await filed(stack)
    child = await stack.sessions.create_child_session("a")
    grandchild = await stack.sessions.create_child_session(child.id)
    await stack.sessions.update_session("a", SessionUpdates(metadata=metadata(takeOtherGroups=True)))
    await stack.sessions.update_session(child.id, SessionUpdates(metadata=metadata(takeOtherGroups=False)))
    assert stack.sessions.can_take(grandchild.id, "b")
    assert not stack.sessions.can_take(child.id, "b")


@pytest.mark.rule("FIELD-1", "TAKE-4")
async def test_a_creation_source_is_the_platform_of_its_profile(db: str) -> None:
    """A web session reads the profile `webui`, not that of another platform."""
    config = {"profiles": {"webui": {"takeScope": "all", "takeOtherGroups": True}, "cli": {"takeScope": "current"}}}
    async with running(db, config=config) as stack:
        await filed(stack)
        web, other, cli = [
            await stack.sessions.create_session(creation=SessionCreation(created_from=surface))
            for surface in ("webui", "webui", "cli")
        ]
        assert stack.sessions.can_take(web.id, "b")
        assert stack.sessions.can_take(web.id, other.id, OWNER)
        assert not stack.sessions.can_take(cli.id, "b")
        assert not stack.sessions.can_take("a", "b")


@pytest.mark.rule("FIELD-1")
async def test_a_types_profile_is_for_windows_of_that_type(db: str) -> None:
    """What groups may, private chats may not, nor groups of another platform."""
    async with running(db, config=configured({"type": {"takeScope": "all", "takeOtherGroups": True}})) as stack:
        await filed(stack)
        await stack.sessions.record_inbound(private_message("p", user_id="u5"))
        assert stack.sessions.can_take("a", "b")
        assert not stack.sessions.can_take("p", "b")
        assert not stack.sessions.can_take("t", "b")


@pytest.mark.rule("FIELD-1", "PLACE-1", "PLACE-2")
async def test_a_places_values_are_for_every_session_of_it(stack: Stack) -> None:
    """Two bots' sessions of one group share them; the owner's own chat has those of the default workspace."""
    await filed(stack)
    await stack.sessions.record_inbound(group_message("a2", group_id="ga", self_id="bot1"))
    await stack.sessions.record_inbound(private_message("mine", user_id="owner"))
    await stack.sessions.update_place("onebot:group:ga", metadata(takeOtherGroups=True))
    assert stack.sessions.can_take("a2", "b")
    assert not stack.sessions.can_take("mine", "b")
    await stack.sessions.update_place("workspace:default", metadata(takeOtherGroups=True))
    assert stack.sessions.can_take("mine", "b")


@pytest.mark.rule("FIELD-1", "TAKE-3")
async def test_an_unfiled_root_gets_nothing_from_the_place(stack: Stack) -> None:
    """The default workspace may allow everything: a bare root, and what hangs below it, still takes nothing."""
    await filed(stack)
    await stack.sessions.create_child_session("bare")
    everything = metadata(takeScope="all", takeCrossAccount=True, takeOtherGroups=True, takeOtherPrivates=True)
    await stack.sessions.update_place("workspace:default", everything)
    own = await stack.sessions.create_session(creation=SessionCreation(created_from="cli"))
    assert stack.sessions.can_take(own.id, "b")
    for session in stack.sessions.list_sessions():
        if session.id == "bare" or session.parent_id == "bare":
            assert not stack.sessions.can_take(session.id, "b", OWNER)


WRONG: list[Any] = ["yes", 1, 0, None, [], {}, "ALL", "true"]


@pytest.mark.rule("FIELD-1", "STORE-4")
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize("layer", ["child", "session", "place"])
async def test_a_value_of_a_wrong_kind_is_passed_over(db: str, layer: str, wrong: Any) -> None:
    """It counts as not given, on any layer of metadata: the next one decides."""
    async with running(db, config={"takeOtherGroups": True, "takeScope": "all"}) as stack:
        await filed(stack)
        child = await stack.sessions.create_child_session("a")
        values = metadata(takeOtherGroups=wrong, takeScope=wrong)
        if layer == "place":
            await stack.sessions.update_place("onebot:group:ga", values)
        else:
            session_id = child.id if layer == "child" else "a"
            await stack.sessions.update_session(session_id, SessionUpdates(metadata=values))
        assert stack.sessions.can_take(child.id, "b")
        assert stack.sessions.can_take(child.id, "t")


@pytest.mark.rule("FIELD-1", "STORE-4")
@pytest.mark.parametrize(
    "found", ["text", 7, [], None, {"session-manager": "text"}, {"session-manager": None}], ids=repr
)
async def test_settings_that_are_none_are_passed_over(stack: Stack, found: Any) -> None:
    """Whatever stands under `settings`."""
    await filed(stack)
    await stack.sessions.update_session("a", SessionUpdates(metadata={"settings": found}))
    await stack.sessions.update_place("onebot:group:ga", metadata(takeOtherGroups=True))
    assert stack.sessions.can_take("a", "b")


@pytest.mark.rule("FIELD-1", "TAKE-6")
async def test_a_change_counts_at_once_and_after_a_restart(db: str) -> None:
    """The very next question is answered by it, before it is stored even."""
    async with running(db) as stack:
        await filed(stack)
        change = asyncio.create_task(
            stack.sessions.update_session("a", SessionUpdates(metadata=metadata(takeOtherGroups=True)))
        )
        await asyncio.sleep(0)
        assert stack.sessions.can_take("a", "b")
        await change
    async with running(db) as stack:
        assert stack.sessions.can_take("a", "b")
        await stack.sessions.update_session("a", SessionUpdates(metadata={"settings": None}))
        assert not stack.sessions.can_take("a", "b")


MISTAKES = {
    "an unknown setting": ({"takeScop": "all"}, ["takeScop", "takeScope"]),
    "an unknown scope": ({"takeScope": "everything"}, ["takeScope", "current", "platform", "all"]),
    "a switch that is none": ({"takeOtherGroups": "yes"}, ["takeOtherGroups", "true", "false"]),
    "in a profile": ({"profiles": {"onebot": {"takeOtherGroup": True}}}, ["profiles.onebot", "takeOtherGroups"]),
    "in a type": ({"profiles": {"onebot": {"types": {"group": {"takeScope": 1}}}}}, ["profiles.onebot.types.group"]),
    "profiles that are none": ({"profiles": {"onebot": "all"}}, ["profiles.onebot"]),
}


@pytest.mark.rule("FIELD-1")
@pytest.mark.parametrize(("config", "words"), MISTAKES.values(), ids=MISTAKES)
async def test_a_mistake_in_the_configuration_is_named(db: str, config: dict[str, Any], words: list[str]) -> None:
    """The plugin doesn't start; the host says which setting is wrong and what is allowed, and goes on."""
    settings = Settings(db=str(db), plugins={"aalis-plugin-session-manager": config})
    async with AalisHost(settings, plugins=(SessionManagerPlugin(),)) as host:
        (report,) = host.plugin_report
        assert not host.select(SESSION_MANAGER).present
    assert report.error is not None
    assert all(word in report.error for word in words), report.error
