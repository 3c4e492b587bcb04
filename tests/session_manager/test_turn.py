"""What turns leave in their session: status, last turn, last reply; and what a crash leaves."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aalis_api_session_manager.message import OutgoingMessage
from aalis_api_session_manager.model import LastTurn, SessionDraft, SessionUpdates, TurnOutcome
from aalis_api_session_manager.text import TextRef, add_texts
from aalis_host.models.base import ModelError
from aalis_plugin_session_manager import manager
from aalis_plugin_session_manager.turns import LEASE_MS
from tests.session_manager.kit import Adapter, Clock, Model, Stack, group_message, running
from tests.session_manager.probes import (
    end_turn,
    flushed,
    new_turn,
    read_stored,
    start_turn,
    stored_keys,
    write_stored,
)

REPOSITORY = Path(__file__).parents[2]


async def until(condition: Any) -> None:
    """Let the loop run until a condition holds; the test's time limit ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0.001)


# --- through the agent


@pytest.mark.rule("TURN-1", "TURN-2", "TURN-3")
async def test_an_answered_turn(stack: Stack, db: str) -> None:
    """Active while it runs, completed afterwards, with its outcome, its end and the time of the reply, in the file."""
    stack.host.add_platform(Adapter())
    stack.model.hold = asyncio.Event()
    turn = asyncio.create_task(stack.say("s"))
    await stack.model.asked.wait()
    assert stack.sessions.get_session("s").status == "active"
    stack.model.hold.set()
    await turn
    session = stack.sessions.get_session("s")
    assert (session.status, session.last_turn.outcome, session.last_turn.error) == ("completed", "replied", None)
    assert session.last_reply_at == session.last_turn.ended_at > session.created_at
    await flushed(stack)
    stored = read_stored(db, "sessions", "s")
    assert stored["lastTurn"] == {"outcome": "replied", "endedAt": session.last_turn.ended_at}
    assert (stored["status"], stored["lastReplyAt"]) == ("completed", session.last_reply_at)
    assert stack.recorder.events[-1] == ("updated", session)


@pytest.mark.rule("TURN-1", "TURN-2", "TURN-3")
async def test_a_turn_without_a_reply_is_silent(stack: Stack) -> None:
    """Completed; no time of a reply."""
    stack.host.add_platform(Adapter())
    stack.model.reply = "  "
    await stack.say("s")
    session = stack.sessions.get_session("s")
    assert (session.status, session.last_turn.outcome, session.last_reply_at) == ("completed", "silent", None)


@pytest.mark.rule("TURN-1", "TURN-2")
async def test_a_turn_that_fails_is_an_error_with_its_reason(stack: Stack) -> None:
    """The model's own words are in the kept reason; the next good turn takes status and reason away."""
    stack.host.add_platform(Adapter())
    stack.model.error = ModelError("the model is asleep")
    await stack.say("s")
    session = stack.sessions.get_session("s")
    assert (session.status, session.last_turn.outcome) == ("error", "error")
    error = session.last_turn.error
    assert "the model is asleep" in (error.source if isinstance(error, TextRef) else error)
    stack.model.error = None
    await stack.say("s")
    session = stack.sessions.get_session("s")
    assert (session.status, session.last_turn.outcome, session.last_turn.error) == ("completed", "replied", None)


@pytest.mark.rule("TURN-4", "TURN-3")
async def test_a_stopped_session_is_completed_and_its_last_turn_aborted(stack: Stack) -> None:
    """Stopped by whoever asks the agent to."""
    stack.host.add_platform(Adapter())
    await stack.say("s")
    replied_at = stack.sessions.get_session("s").last_reply_at
    stack.model.hold = asyncio.Event()
    stack.model.asked.clear()
    turn = asyncio.create_task(stack.say("s"))
    await stack.model.asked.wait()
    stack.host.agent.abort("s")
    await turn
    session = stack.sessions.get_session("s")
    assert (session.status, session.last_turn.outcome, session.last_turn.error) == ("completed", "aborted", None)
    assert session.last_reply_at == replied_at


