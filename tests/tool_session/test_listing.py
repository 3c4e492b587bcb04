"""`list_known_sessions` through the tool registry."""

import gzip
import random
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from aalis_api_session_manager.errors import StorageError
from aalis_api_session_manager.memory import RecentSession
from aalis_api_session_manager.message import Message, ToolCall, ToolCallContext
from aalis_api_session_manager.model import SessionCreation, SessionDraft
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_plugin_tool_session.plugin import ToolSessionPlugin
from aalis_plugin_tool_session.timerange import local_iso
from tests.cluster import each_back_end
from tests.tool_session.kit import LIST, OWNER, Services, Stack, group, message, private, stack

NOW = 1_796_000_000_000
HOUR = 3_600_000
HERE = "here"


def ids(answer: Any) -> list[str]:
    return [entry["session_id"] for entry in answer["sessions"]]


def oracle(messages: list[Message], since_ts: int, exclude: str = HERE) -> list[str]:
    """The sessions by their newest shown message, newest first: the slow way, over all messages."""
    newest: dict[str, tuple[int, int]] = {}
    for i, one in enumerate(messages):
        if one.kind == "message" and one.role in ("user", "assistant") and one.content:
            newest[one.session_id] = max(newest.get(one.session_id, (0, 0)), (one.timestamp, i))
    order = sorted(newest, key=lambda session_id: newest[session_id], reverse=True)
    return [one for one in order if newest[one][0] >= since_ts and one != exclude]


@pytest.fixture
async def s(tmp_path: Path, db: str) -> Any:
    async with stack(tmp_path, now=lambda: NOW, db=db) as made:
        yield made


@each_back_end
@pytest.mark.rule("LIST-1")
async def test_newest_first_without_the_current_one(s: Stack) -> None:
    for i, session_id in enumerate(["a", "b", HERE, "c"]):
        await s.save(session_id, f"first of {session_id}", f"last of {session_id}", start=NOW - HOUR + i, step=100)
    answer = await s.call(LIST, {}, HERE)
    assert ids(answer) == ["c", "b", "a"]
    assert (answer["count"], answer["limit"], answer["since_hours"]) == (3, 20, 168)
    entry = answer["sessions"][0]
    assert (entry["platform"], entry["last_activity_ts"]) == ("onebot", NOW - HOUR + 103)
    assert entry["last_activity"] == local_iso(NOW - HOUR + 103)


@each_back_end
@pytest.mark.rule("LIST-1", "LIST-3")
@pytest.mark.parametrize(("limit", "count"), [(None, 20), (1, 1), ("7", 7), (100, 100)])
async def test_exactly_as_many_as_asked_for(s: Stack, limit: Any, count: int) -> None:
    await s.save_all(message(f"s{i}", "x", NOW - i) for i in range(130))
    answer = await s.call(LIST, {"limit": limit}, HERE)
    assert ids(answer) == [f"s{i}" for i in range(count)]
    assert (answer["complete"], answer["narrowed_by"]) == (False, ["limit"])


@pytest.mark.rule("LIST-1")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"limit": 0}, "limit must be at least 1"),
        ({"limit": 101}, "limit must be at most 100"),
        ({"limit": "x"}, "limit must be integer"),
        ({"since_hours": 0}, "since_hours must be a number above 0."),
        ({"since_hours": -1}, "since_hours must be a number above 0."),
        ({"platform": 5}, "platform must be string"),
        ({"plattform": "onebot"}, "there is no argument 'plattform'"),
    ],
)
async def test_arguments_that_cant_be_used_are_refused(s: Stack, arguments: Any, error: str) -> None:
    answer = await s.call(LIST, arguments, HERE)
    assert list(answer) == ["error"] and error in answer["error"]


