"""OneBot v11 events become messages of the right window, and replies become actions."""

import json
from typing import Any

import pytest

from aalis_api_session_manager.kinds import chat_scope_of
from aalis_api_session_manager.message import IncomingMessage, OutgoingMessage
from aalis_api_session_manager.model import OriginChat
from aalis_host.platforms.onebot import OneBotAdapter, event_time, read_event


def group(**changes: Any) -> dict[str, Any]:
    return {
        "time": 1486474934,
        "self_id": 10,
        "post_type": "message",
        "message_type": "group",
        "sub_type": "normal",
        "message_id": 171,
        "group_id": 700,
        "user_id": 42,
        "sender": {"user_id": 42, "nickname": "Mia", "card": ""},
        "message": [{"type": "text", "data": {"text": "hello"}}],
    } | changes


def private(**changes: Any) -> dict[str, Any]:
    event = group(message_type="private", sub_type="friend", **changes)
    del event["group_id"]
    return event


def read(event: dict[str, Any]) -> IncomingMessage:
    message = read_event(json.dumps(event).encode())
    assert message is not None
    return message


async def nowhere(action: dict[str, Any]) -> None:
    raise AssertionError(action)


def test_group_message() -> None:
    """Everything that the event says of message and window is in the message; seconds become milliseconds."""
    assert read(group(group_name="新手 👋")) == IncomingMessage(
        session_id="onebot:10:group:700",
        platform="onebot",
        content="hello",
        timestamp=1486474934000,
        message_id="171",
        user_id="42",
        user_name="Mia",
        session_type="group",
        group_id="700",
        group_name="新手 👋",
        self_id="10",
    )


def test_private_message() -> None:
    """A private chat's session is named after the peer; what is said there is addressed to the bot."""
    message = read(private())
    assert (message.session_id, message.session_type, message.group_id) == ("onebot:10:private:42", "private", None)
    assert (message.peer_id, message.mentioned, message.own) == ("42", True, False)


@pytest.mark.rule("ORIGIN-2")
@pytest.mark.parametrize(
    ("event", "window"),
    [
        (group(), OriginChat(type="group", multi_party=True, target_id="700", self_id="10")),
        (private(), OriginChat(type="private", multi_party=False, target_id="42", self_id="10")),
        (
            private(post_type="message_sent", user_id=10, target_id=42),
            OriginChat(type="private", multi_party=False, target_id="42", self_id="10"),
        ),
    ],
)
def test_window(event: dict[str, Any], window: OriginChat) -> None:
    """The window of a message, by the adapter's declarations: the peer's even when the bot itself spoke."""
    assert chat_scope_of(read(event), OneBotAdapter(nowhere).session_types) == window


@pytest.mark.parametrize("event", [group(post_type="message_sent", user_id=10), group(user_id=10)])
def test_own_message(event: dict[str, Any]) -> None:
    """What the bot's account sent is its own, however the implementation reports it, and addresses nobody."""
    message = read(event | {"message": "[CQ:at,qq=10] me"})
    assert (message.own, message.mentioned, message.user_id) == (True, False, "10")


@pytest.mark.parametrize(
    ("message", "mentioned"),
    [
        ("[CQ:at,qq=10] hi", True),
        ([{"type": "at", "data": {"qq": "10"}}], True),
        ([{"type": "at", "data": {"qq": 10}}], True),
        ("[CQ:at,qq=101] hi", False),
        ("[CQ:at,qq=all] hi", False),
        ("&#91;CQ:at,qq=10&#93; hi", False),
    ],
)
def test_addressed(message: Any, mentioned: bool) -> None:
    """In a group the bot is addressed by an `at` of its own account, by nothing else."""
    assert read(group(message=message)).mentioned is mentioned


def test_ids_as_text() -> None:
    """Ids may be numbers or text; both give the same session."""
    as_text = {"self_id": "10", "group_id": "700", "user_id": "42", "message_id": "171"}
    assert read(group(**as_text)) == read(group())
    assert read(group(message_id=-2147483648)).message_id == "-2147483648"


def test_names() -> None:
    """The name in the group goes ahead of the account's; blank and odd ones count as none."""
    assert read(group(sender={"nickname": "Mia", "card": "管理员"})).user_name == "管理员"
    assert read(group(sender={"nickname": "  ", "card": 5})).user_name is None
    assert read(group(sender=None)).user_name is None


def test_raw_message_stands_in() -> None:
    """An event without `message` is read from `raw_message`."""
    event = group(raw_message="a &amp; b")
    del event["message"]
    assert read(event).content == "a & b"


def test_what_no_store_takes_is_replaced() -> None:
    """Lone surrogates and NUL, which some implementations write, don't lose the message."""
    line = json.dumps(group(message="\ud83d hi \x00")).encode()
    message = read_event(b"\xef\xbb\xbf" + line + b"\r\n")
    assert message is not None
    assert message.content == "\ufffd hi \ufffd"


