"""What the session tools cost, through the tool registry, beside a bare read through one reader thread.

    python bench/tools.py [--quick] [--json FILE]

Prints a table (medians of seven runs, ratios against what the aim names, measured in the same run) and, with --json,
JSON lines.
"""

import argparse
import asyncio
import json
import logging
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog
from sessions import RUNS, Figures, timed_async

from aalis_api_session_manager.message import IncomingMessage, Message, ToolCallContext
from aalis_api_session_manager.model import SessionCreation, SessionDraft
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_host.app import AalisHost, wall_clock
from aalis_host.config import Settings
from aalis_host.memory.sqlite import SqliteBackend
from aalis_host.memory.writer import Save
from aalis_host.models.base import ModelReply
from aalis_plugin_session_manager.plugin import SessionManagerPlugin
from aalis_plugin_tool_session.plugin import ToolSessionPlugin

HERE = "here"
CALL = ToolCallContext(session_id=HERE, platform="cli")
TEXT = "a message of the usual length, about as long as people write in a room. " * 2
START = wall_clock() - 3_600_000


class Prompt:
    """A model that answers at once."""

    async def complete(self, messages: Any, tools: Any) -> ModelReply:
        return ModelReply(content="done")

    async def close(self) -> None:
        pass


def host_on(db: Path) -> AalisHost:
    return AalisHost(Settings(db=str(db)), plugins=(SessionManagerPlugin(), ToolSessionPlugin()), model=Prompt())


def fill(db: Path, messages: Iterable[tuple[str, int]]) -> None:
    """Put messages (session id, timestamp) into the file, many in a transaction."""
    store = SqliteBackend(db, False, wall_clock).open_writer()

    def save(batch: list[Save]) -> None:
        store.begin()
        store.save(batch)
        store.end()

    batch: list[Save] = []
    for session_id, timestamp in messages:
        message = Message(session_id=session_id, role="user", content=TEXT, timestamp=timestamp, platform="cli")
        batch.append(Save(session_id, message, None))
        if len(batch) == 10_000:
            save(batch)
            batch = []
    save(batch)
    store.close()


def called(host: AalisHost, tool: str, **arguments: Any) -> Callable[[int], Any]:
    text = json.dumps(arguments)
    return lambda _: host.tools.call(tool, text, CALL)


async def answered(host: AalisHost, tool: str, **arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await called(host, tool, **arguments)(0))
    assert "error" not in answer, answer
    return answer


async def bare_read(folder: Path, count: int, times: int) -> float:
    """The newest 20 of a session: raw sqlite3 in one reader thread. Microseconds."""
    db = sqlite3.connect(folder / f"bare{count}.db", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, sessionId TEXT, role TEXT, content TEXT, ts INTEGER)")
    db.execute("CREATE INDEX by_session ON messages(sessionId, ts)")
    db.execute("BEGIN")
    db.executemany(
        "INSERT INTO messages(sessionId, role, content, ts) VALUES(?, 'user', ?, ?)",
        ((HERE, TEXT, START + i) for i in range(count)),
    )
    db.execute("COMMIT")

    def read() -> list[Any]:
        query = "SELECT * FROM messages WHERE sessionId = ? ORDER BY ts DESC, id DESC LIMIT 20"
        return db.execute(query, (HERE,)).fetchall()

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as reader:
        spent = await timed_async(lambda _: loop.run_in_executor(reader, read), times, 1e6)
    db.close()
    return spent


async def history(folder: Path, figures: Figures, sizes: Sequence[int], times: int) -> None:
    limit = await bare_read(folder, 100_000, times)
    flat: float | None = None
    for size in sizes:
        db = folder / f"history{size}.db"
        fill(db, ((HERE, START + i) for i in range(size)))
        async with host_on(db) as host:
            ours = await timed_async(called(host, "session_get_history", session_id=HERE), times, 1e6)
            if size == 100_000:
                figures.add("newest 20 of 100,000, the tool", "µs", ours, "≤ 3 × the bare read", limit)
            else:
                figures.add(f"newest 20 of {size:,}, the tool", "µs", ours, f"flat from {sizes[0]:,}", flat)
            flat = flat or ours
            if size == sizes[-1]:
                await paging(host, figures, size, ours, times)


