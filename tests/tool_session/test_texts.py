"""What is said to models and people."""

import re
import string
from pathlib import Path

import pytest

import aalis_plugin_tool_session
from aalis_api_session_manager.text import template_of
from aalis_plugin_tool_session.texts import _TEXTS

SOURCES = Path(aalis_plugin_tool_session.__file__).parent


@pytest.mark.parametrize("key", _TEXTS)
def test_every_text_is_there_in_both_languages_with_the_same_values(key: str) -> None:
    values = []
    for language in ("en", "zh_CN"):
        template = template_of(f"tool-session.{key}", language)
        assert template
        values.append({name for _, name, _, _ in string.Formatter().parse(template) if name})
    assert values[0] == values[1]


def test_every_text_is_used_and_every_used_text_exists() -> None:
    """No text that nobody says."""
    code = "".join(path.read_text("utf-8") for path in SOURCES.glob("*.py") if path.name != "texts.py")
    used = {key for key in re.findall(r'"([a-z]+(?:[.-][a-z]+)+)"', code) if key in _TEXTS}
    assert used == set(_TEXTS)
    assert set(re.findall(r'text\(\s*"([^"]+)"', code)) <= set(_TEXTS)


@pytest.mark.rule("TAKE-7")
def test_no_refusal_to_read_names_a_platform() -> None:
    for key in _TEXTS:
        if key.startswith("access."):
            assert "{" not in _TEXTS[key]["en"]
