"""Totals: sums over a whole run, by node, by worker and by group of replicas. A trace ends with them.

Boxes are kept up to a limit; sums cover the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ampnet.events.replicas import GroupUse
from ampnet.events.staleness import Staleness
from ampnet.events.typed import read, shown
from ampnet.events.utilisation import NodeUse, UpdateUse

SPENT = ("forward", "backward", "update", "sync", "layout")
"""What the time of a worker is spent in."""


@dataclass(frozen=True, slots=True)
class NodeTotal:
    """The sums of a node over the whole run."""

    worker: str
    """The worker that hosted it last."""
    forward: NodeUse | None
    """Forward batches; None if there were none."""
    backward: NodeUse | None
    """Backward batches, likewise."""
    updates: UpdateUse | None
    """Its updates, likewise."""
    staleness: Staleness | None
    """The staleness of its gradients; None for a node without parameters."""

    @property
    def seconds(self) -> float:
        """Time spent in it."""
        return sum(part.seconds for part in (self.forward, self.backward, self.updates) if part is not None)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a whole run."""

    wall: float
    """Seconds from Begin to Rest."""
    nodes: dict[str, NodeTotal]
    """By name, in the order of their first batches."""
    workers: dict[str, dict[str, float]]
    """By worker: seconds spent in "forward", "backward" and "update"; also in "sync" with replicas, and in "layout"
    with waves."""
    staleness: Staleness
    """The staleness over all nodes."""
    in_flight: int
    """The maximal number of instances in flight at once."""
    boxes: int
    """The number of boxes of the run, kept or not."""
    replicas: dict[str, GroupUse] = field(default_factory=dict)
    """The statistics of replicas, by original node."""
    waves: int = 0
    """The number of waves; 0 with message passing."""
    wave_instances: int = 0
    """Instances in them, summed over the waves of all workers."""

    def to_json(self) -> dict[str, Any]:
        """Returns the totals as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Totals:
        """Returns the totals from the decoded JSON of `to_json`. Raises ValueError that names the field."""
        totals = read(cls, data)
        for worker, spent in totals.workers.items():
            for kind in spent.keys() - SPENT:
                raise ValueError(f"workers.{shown(worker)} spent time in {shown(kind)}; there are {', '.join(SPENT)}")
        return totals