@pytest.mark.rule("TURN-1", "TURN-4")
async def test_turns_of_two_sources_overlap(stack: Stack) -> None:
    """The first to end doesn't close the session; the last does."""
    stack.host.add_platform(Adapter())
    stack.model.hold = asyncio.Event()
    typed = asyncio.create_task(stack.say("s"))
    await stack.model.asked.wait()
    stack.model.asked.clear()
    made = asyncio.create_task(stack.say("s", source="timer"))
    await stack.model.asked.wait()
    typed.cancel()
    await asyncio.wait([typed])
    session = stack.sessions.get_session("s")
    assert (session.status, session.last_turn.outcome) == ("active", "aborted")
    stack.model.hold.set()
    await made
    session = stack.sessions.get_session("s")
    assert (session.status, session.last_turn.outcome) == ("completed", "replied")


@pytest.mark.rule("TURN-1", "TURN-2")
async def test_an_adapter_that_cant_send_is_an_error(stack: Stack) -> None:
    """What was said reached nobody."""

    class Mute(Adapter):
        async def send(self, message: OutgoingMessage) -> None:
            raise ConnectionError("the line is cut")

    stack.host.add_platform(Mute())
    await stack.say("s")
    session = stack.sessions.get_session("s")
    assert (session.status, session.last_turn.outcome, session.last_reply_at) == ("error", "error", None)


# --- through the hooks


@pytest.mark.rule("TURN-1", "TURN-2", "TURN-3")
@pytest.mark.parametrize("child", [False, True])
@pytest.mark.parametrize(
    ("outcome", "status", "kept"),
    [
        ("replied", "completed", "replied"),
        ("silent", "completed", "silent"),
        ("aborted", "completed", "aborted"),
        ("error", "error", "error"),
        (None, "completed", "silent"),
    ],
)
async def test_how_each_outcome_closes(
    stack: Stack, outcome: TurnOutcome | None, status: str, kept: str, child: bool
) -> None:
    """Roots and children alike; one intercepted has no outcome and counts as silent."""
    session = await stack.sessions.ensure_session("s", SessionDraft(status="archived"))
    if child:
        session = await stack.sessions.create_child_session("s", SessionDraft(status="waiting"))
    turn = await start_turn(stack, session.id, "t")
    assert stack.sessions.get_session(session.id).status == "active"
    await end_turn(
        stack, turn, outcome=outcome, error="why" if outcome == "error" else None, ended_at=2_000_000_000_000
    )
    closed = stack.sessions.get_session(session.id)
    assert closed.status == status
    error = "why" if outcome == "error" else None
    assert closed.last_turn == LastTurn(outcome=kept, ended_at=2_000_000_000_000, error=error)
    assert closed.last_reply_at == (2_000_000_000_000 if outcome == "replied" else None)


@pytest.mark.rule("TURN-1", "TURN-2", "TURN-3")
async def test_the_end_of_each_turn_is_written_while_others_run(stack: Stack, db: str) -> None:
    """Three overlap: each end shows at once, is stored and told; only the last closes, by its own outcome."""
    await stack.sessions.ensure_session("s")
    first, second, third = [await start_turn(stack, "s", name) for name in ("t1", "t2", "t3")]
    end = await end_turn(stack, second, outcome="replied")
    assert stack.sessions.get_session("s").last_turn == LastTurn(outcome="replied", ended_at=end.ended_at)
    assert (stack.sessions.get_session("s").status, stack.sessions.get_session("s").last_reply_at) == (
        "active",
        end.ended_at,
    )
    await flushed(stack)
    assert stack.recorder.events[-1][1].last_turn.ended_at == end.ended_at
    assert read_stored(db, "sessions", "s")["lastTurn"]["outcome"] == "replied"

    failed = await end_turn(stack, first, outcome="error", error="why")
    session = stack.sessions.get_session("s")
    assert (session.status, session.last_turn.outcome, session.last_reply_at) == ("active", "error", end.ended_at)
    assert session.last_turn.ended_at == failed.ended_at
    await end_turn(stack, third, outcome="aborted")
    session = stack.sessions.get_session("s")
    assert (session.status, session.last_turn.outcome, session.last_turn.error) == ("completed", "aborted", None)
    assert session.last_reply_at == end.ended_at


