"""The errors of the contract. Each carries data, not only text.

AalisError
├── SessionNotFound      session_id
├── PlaceNotFound        key
├── WorkspaceNotFound    workspace_id
├── ServiceNotFound      service
├── InvalidSession       session_id, what is wrong with it
├── StorageError         session_id, pending
│   └── OutcomeUnknown   settled()
└── ConfigError          a person's mistake in a setting
"""

from collections.abc import Awaitable, Callable
from typing import Any

__all__ = [
    "AalisError",
    "ConfigError",
    "InvalidSession",
    "OutcomeUnknown",
    "PlaceNotFound",
    "ServiceNotFound",
    "SessionNotFound",
    "StorageError",
    "WorkspaceNotFound",
]


class AalisError(Exception):
    """Base of every error that the contract names."""


class SessionNotFound(AalisError):
    """A change was asked for on a session id that isn't in the table."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session {session_id!r}")
        self.session_id = session_id


class PlaceNotFound(AalisError):
    """There is no place record with this key. Rule: PLACE-5."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no place {key!r}")
        self.key = key


class WorkspaceNotFound(AalisError):
    """There is no workspace record with this id. Rules: BIND-1, WS-3."""

    def __init__(self, workspace_id: str) -> None:
        super().__init__(f"no workspace {workspace_id!r}")
        self.workspace_id = workspace_id


class ServiceNotFound(AalisError):
    """A service was used while nobody provides it."""

    def __init__(self, service: str) -> None:
        super().__init__(f"no plugin provides the service {service!r}")
        self.service = service


class InvalidSession(AalisError):
    """What was asked for can't be true of this session (rules CREATE-3, BIND-2, DELETE-5)."""

    def __init__(self, session_id: str | None, reason: str) -> None:
        super().__init__(reason if session_id is None else f"session {session_id!r}: {reason}")
        self.session_id = session_id
        self.reason = reason


class StorageError(AalisError):
    """The back end refused or failed. `pending`: the change is kept and tried again. Rule: STORE-3."""

    def __init__(self, message: str, *, session_id: str | None = None, pending: bool = False) -> None:
        super().__init__(message)
        self.session_id = session_id
        self.pending = pending


class OutcomeUnknown(StorageError):
    """No answer came in time: the change is under way, and may or may not be stored by now.

    Making it again might make it twice. `await settled()` waits, without a limit, until it is known, and then answers
    or raises what the call would have. Rule: STORE-3.
    """

    def __init__(self, message: str, settled: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(message)
        self.settled = settled


class ConfigError(AalisError):
    """A setting is wrong; the text names the setting and what is allowed."""
