"""The configuration: `aalis.toml`, the environment and the command line, made into `Settings`.

Nearest first: command line, environment (`AALIS_MODEL_KIND` is `model.kind`), file, default. A mistake raises
ConfigError with one line that names the key, where it stands, and what is allowed.
"""

import difflib
import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin

import attrs
from attrs import field, frozen
from attrs.validators import deep_iterable, optional
from cattrs import Converter
from platformdirs import user_config_path, user_data_path

from aalis_api_session_manager.errors import ConfigError
from aalis_api_session_manager.wire import camel
from aalis_host.words import did_you_mean

__all__ = [
    "AgentSettings",
    "AuthoritySettings",
    "Loaded",
    "ModelSettings",
    "SettingRow",
    "Settings",
    "load_settings",
    "plugin_rows",
    "read_settings",
    "setting_rows",
    "without_password",
]

ModelKind = Literal["offline", "openai"]
Trigger = Literal["mentioned", "always", "never"]
Source = Literal["default", "file", "environment", "command line"]

_SCHEME = re.compile(r":|[A-Za-z][A-Za-z0-9+.-]+:")
"""What an address begins with, and `:memory:`; a drive's single letter is none."""
_PREFIX = "AALIS_"
_NO_SETTINGS = ("AALIS_CONFIG", "AALIS_KILLS", "AALIS_SEED")
"""Variables that are read elsewhere: which file, and two of the test-suite."""


def _default_db() -> str:
    return str(user_data_path("aalis", appauthor=False) / "aalis.db")


def _address(_: Any, attribute: Any, value: str) -> None:
    if value and not value.startswith(("http://", "https://")):
        raise ValueError(f"must begin with http:// or https://, not {value!r}")


def _account(_: Any, attribute: Any, value: str) -> None:
    platform, colon, user = value.partition(":")
    if not (platform and colon and user):
        raise ValueError(f"must be platform:user, such as onebot:10001, not {value!r}")


def _at_least(low: float) -> Any:
    def validate(_: Any, attribute: Any, value: float) -> None:
        if not low <= value < math.inf:
            raise ValueError(f"must be at least {low}, not {value}")

    return validate


def _above_zero(_: Any, attribute: Any, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"must be above 0, not {value}")


def _database(_: Any, attribute: Any, value: str) -> None:
    address = value.startswith(("postgresql://", "postgres://"))
    if not value.strip() or (_SCHEME.match(value) and not address):
        raise ValueError(
            "must be the path of a file (./name where the name has a colon), or an address that begins with"
            " postgresql://"
        )


def _setting(default: Any = attrs.NOTHING, *, help: str, validator: Any = None, factory: Any = None) -> Any:
    if factory is not None:
        return field(factory=factory, validator=validator, metadata={"help": help})
    return field(default=default, validator=validator, metadata={"help": help})


@frozen(kw_only=True)
class ModelSettings:
    """`[model]`"""

    kind: ModelKind = _setting("offline", help="offline (no key, no network) or openai (any compatible address)")
    name: str = _setting("gpt-4o-mini", help="the model's name, as its server knows it")
    base_url: str = _setting(
        "",
        help="the server's address, such as http://localhost:11434/v1; empty: OPENAI_BASE_URL, else OpenAI's own",
        validator=_address,
    )
    api_key_env: str = _setting("OPENAI_API_KEY", help="the environment variable that holds the key; empty: no key")
    stream: bool = _setting(True, help="take the answer in pieces")
    temperature: float | None = _setting(None, help="left to the server unless given", validator=optional(_at_least(0)))
    timeout: float = _setting(120.0, help="seconds that its server may be silent", validator=_above_zero)
    retries: int = _setting(2, help="how often a failed request is tried again", validator=_at_least(0))


@frozen(kw_only=True)
class AgentSettings:
    """`[agent]`"""

    system_prompt: str = _setting(
        "You are Aalis, a helpful assistant. Answer briefly, in the language you are spoken to.",
        help="what the model is told first; empty: nothing",
    )
    history_messages: int = _setting(
        40, help="how many messages of the history the model is given", validator=_at_least(1)
    )
    max_tool_rounds: int = _setting(8, help="how often one turn may call tools before it fails", validator=_at_least(1))


@frozen(kw_only=True)
class AuthoritySettings:
    """`[authority]`"""

    owners: tuple[str, ...] = _setting(
        ("cli:owner",),
        help="the owner's accounts, each platform:user; cli:owner is the terminal's",
        validator=deep_iterable(_account),
    )


