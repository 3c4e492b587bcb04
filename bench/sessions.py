"""What the session manager costs, beside the limits of the machine, measured in one run.

    python bench/sessions.py [--quick] [--json FILE]

Prints a table (medians of seven runs, ratios against the limit measured just before) and, with --json, JSON lines.
The limits are raw sqlite3, a writer thread, a dict and sorted(): what nobody can be faster than.
"""

import argparse
import asyncio
import gc
import json
import queue
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

from aalis_api_session_manager.message import IncomingMessage, LlmUsage, Message
from aalis_api_session_manager.model import SessionDraft, SessionUpdates
from aalis_api_session_manager.service import SESSION_MANAGER, SessionManagerService
from aalis_host.app import AalisHost, wall_clock
from aalis_host.config import Settings
from aalis_plugin_session_manager.plugin import SessionManagerPlugin

RUNS = 7
UPSERT = (
    "INSERT INTO metadata VALUES('sessions',?,?,?)"
    " ON CONFLICT(namespace,key) DO UPDATE SET data=excluded.data, updatedAt=excluded.updatedAt"
)


def record(number: int) -> dict[str, Any]:
    """A session of the usual size, about 500 bytes of JSON."""
    metadata = {
        "platform": "onebot",
        "user_id": f"u{number:08d}",
        "group_id": f"g{number % 997:06d}",
        "tags": ["support", "priority", f"bucket-{number % 17}"],
        "locale": "en-GB",
        "note": "n" * 150,
    }
    return {
        "id": f"session-{number:08x}",
        "name": f"Session {number:06d} support chat",
        "status": "active",
        "createdAt": 1_700_000_000_000 + number,
        "updatedAt": 1_700_000_000_000 + number,
        "metadata": metadata,
    }


