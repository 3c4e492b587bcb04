"""What the session tools cost, through the tool registry, beside a bare read through one reader thread.

    python bench/tools.py [--quick] [--json FILE]

Prints a table and, with --json, JSON lines. What is compared is measured by turns in the same run; figures are medians.
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
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
from sessions import RUNS, Figures

from aalis_api_session_manager.message import IncomingMessage, Message, ToolCallContext
from aalis_api_session_manager.model import SessionCreation, SessionDraft
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_host.app import AalisHost, wall_clock
from aalis_host.config import Settings
from aalis_host.gateway import Gateway
from aalis_host.memory.sqlite import SqliteBackend
from aalis_host.memory.writer import Save
from aalis_host.models.base import ModelReply
from aalis_plugin_session_manager.plugin import SessionManagerPlugin
from aalis_plugin_tool_session.plugin import ToolSessionPlugin

HISTORY, LIST, DELEGATE = "session_get_history", "list_known_sessions", "delegate_to_session"
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


async def by_turns(times: int, **works: Callable[[int], Any]) -> dict[str, float]:
    """Median time of each work in microseconds, done by turns, so that what else the machine does meets all alike."""
    spans: dict[str, list[float]] = {name: [] for name in works}
    for i in range(times * RUNS):
        for name, work in works.items():
            begin = time.perf_counter()
            await work(i)
            spans[name].append((time.perf_counter() - begin) * 1e6)
    return {name: statistics.median(measured) for name, measured in spans.items()}


@asynccontextmanager
async def bare_reader(db: Path, count: int) -> AsyncIterator[Callable[[int], Any]]:
    """Reading the newest 20 of a session with raw sqlite3 in one reader thread."""
    raw = sqlite3.connect(db, isolation_level=None, check_same_thread=False)
    raw.execute("PRAGMA journal_mode=WAL")
    raw.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, sessionId TEXT, role TEXT, content TEXT, ts INTEGER)")
    raw.execute("CREATE INDEX by_session ON messages(sessionId, ts)")
    raw.execute("BEGIN")
    raw.executemany(
        "INSERT INTO messages(sessionId, role, content, ts) VALUES(?, 'user', ?, ?)",
        ((HERE, TEXT, START + i) for i in range(count)),
    )
    raw.execute("COMMIT")

    def read() -> list[Any]:
        query = "SELECT * FROM messages WHERE sessionId = ? ORDER BY ts DESC, id DESC LIMIT 20"
        return raw.execute(query, (HERE,)).fetchall()

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as reader:
        yield lambda _: loop.run_in_executor(reader, read)
    raw.close()


async def history(folder: Path, figures: Figures, sizes: Sequence[int], times: int) -> None:
    """Each size beside the smallest, both open at once; 100,000 beside the bare read."""
    first = folder / "history.db"
    fill(first, ((HERE, START + i) for i in range(sizes[0])))
    async with host_on(first) as smallest, bare_reader(folder / "bare.db", 100_000) as bare:
        for size in sizes[1:]:
            db = folder / f"history{size}.db"
            fill(db, ((HERE, START + i) for i in range(size)))
            async with host_on(db) as host:
                read = called(host, HISTORY, session_id=HERE)
                spent = await by_turns(
                    times,
                    small=called(smallest, HISTORY, session_id=HERE),
                    bare=bare,
                    tool=read,
                    memory=lambda _, host=host: host.memory.history(HERE, 20, include_tools=False),
                )
                if size == 100_000:
                    figures.add(
                        "newest 20 of 100,000, the tool", "µs", spent["tool"], "≤ 3 × the bare read", spent["bare"]
                    )
                    figures.add("  the memory service's part of it", "µs", spent["memory"], "", spent["bare"])
                figures.add(f"newest 20 of {size:,}", "µs", spent["tool"], f"flat from {sizes[0]:,}", spent["small"])
                if size == sizes[-1]:
                    await paging(host, figures, size, times)


async def paging(host: AalisHost, figures: Figures, size: int, times: int) -> None:
    middle = await answered(
        host, HISTORY, session_id=HERE, since=str(START + size // 2), until=str(START + size), limit=20
    )
    deep = await answered(host, HISTORY, session_id=HERE, until=str(START + size // 2), limit=20)
    page = await answered(host, HISTORY, session_id=HERE, limit=100)
    while page["leftOut"]["newer"] != "more than 10000":
        page = await answered(host, HISTORY, session_id=HERE, limit=100, cursor=page["olderCursor"])
    spent = await by_turns(
        times,
        newest=called(host, HISTORY, session_id=HERE),
        window=called(host, HISTORY, session_id=HERE, cursor=middle["newerCursor"]),
        early=called(host, HISTORY, session_id=HERE, cursor=deep["newerCursor"]),
        older=called(host, HISTORY, session_id=HERE, cursor=page["olderCursor"]),
    )
    for name, what in (
        ("window", f"a cursor page in the middle of {size:,}, newer"),
        ("early", f"a cursor page near the beginning of {size:,}, newer"),
        ("older", f"a cursor page with more than 10,000 on both sides of {size:,}, older"),
    ):
        figures.add(what, "µs", spent[name], "as the newest page", spent["newest"])


async def listing(folder: Path, figures: Figures, shapes: Sequence[tuple[int, int]], times: int) -> None:
    """Every shape beside the first, all open at once."""
    async with AsyncExitStack() as hosts:
        works: dict[str, Callable[[int], Any]] = {}
        for sessions, messages in shapes:
            db = folder / f"list{sessions}x{messages}.db"
            fill(db, ((f"s{i}", START + j) for j in range(messages) for i in range(sessions)))
            host = await hosts.enter_async_context(host_on(db))
            manager = host.select(SESSION_MANAGER).use()
            made = SessionCreation(created_from="cli")
            drafts = ((f"s{i}", SessionDraft(name=f"Session {i}"), made) for i in range(sessions))
            await asyncio.gather(*(manager.ensure_session(*draft) for draft in drafts))
            answer = await answered(host, LIST)
            assert answer["count"] == 20 and len({one["session_id"] for one in answer["sessions"]}) == 20
            works[f"list 20 of {sessions:,} sessions × {messages:,} messages"] = called(host, LIST)
        spent = await by_turns(times, **works)
    first: float | None = None
    for what, microseconds in spent.items():
        aim = "≤ 1 ms" if first is None else "flat"
        figures.add(what, "ms", microseconds / 1e3, aim, first)
        first = first or microseconds / 1e3


async def delegating(folder: Path, figures: Figures, times: int) -> None:
    """Each call beside the gateway's time for its own message: what the caller waits for beyond the turn."""
    async with host_on(folder / "delegate.db") as host:
        await host.select(SESSION_MANAGER).use().ensure_session("there")
        delegate = called(host, DELEGATE, target_session_id="there", task="do it")
        ingress = Gateway.ingress
        begun = ended = 0.0

        async def watched(gateway: Gateway, message: IncomingMessage) -> None:
            nonlocal begun, ended
            begun = time.perf_counter()
            await ingress(gateway, message)
            ended = time.perf_counter()

        Gateway.ingress = watched  # type: ignore[method-assign]
        rows: list[tuple[float, float, float]] = []
        for i in range(times * RUNS):
            begin = time.perf_counter()
            await delegate(i)
            answered_at = time.perf_counter()
            while ended < begun:
                await asyncio.sleep(0)
            rows.append((answered_at - begin - (ended - begun), begun - begin, ended - begun))
        Gateway.ingress = ingress  # type: ignore[method-assign]
        overhead, before, gateway = (statistics.median(column) * 1e6 for column in zip(*rows, strict=True))
        figures.add("delegate, one after another, minus the gateway's time", "µs", overhead, "≤ 300 µs")
        figures.add("  until the gateway has the message", "µs", before, "")
        figures.add("  the gateway's time", "µs", gateway, "")


async def many_at_once(folder: Path, figures: Figures, counts: Sequence[int]) -> None:
    """The median of five, by turns, each on a new database."""
    spans: dict[int, list[float]] = {count: [] for count in counts}
    for run in range(5):
        for count in counts:
            async with host_on(folder / f"many{count}-{run}.db") as host:
                await host.select(SESSION_MANAGER).use().ensure_session("there")
                delegate = called(host, DELEGATE, target_session_id="there", task="do it")
                await delegate(0)
                begin = time.perf_counter()
                answers = await asyncio.gather(*(delegate(i) for i in range(count)))
                spans[count].append((time.perf_counter() - begin) * 1e3)
                assert all(json.loads(answer)["outcome"] == "replied" for answer in answers)
    first: float | None = None
    for count, measured in spans.items():
        ours = statistics.median(measured)
        aim = "" if first is None else f"≤ 15 × {counts[0]} at once"
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
        await delegating(folder, figures, times // 3)
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