@frozen(kw_only=True)
class Settings:
    """Everything a host can be told. `plugins`: each plugin's own table, by distribution name, as it stands."""

    db: str = _setting(
        factory=_default_db, help="the database: a file, or a postgresql:// address", validator=_database
    )
    language: str = _setting("", help="the reader's language, such as en or zh_CN; empty: the environment's")
    trigger: Trigger = _setting(
        "mentioned", help="in groups answer: mentioned (only when addressed), always, never; the rest is only stored"
    )
    model: ModelSettings = field(factory=ModelSettings)
    agent: AgentSettings = field(factory=AgentSettings)
    authority: AuthoritySettings = field(factory=AuthoritySettings)
    plugins: Mapping[str, Mapping[str, Any]] = field(factory=dict)


@frozen(kw_only=True)
class Loaded:
    """Settings with where each came from: key path (`model.kind`) -> source. `file`: the one that was read."""

    settings: Settings
    sources: Mapping[str, Source]
    file: Path | None


@frozen(kw_only=True)
class SettingRow:
    """One setting for a reader. A password in a database address is not shown."""

    key: str
    value: Any
    default: Any
    source: Source
    help: str


def load_settings(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings alone, see `read_settings`."""
    return read_settings(path, overrides).settings


def read_settings(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Read the configuration. Raises ConfigError.

    `path` None: the file that AALIS_CONFIG names, else `aalis.toml` in the current folder, else in the person's
    configuration folder, else none. `overrides` come from the command line, by key path (`model.kind`); one that
    is None counts as not given. A relative `db` in a file is relative to that file.
    """
    environ = os.environ if environ is None else environ
    file = _find_file(path, environ)
    table = {} if file is None else _read_toml(file)
    plugins = _take_plugins(table, file)
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for key, value in _flat(table, file):
        values[key] = _checked(key, value, f"{file}: {key}")
        sources[key] = "file"
    if file is not None and "db" in values:
        values["db"] = _place(values["db"], file.parent)
    for variable, text in environ.items():
        if variable.startswith(_PREFIX) and variable not in _NO_SETTINGS:
            key = _key_of(variable)
            values[key] = _checked(key, _from_text(text, _SETTINGS[key].type), f"environment: {variable}")
            sources[key] = "environment"
    for key, value in (overrides or {}).items():
        if value is not None:
            values[key] = _checked(key, str(value) if isinstance(value, Path) else value, f"command line: {key}")
            sources[key] = "command line"
    if "db" in values:
        values["db"] = _place(values["db"], Path())
    return Loaded(settings=_build(values, plugins), sources=sources, file=file)


def setting_rows(loaded: Loaded) -> list[SettingRow]:
    """Every setting of the host, in the order of the classes above."""
    defaults = Settings()
    return [
        SettingRow(
            key=key,
            value=without_password(value) if isinstance(value := _get(loaded.settings, key), str) else value,
            default=_get(defaults, key),
            source=loaded.sources.get(key, "default"),
            help=attribute.metadata["help"],
        )
        for key, attribute in _SETTINGS.items()
    ]


def plugin_rows(name: str, config: type | None, loaded: Loaded) -> list[SettingRow]:
    """Every setting of a plugin, from the attrs class that its `meta` names; key `plugins.<name>.<setting>`."""
    table = loaded.settings.plugins.get(name, {})
    if config is None:
        return []
    defaults = config()
    rows = []
    for attribute in attrs.fields(config):
        key, default = camel(attribute.name), getattr(defaults, attribute.name)
        rows.append(
            SettingRow(
                key=f"plugins.{name}.{key}",
                value=table.get(key, default),
                default=default,
                source="file" if key in table else "default",
                help=attribute.metadata.get("help", ""),
            )
        )
    return rows


def without_password(text: str) -> str:
    """The same text, with asterisks for the password wherever an address may hold one."""
    if "://" not in text:
        return text
    return re.sub(r"([?&](?:ssl)?password=)[^&]*", r"\1***", re.sub(r"(://[^:/?#@]*):.*@", r"\1:***@", text))


_SECTIONS: Mapping[str, type] = {"model": ModelSettings, "agent": AgentSettings, "authority": AuthoritySettings}


def _leaves() -> Iterator[tuple[str, "attrs.Attribute[Any]"]]:
    for attribute in attrs.fields(Settings):
        if attribute.name in _SECTIONS:
            yield from ((f"{attribute.name}.{leaf.name}", leaf) for leaf in attrs.fields(_SECTIONS[attribute.name]))
        elif attribute.name != "plugins":
            yield attribute.name, attribute


_SETTINGS: Mapping[str, "attrs.Attribute[Any]"] = dict(_leaves())


def _make_converter() -> Converter:
    made = Converter(detailed_validation=False)

    def exactly(*kinds: type) -> Any:
        def structure(value: Any, cls: Any) -> Any:
            if type(value) not in kinds:
                raise TypeError
            return cls(value)

        return structure

    for kind in (str, int, bool):
        made.register_structure_hook(kind, exactly(kind))
    made.register_structure_hook(float, exactly(float, int))
    made.register_structure_hook_func(lambda cls: cls == tuple[str, ...], _texts)
    return made


def _texts(value: Any, _: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise TypeError
    return tuple(value)


_CONVERTER = _make_converter()


def _find_file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    if path is not None:
        return path
    if environ.get("AALIS_CONFIG"):
        return Path(environ["AALIS_CONFIG"])
    usual = (Path("aalis.toml"), user_config_path("aalis", appauthor=False) / "aalis.toml")
    return next((file for file in usual if file.is_file()), None)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error


def _place(db: str, folder: Path) -> str:
    """A database file as seen from a folder; an address as it is."""
    if "://" in db:
        return db
    path = str(folder / Path(db).expanduser())
    return f"./{path}" if _SCHEME.match(path) else path


def _take_plugins(table: dict[str, Any], file: Path | None) -> Mapping[str, Mapping[str, Any]]:
    plugins = table.pop("plugins", {})
    if not isinstance(plugins, dict):
        raise ConfigError(f"{file}: plugins must hold tables, such as [plugins.aalis-plugin-session-manager]")
    for name, own in plugins.items():
        if not isinstance(own, dict):
            raise ConfigError(f"{file}: plugins.{name} must be a table: [plugins.{name}]")
    return plugins


def _flat(table: Mapping[str, Any], file: Path | None, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = prefix + name
        if key in _SECTIONS:
            if not isinstance(value, dict):
                raise ConfigError(f"{file}: {key} must be a table: [{key}]")
            yield from _flat(value, file, f"{key}.")
        else:
            yield key, value


def _checked(key: str, value: Any, where: str) -> Any:
    """The value of a setting, of its type and in its range. `where` begins the error: source and name."""
    attribute = _SETTINGS.get(key)
    if attribute is None:
        raise ConfigError(f"{where}: no such setting{_nearest(key)}")
    try:
        structured: Any = _CONVERTER.structure(value, cast(type, attribute.type))
    except Exception as error:
        raise ConfigError(f"{where}: must be {_allowed(attribute.type)}, not {value!r}") from error
    if attribute.validator is not None:
        try:
            attribute.validator(None, attribute, structured)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
    return structured


def _nearest(key: str) -> str:
    names = [*_SETTINGS, *_SECTIONS, "plugins"]
    by_last = {name.rpartition(".")[2]: name for name in names}
    near = difflib.get_close_matches(key.rpartition(".")[2], by_last, n=1)
    return did_you_mean(by_last[near[0]] if near else key, names)


def _allowed(cls: Any) -> str:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    if get_origin(cls) is Literal:
        return " or ".join(map(repr, get_args(cls)))
    if get_origin(cls) is tuple:
        return "a list of text"
    inner = [kind for kind in get_args(cls) if kind is not NoneType] or [cls]
    return names[inner[0]]


def _key_of(variable: str) -> str:
    keys = {_PREFIX + key.upper().replace(".", "_"): key for key in _SETTINGS}
    if variable not in keys:
        raise ConfigError(f"environment: {variable}: no such setting{did_you_mean(variable, keys)}")
    return keys[variable]


def _from_text(text: str, cls: Any) -> Any:
    """A value from an environment variable; what can't be read stays text, and is then refused by its type."""
    kinds = get_args(cls) or (cls,)
    if get_origin(cls) is tuple and text.lstrip().startswith("["):
        try:
            return json.loads(text)
        except ValueError:
            return text
    if get_origin(cls) is tuple:
        return [item.strip() for item in text.split(",") if item.strip()]
    if bool in kinds:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                return text
    return text


def _build(values: Mapping[str, Any], plugins: Mapping[str, Mapping[str, Any]]) -> Settings:
    sections: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    top: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (sections[section] if section else top)[name] = value
    made = {section: _SECTIONS[section](**own) for section, own in sections.items()}
    return Settings(**top, **made, plugins=plugins)


def _get(settings: Settings, key: str) -> Any:
    value: Any = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value
