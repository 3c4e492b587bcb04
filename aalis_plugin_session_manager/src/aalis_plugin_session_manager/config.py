"""The plugin's settings, in its own table of the host's configuration."""

import difflib
from collections.abc import Mapping
from typing import Any, Literal, get_args

from attrs import field, fields, frozen

from aalis_api_session_manager.errors import ConfigError
from aalis_api_session_manager.wire import camel

__all__ = ["Profile", "SessionManagerConfig", "TakeScope", "read_config"]

TakeScope = Literal["current", "platform", "all"]


def _setting(help_text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": help_text})


@frozen(kw_only=True)
class Profile:
    """The take settings of one platform or window type; None: not set here. Rules: TAKE-6, FIELD-1."""

    take_scope: TakeScope | None = None
    take_cross_account: bool | None = None
    take_other_groups: bool | None = None
    take_other_privates: bool | None = None
    types: Mapping[str, "Profile"] = field(factory=dict)


@frozen(kw_only=True)
class SessionManagerConfig:
    """Settings of the session manager; in the file they have the documents' camelCase names."""

    take_scope: TakeScope = _setting("What a session may take from: current (its own tree), platform, all.", "platform")
    take_cross_account: bool = _setting("Also from sessions of another bot account of the same platform.", False)
    take_other_groups: bool = _setting("Also from groups.", False)
    take_other_privates: bool = _setting("Also from private chats of other people.", False)
    listener_timeout_sec: int = _setting("How long each plugin may take over an event, in seconds.", 30)
    profiles: Mapping[str, Profile] = field(
        factory=dict, metadata={"help": "The take settings by platform, and under `types` by window type."}
    )


def read_config(table: Mapping[str, Any]) -> SessionManagerConfig:
    """The settings of a table. Raises ConfigError naming the key and what is allowed."""
    profiles = table.get("profiles", {})
    plain = {key: value for key, value in table.items() if key != "profiles"}
    return SessionManagerConfig(
        **_settings(SessionManagerConfig, plain, ""),
        profiles={name: _profile(value, f"profiles.{name}") for name, value in _table(profiles, "profiles").items()},
    )


def _profile(table: Any, where: str) -> Profile:
    plain = dict(_table(table, where))
    types = _table(plain.pop("types", {}), f"{where}.types")
    return Profile(
        **_settings(Profile, plain, f"{where}."),
        types={name: _profile(value, f"{where}.types.{name}") for name, value in types.items()},
    )


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a table")
    return value


def _settings(cls: type, table: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = {camel(a.name): a.name for a in fields(cls) if a.name not in ("types", "profiles")}
    for key, value in table.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
            raise ConfigError(f"unknown setting {where}{key}; the nearest is {near[0]}")
        if key == "takeScope":
            if value not in get_args(TakeScope):
                raise ConfigError(f"{where}{key} must be one of {', '.join(get_args(TakeScope))}, not {value!r}")
        elif key == "listenerTimeoutSec":
            if type(value) is not int or value < 1:
                raise ConfigError(f"{where}{key} must be a whole number of seconds from 1, not {value!r}")
        elif type(value) is not bool:
            raise ConfigError(f"{where}{key} must be true or false, not {value!r}")
    return {known[key]: value for key, value in table.items()}
