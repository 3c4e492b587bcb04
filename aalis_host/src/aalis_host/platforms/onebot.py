"""OneBot v11: events become messages, replies become actions."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from attrs import define, field

from aalis_api_session_manager.message import IncomingMessage, OutgoingMessage
from aalis_host.platforms.segments import read_message

__all__ = ["PLATFORM_NAME", "OneBotAdapter", "event_time", "read_event"]

PLATFORM_NAME = "onebot"
_TYPES: Mapping[str, bool] = {"group": True, "private": False}
_LATEST = 100_000_000_000
"""Seconds. What is above was given in another unit."""

Deliver = Callable[[dict[str, Any]], Awaitable[None]]


def read_event(line: bytes, *, shift: int = 0) -> IncomingMessage | None:
    """The message of one event line; None for an event that isn't one (notices, requests, meta events, other kinds
    of windows). Raises ValueError that says what is wrong with the line.

    The bot's own messages (`message_sent`, or sent by `self_id`) are `own`. A private chat's peer is its
    sender, for an own message the `target_id`. A message is addressed to the bot when it mentions it, and in
    private always. `time`, in seconds, becomes milliseconds, and `shift` milliseconds are added to it.
    """
    event = _load(line)
    if not _is_message(event):
        return None
    self_id, sender_id = _id(event, "self_id"), _id(event, "user_id")
    if ":" in self_id:
        raise ValueError("self_id can't contain a colon")
    own = event["post_type"] == "message_sent" or sender_id == self_id
    window = event["message_type"]
    target = _id(event, "group_id" if window == "group" else "target_id" if own else "user_id")
    content = read_message(event.get("message", event.get("raw_message")))
    sender = event.get("sender")
    return IncomingMessage(
        session_id=f"{PLATFORM_NAME}:{self_id}:{window}:{target}",
        platform=PLATFORM_NAME,
        content=content.text,
        timestamp=_milliseconds(event) + shift,
        message_id=_id(event, "message_id"),
        user_id=sender_id,
        user_name=_name(sender if isinstance(sender, dict) else {}, "card", "nickname"),
        session_type=window,
        group_id=target if window == "group" else None,
        group_name=_name(event, "group_name") if window == "group" else None,
        peer_id=target if window == "private" else None,
        self_id=self_id,
        mentioned=not own and (window == "private" or self_id in content.mentions),
        own=own,
    )


def event_time(line: bytes) -> int | None:
    """When the message of an event line was sent, in milliseconds; None when the line holds no message."""
    try:
        event = _load(line)
        return _milliseconds(event) if _is_message(event) else None
    except ValueError:
        return None


@define(eq=False)
class OneBotAdapter:
    """The OneBot v11 accounts that this host serves: those it has received an event of.

    What the agent says is handed to `deliver` as an action (`send_group_msg`, `send_private_msg`). Without it the
    adapter serves nobody and only declares its window types.
    """

    deliver: Deliver | None = None
    platform: str = field(default=PLATFORM_NAME, init=False)
    session_types: Mapping[str, bool] = field(default=_TYPES, init=False)
    _accounts: set[str] = field(factory=set, init=False)

    def receive(self, line: bytes, *, shift: int = 0) -> IncomingMessage | None:
        """`read_event`, and from then on the event's account is served here."""
        message = read_event(line, shift=shift)
        if message is not None and message.self_id is not None:
            self._accounts.add(message.self_id)
        return message

    async def claims(self, session_id: str) -> bool:
        """Is it a window of an account that is served here."""
        parts = session_id.split(":", 3)
        return len(parts) == 4 and parts[0] == PLATFORM_NAME and parts[1] in self._accounts and parts[2] in _TYPES

    async def send(self, message: OutgoingMessage) -> None:
        """Say it in the window. Raises ValueError for a session that isn't one of ours."""
        if self.deliver is None or not await self.claims(message.session_id):
            raise ValueError(f"{message.session_id!r} is no window of a OneBot account that is served here")
        _, account, window, target = message.session_id.split(":", 3)
        segments: list[dict[str, Any]] = [{"type": "text", "data": {"text": message.content}}]
        if message.reply_to is not None:
            segments.insert(0, {"type": "reply", "data": {"id": message.reply_to}})
        receiver = "group_id" if window == "group" else "user_id"
        await self.deliver(
            {
                "action": f"send_{window}_msg",
                "params": {"self_id": _number(account), receiver: _number(target), "message": segments},
            }
        )


def _load(line: bytes) -> dict[str, Any]:
    line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        try:
            event = json.loads(line)  # takes lone surrogates, which some implementations write
        except (ValueError, RecursionError):
            raise ValueError(f"not JSON: {error}") from None
    if not isinstance(event, dict):
        raise ValueError("not a JSON object")
    if not isinstance(event.get("post_type"), str):
        raise ValueError("no post_type: not a OneBot v11 event")
    return event


def _is_message(event: Mapping[str, Any]) -> bool:
    return event["post_type"] in ("message", "message_sent") and event.get("message_type") in tuple(_TYPES)


def _id(event: Mapping[str, Any], key: str) -> str:
    value = event.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value:
        return value
    raise ValueError(f"{key} is missing" if value in (None, "") else f"{key} is neither a number nor text")


def _milliseconds(event: Mapping[str, Any]) -> int:
    seconds = event.get("time")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ValueError("time is missing" if seconds is None else "time isn't a number")
    if not 0 <= seconds < _LATEST:
        raise ValueError(f"time isn't in seconds since 1970: {seconds}")
    return round(seconds * 1000)


def _name(source: Mapping[str, Any], *keys: str) -> str | None:
    return next((value for key in keys if isinstance(value := source.get(key), str) and value.strip()), None)


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdecimal() else text
