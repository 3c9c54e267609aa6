"""Inline: everything in one process. One player (or worker) has all nodes, and alternates with the controller.

    pump ──> [wave begins] ──> operations ... ──> [wave ends] ──> retire ──> pump ...

Instances are played in waves (`ampnet.wave`), several of them in flight; with ``waves=False``, or if a graph has a node
that cannot be played, messages are passed one batch at a time (`ampnet.reference`).

With a seed, a run is exactly repeatable: same events, same weights, to the bit. This runtime is the reference for the
others; tests simulate orders and faults on it. It is the fastest choice for one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from ampnet.errors import StallError
from ampnet.events.log import Listener
from ampnet.graph import CONTROLLER, End, Graph
from ampnet.instance import Instance, Stream
from ampnet.message import Messages
from ampnet.nodes.node import Direction, Report
from ampnet.nodes.products import Precision
from ampnet.plan.lot import Lot
from ampnet.plan.team import Team
from ampnet.reference.schedule import ENOUGH_ROWS, Schedule, make_schedule
from ampnet.reference.worker import Counts, Worker
from ampnet.replicas.member import Token
from ampnet.runtime.engine import check_precision, choose_engine, make_player
from ampnet.runtime.runtime import Runtime
from ampnet.runtime.stats import RunStats
from ampnet.snapshot import Snapshot, spread_weights
from ampnet.state import Column
from ampnet.structure import Structure
from ampnet.update.local import LocalUpdates
from ampnet.update.policy import Update
from ampnet.update.state import UpdaterState, check_states, restore_state, state_of


class Inline(Runtime):
    """Runs a graph in this process.

    ``update`` is the policy of every node with parameters (None: frozen). ``updates`` overrides it for nodes by name or
    pattern (``{"embedding": ..., "linear*": ...}``; a name takes precedence over patterns).

    At most ``max_active_keys`` instances are in flight. They are computed in waves of ``wave_size`` instances (None:
    all in flight or, if updates count instances, the number until the next update). ``schedule`` orders the operations
    of all waves: "backward-first" (default), "fifo", "sweep", "random" (from ``seed``).

    ``waves=False`` passes messages instead, for debugging and as a reference. Its settings are ``max_batch``, the
    maximal number of messages in a batch, and ``enough_rows``, the number of rows at which a batch is large enough.

    A context manager: leaving it closes the run. After an error nothing is in flight any more, and the weights are as
    they were when it happened.
    """

    kind = "inline"

    def __init__(
        self,
        graph: Graph,
        *,
        update: Update | None = None,
        updates: Mapping[str, Update | None] | None = None,
        max_active_keys: int = 1,
        wave_size: int | None = None,
        max_batch: int | None = None,
        enough_rows: int | None = ENOUGH_ROWS,
        schedule: str | Schedule | None = None,
        seed: int = 0,
        listeners: Sequence[Listener] = (),
        clock: Callable[[], float] = time.perf_counter,
        waves: bool = True,
        precision: Precision = "float32",
    ) -> None:
        super().__init__(
            graph,
            update=update,
            updates=updates,
            max_active_keys=max_active_keys,
            wave_size=wave_size,
            max_batch=max_batch,
            enough_rows=enough_rows,
            schedule=schedule,
            seed=seed,
            listeners=listeners,
            clock=clock,
        )
        engine = choose_engine(graph, self._wiring, graph.nodes, waves, max_batch=max_batch, schedule=schedule)
        check_precision(precision, engine.waves)
        self._set_engine(engine)
        self.player = (
            make_player(
                graph,
                self._wiring,
                [Team.alone({name: graph.nodes[name] for name in graph.order()})],
                0,
                schedule,
                seed,
                name="inline",
                tell=self._report,
                over=self._played,
                wave_size=wave_size,
                precision=precision,
                announce=self._announce,
                clock=clock,
            )
            if engine.waves
            else None
        )
        if self.player is not None:
            self.player.planner.look = self.controller.look
        self.worker = (
            None
            if engine.waves
            else Worker(
                "inline",
                graph,
                self._wiring,
                make_schedule("sweep" if schedule is None else schedule, seed),
                max_batch=max_batch,
                enough_rows=enough_rows,
                send=self._to_controller,
                tell=self._report,
                announce=self._announce,
                clock=clock,
            )
        )
        self._restored = False
        """Whether replicas are as a snapshot had them, and so are not to be set equal before the next run."""
        self._settings = {"max_batch": max_batch, "enough_rows": enough_rows, "precision": precision}
        self._by_name = {given.name: end for given, end in zip(graph.inputs, self._ends, strict=True)}

    def _to_controller(self, end: End, direction: Direction, messages: Messages) -> None:
        assert end.node == CONTROLLER
        assert direction is Direction.BACKWARD
        self.controller.returned(end.port, messages)

    def _report(self, report: Report) -> None:
        self.controller.report(report)

    def _post(self, port: int, messages: Messages, last: bool) -> None:
        self._messages.deliver(self._ends[port], Direction.FORWARD, messages)

    @property
    def _messages(self) -> Worker:
        assert self.worker is not None
        return self.worker

    def _stage(self, instances: Mapping[int, Instance], stream: Stream) -> Sequence[int]:
        if self.player is None:
            return ()
        lot = Lot(self.player.planner.sites, self._by_name, instances, stream.train, self.controller.sending)
        self.player.stage(lot)
        return [1] * len(instances)

    def _played(self, lot: Lot) -> None:
        self.controller.played(np.array(lot.numbers))

    @property
    def may_play(self) -> bool:
        return self.player is not None

    def rehearse(self, instances: Iterable[Instance]) -> None:
        """Plan these instances ahead of time, like collating batches beforehand.

        Otherwise they are planned when first pumped; plans are cached either way. An error in an instance is raised
        here, with node and state. Must not be called during a run.
        """
        if self.player is not None:
            with torch.no_grad():
                self.player.planner.rehearse(instances, self._by_name)

    def _shelve(self, structures: Mapping[int, Structure]) -> None:
        self._messages.shelve(structures)

    def _retire(self, instances: Column, train: bool) -> None:
        if self.worker is not None:
            self.worker.retire(instances, train)

    def _forget(self, instances: Column) -> None:
        if self.worker is not None:
            self.worker.forget(instances)

    def _flush(self) -> None:
        if self.player is not None:
            self.player.settle_late()
        updates = self._updates
        updates.flush()
        while updates.pass_token():
            pass
        updates.tell_work()

    @property
    def _updates(self) -> LocalUpdates:
        return self._messages.updates if self.player is None else self.player.updates

    def _states(self) -> dict[str, UpdaterState]:
        if self.player is not None:
            self.player.settle_late()
        nodes = self.graph.parameterised().items()
        return {name: state_of(node.updater, weights=False) for name, node in nodes}

    def _add_to(self, snapshot: Snapshot) -> None:
        updates = self._updates
        data, tensors = snapshot.data, snapshot.tensors
        data["members"] = {name: member.state() for name, member in updates.members.items()}
        data["tokens"] = [asdict(token) for token in updates.tokens]
        for name, group in self.graph.replicas.items():
            for i, tensor in enumerate([] if group.table is None else group.table.tensors()):
                tensors[f"table/{name}/{i}"] = tensor.detach().cpu().clone()
        schedule = self._schedule
        data["schedule"] = schedule.state() if hasattr(schedule, "state") else None

    def _set_states(self, snapshot: Snapshot) -> None:
        nodes, states, data = self.graph.parameterised(), snapshot.nodes(), snapshot.data
        check_states(nodes, states)
        spread_weights(self.graph, snapshot)
        for name, node in nodes.items():
            restore_state(node.updater, states[name], name)
        for planner in () if self.player is None else self.player.planners:
            planner.forget_layouts()  # their tapes are of sums as they were
        self._restored = "members" in data  # else a snapshot of worker processes
        if not self._restored:
            return
        updates = self._updates
        for name, member in updates.members.items():
            member.restore(data["members"][name])
        updates.tokens.clear()
        updates.tokens.extend(Token(**token) for token in data["tokens"])
        for name, group in self.graph.replicas.items():
            for i, tensor in enumerate([] if group.table is None else group.table.tensors()):
                tensor.copy_(snapshot.tensors[f"table/{name}/{i}"])
        if hasattr(schedule := self._schedule, "restore") and data["schedule"] is not None:
            schedule.restore(data["schedule"])

    @property
    def _schedule(self) -> Any:
        return self._messages.schedule if self.player is None else self.player.schedule

    def _equalise(self) -> None:
        restored, self._restored = self._restored, False
        if not restored:
            super()._equalise()

    def _turn(self) -> None:
        moved = self._messages.step() if self.player is None else self.player.step(self.controller.max_active_keys)
        if not moved:
            waits = self._messages.waits() if self.player is None else self.player.planner.waits()
            held = [f"{what} holds {count}" for what, count in self.held().items()]
            raise StallError(self.controller.in_flight, [*waits, *self._updates.waits(), *held])

    def _settle(self) -> None:
        self._updates.tell_work()

    def _abandon(self) -> None:
        (self._messages if self.player is None else self.player).abandon()

    def held(self) -> dict[str, int]:
        held = (self._messages if self.player is None else self.player).held()
        if self.controller.in_flight:
            held["instances in flight"] = len(self.controller.in_flight)
        return held

    def counts(self) -> Counts:
        if self.player is None:
            return self._messages.counts()
        return Counts(self.player.operations, self.player.messages)

    def stats(self) -> RunStats:
        player = self.player
        if player is None:
            return self._stats(0, 0, 0)
        inner = self._predicting.player if isinstance(self._predicting, Inline) else None
        players = [player] if inner is None else [player, inner]
        waves, instances = sum(p.waves for p in players), sum(p.instances for p in players)
        ahead = sum(planner.used_ahead for p in players for planner in p.planners)
        stats = replace(self._stats(waves, instances, max(p.most for p in players)), ahead=ahead)
        graphs = player.captured
        if graphs is None:
            return stats
        return replace(stats, captured=graphs.replayed, uncaptured=graphs.reason or graphs.odd)

    def _predictor(self, graph: Graph) -> Runtime:
        made = self._predicting
        if made is None or made.graph is not graph or _moved(graph):
            limits: dict[str, Any] = self._settings
            self._predicting = made = Inline(
                graph,
                max_active_keys=self.controller.max_active_keys,
                wave_size=self.settings["wave_size"],
                seed=self.settings["seed"],
                clock=self.clock,
                waves=self.engine.waves,
                **limits,
            )
        return made

    def close(self) -> None:
        """Drop everything in flight. This runtime has nothing else to release."""
        self.controller.abandon()
        if self.held():
            self._abandon()


def _moved(graph: Graph) -> bool:
    """Whether parameters have moved to other memory since the nodes were bound to them."""
    updaters = (node.updater for node in graph.parameterised().values())
    return any(p.data_ptr() != w.data_ptr() for u in updaters for p, w in zip(u.parameters, u.weights, strict=True))
