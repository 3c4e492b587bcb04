"""`aalis replay`: recorded events happen again, once, in order."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.host.cli.conftest import TIME, Process, Run, as_lines, contents, group_event, private_event, query


def stored(db: Path) -> list[tuple[Any, ...]]:
    """(session, time, text) of every message, in the store's order."""
    return query(db, "SELECT session_id, timestamp, content FROM messages ORDER BY session_id, timestamp, id")


def test_figures(run: Run, tmp_path: Path) -> None:
    """The summary counts rooms, messages, turns, replies, tokens, and what was left out."""
    events = [
        group_event(1),
        group_event(2, "[CQ:at,qq=10] you"),
        group_event(3, "mine", post_type="message_sent", user_id=10),
        private_event(4),
        group_event(2, "[CQ:at,qq=10] you"),
        {"post_type": "meta_event", "time": TIME, "self_id": 10},
    ]
    (tmp_path / "e.jsonl").write_text(as_lines(*events) + "\n{broken\n")
    result = run("replay", "e.jsonl", "--db", "x.db", "--json")
    figures = json.loads(result.stdout)
    assert result.exit_code == 0
    assert {key: figures[key] for key in ("rooms", "messages", "repeated", "other", "bad", "failed")} == {
        "rooms": 2,
        "messages": 4,
        "repeated": 1,
        "other": 1,
        "bad": 1,
        "failed": 0,
    }
    assert (figures["turns"], figures["replies"], figures["errors"]) == (2, 2, 0)
    assert figures["input"] > 0
    assert figures["output"] > 0
    assert figures["seconds"] > 0


def test_what_is_stored(run: Run, tmp_path: Path) -> None:
    """Addressed and private messages have a turn; the others, and the bot's own, are stored alone."""
    events = [
        group_event(1, "quiet"),
        group_event(2, "said by me", post_type="message_sent", user_id=10),
        group_event(3, "[CQ:at,qq=10] you"),
        private_event(4, "psst"),
    ]
    (tmp_path / "e.jsonl").write_text(as_lines(*events))
    assert run("replay", "e.jsonl", "--db", "x.db", "--as-recorded").exit_code == 0
    rows = stored(tmp_path / "x.db")
    group = [(at, text) for session, at, text in rows if session == "onebot:10:group:700"]
    assert group[:3] == [
        ((TIME + 1) * 1000, "quiet"),
        ((TIME + 2) * 1000, "said by me"),
        ((TIME + 3) * 1000, "@10 you"),
    ]
    assert len(group) == 4
    assert group[3][0] >= group[2][0]
    private = [text for session, _, text in rows if session == "onebot:10:private:42"]
    assert private[0] == "psst"
    assert len(private) == 2


def test_again_stores_nothing(run: Run, tmp_path: Path) -> None:
    """A second replay of the same recording finds everything there, and has no turn."""
    (tmp_path / "e.jsonl").write_text(as_lines(*(private_event(number) for number in range(5))))
    run("replay", "e.jsonl", "--db", "x.db")
    before = stored(tmp_path / "x.db")
    figures = json.loads(run("replay", "e.jsonl", "--db", "x.db", "--json").stdout)
    assert (figures["messages"], figures["repeated"], figures["turns"]) == (0, 5, 0)
    assert stored(tmp_path / "x.db") == before


def test_times_are_moved_so_that_the_last_is_now(run: Run, tmp_path: Path) -> None:
    """Distances stay; the latest message, wherever it stands, was sent when the replay began."""
    (tmp_path / "e.jsonl").write_text(as_lines(group_event(500, "last"), group_event(0, "first"), group_event(90, "x")))
    before = time.time_ns() // 1_000_000
    assert run("replay", "e.jsonl", "--db", "x.db").exit_code == 0
    after = time.time_ns() // 1_000_000
    times = {text: at for _, at, text in stored(tmp_path / "x.db")}
    assert before <= times["last"] <= after
    assert times["last"] - times["first"] == 500_000
    assert times["x"] - times["first"] == 90_000


