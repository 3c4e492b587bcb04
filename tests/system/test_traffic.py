"""The recorded traffic becomes events: the same each time, of the recorded lengths."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

from aalis_host.platforms.onebot import read_event
from bench import traffic
from tests.system.conftest import EXAMPLE

SCRIPT = Path(traffic.__file__)


def test_the_example_is_made_by_the_script(shared: Path, tmp_path: Path) -> None:
    """`examples/rooms-day.jsonl` is what its README says it is."""
    options = ["--day", "2017-02-07", "--private", "8", "--noise"]
    made = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, check=True, timeout=50)
    assert made.stdout == EXAMPLE.read_bytes()


def test_every_line_is_an_event_of_the_recorded_length(shared: Path) -> None:
    """Each line of the recording becomes a message that the adapter reads, with text of the recorded length."""
    rows, text = list(itertools.islice(traffic.read_rows(traffic.RECORDING), 5_000)), traffic.Text()
    for row, event in zip(rows, traffic.room_events(rows), strict=True):
        message = read_event(json.dumps(event).encode())
        assert message is not None
        assert text.of(row.length, row.number) in message.content
        assert message.timestamp == row.time * 1000
        assert message.session_id == f"onebot:{traffic.SELF_ID}:group:{700_000 + row.room}"
        assert message.own == (row.speaker == traffic.BOT)
        assert message.mentioned == (row.addressed == traffic.BOT and not message.own)


def test_text_has_exactly_the_length() -> None:
    """Whatever the length and the place in the book; several scripts are in it."""
    text = traffic.Text()
    assert all(len(text.of(length, place)) == length for length in range(130) for place in range(0, 3_000, 37))
    everything = "".join(text.of(200, place) for place in range(400))
    for sample in ("the", "今天", "это", "오늘", "ありがとう", "कल", "👩‍👩‍👧‍👦", "e\u0301", "&amp;"):
        assert sample in everything


def test_private_chats_and_noise(shared: Path) -> None:
    """The talkative say the same again in private, in order of time; noise is skipped or repeated."""
    rows = list(itertools.islice(traffic.read_rows(traffic.RECORDING), 500))
    events = list(traffic.room_events(rows, frozenset({4})))
    private = [event for event in events if event["message_type"] == "private"]
    said = [row for row in rows if row.speaker == 4]
    assert [event["time"] for event in private] == [row.time + traffic.PRIVATE_DELAY for row in said]
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    noisy = list(traffic.with_noise(events))
    kinds = {event["post_type"] for event in noisy}
    assert kinds == {"message", "message_sent", "notice", "meta_event"}
    distinct = {(event.get("group_id"), event["message_id"]) for event in noisy if "message_id" in event}
    assert len(distinct) == len(events)
