"""Assignment: what a worker on another machine is told, by Ray: once for the runtime, and once for each generation.

A **generation** is a set of workers that are connected with each other. When one of them is lost, or the number of
workers changes, a new generation begins: the processes that are left keep their graph and their data, and get new keys,
new connections, and the states of their nodes.

    Assignment   recipe of the graph, its digest, update policies, settings, data        once for each process
    Generation   number of the worker, workers of all nodes, keys, addresses, weights,   once for each generation
                 optimizer states
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from ampnet.events.log import Event, Listener
from ampnet.recipe import MakesGraph
from ampnet.runtime.cluster.data import MakesInstances
from ampnet.runtime.host import Host
from ampnet.runtime.transport.keys import Keys
from ampnet.runtime.workers import Beginning, WorkerSettings
from ampnet.state import Ints
from ampnet.update.policy import Update


class Wish:
    """Stands for a listener of the controller: the events that it wants (see `Announcer`)."""

    def __init__(self, listener: Listener) -> None:
        for name in ("kinds", "sampling"):
            if hasattr(listener, name):
                setattr(self, name, getattr(listener, name))

    def __call__(self, event: Event) -> None:
        """Does nothing: the events are sent to the controller."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """See the head of this file."""

    recipe: MakesGraph
    digest: str
    """Of the controller's graph (`ampnet.recipe.digest`)."""
    versions: Mapping[str, str]
    """Of Python, torch and ampnet, which must be the same everywhere."""
    policies: Mapping[str, Update | None]
    """By node with parameters."""
    on_nan: Mapping[str, Any]
    """By loss."""
    settings: WorkerSettings
    wishes: Sequence[Wish]
    predicts: bool
    """Whether the model has a prediction graph."""
    on_worker: Callable[[Host], None] | None
    data: MakesInstances | None
    fingerprints: Ints
    """Of the controller's instances."""


@dataclass(frozen=True, slots=True)
class Generation:
    """See the head of this file."""

    number: int
    """Of the worker."""
    workers: int
    """The number of workers; it is also the controller's number."""
    hosts: Mapping[str, int]
    """The worker of each node."""
    addresses: Mapping[int, str]
    """At which it reaches the other parties."""
    weights: Mapping[str, Sequence[Tensor]]
    """By node of this worker."""
    beginning: Beginning
    """Optimizer states of the nodes of this worker, without weights; the number of the first wave."""
    rehearsed: Sequence[int] = ()
    """Places of instances to be planned before the worker serves."""
    offset: float = 0.0
    """Seconds to add to this machine's clock to get the controller's."""


class Beat(NamedTuple):
    """What the loop of a worker does."""

    steps: int
    ticks: int
    """Its processor time; -1: unknown."""
    node: str
    """The node that it computes; empty: none."""
    unconnected: tuple[int, ...]
    """The parties that it has no connection to."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer of a worker that cannot do what it was told."""

    kind: str
    """The type of the error."""
    text: str
    trace: str


__all__ = ["Assignment", "Beat", "Generation", "Keys", "Refusal", "Wish"]