@pytest.mark.parametrize("trigger", ["mentioned", "always"])
def test_order(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trigger: str) -> None:
    """Messages of one second stay in the order of the file, whoever is addressed and whatever has a turn."""
    monkeypatch.setenv("AALIS_TRIGGER", trigger)
    kinds: list[dict[str, Any]] = [{}, {"post_type": "message_sent", "user_id": 10}]
    events = [
        group_event(
            0, f"{'[CQ:at,qq=10]' * (n % 7 == 0)}#{n}#", message_id=n, group_id=700 + n % 3, **kinds[n % 5 == 0]
        )
        for n in range(300)
    ]
    (tmp_path / "e.jsonl").write_text(as_lines(*events))
    figures = json.loads(run("replay", "e.jsonl", "--db", "x.db", "--json").stdout)
    assert figures["turns"] == (34 if trigger == "mentioned" else 240)
    rows = query(
        tmp_path / "x.db",
        "SELECT session_id, content FROM messages WHERE message_id IS NOT NULL ORDER BY timestamp, id",
    )
    for window in (700, 701, 702):
        numbers = [int(text.split("#")[1]) for session, text in rows if session == f"onebot:10:group:{window}"]
        assert numbers == list(range(window - 700, 300, 3))


def test_a_turn_sees_what_came_before_and_nothing_later(run: Run, tmp_path: Path) -> None:
    """An addressed message waits for the earlier ones; the later ones wait for its turn."""
    said = [group_event(n, f"text {n}") for n in range(40)]
    said[20] = group_event(
        20, '[CQ:at,qq=10]\n/session_get_history {"session_id": "onebot:10:group:700", "limit": 100}'
    )
    (tmp_path / "e.jsonl").write_text(as_lines(*said))
    assert run("replay", "e.jsonl", "--db", "x.db").exit_code == 0
    ((answer,),) = query(tmp_path / "x.db", "SELECT content FROM messages WHERE role = 'tool'")
    texts = [message["content"] for message in json.loads(answer)["messages"]]
    assert texts[:20] == [f"text {n}" for n in range(20)]
    assert len(texts) == 21


def test_bad_lines_are_named_and_the_rest_goes_on(run: Run, tmp_path: Path) -> None:
    """Each bad line is said with its number and what is wrong; a flood of them is cut."""
    good = as_lines(group_event(1)).encode()
    (tmp_path / "e.jsonl").write_bytes(b"not json\n\n" + good + b"{}\n" + b"x\n" * 200 + b"\xff\n")
    result = run("replay", "e.jsonl", "--db", "x.db")
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert lines[0].startswith("line 1: not JSON")
    assert lines[1].startswith("line 4: no post_type")
    assert len(lines) == 11
    assert lines[-1] == "and 193 more bad lines"


def test_a_line_without_an_end_counts(run: Run, tmp_path: Path) -> None:
    """The last line may lack its end; line ends may be Windows'."""
    (tmp_path / "e.jsonl").write_text(as_lines(group_event(1), group_event(2)).replace("\n", "\r\n").rstrip())
    assert json.loads(run("replay", "e.jsonl", "--db", "x.db", "--json").stdout)["messages"] == 2


@pytest.mark.parametrize(
    ("content", "before", "words"),
    [
        (None, [], "e.jsonl: No such file or directory"),
        ("", [], "e.jsonl holds no OneBot v11 event"),
        ("hello\n", ["line 1: not JSON"], "e.jsonl holds no OneBot v11 event"),
        (
            "hello\n" * 500,
            [*(f"line {number}: not JSON" for number in range(1, 11)), "and 490 more bad lines"],
            "e.jsonl holds no OneBot v11 event",
        ),
    ],
)
@pytest.mark.parametrize("options", [(), ("--as-recorded",)])
def test_no_recording(
    run: Run, tmp_path: Path, content: str | None, before: list[str], words: str, options: tuple[str, ...]
) -> None:
    """A file that isn't there, or holds nothing of the kind, is the person's mistake, and no database is made."""
    if content is not None:
        (tmp_path / "e.jsonl").write_text(content)
    result = run("replay", "e.jsonl", "--db", "x.db", *options)
    assert result.exit_code == 2
    *lines, last = result.stderr.splitlines()
    assert last == f"aalis: {words}"
    assert [line.partition(": unexpected")[0] for line in lines] == before
    assert not (tmp_path / "x.db").exists()