@each_back_end
@pytest.mark.rule("LIST-1")
async def test_since_hours(s: Stack) -> None:
    """From that moment on, inclusive; seven days unless it is said."""
    await s.save("edge", "x", start=NOW - 168 * HOUR)
    await s.save("old", "x", start=NOW - 168 * HOUR - 1)
    await s.save("new", "x", start=NOW - HOUR)
    assert ids(await s.call(LIST, {}, HERE)) == ["new", "edge"]
    assert ids(await s.call(LIST, {"since_hours": 0.5}, HERE)) == []
    assert ids(await s.call(LIST, {"since_hours": "1"}, HERE)) == ["new"]
    assert ids(await s.call(LIST, {"since_hours": 1e9}, HERE)) == ["new", "edge", "old"]


@each_back_end
@pytest.mark.rule("LIST-2")
async def test_what_narrowed_the_list_is_said(s: Stack) -> None:
    await s.save("a", "x", start=NOW - HOUR)
    await s.save("b", "x", start=NOW - 2 * HOUR, platform="matrix")
    await s.save("c", "x", start=NOW - 400 * HOUR)
    for arguments, listed, narrowed in (
        ({"since_hours": 1000}, ["a", "b", "c"], []),
        ({}, ["a", "b"], ["since_hours"]),
        ({"platform": "onebot"}, ["a"], ["platform", "since_hours"]),
        ({"platform": "onebot", "since_hours": 1000}, ["a", "c"], ["platform"]),
        ({"limit": 1}, ["a"], ["limit", "since_hours"]),
        ({"platform": "nowhere", "since_hours": 1000}, [], ["platform"]),
    ):
        answer = await s.call(LIST, arguments, HERE)
        assert (ids(answer), answer["narrowed_by"], answer["complete"]) == (listed, narrowed, not narrowed)


@pytest.mark.rule("LIST-2")
async def test_the_current_session_alone_narrows_nothing(s: Stack) -> None:
    await s.save(HERE, "x", start=NOW - 400 * HOUR)
    answer = await s.call(LIST, {}, HERE)
    assert (answer["sessions"], answer["complete"], answer["narrowed_by"]) == ([], True, [])


@pytest.mark.rule("LIST-1", "LIST-2")
async def test_the_platform_is_what_is_shown_and_filtered_by(s: Stack) -> None:
    """The root's origin, else what made it, else the message's own; a child has its root's. Exactly."""
    sessions = s.host.select(SESSION_MANAGER).use()
    await s.ingress(group("1", "7", timestamp=NOW - 5))
    room = "onebot:100:group:1"
    child = (await sessions.create_child_session(room)).id
    await sessions.ensure_session("made", creation=SessionCreation(created_from="cli"))
    await sessions.ensure_session("bare")
    for session_id in (room, child, "made", "bare", "unknown"):
        await s.save(session_id, "x", start=NOW, platform="elsewhere")
    answer = await s.call(LIST, {}, HERE)
    shown = {entry["session_id"]: entry["platform"] for entry in answer["sessions"]}
    assert shown == {room: "onebot", child: "onebot", "made": "cli", "bare": "elsewhere", "unknown": "elsewhere"}
    for platform in ("onebot", "cli", "elsewhere", "Onebot", "one", ""):
        found = await s.call(LIST, {"platform": platform}, HERE)
        assert set(ids(found)) == {one for one in shown if shown[one] == platform}
        assert found["platform"] == platform


