"""May one session take another's things: the whole space, against a second telling of the rule."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import product
from typing import Any

import pytest
from attrs import evolve, frozen

from aalis_api_session_manager.model import Identity, SessionCreation, SessionDraft, SessionUpdates
from aalis_api_session_manager.service import AUTHORITY, SESSION_MANAGER, TAKE_UNKNOWN
from aalis_api_session_manager.take import take_from
from aalis_api_session_manager.text import template_of
from tests.session_manager.kit import Adapter, Stack, group_message, private_message, running
from tests.session_manager.probes import write_stored

OWNERS = ("onebot:boss", "telegram:boss", "gone:boss", "cli:owner")


# --- the cast: what each session is, in words of the rules


@frozen
class Root:
    """Where a tree comes from. `peer` None: several people; `declared`: its type is one-to-one as declared now."""

    platform: str | None
    account: str | None = None
    peer: str | None = None
    declared: bool = True
    window: bool = True


ROOTS: Mapping[str, Root] = {
    "group of bot 1": Root("onebot", "bot1"),
    "another group of bot 1": Root("onebot", "bot1"),
    "group of bot 2": Root("onebot", "bot2"),
    "group of no known bot": Root("onebot"),
    "uli with bot 1": Root("onebot", "bot1", "uli"),
    "uli with no known bot": Root("onebot", None, "uli"),
    "mia with bot 2": Root("onebot", "bot2", "mia"),
    "boss with bot 1": Root("onebot", "bot1", "boss"),
    "uli, declared to be several now": Root("onebot", "bot1", "uli", declared=False),
    "uli, declared to be nothing now": Root("onebot", "bot1", "uli", declared=False),
    "telegram group": Root("telegram", "bot1"),
    "uli on telegram": Root("telegram", "bot1", "uli"),
    "boss on telegram": Root("telegram", "bot1", "boss"),
    "group of a platform that is gone": Root("gone", "bot1"),
    "boss on a platform that is gone": Root("gone", "bot1", "boss", declared=False),
    "terminal": Root("cli", window=False),
    "web": Root("webui", window=False),
    "another web": Root("webui", window=False),
    "surface called telegram": Root("telegram", window=False),
    "project": Root("cli", window=False),
    "project of nobody": Root(None, window=False),
    "another project of nobody": Root(None, window=False),
}
TREES: Mapping[str, str] = {
    **{name: name for name in ROOTS},
    "child of group of bot 1": "group of bot 1",
    "grandchild of group of bot 1": "group of bot 1",
    "child of uli with bot 1": "uli with bot 1",
    "child of terminal": "terminal",
    "child of project": "project",
}
"""Session -> its root."""
UNKNOWN = (
    "not in the table",
    "bare",
    "child of bare",
    "grandchild of bare",
    "parent is missing",
    "grandparent is missing",
    "its own parent",
    "one of a ring",
    "the other of the ring",
    "platform without a window",
    "child of platform without a window",
    "window of a wrong type",
)
EVERYBODY = (*TREES, *UNKNOWN)
PRINCIPALS: Mapping[str, Identity | None] = {
    "nobody": None,
    "no account": Identity(platform="onebot", user_id=""),
    "the peer": Identity(platform="onebot", user_id="uli"),
    "that account elsewhere": Identity(platform="telegram", user_id="uli"),
    "another peer": Identity(platform="onebot", user_id="mia"),
    "the owner here": Identity(platform="onebot", user_id="boss"),
    "the owner there": Identity(platform="telegram", user_id="boss"),
    "the owner at the terminal": Identity(platform="cli", user_id="owner"),
    "a stranger": Identity(platform="onebot", user_id="stranger"),
    "a stranger called like the owner": Identity(platform="webui", user_id="boss"),
}


def record(session_id: str, **fields: Any) -> dict[str, Any]:
    """A session as it stands in the file."""
    return {"id": session_id, "status": "completed", "createdAt": 1, "updatedAt": 1, **fields}


def records() -> Iterator[dict[str, Any]]:
    """The cast, as it stands in the file."""
    types = {"uli, declared to be several now": "turned", "uli, declared to be nothing now": "odd"}
    for number, (name, root) in enumerate(ROOTS.items()):
        if root.window:
            chat = {"multiParty": root.peer is None, "targetId": root.peer or f"g{number}"}
            chat["type"] = types.get(name, "group" if root.peer is None else "private")
            account = {} if root.account is None else {"selfId": root.account}
            yield record(name, originPlatform=root.platform, originChat={**chat, **account})
        else:
            work = {"work": {"root": "/x"}, "workspace": "w"} if "project" in name else {}
            made = {} if root.platform is None else {"createdFrom": root.platform}
            yield record(name, **made, **work)
    yield record("child of group of bot 1", parentId="group of bot 1")
    yield record("grandchild of group of bot 1", parentId="child of group of bot 1")
    for name in ("uli with bot 1", "terminal", "project"):
        yield record(f"child of {name}", parentId=name)
    yield record("bare")
    yield record("child of bare", parentId="bare")
    yield record("grandchild of bare", parentId="child of bare")
    yield record("parent is missing", parentId="never made")
    yield record("grandparent is missing", parentId="parent is missing")
    yield record("its own parent", parentId="its own parent")
    yield record("one of a ring", parentId="the other of the ring")
    yield record("the other of the ring", parentId="one of a ring")
    yield record("platform without a window", originPlatform="onebot")
    yield record("child of platform without a window", parentId="platform without a window")
    yield record("window of a wrong type", originPlatform="onebot", originChat={"type": 1})


# --- the oracle: the rule, told once more


@frozen
class Settings:
    """What the current session is allowed."""

    takeScope: str
    takeCrossAccount: bool
    takeOtherGroups: bool
    takeOtherPrivates: bool


ALL_SETTINGS = [
    Settings(scope, *switches) for scope, *switches in product(("current", "platform", "all"), *[(False, True)] * 3)
]


def is_owner(who: Identity) -> bool:
    """Is it one of the owner's accounts."""
    return f"{who.platform}:{who.user_id}" in OWNERS


