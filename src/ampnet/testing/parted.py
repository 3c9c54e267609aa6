"""Parted: the parts of several workers, played in one process in an order drawn from a seed.

    worker 0   step ─ slices ─┐          a step of a random worker, or the delivery of the oldest slice between two
    worker 1   step <─────────┘          of them: any order that processes could have, repeatable

Every worker has its own copy of the graph, as a process has. Nothing is shared, and nothing blocks.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import StallError
from ampnet.graph import CONTROLLER, End, Graph
from ampnet.instance import Instance
from ampnet.nodes.node import Report
from ampnet.plan.lot import Lot
from ampnet.plan.team import Team
from ampnet.runtime.engine import make_player
from ampnet.update.policy import Update
from ampnet.wave.player import Player
from ampnet.wave.slice import Slice


class Parted:
    """The players of a team. ``hosts`` names the worker of each node."""

    def __init__(
        self,
        graph: Graph,
        hosts: Mapping[str, int],
        *,
        update: Update | None = None,
        schedule: str = "backward-first",
        seed: int = 0,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self.team = Team(graph.nodes, hosts)
        self.reports: list[Report] = []
        self.over: list[tuple[int, int]] = []
        """(worker, wave) of passages that have ended."""
        self.graphs: list[Graph] = []
        self.players: dict[int, Player] = {}
        self._ways: dict[tuple[int, int], deque[Slice]] = {}
        for worker in self.team.workers:
            mine = copy.deepcopy(graph)
            for node in mine.parameterised().values():
                node.updater.adopt(update)
            self.graphs.append(mine)
            self.players[worker] = self._player(mine, worker, schedule, seed)
        self._waves = 0

    def _player(self, graph: Graph, worker: int, schedule: str, seed: int) -> Player:
        wiring, _ = graph.resolve()
        self._ends = {one.name: wiring.forward[End(CONTROLLER, i)] for i, one in enumerate(graph.inputs)}
        team = Team({name: graph.nodes[name] for name in graph.order()}, self.team.hosts)
        return make_player(
            graph,
            wiring,
            [team],
            worker,
            schedule,
            seed + worker,
            name=f"worker{worker}",
            tell=self.reports.append,
            over=partial(self._ended, worker),
            wave_size=None,
            precision="float32",
            announce=None,
            clock=lambda: 0.0,
            carry=partial(self._carry, worker),
        )

    def _ended(self, worker: int, lot: Lot) -> None:
        self.over.append((worker, -1 if lot.wave is None else lot.wave))

    def _carry(self, sender: int, to: int, given: Slice) -> None:
        if given.rows is not None:
            given.rows = given.rows.clone()  # a process would have written them to its own memory
        self._ways.setdefault((sender, to), deque()).append(given)

    def run(self, waves: Sequence[Sequence[Instance]], train: bool = True, in_flight: int | None = None) -> None:
        """Play waves of these instances, with this many in flight (None: all)."""
        left = deque(waves)
        most = len(waves) if in_flight is None else in_flight
        began, before = self._waves, len(self.over)

        def ended() -> int:
            """Returns the number of waves that have ended on all workers."""
            return sum(n == len(self.players) for n in Counter(wave for _, wave in self.over[before:]).values())

        with torch.no_grad():
            while left or any(player.passages or player.waiting() for player in self.players.values()):
                while left and self._waves - began - ended() < most:
                    self._stage(left.popleft(), train)
                self._move()

    def _stage(self, instances: Sequence[Instance], train: bool) -> None:
        self._waves += 1
        numbered = {1000 * self._waves + i: one for i, one in enumerate(instances)}
        for player in self.players.values():
            player.stage(Lot(player.planner.sites, self._ends, numbered, train, 0), self._waves)

    def _move(self) -> None:
        """One thing happens."""
        ways = [way for way, slices in self._ways.items() if slices]
        todo = [*ways, *self.players]
        for i in self._rng.permutation(len(todo)).tolist():
            chosen = todo[i]
            if isinstance(chosen, tuple):
                self.players[chosen[1]].take(self._ways[chosen].popleft())
                return
            if self.players[chosen].step(1):
                return
        raise StallError([], [line for player in self.players.values() for line in player.waits()])

    def gradients(self) -> dict[str, Tensor]:
        """What has added up at the workers, by ``node.parameter``: each adds up at its own nodes only."""
        found = [graph.gradients() for graph in self.graphs]
        return {name: torch.stack([one[name] for one in found]).sum(0) for name in found[0]}

    def weights(self) -> dict[str, Tensor]:
        """Those of the worker of each node, by ``node.parameter``."""
        return {
            f"{name}.{parameter}": weight.detach().clone()
            for worker, graph in zip(self.players, self.graphs, strict=True)
            for name, node in graph.parameterised().items()
            if self.team.hosts[name] == worker
            for parameter, weight in node.parameters.items()
        }

    def flush(self) -> None:
        """End a training stream: nodes apply leftover gradients."""
        for player in self.players.values():
            player.updates.flush()

    def held(self) -> dict[str, int]:
        """Everything that is left in a queue or cache."""
        left = {f"{p.name}: {what}": n for p in self.players.values() for what, n in p.held().items()}
        under_way = sum(map(len, self._ways.values()))
        return left | ({"slices under way": under_way} if under_way else {})


def random_hosts(graph: Graph, workers: int, seed: int) -> dict[str, int]:
    """Any worker for every node."""
    rng = np.random.default_rng(seed)
    return {name: int(rng.integers(workers)) for name in graph.nodes}
