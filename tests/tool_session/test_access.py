"""One decision: what may be read shows a preview, and what shows no preview can't be read. Rule: HIST-6."""

import json
import logging
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from aalis_api_session_manager.message import ToolCallContext
from aalis_api_session_manager.model import Identity, SessionCreation, SessionUpdates
from aalis_api_session_manager.service import SESSION_HISTORY, SESSION_MANAGER, AccessChecker, AccessQuery
from aalis_api_session_manager.text import TextRef
from tests.tool_session.kit import HISTORY, LIST, OWNER, TERMINAL, Stack, group, person, private, stack

STRANGER, PEER, SECOND = person("9"), person("7"), person("8")
GROUP_A, GROUP_B = "onebot:100:group:1", "onebot:100:group:2"
OTHER_BOT = "onebot:200:group:3"
PEERS, SECONDS, OWNERS = "onebot:100:private:7", "onebot:100:private:8", "onebot:100:private:1"
OTHER_IM = "matrix:room"
CLI = "cli-session"
UNKNOWN = "only-in-the-history"


async def furnish(s: Stack) -> dict[str, str]:
    """Two groups of one bot, a group of another, three private chats, the owner's terminal, and a task of each."""
    await s.ingress(
        group("1", "7"), group("2", "8"), group("3", "9", bot="200"), private("7"), private("8"), private("1")
    )
    sessions = s.host.select(SESSION_MANAGER).use()
    await sessions.ensure_session(CLI, creation=SessionCreation(created_from="cli"))
    tasks = {}
    for session_id in (GROUP_A, GROUP_B, OTHER_BOT, PEERS, SECONDS, OWNERS, CLI):
        child = await sessions.create_child_session(session_id)
        tasks[session_id] = child.id
        await s.save(session_id, f"said in {session_id}", start=s.host.now())
        await s.save(child.id, f"worked for {session_id}", start=s.host.now())
    await s.save(UNKNOWN, "nobody filed it", start=s.host.now())
    return tasks


async def readable(s: Stack, current: str, *participants: Identity, platform: str = "onebot") -> set[str]:
    """Who can be read from a session: asked by reading each and by listing all, which must agree."""
    listed = await s.call(LIST, {"limit": 100}, current, *participants, platform=platform)
    assert listed["complete"]
    found = set()
    for entry in listed["sessions"]:
        answer = await s.call(HISTORY, {"session_id": entry["session_id"]}, current, *participants, platform=platform)
        allowed = "error" not in answer
        assert ("preview" in entry) is allowed and ("preview_withheld" in entry) is not allowed
        if allowed:
            found.add(entry["session_id"])
    return found


@pytest.mark.rule("HIST-6", "LIST-2", "TAKE-8")
async def test_as_it_is_set_at_first(tmp_path: Path) -> None:
    """From a group nothing but its own tasks; one's own private chat besides, when one asks alone."""
    async with stack(tmp_path) as s:
        tasks = await furnish(s)
        for current in (GROUP_A, tasks[GROUP_A]):
            own = {GROUP_A, tasks[GROUP_A]} - {current}
            assert await readable(s, current) == own
            assert await readable(s, current, STRANGER) == own
            assert await readable(s, current, PEER) == own | {PEERS, tasks[PEERS]}
            assert await readable(s, current, OWNER) == own | {OWNERS, tasks[OWNERS]}
            assert await readable(s, current, PEER, STRANGER) == own
            assert await readable(s, current, PEER, PEER) == own | {PEERS, tasks[PEERS]}
            assert await readable(s, current, PEER, OWNER) == own