def is_own_private_chat(target: Root, who: Identity | None) -> bool:
    """Is this one-to-one the principal's own."""
    if who is None or who.user_id == "":
        return False
    if not target.window:
        return is_owner(who)
    if not target.declared:
        return False
    if (who.platform, who.user_id) == (target.platform, target.peer):
        return True
    return is_owner(who) and f"{target.platform}:{target.peer}" in OWNERS


def oracle(current: str, target: str, who: Identity | None, settings: Settings) -> frozenset[str] | str:
    """`yes`, `unknown`, or the names of the settings that forbid it."""
    if current == target:
        return "yes"
    if current in UNKNOWN or target in UNKNOWN:
        return "unknown"
    if TREES[current] == TREES[target]:
        return "yes"
    here, there = ROOTS[TREES[current]], ROOTS[TREES[target]]
    same_platform = here.platform is not None and here.platform == there.platform
    forbids = set()

    match settings.takeScope:
        case "current":
            forbids.add("takeScope")
        case "platform" if not same_platform:
            forbids.add("takeScope")

    both_known = here.account is not None and there.account is not None
    if same_platform and both_known and here.account != there.account and not settings.takeCrossAccount:
        forbids.add("takeCrossAccount")

    several_people = there.window and there.peer is None
    if several_people and not settings.takeOtherGroups:
        forbids.add("takeOtherGroups")
    if not several_people and not is_own_private_chat(there, who) and not settings.takeOtherPrivates:
        forbids.add("takeOtherPrivates")

    return frozenset(forbids) or "yes"


# --- both, over the whole space

Answers = dict[tuple[Settings, str, str, str], tuple[bool, str | None]]
NAMED = re.compile(r"(take\w+) = (\w+(?: or \w+)*)")


SETTING_NAMES = ("takeScope", "takeCrossAccount", "takeOtherGroups", "takeOtherPrivates")


async def allow(stack: Stack, settings: Settings) -> None:
    """Give every root these settings."""
    own = {"settings": {"session-manager": {name: getattr(settings, name) for name in SETTING_NAMES}}}
    for name in ROOTS:
        await stack.sessions.update_session(name, SessionUpdates(metadata=own))


@pytest.fixture
async def cast(db: str) -> AsyncIterator[Stack]:
    """A host with the whole cast in its table."""
    async with running(db):
        pass
    for one in records():
        write_stored(db, "sessions", one["id"], one)
    async with running(db, owners=OWNERS) as stack:
        stack.host.add_platform(Adapter(session_types={"group": True, "private": False, "turned": True}))
        stack.host.add_platform(Adapter("telegram"))
        yield stack


