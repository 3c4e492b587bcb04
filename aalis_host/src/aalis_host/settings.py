"""What can be set, its defaults, and what is allowed. A value that isn't raises ValueError, in words for a person."""

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import attrs
from attrs import field, frozen
from attrs.validators import deep_iterable, optional
from platformdirs import user_data_path

__all__ = ["SCHEME", "AgentSettings", "AuthoritySettings", "ModelKind", "ModelSettings", "Settings", "Trigger"]

ModelKind = Literal["offline", "openai"]
Trigger = Literal["mentioned", "always", "never"]

SCHEME = re.compile(r":|[A-Za-z][A-Za-z0-9+.-]+:")
"""What an address begins with, and `:memory:`; a drive's single letter is none."""


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
    if not value.strip() or (SCHEME.match(value) and not address):
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