@pytest.mark.rule("TURN-1")
@pytest.mark.parametrize("status", ["waiting", "completed", "error", "archived"])
async def test_a_status_that_was_set_meanwhile_stays(stack: Stack, status: Any) -> None:
    """Only a session that is still `active` closes; the next turn makes it active again."""
    await stack.sessions.ensure_session("s")
    turn = await start_turn(stack, "s", "t1")
    await stack.sessions.update_session("s", SessionUpdates(status=status))
    await end_turn(stack, turn, outcome="replied")
    session = stack.sessions.get_session("s")
    assert (session.status, session.last_turn.outcome) == (status, "replied")
    await start_turn(stack, "s", "t2")
    assert stack.sessions.get_session("s").status == "active"


@pytest.mark.rule("TURN-5", "CREATE-10")
async def test_a_child_that_was_completed_keeps_result_and_status(stack: Stack) -> None:
    """Even when its turn fails afterwards; the turn's outcome is written all the same."""
    child = await stack.sessions.create_child_session("p")
    turn = await start_turn(stack, child.id, "t")
    await stack.sessions.complete_session(child.id, "the reply")
    await end_turn(stack, turn, outcome="error", error="too late")
    session = stack.sessions.get_session(child.id)
    assert (session.status, session.result, session.last_turn.outcome) == ("completed", "the reply", "error")


@pytest.mark.rule("TURN-1", "TURN-2", "INTAKE-2")
async def test_turns_make_no_session(stack: Stack, db: str) -> None:
    """A turn of an id that isn't in the table leaves nothing behind."""
    turn = await start_turn(stack, "unknown", "t")
    await end_turn(stack, turn, outcome="replied")
    await flushed(stack)
    assert stack.sessions.get_session("unknown") is None
    assert (stored_keys(db, "sessions"), stored_keys(db, "turns")) == ([], [])


@pytest.mark.rule("TURN-1")
async def test_a_session_that_comes_to_be_during_its_turns(stack: Stack) -> None:
    """A turn that began before the record was made runs too: the one that ends first doesn't close the session."""
    before = await start_turn(stack, "s", "t1")
    await stack.sessions.ensure_session("s")
    after = await start_turn(stack, "s", "t2")
    await end_turn(stack, after, outcome="replied")
    assert stack.sessions.get_session("s").status == "active"
    await end_turn(stack, before, outcome="error")
    session = stack.sessions.get_session("s")
    assert (session.status, session.last_turn.outcome) == ("error", "error")


@pytest.mark.rule("TURN-1", "TURN-2")
async def test_an_end_counts_once(stack: Stack) -> None:
    """The same end told twice, and the end of a turn that never began, change nothing."""
    await stack.sessions.ensure_session("s")
    one, two = [await start_turn(stack, "s", name) for name in ("t1", "t2")]
    await end_turn(stack, one, outcome="replied")
    before = stack.sessions.get_session("s")
    await end_turn(stack, one, outcome="error", error="again")
    await end_turn(stack, new_turn("s", "never"), outcome="error", error="never")
    assert stack.sessions.get_session("s") == before
    await end_turn(stack, two, outcome="replied")
    assert stack.sessions.get_session("s").status == "completed"


@pytest.mark.rule("TURN-1", "GEN-1", "DELETE-1")
async def test_turns_of_a_deleted_session_count_no_more(stack: Stack) -> None:
    """One that doesn't end neither keeps the next session of the id open nor changes it when it ends at last."""
    await stack.sessions.ensure_session("s")
    stuck = await start_turn(stack, "s", "old")
    await stack.sessions.delete_session("s")
    await stack.sessions.ensure_session("s")
    turn = await start_turn(stack, "s", "new")
    await end_turn(stack, turn, outcome="replied")
    closed = stack.sessions.get_session("s")
    assert (closed.status, closed.last_turn.outcome) == ("completed", "replied")
    await end_turn(stack, stuck, outcome="error", error="late")
    assert stack.sessions.get_session("s") == closed


# --- the error


@pytest.mark.rule("TURN-2")
@pytest.mark.parametrize("outcome", ["replied", "silent", "aborted", None])
async def test_an_error_is_kept_only_of_an_error(stack: Stack, outcome: TurnOutcome | None) -> None:
    """What another outcome says is left out."""
    await stack.sessions.ensure_session("s")
    await end_turn(stack, await start_turn(stack, "s", "t"), outcome=outcome, error="ignored")
    assert stack.sessions.get_session("s").last_turn.error is None


