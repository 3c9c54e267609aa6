"""Workload: a task of the paper as it is measured, the same for all contenders.

                            ┌── instances ──> our runtime          rows "ours ..."
    data ──> batches ───────┼── collate ────> a peer in torch      rows "torch ...", "pyg ...", "dgl ..."
                            └── collate ────> a peer in JAX        rows "jax ..."

A **batch** holds the records of one update. All contenders are given the same batches in the same order, start from the
same weights (a peer takes them over from our model) and have the same optimizer, so what differs is how they compute.
Batches are made before anything is timed: instances on our side, whatever a peer likes on its own.

The data is the real one where it is found (`ampnet.data`), else drawn with the sizes and distributions of the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ampnet import Instance, Model, Replicate, Seq, compile
from ampnet.data.catalog import entry_of
from ampnet.data.places import locate
from ampnet.graph import Graph
from ampnet.lang import Compiled
from ampnet.update.policy import MakeOptimizer
from bench.batch import Batch, Bucket, Record
from bench.peers.foreign import Foreign
from bench.peers.peer import Peer

Which = Literal["auto", "generated", "real"]


@dataclass(frozen=True, slots=True)
class Data:
    """Batches to learn from and to validate with."""

    kind: str
    """"real" or "generated"."""
    train: Sequence[Batch]
    valid: Sequence[Batch]
    facts: Mapping[str, float] = field(default_factory=dict)
    """What the model and the count of operations need to know: the size of the vocabulary, the mean length ..."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What data is asked for."""

    batch: int
    """Records of an update."""
    which: Which = "auto"
    folder: Path | None = None
    """Where real data is looked for first."""
    most: int | None = None
    """Batches of each part at most; None: as many as the workload has."""
    seed: int = 0

    def real(self, name: str) -> bool:
        """Whether to load the data set of that name. With "real" one that is not there is the loader's error."""
        if self.which == "auto":
            return locate(entry_of(name), self.folder) is not None
        return self.which == "real"

    def records(self, most: int) -> int:
        """How many records to make, where a workload would make ``most``."""
        return most if self.most is None else min(most, self.most * self.batch)

    def batches(self, records: Sequence[Record]) -> list[Sequence[Record]]:
        """Records in groups as large as an update; a rest is left out, so that all updates are of one size."""
        size = self.batch
        return [records[i : i + size] for i in range(0, len(records) - size + 1, size)]


def instances(graph: Graph, batch: Batch) -> list[Instance]:
    """The instances of a batch: one bucket, or single ones."""
    assert isinstance(graph, Compiled)
    if isinstance(batch, Bucket):
        return [graph.bucket(batch.count, *batch.arguments)]
    return [graph.instance(*record) for record in batch]


def compiled(workload: Workload, data: Data, ours: Ours) -> Graph:
    """The model as a graph, with its replicas."""
    first = data.train[0]
    example = row_of(first.arguments) if isinstance(first, Bucket) else first[0]
    copies = Replicate(ours.replicas, route="shortest", sync="shared") if ours.replicas > 1 else 1
    return compile(workload.seeded(data), *example, replicas=copies)


def row_of(arguments: Record) -> Record:
    """The first record of a bucket."""
    return tuple(Seq(a._column("value")[:, 0]) if isinstance(a, Seq) else a[0] for a in arguments)


@dataclass(frozen=True, slots=True)
class Ours:
    """A row of ours: how the model becomes a graph, and how that is run."""

    in_flight: int
    """Instances in flight, for each replica."""
    every: int
    """Instances in an update. As many records as a batch has."""
    replicas: int = 1
    """Copies of the whole model with shared weights, each on a worker of its own."""
    workers: int = 1
    """Worker processes; 1: all in one process."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the runtime."""
    graph: Callable[[Workload, Data, Ours], Graph] = compiled
    instances: Callable[[Graph, Batch], list[Instance]] = instances

    def copied(self, replicas: int, in_flight: int | None = None) -> Ours:
        """The same with so many replicas."""
        return replace(self, replicas=replicas, workers=replicas, in_flight=in_flight or self.in_flight)


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be reached in a run to the target, on generated data."""

    metric: str
    """A metric of the Loss, or "loss"."""
    value: float
    batches: int | None = None
    """Of an epoch; None: all. (The paper's epochs of bAbI are of a hundred graphs.)"""
    seconds: float = 300.0
    """Of training at most, until it is given up."""

    def reached(self, value: float) -> bool:
        return value >= self.value if self.metric == "accuracy" else value <= self.value


@dataclass(frozen=True, slots=True)
class Bound:
    """What a row of ours is expected to do: at least so many times the speed of others (of the fastest of them)."""

    row: str
    than: str
    """A pattern of names."""
    least: float


@dataclass(frozen=True, slots=True)
class Workload:
    """A task, our rows and the peers' rows. See the head of this file."""

    name: str
    about: str
    unit: str
    """What a record is, in the plural."""
    batch: int
    """Records of an update."""
    data: Callable[[Wanted], Data]
    model: Callable[[Data], Model]
    flops: Callable[[Data], float]
    """Of the matrix products that a record needs, forward and backward."""
    optimizer: MakeOptimizer
    ours: Mapping[str, Ours]
    """By row."""
    peers: Mapping[str, type[Peer]]
    """By row, without the number of threads."""
    base: str
    """The row that others are divided by."""
    target: Target
    rival: str
    """The peer that is taken along to the target."""
    each: int | None = None
    """Instances in flight for each of several replicas; None: as for one."""
    optimizers: Mapping[str, MakeOptimizer] = field(default_factory=dict)
    """By the name of a module of the model: other optimizers."""
    bounds: Sequence[Bound] = ()
    foreign: Mapping[str, Foreign] = field(default_factory=dict)
    """By row, without the number of threads: peers of other frameworks than torch."""
    external: str | None = None
    """The file name of the hand-written program of the same workload, where there is a folder of them."""

    def seeded(self, data: Data) -> Model:
        """The model, with weights that are the same for every contender."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.model(data)
