"""Messages: saving, reading pages, recent sessions, archiving, clearing. On every back end."""

import pytest

from aalis_api_session_manager.memory import Position
from aalis_api_session_manager.message import Message, ToolCall
from aalis_host.memory import Memory
from tests.host.memory.kit import contents, generation, mark, put, text, tool_call, tool_result


async def test_a_message_comes_back_whole(memory: Memory) -> None:
    """Every field is stored."""
    message = Message(
        session_id="s",
        role="assistant",
        content="Größe 👩‍👩‍👧‍👦",
        timestamp=5,
        platform="onebot",
        user_id="1",
        user_name="Ann",
        message_id="m1",
        tool_calls=[ToolCall(id="c", name="look", arguments="{not json")],
        tool_call_id="c0",
        name="look",
        metadata={"a": [1, {"b": None}], "big": 2**64 - 1},
    )
    saved = await memory.save_message("s", message)
    (read,) = (await memory.history("s", 10)).messages
    assert saved.status == "saved"
    assert saved.id >= 1
    assert read.id == saved.id
    fields = ("session_id", "role", "content", "timestamp", "kind", "platform", "user_id", "user_name", "message_id")
    fields += ("tool_calls", "tool_call_id", "name", "archived", "generation", "metadata")
    assert {name: getattr(read, name) for name in fields} == {name: getattr(message, name) for name in fields}


async def test_the_session_is_the_one_it_is_saved_to(memory: Memory) -> None:
    """The argument decides, and sessions don't mix; ids are case-exact."""
    await memory.save_message("a", text("1"))
    await memory.save_message("A", text("2"))
    page = await memory.history("a", 10)
    assert [(m.session_id, m.content) for m in page.messages] == [("a", "1")]


async def test_a_platform_id_is_stored_once(memory: Memory) -> None:
    """A repeated message id of one session is a duplicate; of another session, or none at all, it isn't."""
    assert (await memory.save_message("s", text("1", message_id="x"))).status == "saved"
    assert (await memory.save_message("s", text("2", 9, message_id="x"))).status == "duplicate"
    assert (await memory.save_message("t", text("3", message_id="x"))).status == "saved"
    assert (await memory.save_message("s", text("4", 2))).status == "saved"
    assert (await memory.save_message("s", text("5", 3))).status == "saved"
    assert contents((await memory.history("s", 10)).messages) == ["1", "4", "5"]


@pytest.mark.rule("GEN-5")
async def test_a_lower_generation_is_refused(memory: Memory) -> None:
    """Lower than stored: refused; equal or higher: saved; none given: the stored one."""
    await memory.commit_metadata([generation("s", 3)])
    assert (await memory.save_message("s", text("late"), 2)).status == "refused"
    assert (await memory.save_message("s", text("now", 1), 3)).status == "saved"
    assert (await memory.save_message("s", text("next", 2), 4)).status == "saved"
    assert (await memory.save_message("s", text("current", 3))).status == "saved"
    page = await memory.history("s", 10)
    assert [(m.content, m.generation) for m in page.messages] == [("now", 3), ("next", 4), ("current", 3)]


@pytest.mark.rule("GEN-5")
async def test_clearing_removes_lower_generations_only(memory: Memory) -> None:
    """What belongs to the new generation stays, control marks of the old one go too."""
    await memory.save_message("s", text("old", 1), 0)
    await memory.save_message("s", mark(2), 0)
    await memory.save_message("s", tool_result(3), 0)
    await memory.commit_metadata([generation("s", 1)])
    await memory.save_message("s", text("new", 0), 1)
    await memory.save_message("t", text("other", 9), 0)
    assert await memory.clear_session("s", 1) == 3
    assert contents((await memory.history("s", 10)).messages) == ["new"]
    assert [(r.session_id, r.message.content) for r in await memory.recent_sessions(5, since_ts=0)] == [
        ("t", "other"),
        ("s", "new"),
    ]
    assert await memory.clear_session("s") == 1
    assert await memory.clear_session("s") == 0
    assert [r.session_id for r in await memory.recent_sessions(5, since_ts=0)] == ["t"]


async def test_clear_all(memory: Memory) -> None:
    """No message is left anywhere, metadata stays, and what comes afterwards is counted anew."""
    for session_id in "ab":
        await memory.save_message(session_id, text(message_id="x"))
    await memory.commit_metadata([put("k", {})])
    assert await memory.clear_all() == 2
    assert await memory.recent_sessions(5, since_ts=0) == []
    assert await memory.get_metadata("things", "k") is not None
    assert (await memory.save_message("a", text("again", message_id="x"))).status == "saved"
    page = await memory.history("a", 0)
    assert (page.messages, page.older, page.newer) == ((), 1, 0)


@pytest.mark.rule("HIST-3")
async def test_the_newest_oldest_first(memory: Memory) -> None:
    """Order is (timestamp, id), whatever the order of saving."""
    for timestamp in (5, 1, 3, 3, 9):
        await memory.save_message("s", text(f"{timestamp}", timestamp))
    page = await memory.history("s", 3)
    assert [m.timestamp for m in page.messages] == [3, 5, 9]
    assert (page.older, page.newer) == (2, 0)


