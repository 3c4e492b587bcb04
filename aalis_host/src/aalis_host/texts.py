"""Texts for people: the host's own, and rendering any `TextRef` in a reader's language.

Times are shown in the process's time zone, with Babel's `short` forms and the year with four digits. Rules:
LABEL-1, LABEL-2.
"""

import os
import re
import string
from datetime import datetime
from functools import lru_cache
from typing import Any

from babel import Locale, UnknownLocaleError
from babel.dates import format_date, format_time, get_datetime_format

from aalis_api_session_manager.errors import ConfigError
from aalis_api_session_manager.text import TextRef, add_texts, template_of

__all__ = ["model_failed", "not_sent", "reader_locale", "render", "too_many_rounds"]

add_texts(
    {
        "turn.model-failed": {"en": "The model gave no answer: {reason}", "zh_CN": "模型没有回答:{reason}"},
        "turn.not-sent": {"en": "The reply couldn't be sent: {reason}", "zh_CN": "回复没能发出:{reason}"},
        "turn.too-many-rounds": {
            "en": "The model called tools {rounds} times in one turn and gave no answer (agent.max_tool_rounds).",
            "zh_CN": "模型在一轮里调用了 {rounds} 次工具仍没有回答(agent.max_tool_rounds)。",
        },
    }
)


def model_failed(reason: str) -> TextRef:
    """A turn's end: the model gave no answer."""
    return TextRef("turn.model-failed", {"reason": reason})


def not_sent(reason: str) -> TextRef:
    """A turn's end: the platform refused the reply."""
    return TextRef("turn.not-sent", {"reason": reason})


def too_many_rounds(rounds: int) -> TextRef:
    """A turn's end: the model only called tools."""
    return TextRef("turn.too-many-rounds", {"rounds": rounds})


def reader_locale(language: str = "") -> Locale:
    """The locale of a language such as `zh_CN` or `zh-CN`; empty: the environment's, else English.

    Raises ConfigError for a language that Babel doesn't know; an environment that it doesn't know is English.
    """
    for name in (language,) if language else _environment():
        try:
            return Locale.parse(name.replace("-", "_"))
        except (UnknownLocaleError, ValueError) as error:
            if language:
                raise ConfigError(f"language: {language!r} isn't a language, such as en, zh_CN or de_DE") from error
    return Locale("en")


def _environment() -> list[str]:
    """The languages of messages as gettext finds them: LANGUAGE's list counts unless the locale is C.

    Not Babel's `default_locale`: it looks at LC_CTYPE before LANG, which Python sets itself.
    """
    locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "C")
    if locale.partition(".")[0] in ("C", "POSIX"):
        return []
    return [*os.environ.get("LANGUAGE", "").split(":"), locale]


def render(text: str | TextRef, locale: Locale) -> str:
    """A text in a reader's language; where it isn't written in it, in English with the reader's times."""
    if isinstance(text, str):
        return text
    template = template_of(text.key, _language(locale)) or template_of(text.key, "en")
    return text.source if template is None else _Formatter(locale).vformat(template, (), text.params)


def _language(locale: Locale) -> str:
    """The dictionary's name of a reader's language: simplified Chinese wherever it is read, or the plain language."""
    if locale.language == "zh" and (locale.script or "Hans") == "Hans" and locale.territory not in ("TW", "HK", "MO"):
        return "zh_CN"
    return str(locale.language)


class _Formatter(string.Formatter):
    def __init__(self, locale: Locale) -> None:
        self._locale = locale

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec not in ("datetime", "time"):
            return str(super().format_field(value, format_spec))
        when = datetime.fromtimestamp(value / 1000)
        time = format_time(when, "short", locale=self._locale)
        if format_spec == "time":
            return time
        date = format_date(when, _short_date(self._locale), locale=self._locale)
        pattern = str(get_datetime_format("short", locale=self._locale))
        return pattern.replace("'", "").replace("{0}", time).replace("{1}", date)


@lru_cache(maxsize=64)
def _short_date(locale: Locale) -> str:
    return re.sub(r"(?<!y)yy(?!y)", "y", locale.date_formats["short"].pattern)
