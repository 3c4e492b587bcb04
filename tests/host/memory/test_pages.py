"""Pages, counts and recent sessions against a list in memory, whatever happens to the messages. On every back end."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aalis_api_session_manager.memory import COUNT_LIMIT, Position
from aalis_host.memory import Memory, postgres_counts, sqlite_counts
from tests.host.memory.kit import mark, text, tool_call, tool_result

MAKERS = {"text": text, "mark": mark, "call": tool_call, "result": tool_result}
TIMES = st.integers(0, 6)

WORKS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.sampled_from(sorted(MAKERS)), TIMES, st.booleans(), st.integers(0, 2)),
        st.tuples(st.just("run"), st.sampled_from(["text", "result"]), TIMES, st.integers(1, 9)),
        st.tuples(st.just("archive"), st.integers(0, 12)),
        st.tuples(st.just("clear"), st.sampled_from([None, 1, 2])),
    ),
    max_size=25,
)
REQUESTS = st.fixed_dictionaries(
    {
        "limit": st.integers(0, 9),
        "include_archived": st.booleans(),
        "include_tools": st.booleans(),
        "before": st.none() | st.tuples(TIMES, st.integers(0, 60)),
        "after": st.none() | st.tuples(TIMES, st.integers(0, 60)),
        "since_ts": st.none() | st.integers(-1, 7),
        "until_ts": st.none() | st.integers(-1, 7),
    }
)


class Model:
    """The messages of one session: position, what it is, archived, generation."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def shown(self, include_archived: bool, include_tools: bool) -> list[dict[str, Any]]:
        return [
            row
            for row in sorted(self.rows, key=lambda row: row["at"])
            if (row["kind"] == "text" or (include_tools and row["kind"] != "mark"))
            and (include_archived or not row["archived"])
        ]

    def archive(self, keep: int) -> int:
        live = self.shown(False, True)
        old = live[: max(len(live) - keep, 0)]
        for row in old:
            row["archived"] = True
        return len(old)

    def clear(self, below: int | None) -> int:
        kept = [row for row in self.rows if below is not None and row["generation"] >= below]
        removed = len(self.rows) - len(kept)
        self.rows = kept
        return removed

    def newest(self) -> int | None:
        texts = self.shown(False, False)
        return texts[-1]["at"].id if texts else None

    def page(
        self,
        limit: int,
        include_archived: bool,
        include_tools: bool,
        before: Position | None,
        after: Position | None,
        since_ts: int | None,
        until_ts: int | None,
    ) -> tuple[list[int], int, int]:
        window = [
            row["at"]
            for row in self.shown(include_archived, include_tools)
            if (since_ts is None or row["at"].timestamp >= since_ts)
            and (until_ts is None or row["at"].timestamp <= until_ts)
        ]
        inside = [at for at in window if (before is None or at < before) and (after is None or at > after)]
        if after is not None:
            page = inside[:limit]
            older = len([at for at in window if at <= after])
        else:
            page = inside[max(len(inside) - limit, 0) :]
            older = len(inside) - len(page)
        return [at.id for at in page], older, len(window) - older - len(page)


def test_against_a_list(open_again: Callable[..., Memory], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page of every window, its counts, and the newest message are those of a plain list."""
    monkeypatch.setattr(sqlite_counts, "BLOCK", 3)
    monkeypatch.setattr(postgres_counts, "BLOCK", 3)
    sessions = (f"s{number}" for number in itertools.count())

    async def follow(memory: Memory, works: list[Any], requests: list[dict[str, Any]]) -> None:
        model, session_id = Model(), next(sessions)

        async def save(kind: str, timestamp: int, archived: bool, generation: int) -> None:
            message = MAKERS[kind](timestamp=timestamp, archived=archived)
            saved = await memory.save_message(session_id, message, generation)
            at = Position(timestamp, saved.id)
            model.rows.append({"at": at, "kind": kind, "archived": archived, "generation": generation})

        first = (await memory.save_message("first", text())).id + 1
        for work in works:
            match work:
                case ("save", kind, timestamp, archived, generation):
                    await save(kind, timestamp, archived, generation)
                case ("run", kind, timestamp, length):
                    for _ in range(length):
                        await save(kind, timestamp, False, 0)
                case ("archive", keep):
                    assert await memory.archive(session_id, keep) == model.archive(keep)
                case ("clear", below):
                    assert await memory.clear_session(session_id, below) == model.clear(below)
        recent = await memory.recent_sessions(1_000_000, since_ts=-1)
        newest = {found.session_id: found.message.id for found in recent}
        assert newest.get(session_id) == model.newest()
        for request in requests:
            for side in ("before", "after"):
                if request[side] is not None:
                    timestamp, number = request[side]
                    request[side] = Position(timestamp, first + number)
            page = await memory.history(session_id, **request)
            assert ([m.id for m in page.messages], page.older, page.newer) == model.page(**request)
        await memory.clear_all()

    with asyncio.Runner() as runner:
        memory = open_again()
        runner.run(memory.open())

        @settings(max_examples=80, deadline=None)
        @given(works=WORKS, requests=st.lists(REQUESTS, min_size=1, max_size=12))
        def check(works: list[Any], requests: list[dict[str, Any]]) -> None:
            runner.run(follow(memory, works, requests))

        try:
            check()
        finally:
            runner.run(memory.close())


@pytest.mark.rule("HIST-9")
async def test_left_out_messages_are_counted_up_to_the_limit(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact up to COUNT_LIMIT on each side, then one more; also where most of the blocks hold nothing that counts."""
    monkeypatch.setattr(sqlite_counts, "BLOCK", 8)
    monkeypatch.setattr(postgres_counts, "BLOCK", 8)
    total = COUNT_LIMIT + 5
    for start in range(0, total, 1000):
        await asyncio.gather(
            *(memory.save_message("s", text("x", number // 3)) for number in range(start, min(start + 1000, total)))
        )
    page = await memory.history("s", 4)
    assert page.older == COUNT_LIMIT + 1
    page = await memory.history("s", 5)
    assert page.older == COUNT_LIMIT
    page = await memory.history("s", 6)
    assert page.older == COUNT_LIMIT - 1
    first = await memory.history("s", 5, after=Position(-1, 0))
    assert (first.older, first.newer) == (0, COUNT_LIMIT)
    middle = await memory.history("s", 5, after=Position(first.messages[-1].timestamp, first.messages[-1].id))
    assert (middle.older, middle.newer) == (5, COUNT_LIMIT - 5)
    await memory.archive("s", 3)
    page = await memory.history("s", 2)
    assert page.older == 1
    page = await memory.history("s", 2, include_archived=True)
    assert page.older == COUNT_LIMIT + 1
