"""Predictions: the prediction graph on one worker, beside the part of the model that the worker trains.

Each worker has the whole graph, so it plays whole instances, and sends no rows (`ampnet.runtime.workers_predict`). The
player is built at the first prediction.
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
        """``most``: the maximal wave size. ``over`` is called with each passage that has ended."""
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
        """Add the instances of a note."""
        player = self._player = self._player or self._made()
        instances = unpack(note, (), self._inputs)
        player.stage(Lot(player.planner.sites, self._ends, instances, False, note.data["stream"]))

    def step(self) -> bool:
        """As `Player.step`."""
        return self._player is not None and self._player.step(self._most)

    def waiting(self) -> int:
        """Returns the number of staged instances."""
        return 0 if self._player is None else self._player.waiting()

    @property
    def most(self) -> int:
        """The maximal number of passages that were in flight at once."""
        return 0 if self._player is None else self._player.most

    @property
    def busy(self) -> float:
        """Seconds spent playing."""
        return 0.0 if self._player is None else self._player.busy

    def held(self) -> dict[str, int]:
        """Returns the sizes of all queues and caches that are not empty."""
        held = {} if self._player is None else self._player.held()
        return {f"prediction, {what}": count for what, count in held.items()}

    def abandon(self) -> None:
        """Drop everything in flight."""
        if self._player is not None:
            self._player.abandon()
