"""Totals: sums over a whole run, by node, by worker and by group of replicas. A trace ends with them.

Boxes are kept up to a limit; sums cover the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ampnet.events.replicas import GroupUse
from ampnet.events.staleness import Staleness
from ampnet.events.utilisation import NodeUse, UpdateUse


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
        """Returns the totals from the decoded JSON of `to_json`."""

        def one(kind: Any, given: dict[str, Any] | None) -> Any:
            if given is None:
                return None
            if "histogram" in given:
                given = {**given, "histogram": {int(k): n for k, n in given["histogram"].items()}}
            return kind(**{k: float("nan") if v is None else v for k, v in given.items()})

        nodes = {
            name: NodeTotal(
                given["worker"],
                one(NodeUse, given["forward"]),
                one(NodeUse, given["backward"]),
                one(UpdateUse, given["updates"]),
                one(Staleness, given["staleness"]),
            )
            for name, given in data["nodes"].items()
        }
        rest = {name: data[name] for name in ("wall", "workers", "in_flight", "boxes")}
        groups = {name: GroupUse.from_json(given) for name, given in data.get("replicas", {}).items()}
        waves = {name: data.get(name, 0) for name in ("waves", "wave_instances")}
        return cls(nodes=nodes, staleness=one(Staleness, data["staleness"]), replicas=groups, **rest, **waves)
