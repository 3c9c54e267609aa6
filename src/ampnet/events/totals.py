"""Totals: what is added up over a whole run, by node, by worker and by group of replicas. A trace ends with it.

They say more than the boxes: boxes are kept up to a limit, sums are of everything.
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
    """What a node did in the whole run."""

    worker: str
    """Who hosted it, at last."""
    forward: NodeUse | None
    """Forward batches; None if there were none."""
    backward: NodeUse | None
    """Backward batches, likewise."""
    updates: UpdateUse | None
    """Its updates, likewise."""
    staleness: Staleness | None
    """Of its gradients; None for a node without parameters."""

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
    """By worker: seconds spent in "forward", "backward" and "update"; in "sync" too where replicas were made equal, in
    "layout" where waves were rehearsed and laid out."""
    staleness: Staleness
    """Of all nodes together."""
    in_flight: int
    """The most instances that were in flight at once."""
    boxes: int
    """How many boxes the run had, kept or not."""
    replicas: dict[str, GroupUse] = field(default_factory=dict)
    """By the node that was replicated."""
    waves: int = 0
    """How many waves began; none where messages were passed."""
    wave_instances: int = 0
    """Instances in them, summed over the waves of all workers."""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Totals:
        """What `to_json` gave, after a way through JSON."""

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