@pytest.mark.rule("TAKE-2", "TAKE-3", "TAKE-4", "TAKE-5", "TAKE-6", "TAKE-7", "TAKE-8", "ONE-1")
@pytest.mark.timeout(300)
async def test_the_whole_space(cast: Stack) -> None:
    """Every pair, principal and setting: the oracle's answer, and a reason that names exactly what forbids it.

    Changing exactly what a reason names lets it pass, and changing less doesn't. No reason names a platform.
    """
    can_take = cast.sessions.can_take
    answers: Answers = {}
    for settings in ALL_SETTINGS:
        await allow(cast, settings)
        for current, target in product(EVERYBODY, EVERYBODY):
            for who, principal in PRINCIPALS.items():
                verdict = can_take(current, target, principal)
                expected = oracle(current, target, principal, settings)
                case = (settings, current, target, who)
                assert verdict.ok is bool(verdict) is (expected == "yes"), (case, expected, verdict)
                if verdict.ok:
                    assert verdict.reason is None, case
                    answers[case] = (True, None)
                elif expected == "unknown":
                    assert verdict.reason == TAKE_UNKNOWN, case
                else:
                    reason = verdict.reason.source
                    assert {name for name, _ in NAMED.findall(reason)} == expected, (case, reason)
                    answers[case] = (False, reason)

    refusals = {reason for ok, reason in answers.values() if not ok}
    platforms = {root.platform for root in ROOTS.values() if root.platform}
    words = {word for reason in refusals for word in re.findall(r"\w+", reason.lower())}
    assert not platforms & words
    for (settings, current, target, who), (ok, reason) in answers.items():
        if not ok:
            named = NAMED.findall(reason)
            scopes = [value.split(" or ") for name, value in named if name == "takeScope"]
            others = {name: read(value) for name, value in named if name != "takeScope"}
            for offered in scopes:
                wide = {one: evolve(settings, takeScope=one, **others) for one in ("current", "platform", "all")}
                assert offered == [one for one in wide if answers[wide[one], current, target, who][0]]
            for values in product(*(value.split(" or ") for _, value in named)):
                changes = {name: read(value) for (name, _), value in zip(named, values, strict=True)}
                assert answers[evolve(settings, **changes), current, target, who][0], (settings, current, target, who)
                for kept in changes:
                    fewer = {name: value for name, value in changes.items() if name != kept}
                    assert not answers[evolve(settings, **fewer), current, target, who][0]


def read(value: str) -> str | bool:
    """A setting's value as a reason writes it."""
    return {"true": True, "false": False}.get(value, value)


# --- what the table can't say


@pytest.mark.rule("TAKE-1", "TAKE-2")
async def test_a_consumer_that_asks_gets_the_same(cast: Stack) -> None:
    """`take_from` forwards, and while the plugin is there its answer is the session manager's."""
    sessions = cast.host.select(SESSION_MANAGER)
    for current, target in product(EVERYBODY, EVERYBODY):
        for who in PRINCIPALS.values():
            assert take_from(sessions, current, target, who) == cast.sessions.can_take(current, target, who)


@pytest.mark.rule("TAKE-6")
async def test_without_settings_only_its_own_platform_and_nothing_of_others(cast: Stack) -> None:
    """The defaults: scope `platform`, every switch off."""
    defaults = Settings("platform", False, False, False)
    for current, target in product(EVERYBODY, EVERYBODY):
        for who in PRINCIPALS.values():
            verdict = cast.sessions.can_take(current, target, who)
            assert verdict.ok is (oracle(current, target, who, defaults) == "yes")


class Broken:
    """An authority that can't be reached."""

    def is_owner(self, platform: str, user_id: str) -> bool:
        raise ConnectionError("no answer")


@pytest.mark.rule("TAKE-1")
async def test_it_never_raises(stack: Stack) -> None:
    """An authority or an adapter that fails, ids of any kind: a refusal that says that it can't be told."""

    class Undeclared(Adapter):
        asked_types = 0

        @property
        def session_types(self) -> Mapping[str, bool]:
            self.asked_types += 1
            if self.asked_types > 20:
                raise ConnectionError("no answer")
            return {"group": True, "private": False}

        @session_types.setter
        def session_types(self, value: Any) -> None:
            pass

    adapter = Undeclared()
    stack.host.add_platform(adapter)
    await stack.sessions.record_inbound(group_message("g"))
    await stack.sessions.record_inbound(private_message("p", user_id="uli"))
    own = await stack.sessions.create_session(creation=SessionCreation(created_from="onebot"))
    uli = Identity(platform="onebot", user_id="uli")
    adapter.asked_types = 100
    assert stack.sessions.can_take("g", "p", uli).reason == TAKE_UNKNOWN
    for strange in ("", "x" * 10_000, "\x00", "\ud800", "a:b"):
        assert stack.sessions.can_take(strange, "g", uli).reason == TAKE_UNKNOWN
        assert stack.sessions.can_take("g", strange, uli).reason == TAKE_UNKNOWN
        assert stack.sessions.can_take(strange, strange, uli).ok
    stack.host.services.withdraw("aalis-host")
    stack.host.services.provide(AUTHORITY, Broken(), "broken")
    assert stack.sessions.can_take("g", own.id, uli).reason == TAKE_UNKNOWN