class Figures:
    """Rows of the table: what, ours, the limit, the ratio, the aim."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, what: str, unit: str, ours: float, aim: str, limit: float | None = None) -> None:
        ratio = None if limit is None else ours / limit
        self.rows.append({"what": what, "unit": unit, "ours": ours, "limit": limit, "ratio": ratio, "aim": aim})
        print(self.line(self.rows[-1]), flush=True)

    @staticmethod
    def line(row: dict[str, Any]) -> str:
        limit = "" if row["limit"] is None else f"{row['limit']:,.2f}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        return f"| {row['what']} | {row['ours']:,.2f} {row['unit']} | {limit} | {ratio} | {row['aim']} |"


def median_of(runs: Iterable[float]) -> float:
    return statistics.median(runs)


def timed(work: Callable[[], Any], times: int, scale: float) -> float:
    """Median time of one of `times` calls, over RUNS runs after one to warm up."""
    spans = []
    for run in range(RUNS + 1):
        begin = time.perf_counter()
        for _ in range(times):
            work()
        if run:
            spans.append((time.perf_counter() - begin) / times * scale)
    return median_of(spans)


async def timed_async(work: Callable[[int], Awaitable[Any]], times: int, scale: float) -> float:
    """The same for awaited work; it is given a number that never comes twice."""
    spans, number = [], 0
    for run in range(RUNS + 1):
        begin = time.perf_counter()
        for _ in range(times):
            await work(number)
            number += 1
        if run:
            spans.append((time.perf_counter() - begin) / times * scale)
    return median_of(spans)


# --- limits


def open_raw(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute(
        "CREATE TABLE metadata(namespace TEXT, key TEXT, data TEXT, updatedAt INTEGER,"
        " PRIMARY KEY(namespace, key)) WITHOUT ROWID"
    )
    db.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, sessionId TEXT, role TEXT, content TEXT, ts INTEGER)")
    db.execute("CREATE INDEX by_session ON messages(sessionId, ts)")
    return db


class RawGroupCommit:
    """One writer thread; who piles up shares a commit."""

    def __init__(self, path: Path) -> None:
        self.waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.loop = asyncio.get_running_loop()
        self.thread = threading.Thread(target=self.work, args=(path,), daemon=True)
        self.thread.start()

    def work(self, path: Path) -> None:
        db = open_raw(path)
        while True:
            batch = [self.waiting.get()]
            while not self.waiting.empty():
                batch.append(self.waiting.get())
            if batch[0] is None:
                db.close()
                return
            db.execute("BEGIN IMMEDIATE")
            db.executemany(UPSERT, [row for row, _ in batch])
            db.execute("COMMIT")
            self.loop.call_soon_threadsafe(lambda done: [future.set_result(None) for _, future in done], batch)

    async def put(self, row: tuple[Any, ...]) -> None:
        future = self.loop.create_future()
        self.waiting.put((row, future))
        await future

    def close(self) -> None:
        self.waiting.put(None)
        self.thread.join()


def limit_of_deletion(folder: Path) -> float:
    db = open_raw(folder / "delete.db")
    spans = []
    for _ in range(RUNS):
        db.execute("BEGIN")
        db.executemany(
            "INSERT INTO messages(sessionId, role, content, ts) VALUES(?,?,?,?)",
            [(f"tree{number % 51}", "user", "x" * 200, number) for number in range(51 * 20)],
        )
        db.execute("COMMIT")
        begin = time.perf_counter()
        db.execute("BEGIN")
        db.executemany("DELETE FROM messages WHERE sessionId=?", [(f"tree{number}",) for number in range(51)])
        db.execute("COMMIT")
        spans.append((time.perf_counter() - begin) * 1e3)
    db.close()
    return median_of(spans)


def limit_of_loading(folder: Path, count: int) -> float:
    db = open_raw(folder / f"load{count}.db")
    rows = ((one["id"], json.dumps(one), 0) for one in map(record, range(count)))
    db.execute("BEGIN")
    db.executemany(UPSERT, rows)
    db.execute("COMMIT")
    spans = []
    for _ in range(RUNS):
        gc.collect()
        gc.disable()
        begin = time.perf_counter()
        table = {key: json.loads(data) for key, data in db.execute("SELECT key, data FROM metadata")}
        spans.append((time.perf_counter() - begin) * 1e3)
        gc.enable()
        del table
    db.close()
    return median_of(spans)


# --- ours


def host_on(db: Path, model: Any = None, now: Callable[[], int] = wall_clock) -> AalisHost:
    return AalisHost(Settings(db=str(db)), plugins=(SessionManagerPlugin(),), model=model, now=now)


async def filled(db: Path, size: int) -> None:
    """A database with this many sessions, each a millisecond younger than the one before."""
    if db.exists():
        return
    times = count(1_700_000_000_000)
    async with host_on(db, now=lambda: next(times)) as host:
        sessions = host.select(SESSION_MANAGER).use()
        for start in range(0, size, 1000):
            drafts = [
                SessionDraft(name=one["name"], metadata=one["metadata"])
                for one in map(record, range(start, min(start + 1000, size)))
            ]
            await asyncio.gather(
                *(sessions.ensure_session(f"session-{start + i:08x}", draft) for i, draft in enumerate(drafts))
            )


async def durable_creates(folder: Path, figures: Figures, times: int) -> None:
    draft = SessionDraft(name="bench", metadata=record(1)["metadata"])
    text = json.dumps(record(1))
    raw = RawGroupCommit(folder / "raw.db")
    async with host_on(folder / "create.db") as host:
        sessions = host.select(SESSION_MANAGER).use()
        limit = await timed_async(lambda i: raw.put((f"k{i:08d}", text, i)), times, 1e6)
        ours = await timed_async(lambda i: sessions.create_session(draft), times, 1e6)
        figures.add("durable create, one after another", "µs", ours, "≤ 3 × the limit", limit)

        async def raw_hundred(i: int) -> None:
            await asyncio.gather(*(raw.put((f"h{i * 100 + j:08d}", text, i)) for j in range(100)))

        async def hundred(i: int) -> None:
            await asyncio.gather(*(sessions.create_session(draft) for _ in range(100)))

        limit = await timed_async(raw_hundred, max(times // 20, 2), 1e6 / 100)
        ours = await timed_async(hundred, max(times // 20, 2), 1e6 / 100)
        figures.add("durable create, 100 at once, each", "µs", ours, "≤ 4 × the limit", limit)
    raw.close()


async def one_change(folder: Path, figures: Figures, sizes: list[int], times: int) -> None:
    first: float | None = None
    for size in sizes:
        db = folder / f"sessions{size}.db"
        await filled(db, size)
        async with host_on(db) as host:
            sessions = host.select(SESSION_MANAGER).use()
            ours = await timed_async(
                lambda i, sessions=sessions: sessions.update_session("session-00000001", SessionUpdates(title=str(i))),
                times,
                1e6,
            )
            figures.add(f"one change at {size:,} sessions", "µs", ours, f"≤ 1.3 × {sizes[0]:,} sessions", first)
            first = first or ours


async def longest_stall(folder: Path, figures: Figures, size: int, seconds: float) -> None:
    db = folder / f"sessions{size}.db"
    async with host_on(db) as host:
        sessions = host.select(SESSION_MANAGER).use()
        stall = 0.0

        async def watch() -> None:
            nonlocal stall
            while True:
                begin = time.perf_counter()
                await asyncio.sleep(0.001)
                stall = max(stall, time.perf_counter() - begin - 0.001)

        await asyncio.sleep(0.5)
        watcher = asyncio.create_task(watch())
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            await sessions.update_session(f"session-{number:08x}", SessionUpdates(title="t"))
            number += 1
            await asyncio.sleep(1.0)
        watcher.cancel()
        figures.add(f"longest stall, {seconds:.0f} s, {size:,} sessions", "ms", stall * 1e3, "≤ 10 ms")


async def reading(folder: Path, figures: Figures, sizes: list[int]) -> None:
    for size in sizes:
        async with host_on(folder / f"sessions{size}.db") as host:
            sessions: SessionManagerService = host.select(SESSION_MANAGER).use()
            if size == sizes[-1]:
                keys = [f"session-{number:08x}" for number in range(1000)]
                table = {info.id: info for info in sessions.list_sessions()}
                limit = timed(lambda: [table.get(key) for key in keys], 50, 1e9 / 1000)
                get = sessions.get_session
                ours = timed(lambda: [get(key) for key in keys], 50, 1e9 / 1000)
                figures.add("get_session", "ns", ours, "≤ 4 × a dict's get", limit)
            plain = {info.id: {"parentId": None, "updatedAt": info.updated_at} for info in sessions.list_sessions()}
            limit = timed(
                lambda: sorted(
                    [one for one in plain.values() if not one.get("parentId")], key=lambda one: -one["updatedAt"]
                ),
                3,
                1e3,
            )
            ours = timed(lambda: sessions.list_sessions(parent_id=None), 3, 1e3)
            figures.add(f"list roots at {size:,}", "ms", ours, "≤ 1.2 × the sort", limit)


async def loading(folder: Path, figures: Figures, size: int) -> None:
    limit = limit_of_loading(folder, size)
    spans = []
    for _ in range(RUNS):
        host = host_on(folder / f"sessions{size}.db")
        gc.collect()
        begin = time.perf_counter()
        async with host:
            spans.append((time.perf_counter() - begin) * 1e3)
        gc.unfreeze()
    figures.add(f"load {size:,} (the whole start of a host)", "ms", median_of(spans), "≤ 1.7 × the limit", limit)


class Quiet:
    """A model that is never asked."""

    async def complete(self, messages: Any, tools: Any) -> Any:
        raise AssertionError

    async def close(self) -> None:
        pass


async def taking(folder: Path, figures: Figures) -> None:
    async with host_on(folder / "take.db", Quiet()) as host:
        sessions = host.select(SESSION_MANAGER).use()
        for name in ("a", "b"):
            message = IncomingMessage(
                session_id=name,
                platform="onebot",
                content="x",
                session_type="group",
                group_id=name,
                user_id="7",
                self_id="1",
            )
            await sessions.record_inbound(message)
        ours = timed(lambda: sessions.can_take("a", "b"), 2000, 1e6)
        figures.add("can_take across two rooms", "µs", ours, "≤ 10 µs")


async def deleting(folder: Path, figures: Figures) -> None:
    limit = limit_of_deletion(folder)
    spans = []
    async with host_on(folder / "tree.db") as host:
        sessions = host.select(SESSION_MANAGER).use()
        for _ in range(RUNS):
            root = await sessions.create_session()
            children = await asyncio.gather(*(sessions.create_child_session(root.id) for _ in range(50)))
            saves = [
                host.memory.save_message(
                    one.id, Message(session_id=one.id, role="user", content="x" * 200, timestamp=number), 0
                )
                for one in [root, *children]
                for number in range(20)
            ]
            await asyncio.gather(*saves)
            begin = time.perf_counter()
            await sessions.delete_session(root.id)
            spans.append((time.perf_counter() - begin) * 1e3)
    figures.add("delete a tree of 1 + 50, 20 messages each", "ms", median_of(spans), "≤ 5 × the limit", limit)


async def using(folder: Path, figures: Figures) -> None:
    commits = 0
    async with host_on(folder / "usage.db") as host:
        sessions = host.select(SESSION_MANAGER).use()
        one = await sessions.create_session()
        commit = host.memory.commit_metadata

        async def counting(changesets: Any) -> Any:
            nonlocal commits
            commits += sum(change.key == one.id for changeset in changesets for change in changeset.changes)
            return await commit(changesets)

        host.memory.commit_metadata = counting  # type: ignore[method-assign]
        begin = time.perf_counter()
        for _ in range(1000):
            await host.emit("aalis_llm_usage", usage=LlmUsage(session_id=one.id, input_tokens=2, output_tokens=1))
        elapsed = time.perf_counter() - begin
    async with host_on(folder / "usage.db") as host:
        tokens = host.select(SESSION_MANAGER).use().get_session(one.id).tokens  # type: ignore[union-attr]
        assert (tokens.input, tokens.output) == (2000, 1000), tokens  # type: ignore[union-attr]
    allowed = elapsed / 0.1 + 1
    figures.add("1,000 usage records: records written, none lost", "", commits, f"≤ {allowed:.0f} (one in 100 ms)")


async def main(quick: bool, output: Path | None) -> None:
    figures = Figures()
    sizes = [1000, 10_000] if quick else [1000, 10_000, 50_000]
    times = 40 if quick else 200
    print("| what | ours | limit | ratio | aim |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await durable_creates(folder, figures, times)
        await one_change(folder, figures, sizes, times)
        await reading(folder, figures, sizes[1:])
        await loading(folder, figures, sizes[-1])
        await taking(folder, figures)
        await deleting(folder, figures)
        await using(folder, figures)
        await longest_stall(folder, figures, sizes[-1], 5 if quick else 60)
    if output is not None:
        output.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in figures.rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sessions and runs, to see that it works")
    parser.add_argument("--json", type=Path, help="write the rows as JSON lines, too")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.quick, arguments.json))
