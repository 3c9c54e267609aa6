"""Setting: how a model is run in a simulation: the parts, copies and waves that a user chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ampnet.graph import Graph
from ampnet.nodes.transform import Parameterised
from ampnet.update.policy import Update
from ampnet.wave.schedule import WAVE_SCHEDULES


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model is run. Names and meanings are those of `Processes`."""

    hosts: Mapping[str, int]
    """The worker of each node of one copy of the model, from 0; each of them has nodes that compute."""
    parts: int = 1
    """Workers of a copy of the model that have nodes."""
    asked: int = 0
    """Workers of a copy of the model that were asked for; 0: as many."""
    replicas: int = 1
    """Copies of the whole model."""
    sync: str = "shared"
    """Whether copies of the whole model have one set of weights ("shared", on one computer), or each its own, which are
    averaged now and then ("epoch")."""
    max_active_keys: int = 4
    wave_size: int | None = None
    schedule: str = "backward-first"
    processes: bool = True
    """Whether workers are processes of their own; if not, the one worker is the caller's process."""
    rules: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """By node: the unit that it counts ("messages" or "instances"), and its min_update_frequency."""
    chairs: tuple[int, ...] = ()
    """By worker with nodes: its number among those that were asked for, as others may be between them; empty: the
    first ones."""

    def __post_init__(self) -> None:
        for name in ("parts", "replicas", "max_active_keys", "wave_size"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1) and not (name == "wave_size" and value is None):
                raise ValueError(f"{name} must be a whole number, 1 or more; got {value!r}")
        if self.schedule not in WAVE_SCHEDULES:
            raise ValueError(f"unknown schedule {self.schedule!r}; there are {', '.join(WAVE_SCHEDULES)}")

    @property
    def workers(self) -> int:
        """Workers in all."""
        return self.parts * self.replicas

    @property
    def seats(self) -> int:
        """Workers in all, with those that have no nodes."""
        return (self.asked or self.parts) * self.replicas

    def chair(self, part: int) -> int:
        """The number of a worker among those of its copy of the model that were asked for."""
        return self.chairs[part] if self.chairs else part

    def seat(self, replica: int, part: int) -> int:
        """The number of a worker among all, with those that have no nodes."""
        return replica * (self.asked or self.parts) + self.chair(part)

    @property
    def placed(self) -> dict[str, int]:
        """The worker of each node of one copy of the model, as for `Processes`: among those that were asked for."""
        return {name: self.chair(host) for name, host in self.hosts.items()}

    @property
    def places(self) -> int:
        """Instances in flight of each copy of the model."""
        return -(-self.max_active_keys // self.replicas)


def rules_of(
    graph: Graph, update: Update | None = None, updates: Mapping[str, Update | None] | None = None
) -> dict[str, tuple[str, int]]:
    """Returns the update rule of each node that is trained."""
    out: dict[str, tuple[str, int]] = {}
    for name, node in graph.nodes.items():
        if isinstance(node, Parameterised):
            policy = (updates or {}).get(graph.called(name), update)
            if policy is not None:
                out[name] = (policy.count, policy.min_update_frequency)
    return out
