"""The configuration: `aalis.toml`, the environment and the command line, made into `Settings`.

Nearest first: command line, environment (`AALIS_MODEL_KIND` is `model.kind`), file, default. A mistake raises
ConfigError with one line that names the key, where it stands, and what is allowed.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin

import attrs
from attrs import frozen
from cattrs import Converter
from platformdirs import user_config_path

from aalis_api_session_manager.errors import ConfigError
from aalis_api_session_manager.wire import camel
from aalis_host.settings import SCHEME, AgentSettings, AuthoritySettings, ModelSettings, Settings
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

Source = Literal["default", "file", "environment", "command line"]

_PREFIX = "AALIS_"
_FILE = "AALIS_CONFIG"
"""Names the file; no setting."""


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
        if variable.startswith(_PREFIX) and variable != _FILE:
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
    if environ.get(_FILE):
        return Path(environ[_FILE])
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
    return f"./{path}" if SCHEME.match(path) else path


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
