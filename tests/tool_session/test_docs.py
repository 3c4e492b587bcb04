"""`docs/tools.md` is true: its examples run, its arguments are the schemas', its refusals the texts."""

import json
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aalis_api_session_manager.model import SessionCreation
from aalis_api_session_manager.service import SESSION_MANAGER
from aalis_plugin_tool_session.texts import _TEXTS
from tests.tool_session.kit import DELEGATE, HISTORY, LIST, Stack, group, person, private, stack

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"
NOW = 1_796_072_400_000  # 2026-11-30 21:00 UTC
MINUTE = 60_000
BOT, GARDEN, KITCHEN = "10001", "onebot:10001:group:700001", "onebot:10001:group:700002"
ASKING = person("20002")


@pytest.fixture
async def s(tmp_path: Path, zone: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stack]:
    """The page's sessions, at nine in the evening, in UTC."""
    zone("UTC")
    numbers = iter(range(1, 100))
    monkeypatch.setattr("aalis_plugin_tool_session.delegation.uuid.uuid4", lambda: uuid.UUID(int=next(numbers)))
    async with stack(tmp_path, now=lambda: NOW) as made:
        made.model.answers |= {"lunch": "Lunch is at noon!", "plates": "There are twelve plates."}
        sessions = made.host.select(SESSION_MANAGER).use()
        for message in (
            group("700001", "20002", bot=BOT, group_name="Garden"),
            group("700002", "20003", bot=BOT, group_name="Kitchen"),
            private("20002", bot=BOT, user_name="Kim"),
        ):
            await sessions.record_inbound(message)
        await sessions.ensure_session("notes", creation=SessionCreation(created_from="cli"))
        await made.save("notes", "An old note.", start=NOW - 90 * 24 * 60 * MINUTE, platform="cli")
        said = [
            ("Kim", "20002", "Who waters the roses?"),
            ("Ann", "20004", "I did, this morning."),
            ("Kim", "20002", "👍"),
        ]
        for i, (name, account, content) in enumerate(said):
            await made.save(GARDEN, content, start=NOW - (60 - 20 * i) * MINUTE, user_id=account, user_name=name)
        await made.save(KITCHEN, "The soup is on.", start=NOW - 30 * MINUTE, user_id="20003", user_name="Bo")
        await made.save(
            f"onebot:{BOT}:private:20002", "Remind me of the roses.", start=NOW - 25 * MINUTE, user_id="20002"
        )
        yield made


def examples(page: str) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Each call of the page with its answer, and the tool whose section it stands in."""
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        blocks = re.findall(r"^```json\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        for call, answer in zip(blocks[::2], blocks[1::2], strict=True):
            yield section.split("`")[1], json.loads(call), json.loads(answer)


@pytest.mark.rule("HIST-2", "HIST-4", "HIST-9", "LIST-1", "LIST-2", "DELEG-1", "DELEG-7", "DELEG-9")
async def test_the_examples_answer_as_the_page_says(s: Stack) -> None:
    shown = list(examples(PAGE.read_text("utf-8")))
    assert {tool for tool, _, _ in shown} == {HISTORY, LIST, DELEGATE} and len(shown) == 10
    for tool, call, answer in shown:
        assert await s.call(tool, call, GARDEN, ASKING) == answer, call


async def test_the_arguments_are_the_schemas(s: Stack) -> None:
    """Each with its type and what a model is told of it, in one table for each tool."""
    page = PAGE.read_text("utf-8")
    for spec in s.host.tools.specs():
        section = page.partition(f"## `{spec.name}`")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| (.*) \|$", section.partition("```")[0], re.MULTILINE)
        assert rows == [argument_row(name, schema) for name, schema in spec.parameters["properties"].items()]


def argument_row(name: str, schema: Any) -> tuple[str, str, str]:
    kinds = schema["type"]
    return name, kinds if isinstance(kinds, str) else " or ".join(kinds), schema["description"]


def shown_as(key: str) -> str:
    """A text as the page shows it: what is filled in stands in braces."""
    return _TEXTS[key]["en"]


def test_every_refusal_is_on_the_page() -> None:
    page = PAGE.read_text("utf-8")
    elsewhere = {"delegate.dispatched", "delegate.running", "delegate.error-untold"}
    missing = [key for key in _TEXTS if key not in elsewhere and shown_as(key) not in page]
    assert not missing
