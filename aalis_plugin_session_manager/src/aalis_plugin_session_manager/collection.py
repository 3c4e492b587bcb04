"""One metadata namespace in memory: what is committed, and what readers see."""

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from attrs import define

from aalis_api_session_manager.errors import InvalidSession
from aalis_plugin_session_manager.records import Damaged

__all__ = ["Collection", "Entry"]

R = TypeVar("R")


@define(eq=False)
class Entry(Generic[R]):
    """A record at its last known revision (0: not stored), and with the changes on top that wait."""

    revision: int = 0
    committed: R | None = None
    current: R | None = None
    waiting: int = 0


class Collection(Generic[R]):
    """Records of one namespace by key. `on_change(key, record)` hears what readers see, None for removed."""

    def __init__(
        self,
        namespace: str,
        decode: Callable[[str, Any], tuple[R, list[str]]],
        encode: Callable[[R], dict[str, Any]],
        on_change: Callable[[str, R | None], None] = lambda key, record: None,
    ) -> None:
        self.namespace = namespace
        self.decode = decode
        self.encode = encode
        self.damaged: dict[str, str] = {}
        self._entries: dict[str, Entry[R]] = {}
        self._on_change = on_change

    def get(self, key: str) -> R | None:
        """What readers see."""
        entry = self._entries.get(key)
        return None if entry is None else entry.current

    def entry(self, key: str) -> Entry[R]:
        """The entry, made when missing."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry()
        return entry

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def values(self) -> Iterator[R]:
        """Every record that readers see."""
        return (entry.current for entry in self._entries.values() if entry.current is not None)

    def known(self, key: str) -> tuple[int, R | None]:
        """The last known revision with its record; 0 and None for a key that isn't stored."""
        entry = self._entries.get(key)
        return (0, None) if entry is None else (entry.revision, entry.committed)

    def committed_keys(self) -> list[str]:
        """Every key that is stored, as far as is known here."""
        return [key for key, entry in self._entries.items() if entry.committed is not None]

    def add(self, key: str, revision: int, record: R) -> None:
        """Take over a stored record that isn't known yet."""
        self._entries[key] = Entry(revision, record, record)
        self._on_change(key, record)

    def show(self, key: str, record: R | None) -> None:
        """Let readers see `record`."""
        entry = self.entry(key)
        if entry.current is not record:
            entry.current = record
            self._on_change(key, record)
        self.drop_if_empty(key)

    def drop_if_empty(self, key: str) -> None:
        """Forget a key that nothing is known of."""
        entry = self._entries.get(key)
        if entry is not None and entry.waiting == 0 and entry.committed is None and entry.current is None:
            del self._entries[key]

    def decoded(self, key: str, data: dict[str, Any] | None) -> R | None:
        """The record of stored JSON. Raises InvalidSession for a damaged one, which must stay as it is."""
        if data is None:
            return None
        try:
            return self.decode(key, data)[0]
        except Damaged as error:
            raise InvalidSession(key, f"the stored record is damaged and kept as it is: {error}") from error

    def encoded(self, record: R | None) -> dict[str, Any] | None:
        """The JSON to store, None to remove."""
        return None if record is None else self.encode(record)