@pytest.mark.rule("HIST-9")
async def test_paging_over_equal_timestamps(memory: Memory) -> None:
    """Both ways, nothing repeats and nothing is skipped, and the counts of what is left out are exact."""
    for number in range(25):
        await memory.save_message("s", text(str(number), number // 10))
    back: list[str] = []
    before = None
    while True:
        page = await memory.history("s", 4, before=before)
        back[:0] = contents(page.messages)
        assert (page.older, page.newer) == (25 - len(back), len(back) - len(page.messages))
        if not page.older:
            break
        before = Position(page.messages[0].timestamp, page.messages[0].id)
    assert back == [str(number) for number in range(25)]
    forth: list[str] = []
    after = Position(-(2**63), 0)
    while True:
        page = await memory.history("s", 4, after=after)
        forth += contents(page.messages)
        assert (page.older, page.newer) == (len(forth) - len(page.messages), 25 - len(forth))
        if not page.newer:
            break
        after = Position(page.messages[-1].timestamp, page.messages[-1].id)
    assert forth == back


@pytest.mark.rule("HIST-4")
async def test_windows(memory: Memory) -> None:
    """Both ends belong to the window; with a cursor the counts are those of the window."""
    for number in range(10):
        await memory.save_message("s", text(str(number), number))
    page = await memory.history("s", 2, since_ts=3, until_ts=7)
    assert (contents(page.messages), page.older, page.newer) == (["6", "7"], 3, 0)
    page = await memory.history("s", 2, since_ts=3, until_ts=7, after=Position(0, 0))
    assert (contents(page.messages), page.older, page.newer) == (["3", "4"], 0, 3)
    edge = Position(page.messages[-1].timestamp, page.messages[-1].id)
    page = await memory.history("s", 2, since_ts=3, until_ts=7, after=edge)
    assert (contents(page.messages), page.older, page.newer) == (["5", "6"], 2, 1)
    page = await memory.history("s", 9, since_ts=3, until_ts=7, before=edge)
    assert (contents(page.messages), page.older, page.newer) == (["3"], 0, 4)
    page = await memory.history("s", 9, since_ts=8, until_ts=2)
    assert (page.messages, page.older, page.newer) == ((), 0, 0)
    page = await memory.history("s", 20, since_ts=-(10**30), until_ts=10**30)
    assert len(page.messages) == 10


@pytest.mark.rule("HIST-9")
async def test_what_is_shown(memory: Memory) -> None:
    """Control marks never; tool results and calls without text only with `include_tools`; archived only if asked."""
    for message in (text("a", 1), mark(2), tool_call(3), tool_call(4, "let me look"), tool_result(5), text("b", 6)):
        await memory.save_message("s", message)
    await memory.save_message("s", text("old", 0, archived=True))
    page = await memory.history("s", 10)
    assert [m.timestamp for m in page.messages] == [1, 3, 4, 5, 6]
    page = await memory.history("s", 2, include_tools=False)
    assert ([m.timestamp for m in page.messages], page.older) == ([4, 6], 1)
    page = await memory.history("s", 2, include_archived=True, include_tools=False)
    assert ([m.timestamp for m in page.messages], page.older) == ([4, 6], 2)
    page = await memory.history("s", 1, include_archived=True)
    assert page.older == 5


async def test_archive(memory: Memory) -> None:
    """All but the newest shown ones are archived, and the counts and the recent message follow."""
    for number in range(8):
        await memory.save_message("s", text(str(number), number // 3))
    await memory.save_message("s", mark(9))
    assert await memory.archive("s", 3) == 5
    assert await memory.archive("s", 3) == 0
    page = await memory.history("s", 2)
    assert (contents(page.messages), page.older) == (["6", "7"], 1)
    page = await memory.history("s", 2, include_archived=True)
    assert (contents(page.messages), page.older) == (["6", "7"], 6)
    assert await memory.archive("s", 0) == 3
    assert await memory.recent_sessions(5, since_ts=0) == []
    assert await memory.archive("nobody", 0) == 0


@pytest.mark.rule("LIST-3")
async def test_recent_sessions(memory: Memory) -> None:
    """The newest shown text of each session: no marks, no tool traffic, nothing archived, whatever comes in late."""
    await memory.save_message("a", text("a1", 10, platform="onebot"))
    await memory.save_message("b", text("b1", 20, platform="cli"))
    await memory.save_message("c", text("c1", 20, platform="onebot"))
    await memory.save_message("b", mark(40, platform="cli"))
    await memory.save_message("a", tool_result(50, platform="onebot"))
    await memory.save_message("a", text("late", 5, platform="onebot"))
    await memory.save_message("d", text("hidden", 60, archived=True))
    found = await memory.recent_sessions(10, since_ts=0)
    assert [(r.session_id, r.message.content) for r in found] == [("c", "c1"), ("b", "b1"), ("a", "a1")]
    assert [r.session_id for r in await memory.recent_sessions(2, since_ts=0)] == ["c", "b"]
    assert [r.session_id for r in await memory.recent_sessions(2, since_ts=0, exclude=["c"])] == ["b", "a"]
    assert [r.session_id for r in await memory.recent_sessions(9, since_ts=20)] == ["c", "b"]
    assert [r.session_id for r in await memory.recent_sessions(9, since_ts=0, platform="onebot")] == ["c", "a"]
    behind = await memory.recent_sessions(9, since_ts=0, before=found[0].position)
    assert [r.session_id for r in behind] == ["b", "a"]
    behind = await memory.recent_sessions(9, since_ts=0, platform="onebot", before=found[0].position)
    assert [r.session_id for r in behind] == ["a"]
    assert await memory.recent_sessions(0, since_ts=0) == []


async def test_ids_never_come_back(memory: Memory) -> None:
    """The id of a removed message isn't given to another, so an old cursor can't name it."""
    first = await memory.save_message("s", text())
    await memory.clear_all()
    second = await memory.save_message("s", text())
    assert second.id > first.id
