"""A recorded day of chat rooms, as a person replays it and looks at what came of it."""

import json
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import EXAMPLE, Aalis, finished


def recorded() -> dict[tuple[str, int], dict[str, Any]]:
    """The example's messages by session and id, read here once more by the standard's own words."""
    found = {}
    for line in EXAMPLE.read_text("utf-8").splitlines():
        event = json.loads(line)
        if event["post_type"] in ("message", "message_sent"):
            kind = event["message_type"]
            target = event["group_id"] if kind == "group" else event["user_id"]
            found[f"onebot:{event['self_id']}:{kind}:{target}", event["message_id"]] = event
    return found


@pytest.mark.rule("INTAKE-3", "ORIGIN-2", "KIND-1", "USAGE-1")
def test_a_day(aalis: Aalis, tmp_path: Path) -> None:
    """Every room is filed with its window, every message stored once, turns ran; a second replay adds nothing."""
    events = recorded()
    sessions = {session for session, _ in events}
    status, out, err = finished(aalis("replay", EXAMPLE, "--db", "x.db", "--json"))
    assert (status, err) == (0, "")
    figures = json.loads(out)
    assert (figures["rooms"], figures["messages"]) == (len(sessions), len(events))
    assert figures["repeated"] + figures["other"] + figures["messages"] == len(EXAMPLE.read_bytes().splitlines())

    status, out, _ = finished(aalis("sessions", "list", "--db", "x.db", "--json"))
    listed = {session["id"]: session for session in json.loads(out)}
    assert status == 0
    assert set(listed) == sessions
    addressed = Counter(session for (session, _), event in events.items() if has_turn(event))
    for session_id, session in listed.items():
        _, account, kind, target = session_id.split(":")
        assert (session["kind"], session["originPlatform"]) == ("room", "onebot")
        window = {"type": kind, "multiParty": kind == "group", "targetId": target, "selfId": account}
        assert session["originChat"] == window
        used = session.get("tokens", {"input": 0, "output": 0})
        assert (used["input"] > 0) == (used["output"] > 0) == (addressed[session_id] > 0)
    assert figures["turns"] == figures["replies"] == addressed.total()

    with closing(sqlite3.connect(tmp_path / "x.db")) as db:
        rows = db.execute("SELECT session_id, message_id FROM messages WHERE message_id IS NOT NULL").fetchall()
        replies = db.execute("SELECT count(*) FROM messages WHERE message_id IS NULL").fetchone()
    assert sorted(rows) == sorted((session, str(number)) for session, number in events)
    assert replies == (figures["replies"],)

    figures = json.loads(finished(aalis("replay", EXAMPLE, "--db", "x.db", "--json"))[1])
    assert (figures["messages"], figures["turns"]) == (0, 0)


def has_turn(event: dict[str, Any]) -> bool:
    """Addressed to the bot: in private, or by an `at` of its account."""
    me = str(event["self_id"])
    if event["post_type"] == "message_sent" or str(event["user_id"]) == me:
        return False
    if event["message_type"] == "private":
        return True
    message = event["message"]
    if isinstance(message, str):
        return f"[CQ:at,qq={me}]" in message
    return any(part["type"] == "at" and part["data"]["qq"] == me for part in message)


@pytest.mark.rule("STORE-1")
def test_the_same_day_on_a_server(aalis: Aalis, url: str) -> None:
    """On PostgreSQL every command says what it says on SQLite; a second process deletes and titles what is there."""
    room = "onebot:100010:group:700001"
    said = []
    for db in ("x.db", url):
        assert finished(aalis("replay", EXAMPLE, "--as-recorded", "--db", db))[0] == 0
        answers = []
        for command in (
            ("sessions", "list", "--json"),
            ("sessions", "show", room, "--json"),
            ("sessions", "history", room, "--json"),
            ("sessions", "export", room),
            ("sessions", "tree"),
            ("sessions", "check"),
            ("sessions", "title", room, "The kitchen"),
            ("sessions", "delete", room, "--yes"),
            ("sessions", "show", room),
            ("sessions", "list", "--json"),
        ):
            status, out, err = finished(aalis(*command, "--db", db))
            # Moments, the numbers of messages and the cursors made of both are each replay's own.
            plain = re.sub(r'\b1\d{12}\b|"id": ?\d+|"\w+Cursor": "\S+"', "…", out)
            answers.append((status, sorted(plain.splitlines()), err))
        said.append(answers)
    for on_a_file, on_the_server in zip(*said, strict=True):
        assert on_the_server == on_a_file
    assert [status for status, _, _ in said[0]] == [0] * 8 + [2, 0]