FAMILY, FLAG, HANGUL = "👩‍👩‍👧‍👦", "🇰🇷", "\u1112\u1161\u11ab"
ERRORS = {
    "short": ("why", "why"),
    "empty": ("", None),
    "nothing": (None, None),
    "exactly 200": ("x" * 200, "x" * 200),
    "201": ("x" * 201, "x" * 200),
    "very long": ("é" * 100_000, "é" * 200),
    "a family across the cut": ("x" * 199 + FAMILY, "x" * 199),
    "a family up to the cut": ("x" * 193 + FAMILY + "y", "x" * 193 + FAMILY),
    "a flag across the cut": ("x" * 199 + FLAG, "x" * 199),
    "flags from the start": (FLAG * 200, FLAG * 100),
    "a combining mark behind the cut": ("x" * 199 + "e\u0301", "x" * 199),
    "Hangul jamo across the cut": ("x" * 198 + HANGUL, "x" * 198),
    "a line's end across the cut": ("x" * 199 + "\r\n" + "y", "x" * 199),
    "one grapheme longer than all": ("a" + "\u0301" * 300, None),
}


@pytest.mark.rule("TURN-2")
@pytest.mark.parametrize(("given", "kept"), ERRORS.values(), ids=ERRORS)
async def test_an_error_is_cut_at_200_characters(stack: Stack, db: str, given: str | None, kept: str | None) -> None:
    """Never inside a grapheme; empty is not given; the file has the same."""
    await stack.sessions.ensure_session("s")
    await end_turn(stack, await start_turn(stack, "s", "t"), outcome="error", error=given)
    assert stack.sessions.get_session("s").last_turn.error == kept
    await flushed(stack)
    assert read_stored(db, "sessions", "s")["lastTurn"].get("error") == kept


add_texts({"test.failed": {"en": "It failed: {reason} ({code})", "zh_CN": "失败:{reason}({code})"}})


@pytest.mark.rule("TURN-2", "LABEL-2")
@pytest.mark.parametrize("reason", ["short", "x" * 5000, "x" * 180 + FAMILY * 10, "\u0301" * 5000])
async def test_an_error_that_is_a_textref_is_cut_alike(db: str, reason: str) -> None:
    """What it says is at most 200 characters long, begins as it did, and stays a text of its language where it can."""
    error = TextRef("test.failed", {"reason": reason, "code": 7})
    async with running(db) as stack:
        await stack.sessions.ensure_session("s")
        await end_turn(stack, await start_turn(stack, "s", "t"), outcome="error", error=error)
        await flushed(stack)
        kept = stack.sessions.get_session("s").last_turn.error
    async with running(db) as stack:
        assert stack.sessions.get_session("s").last_turn.error == kept
    assert isinstance(kept, TextRef)
    assert len(kept.source) <= 200
    assert kept.source.startswith("It failed: ")
    assert kept.source.endswith(" (7)")
    assert (kept == error) is (len(error.source) <= 200)
    assert not kept.source.removesuffix(" (7)").endswith("\u200d")


# --- clocks


@pytest.mark.rule("TURN-2", "TURN-3")
async def test_a_clock_that_steps_back(stack: Stack) -> None:
    """The end is written as it was given; `updated_at` never goes back, so the order of a list doesn't either."""
    await stack.sessions.ensure_session("s")
    turn = await start_turn(stack, "s", "t1")
    before = stack.sessions.get_session("s").updated_at
    stack.clock.ms -= 3_600_000
    end = await end_turn(stack, turn, outcome="replied")
    session = stack.sessions.get_session("s")
    assert end.ended_at < before
    assert (session.last_turn.ended_at, session.last_reply_at) == (end.ended_at, end.ended_at)
    assert session.updated_at >= before
    turn = await start_turn(stack, "s", "t2")
    await end_turn(stack, turn, outcome="silent")
    assert stack.sessions.get_session("s").updated_at >= before
    assert stack.sessions.get_session("s").last_turn.outcome == "silent"


# --- leases

CRASH = """
import asyncio, sys
from pathlib import Path
from tests.session_manager.kit import Adapter, Model, running
from tests.session_manager.probes import stored_keys

async def main():
    db = Path(sys.argv[1])
    model = Model(hold=asyncio.Event())
    async with running(db, model=model) as stack:
        stack.host.add_platform(Adapter())
        await stack.sessions.ensure_session("quiet")
        turn = asyncio.create_task(stack.say("s"))
        await model.asked.wait()
        while not stored_keys(db, "turns"):
            await asyncio.sleep(0.01)
        print("running", flush=True)
        await turn

asyncio.run(main())
"""


