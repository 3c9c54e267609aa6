"""Predictions: the prediction graph on one worker, beside the part of the model that the worker trains.

Each worker has all of the graph, so it plays whole instances, and nothing crosses (`ampnet.runtime.workers_predict`).
The player is made when something is predicted for the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ampnet.graph import CONTROLLER, End, Graph
from ampnet.plan.lot import Lot
from ampnet.plan.team import Team
from ampnet.runtime.engine import make_player
from ampnet.runtime.parcel import inputs_of, unpack
from ampnet.runtime.transport import Note
from ampnet.wave.player import Player

if TYPE_CHECKING:
    from ampnet.runtime.host import Host


class Predictions:
    """Stages and plays instances of the prediction graph."""

    def __init__(self, host: Host, graph: Graph, most: int, over: Callable[[Lot], None]) -> None:
        """``most``: instances of a wave. ``over`` hears of passages that have ended."""
        self._host, self._graph, self._most, self._over = host, graph, most, over
        self._inputs = inputs_of(graph)
        self._ends: dict[str, End] = {}
        self._player: Player | None = None

    def _made(self) -> Player:
        host, graph = self._host, self._graph
        wiring, nodes = graph.validate(), {name: graph.nodes[name] for name in graph.order()}
        self._ends = {given.name: wiring.forward[End(CONTROLLER, i)] for i, given in enumerate(graph.inputs)}
        player = make_player(
            graph,
            wiring,
            [Team.alone(nodes, host.number)],
            host.number,
            None,
            0,
            name=host.name,
            tell=host.tell,
            over=self._over,
            wave_size=host.wave_size,
            precision=host.precision,
            announce=None,
            clock=host.clock,
        )
        player.pulse, player.names = host.pulse, host.player.names
        return player

    def stage(self, note: Note) -> None:
        """Instances to be played."""
        player = self._player = self._player or self._made()
        instances = unpack(note, (), self._inputs)
        player.stage(Lot(player.planner.sites, self._ends, instances, False, note.data["stream"]))

    def step(self) -> bool:
        """As `Player.step`."""
        return self._player is not None and self._player.step(self._most)

    def waiting(self) -> int:
        """How many instances are staged."""
        return 0 if self._player is None else self._player.waiting()

    @property
    def most(self) -> int:
        """Passages in flight at once, at most."""
        return 0 if self._player is None else self._player.most

    @property
    def busy(self) -> float:
        """Seconds in which something was played."""
        return 0.0 if self._player is None else self._player.busy

    def held(self) -> dict[str, int]:
        """Every queue and cache that is not empty."""
        held = {} if self._player is None else self._player.held()
        return {f"prediction, {what}": count for what, count in held.items()}

    def abandon(self) -> None:
        """Forget all that is in flight."""
        if self._player is not None:
            self._player.abandon()
