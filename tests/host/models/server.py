"""A small OpenAI-compatible server on the loopback that answers as a test tells it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from attrs import define, field

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Writes a whole HTTP response, or as much of it as it likes; then the connection is closed."""


@define(eq=False)
class Server:
    """`answers` are given one after the other; `requests` and `keys` hold what was asked."""

    base_url: str = ""
    answers: list[Answer] = field(factory=list)
    requests: list[dict[str, Any]] = field(factory=list)
    keys: list[str] = field(factory=list)
    gone: asyncio.Event = field(factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            self.requests.append(json.loads(await reader.readexactly(int(headers["content-length"]))))
            self.keys.append(headers["authorization"])
            answer = self.answers.pop(0) if self.answers else status(500, "nothing more to say")
            if answer is SILENT:
                await self.gone.wait()
            await answer(writer)
            await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def openai_server(*answers: Answer) -> AsyncIterator[Server]:
    """The server, listening."""
    made = Server(answers=list(answers))
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.base_url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    async with listening:
        try:
            yield made
        finally:
            made.gone.set()


def status(code: int, words: str, **headers: str) -> Answer:
    """An error of the server; `retry_after="7"` is the header `retry-after: 7`."""
    body = json.dumps({"error": {"message": words, "type": "error"}})
    return _http(code, body, {name.replace("_", "-"): value for name, value in headers.items()})


def body(text: str, content_type: str = "application/json") -> Answer:
    """Any body with status 200."""
    return _http(200, text, {"content-type": content_type})


def whole(text: str | None = None, *calls: tuple[str, str, str], usage: tuple[int, int] = (11, 7)) -> Answer:
    """A whole answer. A call is (id, name, arguments)."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [_call(*call) for call in calls]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return body(json.dumps({**_FRAME, "object": "chat.completion", "choices": [choice], "usage": _usage(usage)}))


def pieces(*deltas: dict[str, Any], usage: tuple[int, int] | None = (11, 7), finish: bool = True) -> Answer:
    """An answer in pieces; without `finish` the stream ends before the answer does, as if all were well."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        events = list(_events(deltas))
        if finish:
            events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        if usage is not None:
            events.append({"choices": [], "usage": _usage(usage)})
        writer.write(_stream_head())
        for event in events:
            _chunk(writer, f"data: {json.dumps({**_FRAME, **event})}\n\n")
            await writer.drain()
        if finish:
            _chunk(writer, "data: [DONE]\n\n")
        _chunk(writer, "")

    return answer


def event(data: Any) -> Answer:
    """A stream of one event, JSON or any text."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(_stream_head())
        _chunk(writer, f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n")
        _chunk(writer, "")

    return answer


def broken(*deltas: dict[str, Any]) -> Answer:
    """A stream whose connection drops after these pieces; without any, before the response began."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        if deltas:
            writer.write(_stream_head())
        for one in _events(deltas):
            _chunk(writer, f"data: {json.dumps({**_FRAME, **one})}\n\n")

    return answer


SILENT = broken()
"""Nothing, until the server goes."""


def said(text: str) -> dict[str, Any]:
    """A piece of text."""
    return {"content": text}


def call_piece(index: int | None, arguments: str = "", *, call_id: str | None = None, name: str | None = None) -> Any:
    """A piece of a tool call."""
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    piece: dict[str, Any] = {"function": function, "type": "function"}
    piece |= {} if index is None else {"index": index}
    piece |= {} if call_id is None else {"id": call_id}
    return {"tool_calls": [piece]}


_FRAME = {"id": "x", "created": 1, "model": "m", "object": "chat.completion.chunk"}


def _events(deltas: Sequence[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    return ({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas)


def _usage(usage: tuple[int, int]) -> dict[str, int]:
    return {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _http(code: int, text: str, headers: dict[str, str]) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        lines = {"content-type": "application/json", **headers, "connection": "close"}
        lines["content-length"] = str(len(text.encode()))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"HTTP/1.1 {code} Status\r\n{head}\r\n{text}".encode())

    return answer


def _stream_head() -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )


def _chunk(writer: asyncio.StreamWriter, text: str) -> None:
    data = text.encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
