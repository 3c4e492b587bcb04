"""Changes that touch the same record are stored as one, in their order; strangers stay apart."""

from collections.abc import Collection, Iterable

from attrs import define, field

from aalis_plugin_session_manager.change import Edit, Job

__all__ = ["Cluster", "clusters_of"]

Address = tuple[str, str]


@define(eq=False)
class Cluster:
    """Changes connected by the records they touch, with the edits of each record in order."""

    jobs: list[Job] = field(factory=list)
    _edits: dict[Address, list[Edit]] = field(factory=dict)

    @property
    def edits(self) -> Collection[list[Edit]]:
        """The edits of each record."""
        return self._edits.values()

    @property
    def addresses(self) -> Collection[Address]:
        """The records it touches."""
        return self._edits.keys()

    @property
    def generations(self) -> dict[str, int]:
        """What the generations rise to."""
        return {key: value for job in self.jobs for key, value in job.generations.items()}

    def add(self, job: Job) -> None:
        """Append a change."""
        self.jobs.append(job)
        for edit in job.edits:
            self._edits.setdefault(edit.address, []).append(edit)

    def absorb(self, other: "Cluster") -> None:
        """Take over a cluster that touches other records."""
        self.jobs += other.jobs
        self._edits.update(other._edits)


def clusters_of(jobs: Iterable[Job]) -> list[Cluster]:
    """The jobs by shared records, in the order of the queue.

    A job that must be `alone` is given alone; whatever comes behind it on the same records waits for the
    next time, so that the order on one record never changes.
    """
    by_address: dict[Address, Cluster] = {}
    clusters: dict[int, Cluster] = {}
    blocked: set[Address] = set()
    for job in jobs:
        addresses = [edit.address for edit in job.edits]
        touched = list({id(c): c for address in addresses if (c := by_address.get(address)) is not None}.values())
        if (blocked and not blocked.isdisjoint(addresses)) or (job.alone and touched):
            blocked.update(addresses)
            continue
        if job.alone:
            blocked.update(addresses)
        target = touched[0] if touched else Cluster()
        clusters[id(target)] = target
        for other in touched[1:]:
            target.absorb(other)
            del clusters[id(other)]
            by_address.update(dict.fromkeys(other.addresses, target))
        target.add(job)
        by_address.update(dict.fromkeys(addresses, target))
    return list(clusters.values())