@pytest.mark.rule("HIST-6", "LIST-2", "TAKE-4")
async def test_the_owner_in_the_terminal_is_on_another_platform(tmp_path: Path) -> None:
    """With the default scopes nothing of the chats can be read from there; with both opened, the owner's own can."""
    async with stack(tmp_path) as s:
        tasks = await furnish(s)
        assert await readable(s, CLI, TERMINAL, platform="cli") == {tasks[CLI]}
    (tmp_path / "open").mkdir()
    async with stack(tmp_path / "open", settings={"scope": "all"}, manager={"takeScope": "all"}) as s:
        tasks = await furnish(s)
        own = {tasks[CLI], OWNERS, tasks[OWNERS]}
        assert await readable(s, CLI, TERMINAL, platform="cli") == own
        assert await readable(s, CLI, TERMINAL, STRANGER, platform="cli") == {tasks[CLI]}
        assert await readable(s, CLI, platform="cli") == {tasks[CLI]}


@pytest.mark.rule("HIST-6", "TAKE-5", "TAKE-6")
@pytest.mark.parametrize(("groups", "privates", "accounts"), list(product([False, True], repeat=3)))
async def test_each_switch_opens_its_own_kind(tmp_path: Path, groups: bool, privates: bool, accounts: bool) -> None:
    """Other groups, other people's chats, another bot account: every condition counts."""
    manager = {"takeOtherGroups": groups, "takeOtherPrivates": privates, "takeCrossAccount": accounts}
    async with stack(tmp_path, manager=manager) as s:
        tasks = await furnish(s)
        expected = {tasks[GROUP_A]}
        if groups:
            expected |= {GROUP_B, tasks[GROUP_B]}
        if groups and accounts:
            expected |= {OTHER_BOT, tasks[OTHER_BOT]}
        if privates:
            expected |= {one for chat in (PEERS, SECONDS, OWNERS) for one in (chat, tasks[chat])}
        assert await readable(s, GROUP_A, STRANGER) == expected


@pytest.mark.rule("HIST-6")
@pytest.mark.parametrize("scope", ["current", "platform", "all"])
async def test_the_plugins_own_scope_is_one_more_condition(tmp_path: Path, scope: str) -> None:
    """With everything open in the session manager it alone decides; its own tree passes always."""
    manager = {"takeScope": "all", "takeOtherGroups": True, "takeOtherPrivates": True, "takeCrossAccount": True}
    async with stack(tmp_path, settings={"scope": scope}, manager=manager) as s:
        tasks = await furnish(s)
        chats = {GROUP_A, GROUP_B, OTHER_BOT, PEERS, SECONDS, OWNERS}
        own = {tasks[GROUP_A]}
        platform = chats - {GROUP_A} | {tasks[one] for one in chats}
        everything = platform | {CLI, tasks[CLI]}
        expected = {"current": own, "platform": platform, "all": everything}[scope]
        assert await readable(s, GROUP_A, STRANGER) == expected
        refusal = await s.call(HISTORY, {"session_id": CLI}, GROUP_A, STRANGER)
        if scope != "all":
            assert "(setting: scope)" in refusal["error"]


@pytest.mark.rule("HIST-6", "TAKE-6")
async def test_a_sessions_own_settings_decide_for_it(tmp_path: Path) -> None:
    async with stack(tmp_path) as s:
        tasks = await furnish(s)
        sessions = s.host.select(SESSION_MANAGER).use()
        settings = {"settings": {"session-manager": {"takeOtherGroups": True}}}
        await sessions.update_session(GROUP_A, SessionUpdates(metadata=settings))
        assert await readable(s, GROUP_A, STRANGER) == {tasks[GROUP_A], GROUP_B, tasks[GROUP_B]}
        assert await readable(s, GROUP_B, STRANGER) == {tasks[GROUP_B]}


@pytest.mark.rule("HIST-6", "TAKE-3")
async def test_what_nobody_filed_is_never_read(tmp_path: Path) -> None:
    """Whatever is open, unless it is the current session."""
    manager = {"takeScope": "all", "takeOtherGroups": True, "takeOtherPrivates": True, "takeCrossAccount": True}
    async with stack(tmp_path, settings={"scope": "all"}, manager=manager) as s:
        await furnish(s)
        assert UNKNOWN not in await readable(s, GROUP_A, OWNER)
        assert await readable(s, UNKNOWN, OWNER) == set()
        assert (await s.call(HISTORY, {"session_id": UNKNOWN}, UNKNOWN))["count"] == 1