@pytest.mark.rule("ONE-1", "TAKE-5")
async def test_the_declaration_of_this_moment_counts(stack: Stack) -> None:
    """One's own private chat is one's own only while an adapter of its platform declares its type one-to-one."""
    uli = Identity(platform="onebot", user_id="uli")
    adapter = Adapter()
    remove = stack.host.add_platform(adapter)
    await stack.sessions.record_inbound(group_message("g"))
    await stack.sessions.record_inbound(private_message("p", user_id="uli"))
    assert stack.sessions.can_take("g", "p", uli)
    adapter.session_types = {"group": True, "private": True}
    assert not stack.sessions.can_take("g", "p", uli)
    adapter.session_types = {"group": True}
    assert not stack.sessions.can_take("g", "p", uli)
    adapter.session_types = {"private": False}
    assert stack.sessions.can_take("g", "p", uli)
    remove()
    assert not stack.sessions.can_take("g", "p", uli)
    stack.host.add_platform(Adapter("telegram"))
    assert not stack.sessions.can_take("g", "p", uli), "another platform's declaration says nothing"


@pytest.mark.rule("ONE-1", "TAKE-5")
async def test_without_an_authority_nobody_is_an_owner(stack: Stack) -> None:
    """The same account still has its own chat; to the owner's other accounts it and the terminal's are others'."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(group_message("g"))
    await stack.sessions.record_inbound(private_message("p", user_id="owner"))
    terminal = await stack.sessions.create_session(creation=SessionCreation(created_from="onebot"))
    here, there = Identity(platform="onebot", user_id="owner"), Identity(platform="cli", user_id="owner")
    assert all(stack.sessions.can_take("g", target, who) for target in ("p", terminal.id) for who in (here, there))
    stack.host.services.withdraw("aalis-host")
    assert stack.sessions.can_take("g", "p", here)
    assert not stack.sessions.can_take("g", "p", there)
    assert not stack.sessions.can_take("g", terminal.id, there)


class Generous:
    """An authority to which everybody is the owner."""

    def is_owner(self, platform: str, user_id: str) -> bool:
        return True


@pytest.mark.rule("TAKE-8", "TAKE-5")
async def test_a_principal_without_an_account_is_none(stack: Stack) -> None:
    """Whatever the authority would say of an empty account."""
    stack.host.add_platform(Adapter())
    await stack.sessions.record_inbound(group_message("g"))
    await stack.sessions.record_inbound(private_message("p", user_id="uli"))
    own = await stack.sessions.create_session(creation=SessionCreation(created_from="onebot"))
    stack.host.services.withdraw("aalis-host")
    stack.host.services.provide(AUTHORITY, Generous(), "generous")
    for target in (own.id, "p"):
        assert stack.sessions.can_take("g", target, Identity(platform="onebot", user_id="x"))
        nobody = stack.sessions.can_take("g", target)
        assert not nobody
        assert stack.sessions.can_take("g", target, Identity(platform="onebot", user_id="")) == nobody


@pytest.mark.rule("TAKE-2", "TAKE-3")
async def test_what_becomes_known_and_unknown(stack: Stack) -> None:
    """A bare root's tree may take nothing, not even of itself, until it is filed; after a deletion nothing again."""
    stack.host.add_platform(Adapter())
    one = await stack.sessions.create_child_session("s")
    two = await stack.sessions.create_child_session("s", SessionDraft(name="two"))
    assert stack.sessions.can_take(one.id, two.id).reason == TAKE_UNKNOWN
    assert stack.sessions.can_take(one.id, "s").reason == TAKE_UNKNOWN
    assert stack.sessions.can_take(one.id, one.id)
    await stack.sessions.record_inbound(group_message("s"))
    assert stack.sessions.can_take(one.id, two.id)
    assert stack.sessions.can_take("s", two.id)
    await stack.sessions.delete_session(two.id)
    assert stack.sessions.can_take(one.id, two.id).reason == TAKE_UNKNOWN
    assert stack.sessions.can_take(two.id, two.id)


@pytest.mark.rule("TAKE-6", "TAKE-4")
async def test_only_the_current_sessions_settings_count(stack: Stack) -> None:
    """What the target allows or forbids for itself says nothing."""
    stack.host.add_platform(Adapter())
    for session_id, group in (("a", "ga"), ("b", "gb")):
        await stack.sessions.record_inbound(group_message(session_id, group_id=group))
    allowed = {"settings": {"session-manager": {"takeOtherGroups": True}}}
    forbidden = {"settings": {"session-manager": {"takeScope": "current"}}}
    await stack.sessions.update_session("a", SessionUpdates(metadata=allowed))
    await stack.sessions.update_session("b", SessionUpdates(metadata=forbidden))
    assert stack.sessions.can_take("a", "b")
    assert not stack.sessions.can_take("b", "a")


@pytest.mark.rule("TAKE-7")
async def test_a_reason_is_a_text_of_every_language(cast: Stack) -> None:
    """A TextRef that renders in English and Chinese, and carries the rules that refused."""
    reason = cast.sessions.can_take("group of bot 1", "mia with bot 2").reason
    assert template_of(reason.key, "en")
    assert template_of(reason.key, "zh_CN")
    assert "takeCrossAccount = true" in reason.source
    assert "takeOtherPrivates = true" in reason.source
