"""Kept instances: what is the same in every epoch is made once.

    epoch 1     record ──arguments──> Instance ──on its device──> kept by split and place ──> pumped
    epoch 2                                                       the same object ──────────> pumped

An instance that comes again has been found to fit the graph, its name (the digest of its states and structure) is
known, and where its payloads are on a device, they stay there. All of them can be rehearsed together before the first
epoch, at a fraction of what it takes to rehearse them as they come; worker processes then hear their numbers only.

So it is where each record is an instance, and where an epoch has the records of every other. Buckets are put together
anew in each epoch and fresh records are fresh: those pass through. As many are kept as come first, up to
``settings.keep``; the others are made anew.

On a cluster every machine makes them from its own copy of the data set (`KeptThere`); only their indices are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampnet.coming import Made
from ampnet.data import Dataset, Split
from ampnet.experiments.running import on_device
from ampnet.experiments.settings import Training
from ampnet.experiments.workload import Facts, Workload, ordered
from ampnet.graph import Graph
from ampnet.instance import Instance
from ampnet.lang import Compiled


class Kept:
    """The instances of a job. See the head of this file."""

    def __init__(
        self, workload: Workload[Any], settings: Training, data: Dataset[Any], facts: Facts, graph: Compiled
    ) -> None:
        self.workload, self.settings, self.data, self.facts, self.graph = workload, settings, data, facts, graph
        self._kept: dict[str, dict[int, Instance]] = {}
        """The instances by split and position of the record."""

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    @property
    def room(self) -> int:
        """The number of instances that can still be kept."""
        return max(0, self.settings.keep - len(self))

    def repeats(self, split: str) -> bool:
        """Whether the instances of a split come again in every epoch."""
        return self.workload.by_record and self.data.splits[split].repeats

    def instances(self, split: str, epoch: int | None = None) -> Iterator[Instance]:
        """The instances of a split, on their device: in the order of an epoch (from 1), or of the records."""
        if self.repeats(split):
            return self._again(self._kept.setdefault(split, {}), ordered(self.data.splits[split], self.settings, epoch))
        made = self.workload.instances(self.graph, self.settings, self.facts, self.data, split, epoch)
        return on_device(made, self.settings)

    def holds(self, split: str) -> bool:
        """Whether all instances of a split are kept, or will be: they repeat, and there is room for them."""
        missing = len(self.data.splits[split]) - len(self._kept.get(split, {}))
        return self.repeats(split) and missing <= self.room

    def _again(self, kept: dict[int, Instance], records: Split[Any]) -> Iterator[Instance]:
        arguments = self.workload.arguments(self.settings, self.facts)

        def made(place: int) -> Instance:
            instance = kept.get(place)
            if instance is None:
                (instance,) = on_device([self.graph.instance(*arguments(records.read(place)))], self.settings)
                if self.room:
                    kept[place] = instance
            return instance

        return Made(records.places.tolist(), made)


@dataclass(frozen=True, slots=True)
class KeptThere:
    """Makes the kept instances of a job on another machine, which has the data set itself."""

    workload: str
    settings: Training
    facts: Facts
    data_dir: Path | None
    splits: tuple[str, ...]

    def instances(self, graph: Graph) -> list[Instance]:
        """Returns the instances of these splits, in the order of the records."""
        from ampnet.experiments.catalog import WORKLOADS

        assert isinstance(graph, Compiled)
        workload = WORKLOADS[self.workload]
        data = workload.load(self.settings, self.data_dir)
        kept = Kept(workload, self.settings, data, self.facts, graph)
        return [one for split in self.splits for one in kept.instances(split)]


class KeptHere:
    """The same, where the data set was read already. Pickled, it is a `KeptThere`."""

    def __init__(self, kept: Kept, data_dir: Path | None, splits: Sequence[str]) -> None:
        self._kept, self._splits = kept, tuple(filter(kept.holds, splits))
        self._there = KeptThere(kept.workload.name, kept.settings, kept.facts, data_dir, self._splits)

    def __reduce__(self) -> tuple[Callable[[KeptThere], KeptThere], tuple[KeptThere]]:
        return _itself, (self._there,)

    def instances(self, graph: Graph) -> list[Instance]:
        """Returns the instances of these splits, in the order of the records."""
        return [one for split in self._splits for one in self._kept.instances(split)]


def _itself(there: KeptThere) -> KeptThere:
    return there