@pytest.mark.rule("HIST-6", "TAKE-1")
async def test_without_a_session_manager_only_the_same_session(tmp_path: Path) -> None:
    async with stack(tmp_path, with_manager=False, settings={"scope": "all"}) as s:
        await s.save(GROUP_A, "a", start=1)
        await s.save(GROUP_B, "b", start=1)
        assert (await s.call(HISTORY, {"session_id": GROUP_A}, GROUP_A))["count"] == 1
        assert (await s.call(HISTORY, {"session_id": GROUP_B}, GROUP_A))["error"].startswith("It can't be told")


@pytest.mark.rule("HIST-6")
@pytest.mark.parametrize("scope", ["current", "platform", "all"])
@pytest.mark.parametrize("with_manager", [True, False])
async def test_the_own_session_is_in_every_scope(tmp_path: Path, scope: str, with_manager: bool) -> None:
    """Known to the session manager or not."""
    async with stack(tmp_path, with_manager=with_manager, settings={"scope": scope}) as s:
        await s.save(UNKNOWN, "a", start=1)
        assert (await s.call(HISTORY, {"session_id": UNKNOWN}, UNKNOWN))["count"] == 1


@pytest.mark.rule("HIST-6", "TAKE-7")
async def test_a_refusal_names_the_settings_no_platform_and_what_to_do(tmp_path: Path) -> None:
    async with stack(tmp_path) as s:
        await furnish(s)
        for target in (GROUP_B, OTHER_BOT, SECONDS, CLI, UNKNOWN):
            error = (await s.call(HISTORY, {"session_id": target}, GROUP_A, PEER))["error"]
            assert "onebot" not in error and "cli" not in error
            assert error.endswith("or tell them which setting is in the way.")
        error = (await s.call(HISTORY, {"session_id": OTHER_BOT}, GROUP_A, PEER))["error"]
        assert "takeCrossAccount = true" in error and "takeOtherGroups = true" in error


# --- checkers


class Checker:
    """A platform's rule that remembers what it was asked."""

    def __init__(self, *denied: str, reason: Any = "not for you") -> None:
        self.denied, self.reason = denied, reason
        self.asked: list[AccessQuery] = []

    def __call__(self, query: AccessQuery) -> Any:
        self.asked.append(query)
        return self.reason if query.target_id in self.denied else None

    async def later(self, query: AccessQuery) -> Any:
        """The same, not at once."""
        return self(query)


@pytest.fixture
async def opened(tmp_path: Path) -> Any:
    manager = {"takeScope": "all", "takeOtherGroups": True, "takeOtherPrivates": True, "takeCrossAccount": True}
    async with stack(tmp_path, settings={"scope": "all"}, manager=manager) as s:
        await furnish(s)
        yield s


@pytest.mark.rule("HIST-6", "HIST-7", "LIST-2")
@pytest.mark.parametrize("is_async", [False, True])
async def test_any_checker_of_the_targets_platform_denies(opened: Stack, is_async: bool) -> None:
    """Until it is taken back, once."""
    service = opened.host.select(SESSION_HISTORY).use()
    denying, allowing, elsewhere = Checker(GROUP_B, PEERS), Checker(), Checker(GROUP_B, CLI)
    removers = [
        service.register_access_checker(
            AccessChecker(name=name, platform=platform, check=checker.later if is_async else checker)
        )
        for name, platform, checker in (
            ("allowing", "onebot", allowing),
            ("denying", "onebot", denying),
            ("elsewhere", "matrix", elsewhere),
        )
    ]
    found = await readable(opened, GROUP_A, STRANGER)
    assert not {GROUP_B, PEERS} & found and {SECONDS, CLI, OTHER_BOT} <= found
    assert not elsewhere.asked and allowing.asked
    answer = await opened.call(HISTORY, {"session_id": GROUP_B}, GROUP_A, STRANGER, PEER)
    assert answer["error"].startswith("not for you. Don't try other ids")
    assert denying.asked[-1] == AccessQuery(
        current_id=GROUP_A, target_id=GROUP_B, platform="onebot", participants=(STRANGER, PEER)
    )
    for _ in range(2):
        removers[1]()
    assert {GROUP_B, PEERS} <= await readable(opened, GROUP_A, STRANGER)


