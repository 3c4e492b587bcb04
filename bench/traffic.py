"""OneBot v11 events, one a line, from the recorded traffic of five chat rooms.

    python bench/traffic.py > trace.jsonl
    python bench/traffic.py --day 2017-02-07 --private 8 --noise > examples/rooms-day.jsonl

The recording (`room-traffic.csv.gz`) has times, rooms, speakers, lengths and who was addressed, no text. The text
is made here: of the recorded length in code points, in several scripts, with emoji and combining characters. One
speaker, number 10, is the bot: what it says is `message_sent`, and who addresses it mentions it. There are no
private chats in the recording; `--private N` lets the N people who say most say the same again to the bot alone,
a minute later. The same options always give the same events.
"""

import argparse
import gzip
import heapq
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

RECORDING = Path(__file__).parents[2] / "shared" / "data" / "room-traffic.csv.gz"
BOT = 10
SELF_ID = 100_000 + BOT
PRIVATE_DELAY = 60
PRIVATE_IDS = 1_000_000

ROOMS = {1: "general 💬", 2: "新手交流群", 3: "Разработка", 4: "dev 👩‍💻 daily", 5: "café coin tranquille"}
NAMES = (
    "Mia",
    "李雷",
    "Ольга",
    "José",
    "김민준",
    "Zoë",
    "さくら",
    "Ahmed",
    "🦊 Fox",
    "Łukasz",
    "ณัฐ",
    "Nguyễn",
    "अनु",
    "Bo",
)
SCRIPTS = (
    "the meeting moved to Thursday so please check the branch again before we merge anything",
    "does this still fail on the new build? I pushed a fix, see the log — it's line 42",
    "今天 的 会议 改到 下午 三点 请 大家 先 看 一下 文档 谢谢",
    "это уже исправлено в новой версии, проверьте, пожалуйста, ещё раз",
    "오늘 회의는 세 시에 시작합니다 자료를 먼저 확인해 주세요",
    "ありがとう ございます 明日 もう一度 試して みます",
    "naïve café façade — Zürich, Kraków, Ærøskøbing, e\u0301te\u0301 a\u030angstro\u0308m",
    "कल सुबह फिर से कोशिश करेंगे धन्यवाद",
    "👍 🎉 👩‍👩‍👧‍👦 🇫🇷 🏳️‍🌈 ok 👋🏽 ❤️ lol 😂",
    "if [x, y] & not (a < b): return 'done, &amp; dusted' # 100%",
)


class Row(NamedTuple):
    """A line of the recording. `addressed` 0: nobody."""

    number: int
    time: int
    room: int
    speaker: int
    length: int
    addressed: int


def read_rows(recording: Path, day: date | None = None) -> Iterator[Row]:
    """The recording, or one day of it (UTC), in order of time."""
    first = 0 if day is None else int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    end = sys.maxsize if day is None else first + 86_400
    with gzip.open(recording, "rt", encoding="ascii") as lines:
        next(lines)
        for number, line in enumerate(lines, 1):
            row = Row(number, *map(int, line.split(",")))
            if row.time >= end:
                return
            if row.time >= first:
                yield row


class Text:
    """Text of a given length: runs of words from a shuffled book, the same for the same place in it."""

    def __init__(self) -> None:
        shuffled = random.Random(0)
        runs = [SCRIPTS[shuffled.randrange(len(SCRIPTS))].split(" ") for _ in range(997)]
        self._words = list(chain.from_iterable(runs))

    def of(self, length: int, place: int) -> str:
        """Exactly `length` code points; what no word fits into is filled with dots."""
        at, words, left = place * 8_191 % len(self._words), [], length
        while left > 0:
            word = self._words[at % len(self._words)]
            at += 1
            if len(word) > left:
                words.append("." * left)
                break
            words.append(word)
            left -= len(word) + 1
        return " ".join(words).ljust(length, "!")


