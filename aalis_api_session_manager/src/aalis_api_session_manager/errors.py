"""The errors of the contract. Each carries data, not only text.

AalisError
├── SessionNotFound      session_id
├── PlaceNotFound        key
├── WorkspaceNotFound    workspace_id
├── ServiceNotFound      service
├── InvalidSession       session_id, what is wrong with it
├── StorageError         session_id, pending
└── ConfigError          a person's mistake in a setting
"""

__all__ = [
    "AalisError",
    "ConfigError",
    "InvalidSession",
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


class ConfigError(AalisError):
    """A setting is wrong; the text names the setting and what is allowed."""
