"""Team: nodes whose rows are computed together, wave by wave, and the workers that host them.

    no replica of the whole model      one team: all nodes, all workers
    n replicas of the whole model      n teams: the nodes of one replica each, on one worker or parted over several

The **part** of a worker is the nodes of a team that it hosts. Nodes that only send rows about (`Node.role` is "route")
are rehearsed by every worker of the team, wherever they are said to be hosted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ampnet.nodes.node import Node


@dataclass(frozen=True, slots=True, eq=False)
class Team:
    """See the head of this file."""

    nodes: Mapping[str, Node]
    """All nodes of the team, in the order of the graph."""
    hosts: Mapping[str, int]
    """The number of the worker of each of them."""

    @classmethod
    def alone(cls, nodes: Mapping[str, Node], worker: int = 0) -> Team:
        """All nodes on one worker."""
        return cls(nodes, dict.fromkeys(nodes, worker))

    @property
    def workers(self) -> list[int]:
        """The numbers of the workers that make rows, in order."""
        return sorted({self.hosts[name] for name, node in self.nodes.items() if node.role != "route"})
