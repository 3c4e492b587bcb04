"""Applying changesets to stored records: pure, the same for every back end.

A plan is made from what is stored under the lock; what it leaves behind is written in the same transaction. So a
key that many changesets touch is read once, folded one after the other, and written once.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from aalis_api_session_manager.errors import AalisError
from aalis_api_session_manager.memory import Change, Changeset, MetadataRow, Outcome
from aalis_host.memory.rows import decode_metadata, encode_json

__all__ = ["Key", "Plan", "Stored", "generation_ids", "record_keys"]

Key = tuple[str, str]
"""Namespace and key."""

Stored = tuple[int, bytes | str | None]
"""Revision and JSON text; None for a record that was removed."""

_ABSENT: Stored = (0, None)


def record_keys(changesets: Iterable[Changeset]) -> set[Key]:
    """The records that a plan of these changesets needs."""
    return {(change.namespace, change.key) for changeset in changesets for change in changeset.changes}


def generation_ids(changesets: Iterable[Changeset]) -> set[str]:
    """The session ids whose stored generation a plan of these changesets needs."""
    return {session_id for changeset in changesets for session_id in changeset.generations}


class Plan:
    """What a group of changesets makes of the stored records.

    Afterwards `writes` holds the records to write, `raised` the generations as (number, revision), and `revision`
    the counter's new value. Each change of a record has a revision of its own.
    """

    def __init__(self, stored: Mapping[Key, Stored], generations: Mapping[str, int], revision: int) -> None:
        self._stored = stored
        self._generations = generations
        self.revision = revision
        self.writes: dict[Key, Stored] = {}
        self.raised: dict[str, tuple[int, int]] = {}

    def apply(self, changeset: Changeset) -> Outcome:
        """Apply one changeset whole or, when a fold or a value rejects it, not at all."""
        revision = self.revision
        written: dict[Key, Stored] = {}
        records = []
        try:
            for change in changeset.changes:
                key = (change.namespace, change.key)
                stored = written.get(key) or self.writes.get(key) or self._stored.get(key, _ABSENT)
                data = _changed(change, stored)
                if data is None and stored[1] is None:
                    records.append(MetadataRow(namespace=key[0], key=key[1], revision=stored[0], data=None))
                    continue
                revision += 1
                written[key] = (revision, None if data is None else encode_json(data))
                records.append(MetadataRow(namespace=key[0], key=key[1], revision=revision, data=data))
        except Exception as error:  # a fold is foreign code: whatever it raises rejects its own changeset
            return Outcome(error=error)
        generations = {}
        if changeset.generations:
            revision += 1
            for session_id, number in changeset.generations.items():
                stored_number = self.raised.get(session_id, (self._generations.get(session_id, 0), 0))[0]
                generations[session_id] = max(number, stored_number + 1)
            self.raised.update({session_id: (number, revision) for session_id, number in generations.items()})
        self.writes.update(written)
        self.revision = revision
        return Outcome(records=tuple(records), generations=generations)


def _changed(change: Change, stored: Stored) -> dict[str, Any] | None:
    revision, text = stored
    if change.base == revision or (text is None and change.base == 0):
        return change.data
    row = decode_metadata(change.namespace, change.key, revision, text)
    if row.damaged is not None:
        raise AalisError(f"the stored record {change.namespace}/{change.key} can't be read; it is kept as it is")
    return change.fold(row.data)