@pytest.mark.rule("LIST-2")
async def test_what_the_session_manager_knows_is_added(s: Stack) -> None:
    """Label, kind, status, place; an unfiled root has no place, and an unknown one nothing."""
    sessions = s.host.select(SESSION_MANAGER).use()
    await s.ingress(group("1", "7", group_name="Garden", timestamp=NOW - 5))
    room = "onebot:100:group:1"
    child = await sessions.create_child_session(room, SessionDraft(name="Counting"))
    made = await sessions.ensure_session("made", SessionDraft(title="A title"), SessionCreation(created_from="cli"))
    bare = await sessions.ensure_session("bare")
    for session_id in (room, child.id, made.id, bare.id, "unknown"):
        await s.save(session_id, "x", start=NOW)
    entries = {entry["session_id"]: entry for entry in (await s.call(LIST, {}, HERE))["sessions"]}
    window = {"kind": "window", "key": "onebot:group:1", "label": "Garden"}
    workspace = {"kind": "workspace", "key": "workspace:default", "label": "Default workspace"}

    def known(session_id: str) -> dict[str, Any]:
        return {key: entries[session_id].get(key) for key in ("label", "kind", "status", "place")}

    assert known(room) == {"label": "Garden", "kind": "room", "status": "completed", "place": window}
    assert known(child.id) == {"label": "Counting", "kind": "task", "status": "active", "place": window}
    assert known("made") == {"label": "A title", "kind": "owner", "status": "active", "place": workspace}
    assert known("bare")["kind"] == "owner" and known("bare")["label"].startswith("Session 20")
    assert "place" not in entries["bare"]
    assert known("unknown") == dict.fromkeys(("label", "kind", "status", "place"))


@pytest.mark.rule("LIST-1", "LIST-2", "HIST-5")
async def test_a_preview_is_the_beginning_of_the_newest_message(tmp_path: Path) -> None:
    """80 characters, never half a grapheme; elsewhere it is withheld and the entry says so."""
    flag = "\U0001f1f0\U0001f1f7"
    async with stack(tmp_path, now=lambda: NOW) as s:
        await s.ingress(private("1", timestamp=NOW - 9), private("8", timestamp=NOW - 9), group("1", timestamp=NOW - 9))
        mine, theirs, here = "onebot:100:private:1", "onebot:100:private:8", "onebot:100:group:1"
        await s.save(mine, "older", "x" * 79 + flag + "end", start=NOW)
        await s.save(theirs, "a secret", start=NOW)
        answer = await s.call(LIST, {}, here, OWNER)
        entries = {entry["session_id"]: entry for entry in answer["sessions"]}
        assert (entries[mine]["preview"], entries[mine]["preview_characters_not_shown"]) == ("x" * 79, 5)
        assert "preview_withheld" not in entries[mine]
        assert entries[theirs]["preview_withheld"] is True and "preview" not in entries[theirs]
        assert "a secret" not in str(answer)
        keys = list(answer)
        assert keys.index("notice") < keys.index("withheld") < keys.index("sessions")


@each_back_end
@pytest.mark.rule("LIST-3")
@pytest.mark.parametrize("seed", range(4))
async def test_against_the_slow_way(tmp_path: Path, db: str, seed: int) -> None:
    """Rooms that write in blocks of 100, one room with two thirds of everything, marks and tool results last."""
    chance = random.Random(seed)
    rooms = [f"room{i}" for i in range(40)] + [HERE]
    messages: list[Message] = []
    timestamp = NOW - 300 * HOUR
    while len(messages) < 3000:
        room = "room0" if chance.random() < 0.6 else chance.choice(rooms)
        for _ in range(chance.choice([1, 1, 2, 100])):
            timestamp += chance.choice([0, 0, 1, 60_000, 900_000])
            kind = chance.choices(["shown", "control", "tool", "call"], [20, 2, 2, 1])[0]
            fields = {
                "shown": {},
                "control": {"kind": "control", "role": "system"},
                "tool": {"role": "tool", "tool_call_id": "c"},
                "call": {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [ToolCall(id="c", name="t", arguments="{}")],
                },
            }[kind]
            messages.append(message(room, **{"content": f"m{len(messages)}", "timestamp": timestamp, **fields}))
    now = max(timestamp, NOW)
    async with stack(tmp_path, now=lambda: now, db=db) as s:
        await s.save_all(messages)
        for limit in (1, 5, 20, 39, 100):
            for hours in (1, 24, 168, 1000):
                expected = oracle(messages, now - hours * HOUR)
                answer = await s.call(LIST, {"limit": limit, "since_hours": hours}, HERE)
                assert ids(answer) == expected[:limit]
                everything = oracle(messages, 0)
                assert answer["narrowed_by"] == [
                    name
                    for name, left_out in (
                        ("limit", len(expected) > limit),
                        ("since_hours", len(everything) > len(expected)),
                    )
                    if left_out
                ]


