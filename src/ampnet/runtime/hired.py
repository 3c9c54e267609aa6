"""Hired: the workers of one generation, as a runtime sees them, wherever their processes are.

Workers          forked from this process (`ampnet.runtime.workers`)
ClusterWorkers   started by Ray, on any machine (`ampnet.runtime.cluster.workers`)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from ampnet.graph import Graph
from ampnet.instance import Instance
from ampnet.plan.planner import Planner
from ampnet.plan.team import Team
from ampnet.runtime.post import Post
from ampnet.runtime.staging import Staging
from ampnet.runtime.teams import Ends
from ampnet.runtime.watch import Lost
from ampnet.update.state import UpdaterState


class WatchedCrew(Protocol):
    """The processes of workers, as a runtime sees them."""

    maker: int
    reading: bool

    @property
    def mine(self) -> bool:
        """Whether this process made the workers."""

    @property
    def pids(self) -> Sequence[int]:
        """Their pids."""

    @property
    def lost(self) -> Lost | None:
        """The first worker that is known to be lost."""

    def look(self) -> Lost | None:
        """Check the workers; returns one that is lost, or None."""

    def read(self, source: Iterator[Instance], most: int, into: list[Instance]) -> None:
        """Append the next items of an iterator, which may block, to a list."""


class Hired(Protocol):
    """The workers of one generation, as a runtime sees them."""

    post: Post
    staging: Staging
    predicting: Staging
    """Stages instances of the prediction graph; each worker has the whole graph."""
    prediction: Graph | None
    prepared: Planner | None

    @property
    def teams(self) -> Sequence[tuple[Team, Ends]]:
        """The teams, with the ends where instances enter."""

    @property
    def crew(self) -> WatchedCrew:
        """The processes."""

    def end(self, *, lost: bool = False) -> Mapping[str, UpdaterState]:
        """End the workers. Returns states of nodes that only they had. ``lost``: whether one of them is lost."""