@pytest.mark.parametrize(
    "event",
    [
        {"post_type": "meta_event", "meta_event_type": "heartbeat", "time": 1, "self_id": 10},
        {"post_type": "notice", "notice_type": "group_increase", "group_id": 700, "user_id": 1},
        {"post_type": "request", "request_type": "friend"},
        {"post_type": "notice_sent"},
        group(message_type="guild"),
        group(message_type=["group"]),
    ],
)
def test_skipped(event: dict[str, Any]) -> None:
    """Notices, requests, meta events and windows of other kinds are no messages, and no errors."""
    line = json.dumps(event).encode()
    assert read_event(line) is None
    assert event_time(line) is None


def without(key: str) -> dict[str, Any]:
    event = group()
    del event[key]
    return event


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON"),
        (b'{"post_type": "mess', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "no post_type"),
        (json.dumps(without("self_id")), "self_id is missing"),
        (json.dumps(without("group_id")), "group_id is missing"),
        (json.dumps(without("message_id")), "message_id is missing"),
        (json.dumps(group(user_id=True)), "user_id is neither a number nor text"),
        (json.dumps(group(user_id=1.5)), "user_id is neither a number nor text"),
        (json.dumps(group(user_id="")), "user_id is missing"),
        (json.dumps(group(self_id="a:b")), "self_id can't contain a colon"),
        (json.dumps(private(post_type="message_sent", user_id=10)), "target_id is missing"),
        (json.dumps(without("time")), "time is missing"),
        (json.dumps(group(time="now")), "time isn't a number"),
        (json.dumps(group(time=1486474934000)), "time isn't in seconds"),
        (json.dumps(group(time=-1)), "time isn't in seconds"),
        (json.dumps(group(time=float("nan"))), "time isn't in seconds"),
        (json.dumps(without("message")), "message is neither"),
        (json.dumps(group(message=[{"type": "text"}, "x"])), r"message\[1\]"),
    ],
)
def test_bad_line(line: bytes | str, reason: str) -> None:
    """A bad line is refused with what is wrong with it."""
    with pytest.raises(ValueError, match=reason):
        read_event(line if isinstance(line, bytes) else line.encode())


def test_event_time() -> None:
    """The first look at a recording reads times only; a line that can't be read has none."""
    assert event_time(json.dumps(group(time=1486474934.5)).encode()) == 1486474934500
    assert event_time(b"{") is None
    assert event_time(json.dumps(without("time")).encode()) is None


def test_times_may_be_shifted() -> None:
    """A replay moves the recorded times."""
    message = read_event(json.dumps(group(time=1000)).encode(), shift=-250)
    assert message is not None
    assert message.timestamp == 999_750


async def test_claims_the_accounts_it_serves() -> None:
    """A window belongs to the adapter once an event of its account came in."""
    adapter = OneBotAdapter(nowhere)
    assert not await adapter.claims("onebot:10:group:700")
    assert adapter.receive(json.dumps(group()).encode()) is not None
    assert await adapter.claims("onebot:10:group:1")
    assert await adapter.claims("onebot:10:private:a:b")
    for other in ("onebot:11:group:700", "onebot:10:guild:700", "telegram:10:group:700", "onebot:10", ""):
        assert not await adapter.claims(other)


@pytest.mark.parametrize(
    ("session_id", "reply_to", "action"),
    [
        (
            "onebot:10:group:700",
            None,
            {
                "action": "send_group_msg",
                "params": {
                    "self_id": 10,
                    "group_id": 700,
                    "message": [{"type": "text", "data": {"text": "[CQ:at,qq=all] & more"}}],
                },
            },
        ),
        (
            "onebot:10:private:u-1",
            "171",
            {
                "action": "send_private_msg",
                "params": {
                    "self_id": 10,
                    "user_id": "u-1",
                    "message": [
                        {"type": "reply", "data": {"id": "171"}},
                        {"type": "text", "data": {"text": "[CQ:at,qq=all] & more"}},
                    ],
                },
            },
        ),
    ],
)
async def test_send(session_id: str, reply_to: str | None, action: dict[str, Any]) -> None:
    """A reply is an action of the window; its text is a text segment, so that no code in it comes alive."""
    sent: list[dict[str, Any]] = []

    async def deliver(one: dict[str, Any]) -> None:
        sent.append(one)

    adapter = OneBotAdapter(deliver)
    adapter.receive(json.dumps(group()).encode())
    await adapter.send(OutgoingMessage(session_id=session_id, content="[CQ:at,qq=all] & more", reply_to=reply_to))
    assert sent == [action]


async def test_send_elsewhere() -> None:
    """What isn't ours is not sent, and that is said."""
    with pytest.raises(ValueError, match="telegram:1"):
        await OneBotAdapter(nowhere).send(OutgoingMessage(session_id="telegram:1", content="x"))


async def test_without_a_way_out() -> None:
    """An adapter that only declares says so when it is asked to send."""
    adapter = OneBotAdapter()
    adapter.receive(json.dumps(group()).encode())
    with pytest.raises(ValueError, match="no window"):
        await adapter.send(OutgoingMessage(session_id="onebot:10:group:700", content="x"))