async def paging(host: AalisHost, figures: Figures, size: int, newest: float, times: int) -> None:
    middle = await answered(
        host, "session_get_history", session_id=HERE, since=str(START + size // 2), until=str(START + size), limit=20
    )
    newer = called(host, "session_get_history", session_id=HERE, cursor=middle["newerCursor"])
    ours = await timed_async(newer, times, 1e6)
    figures.add(f"a page in the middle of {size:,}, newer, in a window", "µs", ours, "as the newest page", newest)
    page = await answered(host, "session_get_history", session_id=HERE, limit=100)
    while page["leftOut"]["newer"] != "more than 10000":
        page = await answered(host, "session_get_history", session_id=HERE, limit=100, cursor=page["olderCursor"])
    older = called(host, "session_get_history", session_id=HERE, cursor=page["olderCursor"])
    ours = await timed_async(older, times, 1e6)
    figures.add(f"a page deep inside {size:,}, older", "µs", ours, "as the newest page", newest)


async def listing(folder: Path, figures: Figures, shapes: Sequence[tuple[int, int]], times: int) -> None:
    flat: float | None = None
    for sessions, messages in shapes:
        db = folder / f"list{sessions}x{messages}.db"
        fill(db, ((f"s{i}", START + j) for j in range(messages) for i in range(sessions)))
        async with host_on(db) as host:
            manager = host.select(SESSION_MANAGER).use()
            await asyncio.gather(
                *(
                    manager.ensure_session(
                        f"s{i}", SessionDraft(name=f"Session {i}"), SessionCreation(created_from="cli")
                    )
                    for i in range(sessions)
                )
            )
            answer = await answered(host, "list_known_sessions")
            assert answer["count"] == 20 and len({one["session_id"] for one in answer["sessions"]}) == 20
            ours = await timed_async(called(host, "list_known_sessions"), times, 1e3)
            aim = "≤ 1 ms" if flat is None else "flat"
            figures.add(f"list 20 of {sessions:,} sessions × {messages:,} messages", "ms", ours, aim, flat)
            flat = flat or ours


async def delegating(folder: Path, figures: Figures, times: int) -> None:
    async with host_on(folder / "delegate.db") as host:
        await host.select(SESSION_MANAGER).use().ensure_session("there")
        delegate = called(host, "delegate_to_session", target_session_id="there", task="do it")
        spans: dict[str, list[float]] = {"tool": [], "gateway": []}
        for i in range(times * RUNS):
            message = IncomingMessage(
                session_id="there",
                platform="cli",
                content="do it",
                source=f"bench:{i}",
                trigger_type="proactive",
                proactive_depth=1,
            )
            for name, work in (("tool", lambda: delegate(0)), ("gateway", lambda m=message: host.gateway.ingress(m))):
                begin = time.perf_counter()
                await work()
                spans[name].append((time.perf_counter() - begin) * 1e6)
        tool, gateway = statistics.median(spans["tool"]), statistics.median(spans["gateway"])
        figures.add("delegate, one after another, minus the gateway's time", "µs", tool - gateway, "≤ 300 µs")
        figures.add("  the whole call / the gateway alone", "µs", tool, "", gateway)


async def many_at_once(folder: Path, figures: Figures, counts: Sequence[int]) -> None:
    first: float | None = None
    for count in counts:
        spans = []
        for run in range(3):
            async with host_on(folder / f"many{count}-{run}.db") as host:
                await host.select(SESSION_MANAGER).use().ensure_session("there")
                delegate = called(host, "delegate_to_session", target_session_id="there", task="do it")
                await delegate(0)
                begin = time.perf_counter()
                answers = await asyncio.gather(*(delegate(i) for i in range(count)))
                spans.append((time.perf_counter() - begin) * 1e3)
                assert all(json.loads(answer)["outcome"] == "replied" for answer in answers)
        ours = statistics.median(spans)
        aim = "" if first is None else f"≤ {15 * count // counts[0] // 10} × {counts[0]} at once"
        figures.add(f"delegate, {count:,} at once, total", "ms", ours, aim, first)
        first = first or ours


async def main(quick: bool) -> str:
    figures = Figures()
    times = 40 if quick else 300
    print("| what | ours | beside | ratio | aim |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await history(folder, figures, [10_000, 100_000] if quick else [10_000, 100_000, 1_000_000], times)
        shapes = [(1000, 100), (100, 1000)] if quick else [(1000, 100), (1000, 1000), (100, 10_000)]
        await listing(folder, figures, shapes, times // 4)
        await delegating(folder, figures, times // 10)
        await many_at_once(folder, figures, [100, 1000])
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in figures.rows)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer messages and runs, to see that it works")
    parser.add_argument("--json", type=Path, help="write the rows as JSON lines, too")
    arguments = parser.parse_args()
    rows = asyncio.run(main(arguments.quick))
    if arguments.json is not None:
        arguments.json.write_text(rows)
