"""The plugin's settings, in its own table of the host's configuration. Rule: CFG-1."""

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args

from attrs import Attribute, field, fields, frozen

from aalis_api_session_manager.errors import ConfigError
from aalis_api_session_manager.wire import camel

__all__ = ["MAX_TIMEOUT_SEC", "DelegateReply", "Scope", "ToolSessionConfig", "read_config"]

Scope = Literal["current", "platform", "all"]
DelegateReply = Literal["always", "taken"]

MAX_TIMEOUT_SEC: Final = 300
"""What one wait for a delegation may take at most, seconds. Rule: DELEG-1."""
_MAX_LIMIT: Final = 10_000


def _setting(default: Any, help: str, allowed: str, fits: Callable[[Any], bool]) -> Any:
    def validate(_: Any, attribute: "Attribute[Any]", value: Any) -> None:
        if not fits(value):
            raise ConfigError(f"{camel(attribute.name)} must be {allowed}, not {value!r}")

    return field(default=default, validator=validate, metadata={"help": help})


def _switch(default: bool, help: str) -> Any:
    return _setting(default, help, "true or false", lambda value: type(value) is bool)


def _integer(default: int, low: int, high: int, help: str) -> Any:
    return _setting(
        default,
        help,
        f"a whole number from {low} to {high}",
        lambda value: type(value) is int and low <= value <= high,
    )


def _choice(default: str, names: tuple[str, ...], help: str) -> Any:
    return _setting(default, help, f"one of {', '.join(names)}", lambda value: type(value) is str and value in names)


def _is_timeout(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 < value <= MAX_TIMEOUT_SEC


@frozen(kw_only=True)
class ToolSessionConfig:
    """The settings; in the file they have the documents' camelCase names. Raises ConfigError for one that can't be."""

    enabled: bool = _switch(True, "the tools and the service session-history; off: nothing is registered")
    max_limit: int = _integer(
        100, 1, _MAX_LIMIT, "messages that one read returns at most; a higher limit of the model is lowered to it"
    )
    default_limit: int = _integer(20, 1, _MAX_LIMIT, "messages that a read returns when the model names no limit")
    scope: Scope = _choice(
        "platform",
        get_args(Scope),
        "what may be read: current (its own tree), platform (sessions of its platform), all",
    )
    include_archived_default: bool = _switch(False, "read archived messages too when the model doesn't say")
    per_message_max_chars: int = _integer(
        0, 0, 10_000_000, "characters of each message that the model is given; the rest is counted; 0: all of them"
    )
    cross_session_enabled: bool = _switch(True, "list_known_sessions and delegate_to_session")
    cross_session_default_timeout_sec: float = _setting(
        60,
        "seconds that a delegation is waited for when the model doesn't say",
        f"a number above 0, at most {MAX_TIMEOUT_SEC}",
        _is_timeout,
    )
    delegate_reply: DelegateReply = _choice(
        "always",
        get_args(DelegateReply),
        "a delegated reply is returned: always, or only where the target's history may be read (taken)",
    )

    def __attrs_post_init__(self) -> None:
        if self.default_limit > self.max_limit:
            raise ConfigError(f"defaultLimit ({self.default_limit}) can't be above maxLimit ({self.max_limit})")


def read_config(table: Mapping[str, Any]) -> ToolSessionConfig:
    """The settings of a table. Raises ConfigError naming the key and what is allowed."""
    names = {camel(a.name): a.name for a in fields(ToolSessionConfig)}
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.0)
            raise ConfigError(f"unknown setting {key!r}; the nearest is {near[0]!r}")
    return ToolSessionConfig(**{names[key]: value for key, value in table.items()})