@pytest.mark.rule("HIST-6")
async def test_the_platform_is_the_roots_origin_else_its_surface_else_the_calls(opened: Stack) -> None:
    service = opened.host.select(SESSION_HISTORY).use()
    checkers = {name: Checker() for name in ("onebot", "cli", "elsewhere")}
    for name, checker in checkers.items():
        service.register_access_checker(AccessChecker(name=name, platform=name, check=checker))
    task = opened.host.select(SESSION_MANAGER).use().get_children(GROUP_B)[0].id
    for target, current, asked in (
        (GROUP_B, GROUP_A, "onebot"),
        (task, GROUP_A, "onebot"),
        (CLI, GROUP_A, "cli"),
        (UNKNOWN, UNKNOWN, "elsewhere"),
    ):
        await opened.call(HISTORY, {"session_id": target}, current, OWNER, platform="elsewhere")
        assert [name for name, checker in checkers.items() if checker.asked] == [asked]
        assert checkers[asked].asked.pop().platform == asked


@pytest.mark.rule("HIST-6")
async def test_reading_the_own_session_asks_the_checkers_too(opened: Stack) -> None:
    service = opened.host.select(SESSION_HISTORY).use()
    service.register_access_checker(AccessChecker(name="x", platform="onebot", check=Checker(GROUP_A)))
    assert "error" in await opened.call(HISTORY, {"session_id": GROUP_A}, GROUP_A, OWNER)


@pytest.mark.rule("HIST-6")
async def test_a_checker_that_raises_refuses(opened: Stack, caplog: pytest.LogCaptureFixture) -> None:
    """And is named in the log; what it said isn't told to the model."""

    def check(_: AccessQuery) -> None:
        raise RuntimeError("secret detail")

    service = opened.host.select(SESSION_HISTORY).use()
    service.register_access_checker(AccessChecker(name="broken rule", platform="onebot", check=check))
    with caplog.at_level(logging.ERROR):
        raw = await opened.raw(HISTORY, {"session_id": GROUP_B}, GROUP_A, OWNER)
    assert json.loads(raw)["error"].startswith("It couldn't be found out whether")
    assert "secret detail" not in raw and "broken rule" in caplog.text
    assert GROUP_B not in await readable(opened, GROUP_A, OWNER)


@pytest.mark.rule("HIST-6")
@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (TextRef("place.default"), "Default workspace"),
        ("", "The rules of the other session's platform don't allow reading it."),
    ],
)
async def test_a_checkers_reason_is_passed_on(opened: Stack, reason: Any, told: str) -> None:
    service = opened.host.select(SESSION_HISTORY).use()
    checker = Checker(GROUP_B, reason=reason)
    service.register_access_checker(AccessChecker(name="x", platform="onebot", check=checker))
    answer = await opened.call(HISTORY, {"session_id": GROUP_B}, GROUP_A, OWNER)
    assert answer["error"].startswith(told)


@pytest.mark.rule("HIST-6", "TAKE-1")
async def test_the_take_rule_is_asked_for_each_participant(opened: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is one question without a principal."""
    sessions = opened.host.select(SESSION_MANAGER).use()
    asked: list[Identity | None] = []
    can_take = sessions.can_take

    def spy(current_id: str, target_id: str, principal: Identity | None = None) -> Any:
        asked.append(principal)
        return can_take(current_id, target_id, principal)

    monkeypatch.setattr(sessions, "can_take", spy)
    tool = {"session_id": GROUP_B}
    await opened.call(HISTORY, tool, GROUP_A)
    await opened.call(HISTORY, tool, GROUP_A, STRANGER, PEER)
    assert asked == [None, STRANGER, PEER]
    call = ToolCallContext(session_id=GROUP_A, approve_for=())
    assert call.approve_for == ()
