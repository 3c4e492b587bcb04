"""Sessions in memory: what readers see. Synchronous, no I/O."""

from bisect import insort
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter, eq

from attrs import evolve

from aalis_api_session_manager.model import SessionInfo

__all__ = ["SessionTable"]

_age = attrgetter("created_at", "id")
_id = attrgetter("id")
_updated_at = attrgetter("updated_at")


class SessionTable:
    """Records by id, children by parent; roots apart, for listing.

    `children` of a record is derived here from the `parent_id` of the others, oldest first. One fact, one place.
    """

    def __init__(self) -> None:
        self._records: dict[str, SessionInfo] = {}
        self._roots: dict[str, SessionInfo] = {}
        self._children: dict[str, list[tuple[int, str]]] = {}
        self.get = self._records.get

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._records

    def put(self, info: SessionInfo) -> None:
        """Add or replace a record; its `children` are filled in."""
        old = self._records.get(info.id)
        if old is not None and (old.parent_id, old.created_at) != (info.parent_id, info.created_at):
            self._unlink(old)
            old = None
        children = self._children.get(info.id)
        if children is None:
            self._set(info if not info.children else evolve(info, children=()))
        else:
            self._set(evolve(info, children=tuple(child for _, child in children)))
        if old is None and info.parent_id is not None:
            insort(self._children.setdefault(info.parent_id, []), _age(info))
            self._refresh(info.parent_id)

    def remove(self, session_id: str) -> None:
        """Remove a record; its children stay, without a parent."""
        old = self._records.pop(session_id, None)
        if old is not None:
            self._roots.pop(session_id, None)
            self._unlink(old)

    def _set(self, info: SessionInfo) -> None:
        self._records[info.id] = info
        if info.parent_id is None:
            self._roots[info.id] = info
        else:
            self._roots.pop(info.id, None)

    def _unlink(self, info: SessionInfo) -> None:
        siblings = self._children.get(info.parent_id) if info.parent_id is not None else None
        if siblings is not None and info.parent_id is not None:
            siblings.remove(_age(info))
            if not siblings:
                del self._children[info.parent_id]
            self._refresh(info.parent_id)

    def _refresh(self, parent_id: str) -> None:
        parent = self._records.get(parent_id)
        if parent is not None:
            children = tuple(child for _, child in self._children.get(parent_id, ()))
            self._set(evolve(parent, children=children))

    def children(self, parent_id: str) -> list[SessionInfo]:
        """The direct children, oldest first."""
        return [self._records[child] for _, child in self._children.get(parent_id, ())]

    def levels(self, session_id: str) -> list[list[str]]:
        """The ids of a session's tree by level, the session itself first. A cycle is walked once."""
        levels, seen = [[session_id]], {session_id}
        while levels[-1]:
            below = []
            for parent in levels[-1]:
                for _, child in self._children.get(parent, ()):
                    if child not in seen:
                        seen.add(child)
                        below.append(child)
            levels.append(below)
        return levels[:-1]

    def all(self) -> Iterator[SessionInfo]:
        """Every record, in no order."""
        return iter(self._records.values())

    def newest_first(self, *, roots_only: bool = False) -> list[SessionInfo]:
        """Newest `updated_at` first, then by id."""
        records = self._roots if roots_only else self._records
        found = sorted(records.values(), key=_updated_at, reverse=True)
        times = list(map(_updated_at, found))
        if any(map(eq, times, islice(times, 1, None))):
            _sort_equal_by_id(found, times)
        return found


def _sort_equal_by_id(found: list[SessionInfo], times: list[int]) -> None:
    start = 0
    for end in range(1, len(found) + 1):
        if end == len(found) or times[end] != times[start]:
            if end - start > 1:
                found[start:end] = sorted(found[start:end], key=_id)
            start = end
