"""Changes that touch the same record are stored as one, in their order; strangers stay apart."""

from collections.abc import Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from attrs import define, field

__all__ = ["Cluster", "Groupable", "clusters_of"]


class Groupable(Protocol):
    """What can be grouped: a change with its edits; `alone` keeps it from sharing."""

    @property
    def edits(self) -> Sequence[Any]: ...
    @property
    def generations(self) -> Any: ...
    @property
    def alone(self) -> bool: ...


G = TypeVar("G", bound=Groupable)


@define(eq=False)
class Cluster(Generic[G]):
    """Changes connected by the records they touch."""

    jobs: list[G] = field(factory=list)

    @property
    def edits(self) -> dict[tuple[str, str], list[Any]]:
        """The edits of each record, in order."""
        by_address: dict[tuple[str, str], list[Any]] = {}
        for job in self.jobs:
            for edit in job.edits:
                by_address.setdefault(edit.address, []).append(edit)
        return by_address

    @property
    def generations(self) -> dict[str, int]:
        """What the generations rise to."""
        return {key: value for job in self.jobs for key, value in job.generations.items()}


def clusters_of(jobs: Iterable[G]) -> list[Cluster[G]]:
    """The jobs by shared records, each cluster in queue order.

    A job that must be `alone` is given alone; whatever comes behind it on the same records waits for the
    next time, so that the order on one record never changes.
    """
    by_address: dict[tuple[str, str], Cluster[G]] = {}
    clusters: dict[int, Cluster[G]] = {}
    blocked: set[tuple[str, str]] = set()
    for job in jobs:
        addresses = [edit.address for edit in job.edits]
        touched = {id(c): c for a in addresses if (c := by_address.get(a)) is not None}
        if any(a in blocked for a in addresses) or (job.alone and touched):
            blocked.update(addresses)
            continue
        if job.alone:
            blocked.update(addresses)
        target, *others = touched.values() if touched else [Cluster[G]()]
        clusters[id(target)] = target
        for other in others:
            target.jobs += other.jobs
            del clusters[id(other)]
            for address in other.edits:
                by_address[address] = target
        target.jobs.append(job)
        for address in addresses:
            by_address[address] = target
    return list(clusters.values())