class Events:
    """Makes the events of rows."""

    def __init__(self) -> None:
        self._text = Text()
        self._latest: dict[tuple[int, int], int] = {}

    def group(self, row: Row) -> dict[str, Any]:
        """What was said in a room."""
        segments = []
        if row.addressed:
            answered = self._latest.get((row.room, row.addressed))
            if answered is not None and row.number % 5 == 0:
                segments.append({"type": "reply", "data": {"id": str(answered)}})
            segments.append({"type": "at", "data": {"qq": str(100_000 + row.addressed)}})
        self._latest[row.room, row.speaker] = row.number
        own = row.speaker == BOT
        return self._message(row, segments, own) | {
            "message_type": "group",
            "sub_type": "normal",
            "group_id": 700_000 + row.room,
            "group_name": ROOMS[row.room],
        }

    def private(self, row: Row) -> dict[str, Any]:
        """What was said in a room, said to the bot alone a minute later."""
        later = row._replace(number=PRIVATE_IDS + row.number, time=row.time + PRIVATE_DELAY)
        return self._message(later, [], False) | {"message_type": "private", "sub_type": "friend"}

    def _message(self, row: Row, segments: list[dict[str, Any]], own: bool) -> dict[str, Any]:
        text = self._text.of(row.length, row.number % PRIVATE_IDS)
        segments.append({"type": "text", "data": {"text": f" {text}" if segments else text}})
        if row.number % 40 == 0:
            segments.append({"type": "image", "data": {"file": f"{row.number:08x}.jpg"}})
        raw = "".join(map(_cq, segments))
        return {
            "time": row.time,
            "self_id": SELF_ID,
            "post_type": "message_sent" if own else "message",
            "message_id": row.number,
            "user_id": 100_000 + row.speaker,
            "sender": {"user_id": 100_000 + row.speaker, "nickname": _name(row.speaker)},
            "message": raw if row.number % 3 == 0 else segments,
            "raw_message": raw,
            "font": 0,
        }


def _name(speaker: int) -> str:
    return "Aalis" if speaker == BOT else f"{NAMES[speaker % len(NAMES)]} {speaker}"


def _cq(segment: dict[str, Any]) -> str:
    def escaped(text: str) -> str:
        return text.replace("&", "&amp;").replace("[", "&#91;").replace("]", "&#93;")

    kind, data = segment["type"], segment["data"]
    if kind == "text":
        return escaped(data["text"])
    values = (f",{key}=" + escaped(value).replace(",", "&#44;") for key, value in data.items())
    return f"[CQ:{kind}{''.join(values)}]"


def room_events(rows: Iterable[Row], talkative: frozenset[int] = frozenset()) -> Iterator[dict[str, Any]]:
    """The events of rows in order of time; what the `talkative` speakers say comes again as private messages."""
    events = Events()
    waiting: list[tuple[int, Row]] = []
    for row in rows:
        while waiting and waiting[0][0] <= row.time:
            yield events.private(heapq.heappop(waiting)[1])
        yield events.group(row)
        if row.speaker in talkative:
            heapq.heappush(waiting, (row.time + PRIVATE_DELAY, row))
    while waiting:
        yield events.private(heapq.heappop(waiting)[1])


def with_noise(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What a real connection brings beside: an hourly heartbeat, a notice for each newcomer, repeated events."""
    hour, seen = 0, set()
    for number, event in enumerate(events, 1):
        base = {"time": event["time"], "self_id": SELF_ID}
        if event["time"] // 3600 != hour:
            hour = event["time"] // 3600
            yield base | {"post_type": "meta_event", "meta_event_type": "heartbeat", "interval": 3_600_000}
        newcomer = event.get("group_id"), event["user_id"]
        if newcomer[0] is not None and newcomer not in seen:
            seen.add(newcomer)
            window = {"group_id": newcomer[0], "user_id": newcomer[1], "operator_id": SELF_ID}
            yield base | {"post_type": "notice", "notice_type": "group_increase", "sub_type": "approve"} | window
        yield event
        if number % 97 == 0:
            yield event


def main() -> None:
    """Write the events to standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=RECORDING, help="the recording")
    parser.add_argument("--day", type=date.fromisoformat, help="only this day (UTC), such as 2017-02-07")
    parser.add_argument(
        "--private",
        type=int,
        default=0,
        metavar="N",
        help="the N people who say most say the same again to the bot in private",
    )
    parser.add_argument("--noise", action="store_true", help="with heartbeats, notices and repeated events")
    options = parser.parse_args()

    talkative: frozenset[int] = frozenset()
    if options.private:
        said = Counter(row.speaker for row in read_rows(options.data, options.day) if row.speaker != BOT)
        talkative = frozenset(speaker for speaker, _ in said.most_common(options.private))
    events = room_events(read_rows(options.data, options.day), talkative)
    for event in with_noise(events) if options.noise else events:
        sys.stdout.write(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