@pytest.mark.rule("LIST-3", "LIST-1")
async def test_the_recorded_traffic(tmp_path: Path, shared: Path) -> None:
    """The last 20,000 real messages, as private chats of each speaker in each room, against the slow way."""
    with gzip.open(shared / "data" / "room-traffic.csv.gz", "rt") as lines:
        rows = [line.split(",") for line in deque((line for line in lines if line[0].isdigit()), 20_000)]
    messages = [message(f"{room}-{speaker}", "x" * int(size), int(at) * 1000) for at, room, speaker, size, _ in rows]
    now = messages[-1].timestamp
    async with stack(tmp_path, now=lambda: now) as s:
        await s.save_all(one for one in messages if one.content)
        for limit in (1, 20, 100):
            for hours in (1, 24, 168, 100_000):
                expected = oracle(messages, now - hours * HOUR)
                assert ids(await s.call(LIST, {"limit": limit, "since_hours": hours}, HERE)) == expected[:limit]


class Counting:
    """Counts the rows that `recent_sessions` hands out."""

    def __init__(self, s: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = self.rows = 0
        recent_sessions = s.host.memory.recent_sessions

        async def counted(*args: Any, **kwargs: Any) -> list[RecentSession]:
            rows = await recent_sessions(*args, **kwargs)
            self.calls += 1
            self.rows += len(rows)
            return rows

        monkeypatch.setattr(s.host.memory, "recent_sessions", counted)

        async def never(*_: Any, **__: Any) -> Any:
            raise AssertionError("a listing reads no history")

        monkeypatch.setattr(s.host.memory, "history", never)


@each_back_end
@pytest.mark.rule("LIST-3")
async def test_what_is_read_grows_with_the_limit_alone(s: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the number of messages, nor of sessions."""
    read = []
    for messages in (1, 50):
        await s.save_all(message(f"s{i}", "x", NOW - HOUR + j) for i in range(120) for j in range(messages))
        counting = Counting(s, monkeypatch)
        for limit in (1, 10, 100):
            counting.calls = counting.rows = 0
            await s.call(LIST, {"limit": limit}, HERE)
            assert counting.calls <= 2 and counting.rows <= limit + 2
            read.append((counting.calls, counting.rows))
        monkeypatch.undo()
    assert read[:3] == read[3:]


@each_back_end
@pytest.mark.rule("LIST-1", "LIST-3")
async def test_a_rare_platform_is_found_behind_many_others(s: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    await s.save_all(message(f"s{i}", "x", NOW - i) for i in range(3000))
    await s.save("rare", "x", start=NOW - HOUR, platform="matrix")
    counting = Counting(s, monkeypatch)
    answer = await s.call(LIST, {"platform": "matrix", "limit": 2}, HERE)
    assert (ids(answer), answer["narrowed_by"]) == (["rare"], ["platform"])
    assert counting.calls < 20


@pytest.mark.rule("LIST-1")
async def test_without_a_memory_service_it_says_so() -> None:
    plugin = ToolSessionPlugin()
    plugin.aalis_activate(Services())
    assert plugin._parts is not None
    answer = await plugin._parts.listing({}, ToolCallContext(session_id=HERE))
    assert "No memory service is running" in answer


@pytest.mark.rule("LIST-1")
async def test_a_failing_back_end_is_an_error_and_logged(
    s: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise StorageError("disk I/O error")

    monkeypatch.setattr(s.host.memory, "recent_sessions", fail)
    assert (await s.call(LIST, {}, HERE))["error"].startswith("The message store failed")
    assert "disk I/O error" in caplog.text