@pytest.fixture
def crashed(db: str) -> Path:
    """A database whose host was killed in the middle of a turn of the session `s`."""
    command = [sys.executable, "-c", CRASH, str(db)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.kill()
    assert read_stored(db, "sessions", "s")["status"] == "active"
    return db


def expiry(db: str) -> int:
    """When the only lease in the file expires."""
    (turn_id,) = stored_keys(db, "turns")
    return read_stored(db, "turns", turn_id)["expiresAt"]


@pytest.mark.rule("TURN-6")
async def test_a_turn_that_a_crash_cut_off_is_closed_by_whoever_runs_next(crashed: Path) -> None:
    """Once its lease has expired: completed, aborted, with a text that says so, told, and the lease is gone."""
    expired = expiry(crashed) + 1
    async with running(crashed, clock=Clock(expired)) as stack:
        await flushed(stack)
        session = stack.sessions.get_session("s")
        assert (session.status, session.last_turn.outcome) == ("completed", "aborted")
        assert "interrupted" in session.last_turn.error.source
        assert session.last_turn.ended_at >= expired
        assert session.last_reply_at is None
        assert stack.sessions.get_session("quiet").last_turn is None
        assert stack.recorder.names("s") == ["updated"]
        assert stored_keys(crashed, "turns") == []
    assert read_stored(crashed, "sessions", "s")["lastTurn"]["outcome"] == "aborted"


@pytest.mark.rule("TURN-6")
async def test_a_lease_that_hasnt_expired_is_left_alone_until_it_has(
    crashed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started too early, a host leaves the turn open, and closes it later while it runs."""
    monkeypatch.setattr(manager, "RENEW_MS", 5)
    early = Clock(expiry(crashed) - 5_000)
    async with running(crashed, clock=early) as stack:
        await asyncio.sleep(0.05)
        assert stack.sessions.get_session("s").status == "active"
        assert len(stored_keys(crashed, "turns")) == 1
        early.ms += 10_000
        await until(lambda: stack.sessions.get_session("s").status == "completed")
        assert stack.sessions.get_session("s").last_turn.outcome == "aborted"
        await until(lambda: stored_keys(crashed, "turns") == [])


@pytest.mark.rule("TURN-6")
async def test_a_reader_closes_nothing(crashed: Path) -> None:
    """A read-only host shows what is stored, however old the lease is, and the file stays as it was."""
    before = read_stored(crashed, "sessions", "s"), stored_keys(crashed, "turns")
    async with running(crashed, clock=Clock(expiry(crashed) + 10**9), read_only=True) as stack:
        assert stack.sessions.get_session("s").status == "active"
        assert stack.sessions.get_session("s").last_turn is None
    assert (read_stored(crashed, "sessions", "s"), stored_keys(crashed, "turns")) == before


@pytest.mark.rule("TURN-6", "TURN-1")
async def test_a_new_turn_over_an_interrupted_one(crashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the old lease holds, the end of a new turn leaves the session active; the old one's closing ends it."""
    monkeypatch.setattr(manager, "RENEW_MS", 5)
    clock = Clock(expiry(crashed) - 5_000)
    async with running(crashed, clock=clock) as stack:
        await end_turn(stack, await start_turn(stack, "s", "new"), outcome="replied")
        assert stack.sessions.get_session("s").last_turn.outcome == "replied"
        clock.ms += 10_000
        await until(lambda: stack.sessions.get_session("s").status != "active")
        session = stack.sessions.get_session("s")
        assert (session.status, session.last_turn.outcome) == ("completed", "aborted")
        assert session.last_reply_at is not None


@pytest.mark.rule("TURN-6")
async def test_a_running_turn_renews_its_lease_and_another_host_leaves_it(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live turn outlasts many leases, though a second host that looks for expired ones runs beside it."""
    monkeypatch.setattr(manager, "RENEW_MS", 5)
    clock = Clock()
    async with running(db, clock=clock) as one:
        await one.sessions.ensure_session("s")
        turn = await start_turn(one, "s", "t")
        await flushed(one)
        async with running(db, clock=clock) as other:
            for _ in range(5):
                before = expiry(db)
                clock.ms += LEASE_MS // 2
                await until(lambda before=before: expiry(db) > before)
                await one.sessions.update_session_title("s", f"after {before}")
                await until(lambda before=before: other.sessions.get_session("s").title == f"after {before}")
                assert other.sessions.get_session("s").status == "active"
            assert (other.sessions.get_session("s").last_turn, stored_keys(db, "turns")) == (None, ["t"])
            await end_turn(one, turn, outcome="replied")
            await until(lambda: other.sessions.get_session("s").status == "completed")
        assert one.sessions.get_session("s").last_turn.outcome == "replied"
        await flushed(one)
        assert stored_keys(db, "turns") == []


@pytest.mark.rule("TURN-6")
async def test_a_host_never_closes_its_own_running_turn(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slept: the lease has run out, the turn has not."""
    monkeypatch.setattr(manager, "RENEW_MS", 5)
    async with running(db) as stack:
        await stack.sessions.ensure_session("s")
        turn = await start_turn(stack, "s", "t")
        await flushed(stack)
        before = expiry(db)
        stack.clock.ms += 10 * LEASE_MS
        await until(lambda: expiry(db) > before)
        assert stack.sessions.get_session("s").last_turn is None
        await end_turn(stack, turn, outcome="replied")
        assert stack.sessions.get_session("s").last_turn.outcome == "replied"


@pytest.mark.rule("TURN-6")
async def test_a_turn_and_its_status_are_stored_together(db: str) -> None:
    """The lease comes with `active` and goes with the end; a host that stops leaves none, and no session active."""
    async with running(db, model=Model(hold=asyncio.Event())) as stack:
        stack.host.add_platform(Adapter())
        await stack.sessions.record_inbound(group_message("s"))
        saying = asyncio.create_task(stack.say("s"))
        await stack.model.asked.wait()
        await flushed(stack)
        (turn_id,) = stored_keys(db, "turns")
        lease = read_stored(db, "turns", turn_id)
        assert (lease["sessionId"], lease["expiresAt"] > stack.clock.ms) == ("s", True)
    await asyncio.wait([saying])
    assert stored_keys(db, "turns") == []
    stored = read_stored(db, "sessions", "s")
    assert (stored["status"], stored["lastTurn"]["outcome"]) == ("completed", "aborted")


def lease_of(session_id: str, turn_id: str) -> dict[str, Any]:
    """An expired lease as it stands in the file."""
    return {"turnId": turn_id, "sessionId": session_id, "source": None, "host": "gone", "expiresAt": 1}


@pytest.mark.rule("TURN-6", "GEN-1", "DELETE-1")
async def test_the_lease_of_a_deleted_session_closes_no_later_one(crashed: Path) -> None:
    """The session was deleted and made again before the lease ran out: its new record knows nothing of that turn."""
    clock = Clock(expiry(crashed) - 5_000)
    async with running(crashed, clock=clock) as stack:
        await stack.sessions.delete_session("s")
        await stack.sessions.ensure_session("s")
    before = read_stored(crashed, "sessions", "s")
    clock.ms += 10_000
    async with running(crashed, clock=clock) as stack:
        await flushed(stack)
        session = stack.sessions.get_session("s")
        assert (session.status, session.last_turn) == ("active", None)
    assert read_stored(crashed, "sessions", "s") == before
    assert stored_keys(crashed, "turns") == []


@pytest.mark.rule("TURN-6", "STORE-4")
async def test_leases_of_damaged_and_missing_sessions_stop_nobody(db: str) -> None:
    """The host starts, closes the others, and leaves the damaged record as it is."""
    async with running(db) as stack:
        await stack.sessions.ensure_session("well")
        await stack.sessions.ensure_session("hurt")
    write_stored(db, "sessions", "hurt", "{truncated")
    write_stored(db, "turns", "t0", "[]")
    for turn_id, session_id in (("t1", "hurt"), ("t2", "missing"), ("t3", "well")):
        write_stored(db, "turns", turn_id, lease_of(session_id, turn_id))
    async with running(db) as stack:
        await flushed(stack)
        assert stack.sessions.get_session("well").last_turn.outcome == "aborted"
        assert stack.sessions.get_session("missing") is None
        assert stored_keys(db, "turns") == ["t0"]
