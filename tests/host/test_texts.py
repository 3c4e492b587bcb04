"""Texts in a reader's language, times in the process's zone, the year with four digits."""

import os
import time
from collections.abc import Iterator

import pytest
from babel import Locale

from aalis_api_session_manager.errors import ConfigError
from aalis_api_session_manager.model import SessionInfo
from aalis_api_session_manager.text import TextRef, session_label
from aalis_host.texts import reader_locale, render

ON_NOVEMBER_2 = 1_793_611_800_000
"""2026-11-02 09:30 UTC."""


@pytest.fixture(params=[("UTC", 0), ("Asia/Seoul", 9), ("America/New_York", -5)], ids=lambda param: param[0])
def hours(request: pytest.FixtureRequest) -> Iterator[int]:
    """The process's zone, and its hours ahead of UTC on that day."""
    before = os.environ.get("TZ")
    os.environ["TZ"], ahead = request.param
    time.tzset()
    yield ahead
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def label(language: str, parent_id: str | None = None) -> str:
    session = SessionInfo(id="x", parent_id=parent_id, created_at=ON_NOVEMBER_2, updated_at=ON_NOVEMBER_2)
    return render(session_label(session), Locale.parse(language))


@pytest.mark.rule("LABEL-1", "LABEL-2")
def test_default_labels(hours: int) -> None:
    """Babel's short date and time of the locale with a four-digit year; a child has only the time."""
    hour = 9 + hours
    american = f"{(hour - 1) % 12 + 1}:30\u202f{'AM' if hour < 12 else 'PM'}"
    assert label("en_US") == f"Session 11/2/2026, {american}"
    assert label("en_GB") == f"Session 02/11/2026, {hour:02}:30"
    assert label("zh_CN") == f"会话 2026/11/2 {hour:02}:30"
    assert label("de_DE") == f"Session 02.11.2026, {hour:02}:30"
    assert label("en_US", "parent") == f"Subtask {american}"
    assert label("zh_CN", "parent") == f"子任务 {hour:02}:30"


@pytest.mark.rule("LABEL-1")
def test_the_year_is_whole_everywhere() -> None:
    """No locale shortens it: 2026 stands in each label (as digits of that locale's own calendar pattern)."""
    for language in ("ar_EG", "cs_CZ", "da_DK", "es_ES", "fi_FI", "fr_FR", "it_IT", "ja_JP", "ko_KR", "ru_RU", "sv_SE"):
        assert "2026" in label(language), language


@pytest.mark.rule("LABEL-1")
def test_a_name_is_shown_as_it_is() -> None:
    """A session with a name needs no rendering."""
    session = SessionInfo(id="x", name="Hall {created_at}", created_at=1, updated_at=1)
    assert render(session_label(session), Locale.parse("zh_CN")) == "Hall {created_at}"


@pytest.mark.rule("LABEL-2")
def test_languages() -> None:
    """Simplified Chinese wherever it is read; other languages read English; an unknown key its stored source."""
    ref = TextRef("place.default")
    languages = {"zh": "默认工作区", "zh_Hans_SG": "默认工作区", "zh_CN": "默认工作区"}
    languages |= dict.fromkeys(("zh_TW", "zh_Hant_HK", "fr", "en_AU"), "Default workspace")
    assert {language: render(ref, Locale.parse(language)) for language in languages} == languages
    assert render(TextRef("of.no.package", {}, fallback="as stored"), Locale.parse("zh_CN")) == "as stored"


def test_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting, in either spelling, else the environment, else English; an unknown one is a mistake."""
    for name in LOCALE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert str(reader_locale("zh-CN")) == "zh_Hans_CN" or str(reader_locale("zh-CN")) == "zh_CN"
    assert reader_locale().language == "en"
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert reader_locale().language == "en"
    monkeypatch.setenv("LC_ALL", "xx_YY.UTF-8")
    assert reader_locale().language == "en"
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert reader_locale().language == "zh"
    assert reader_locale("fr").language == "fr"
    for wrong in ("klingon", "!!", "xx_YY"):
        with pytest.raises(ConfigError, match=r"isn't a language"):
            reader_locale(wrong)


LOCALE_VARIABLES = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LC_CTYPE", "LANG")


@pytest.mark.parametrize(
    ("variables", "language"),
    [
        ({"LANG": "zh_CN.UTF-8", "LC_CTYPE": "C.UTF-8"}, "zh"),
        ({"LANG": "en_US.UTF-8", "LC_CTYPE": "zh_CN.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "de_DE"}, "de"),
        ({"LC_ALL": "fr_FR@euro", "LC_MESSAGES": "de_DE", "LANG": "zh_CN"}, "fr"),
        ({"LC_ALL": "", "LANG": "zh_CN"}, "zh"),
        ({"LANGUAGE": "zh_CN:en", "LANG": "en_GB.UTF-8"}, "zh"),
        ({"LANGUAGE": ":klingon:zh_CN", "LANG": "en_GB.UTF-8"}, "zh"),
        ({"LANGUAGE": "", "LANG": "de_DE"}, "de"),
        ({"LANGUAGE": "zh_CN", "LANG": "C.UTF-8"}, "en"),
        ({"LANGUAGE": "zh_CN", "LC_ALL": "POSIX", "LANG": "de_DE"}, "en"),
    ],
)
def test_the_language_of_messages(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], language: str) -> None:
    """LANGUAGE, LC_ALL, LC_MESSAGES and LANG say it as they do for gettext; LC_CTYPE has no say."""
    for name in LOCALE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert reader_locale().language == language


def test_the_hosts_own_texts() -> None:
    """Reasons that a turn failed are read in the reader's language."""
    ref = TextRef("turn.model-failed", {"reason": "too many requests"})
    assert ref.source == "The model gave no answer: too many requests"
    assert render(ref, Locale.parse("zh_CN")) == "模型没有回答:too many requests"