def test_a_folder_is_no_recording(run: Run, tmp_path: Path) -> None:
    """One clear line for a folder, too."""
    result = run("replay", tmp_path, "--db", "x.db")
    assert (result.exit_code, result.stderr) == (2, f"aalis: {tmp_path}: Is a directory\n")


def test_standard_input(process: Process, tmp_path: Path) -> None:
    """`-` reads a pipe to its end, moves its times, and leaves no copy behind."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    before = time.time_ns() // 1_000_000
    result = process(
        "replay",
        "-",
        "--db",
        "x.db",
        "--json",
        input=as_lines(group_event(1), group_event(61)),
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["messages"] == 2
    times = [at for _, at, _ in stored(tmp_path / "x.db")]
    assert times[1] >= before
    assert times[1] - times[0] == 60_000
    assert list(temporary.iterdir()) == []


def test_in_time(run: Run, tmp_path: Path) -> None:
    """With --speed the recorded distances are kept, so many times as fast."""
    (tmp_path / "e.jsonl").write_text(as_lines(group_event(0), group_event(100), group_event(60)))
    began = time.time_ns() // 1_000_000
    result = run("replay", "e.jsonl", "--db", "x.db", "--speed", "200", "--json")
    assert json.loads(result.stdout)["seconds"] >= 0.5
    times = sorted(at for _, at, _ in stored(tmp_path / "x.db"))
    assert times[-1] >= began + 500
    assert times[-1] - times[0] == 100_000


def test_actions(run: Run, tmp_path: Path) -> None:
    """What the agent says can be had as OneBot v11 actions."""
    (tmp_path / "e.jsonl").write_text(as_lines(group_event(1), private_event(2, "hi")))
    assert run("replay", "e.jsonl", "--db", "x.db", "--actions", "said.jsonl").exit_code == 0
    (action,) = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert (action["action"], action["params"]["user_id"]) == ("send_private_msg", 42)


def test_actions_that_go_nowhere(run: Run, tmp_path: Path) -> None:
    """A file that can't be written is said before anything is stored."""
    (tmp_path / "e.jsonl").write_text(as_lines(private_event(2, "hi")))
    result = run("replay", "e.jsonl", "--db", "x.db", "--actions", "no/such/folder/said.jsonl")
    assert (result.exit_code, result.stderr) == (2, "aalis: no/such/folder/said.jsonl: No such file or directory\n")
    assert list(tmp_path.iterdir()) == [tmp_path / "e.jsonl"]


@pytest.mark.parametrize("speed", ["nan", "inf", "-1", "0", "1e-300", "fast"])
def test_no_speed(run: Run, tmp_path: Path, speed: str) -> None:
    """What is no speed is one clear line, and nothing happens."""
    (tmp_path / "e.jsonl").write_text(as_lines(group_event(0), group_event(100)))
    result = run("replay", "e.jsonl", "--db", "x.db", "--speed", speed)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("aalis: Invalid value for '--speed': ")
    assert not (tmp_path / "x.db").exists()


def test_a_failing_model_is_counted(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that fails is no reason to stop; the figures say how many did, and so does the exit status."""
    monkeypatch.setenv("AALIS_MODEL_KIND", "openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "e.jsonl").write_text(as_lines(private_event(1), private_event(2)))
    result = run("replay", "e.jsonl", "--db", "x.db", "--json")
    figures = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (figures["messages"], figures["turns"], figures["errors"], figures["replies"]) == (2, 2, 2, 0)


def test_the_recording_is_only_read(run: Run, tmp_path: Path) -> None:
    """The file stays as it is."""
    (tmp_path / "e.jsonl").write_text(as_lines(group_event(1)))
    before = contents(tmp_path / "e.jsonl")
    run("replay", "e.jsonl", "--db", "x.db")
    assert contents(tmp_path / "e.jsonl") == before
