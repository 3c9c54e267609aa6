"""Engine: the choice between waves and message passing, and its reason.

Waves are the engine that trains. Messages are passed if the caller asks for it, or if a graph has a node whose control
flow cannot be planned; the second case warns once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ampnet.errors import AmpnetError, EngineWarning
from ampnet.events.log import Announcer
from ampnet.graph import Graph, Wiring
from ampnet.nodes.node import Node, Report
from ampnet.nodes.products import Precision
from ampnet.plan.lot import Lot
from ampnet.plan.sites import Sites, Unplayable
from ampnet.plan.team import Team
from ampnet.reference.schedule import Schedule
from ampnet.replicas.member import Token
from ampnet.update.local import LocalUpdates
from ampnet.wave.player import Player
from ampnet.wave.schedule import WAVE_SCHEDULES
from ampnet.wave.slice import Slice


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine that runs the nodes."""

    waves: bool
    reason: str | None = None
    """The reason for not using waves; None with waves."""

    @property
    def name(self) -> str:
        return "waves" if self.waves else "messages"


def choose_engine(
    graph: Graph,
    wiring: Wiring,
    nodes: Mapping[str, Node],
    waves: bool,
    *,
    max_batch: int | None,
    schedule: str | Schedule | None,
) -> Engine:
    """Returns the engine: waves, or message passing with a reason. Warns if the caller did not ask for the latter."""
    if isinstance(schedule, str) and schedule not in WAVE_SCHEDULES:
        raise ValueError(f"unknown schedule '{schedule}'; there are {', '.join(WAVE_SCHEDULES)}")
    if not waves:
        return Engine(False, "waves=False")
    if max_batch is not None:
        return _warned("max_batch is a setting of message passing. Remedy: leave it out, or say waves=False")
    if schedule is not None and not isinstance(schedule, str):
        return _warned("the schedule given orders messages. Remedy: a schedule by name, or waves=False")
    try:
        Sites(graph, wiring, Team.alone(nodes))
    except Unplayable as error:
        return _warned(str(error))
    return Engine(True)


def _warned(reason: str) -> Engine:
    warnings.warn(
        f"this graph is not played in waves but run message by message, which is slower: {reason}",
        EngineWarning,
        stacklevel=4,
    )
    return Engine(False, reason)


def make_player(
    graph: Graph,
    wiring: Wiring,
    teams: Sequence[Team],
    here: int,
    schedule: str | Schedule | None,
    seed: int,
    *,
    name: str,
    tell: Callable[[Report], None],
    over: Callable[[Lot], None],
    wave_size: int | None,
    precision: Precision,
    announce: Announcer | None,
    clock: Callable[[], float],
    hand: Callable[[Token], None] | None = None,
    equal: Callable[[str, int], None] = lambda group, ended: None,
    carry: Callable[[int, Slice], None] | None = None,
) -> Player:
    """Build the player of the nodes that worker ``here`` hosts, with their updates. ``hand``, ``equal``: as in
    `LocalUpdates`; ``carry``: sends slices to other workers."""
    announcer = announce if announce is not None else Announcer()
    nodes = {name: node for team in teams for name, node in team.nodes.items() if team.hosts[name] == here}
    updates = LocalUpdates(graph, nodes, worker=name, announce=announcer, clock=clock, hand=hand, over=equal)
    chosen = WAVE_SCHEDULES[schedule if isinstance(schedule, str) else "backward-first"](seed)
    return Player(
        graph,
        wiring,
        teams,
        here,
        updates,
        chosen,
        name=name,
        tell=tell,
        over=over,
        carry=carry,
        wave_size=wave_size,
        precision=precision,
        announce=announcer,
        clock=clock,
    )


def check_precision(precision: str, waves: bool) -> None:
    """Raise ValueError for an unknown precision, or for bfloat16 products without waves."""
    if precision not in ("float32", "bfloat16"):
        raise ValueError(f"precision must be float32 or bfloat16, got {precision!r}")
    if precision != "float32" and not waves:
        raise AmpnetError(
            "precision='bfloat16' needs waves: no max_batch, no waves=False, no node with a forward of its own"
        )
