"""A process that changes sessions until it is killed, and says what it begins and what was acknowledged.

`main` imports everything once and forks a victim for each line that it reads: a JSON object with `db`, `clock` and
`seed`, and `trees`, the state of each worker's sessions. The victims' lines: `ready`, `try CHANGE`, `ok WORKER`; its
own: `pid N` and, when the victim is gone, `dead`.
"""

import asyncio
import json
import logging
import os
import random
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import structlog

from aalis_api_session_manager.message import Message
from aalis_api_session_manager.model import SessionDraft, SessionUpdates
from aalis_plugin_session_manager import manager
from tests.session_manager.kit import Clock, Stack, running
from tests.session_manager.probes import end_turn, start_turn

__all__ = ["WORKERS", "applied", "main"]

WORKERS = 6
"""Each works on a tree of its own, one change after the other. Its root has always the same id."""

Tree = dict[str, Any]
"""`parents`, `numbers` (what a session was last changed with), `words` and `generations`, all by session id."""
Change = dict[str, Any]
"""`worker`, `do`, `id`, `number`, and the `parent` of what is made."""


def applied(tree: Tree, change: Change) -> Tree:
    """The state after a change."""
    parents, numbers, words, generations = (dict(tree[name]) for name in ("parents", "numbers", "words", "generations"))
    session_id, number = change["id"], change["number"]
    match change["do"]:
        case "make":
            parents[session_id] = change["parent"]
            numbers[session_id] = number
            words[session_id] = []
        case "update":
            numbers[session_id] = number
        case "say":
            words[session_id] = [*words[session_id], str(number)]
        case "delete":
            gone = [session_id]
            for one in gone:
                gone += [child for child, parent in parents.items() if parent == one]
            for one in gone:
                del parents[one], numbers[one], words[one]
                generations[one] = generations.get(one, 0) + 1
    return {"parents": parents, "numbers": numbers, "words": words, "generations": generations}


def chosen(chance: random.Random, worker: int, tree: Tree, number: int) -> Change:
    """What the worker does next."""
    there, root = sorted(tree["parents"]), f"root{worker}"
    change = {"worker": worker, "number": number}
    if not there:
        return {**change, "do": "make", "id": root, "parent": None}
    what = chance.choices(["make", "update", "say", "turn", "delete"], [3 if len(there) < 6 else 0, 3, 3, 2, 2])[0]
    if what == "make":
        return {**change, "do": what, "id": f"{worker}-{number}", "parent": chance.choice(there)}
    return {**change, "do": what, "id": chance.choice(there)}


wanted: ContextVar[str] = ContextVar("wanted")
"""The id that the next child gets."""


async def make(stack: Stack, change: Change) -> None:
    """Do it; returns when it is acknowledged."""
    session_id, number, sessions = change["id"], change["number"], stack.sessions
    match change["do"]:
        case "make":
            draft = SessionDraft(status="waiting", metadata={"number": number})
            if change["parent"] is None:
                await sessions.ensure_session(session_id, draft)
            else:
                wanted.set(session_id)
                await sessions.create_child_session(change["parent"], draft)
        case "update":
            await sessions.update_session(session_id, SessionUpdates(metadata={"number": number}))
        case "say":
            message = Message(session_id=session_id, role="user", content=str(number), timestamp=number)
            saved = await stack.host.memory.save_message(session_id, message, sessions.generation_of(session_id))
            assert saved.status == "saved"
        case "turn":
            turn = await start_turn(stack, session_id, f"{session_id} {number}")
            await asyncio.sleep(0.001)
            if number % 3:
                await end_turn(stack, turn, outcome="silent")
        case "delete":
            await sessions.delete_session(session_id)


async def work(stack: Stack, worker: int, seed: int, tree: Tree) -> None:
    chance, number = random.Random(f"{seed} {worker}"), seed * 10_000
    while True:
        number += 1
        change = chosen(chance, worker, tree, number)
        say(f"try {json.dumps(change)}")
        await make(stack, change)
        say(f"ok {worker}")
        tree = applied(tree, change)


async def live(asked: dict[str, Any]) -> None:
    async with running(Path(asked["db"]), clock=Clock(asked["clock"])) as stack:
        say("ready")
        await asyncio.gather(*(work(stack, worker, asked["seed"], tree) for worker, tree in enumerate(asked["trees"])))


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main() -> None:
    """Fork a victim for each line of the input."""
    logging.disable(logging.CRITICAL)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    manager.new_session_id = wanted.get
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asyncio.run(live(json.loads(line)))
        say(f"pid {pid}")
        os.waitpid(pid, 0)
        say("dead")
