"""Predictions on worker processes: every worker has the whole prediction graph, and takes whole instances.

    controller ── instances 0, 2, 4 ──>  worker 0   ──> results
               ── instances 1, 3, 5 ──>  worker 1   ──> results

However the trained model is split or copied, its parameters are in memory that all workers share, and a prediction
changes none of them. So workers exchange no rows: each plays its waves alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ampnet.graph import Graph
from ampnet.instance import Instance, Stream
from ampnet.reference.worker import Counts
from ampnet.runtime.engine import Engine
from ampnet.runtime.runtime import Runtime
from ampnet.runtime.stats import RunStats
from ampnet.state import Column

if TYPE_CHECKING:
    from ampnet.runtime.distributed import Distributed


class OnWorkers(Runtime):
    """The inner runtime of a `Distributed`, for its prediction graph."""

    kind = "processes"
    may_play = True

    def __init__(self, graph: Graph, owner: Distributed) -> None:
        super().__init__(
            graph, update=None, updates=None, max_active_keys=owner.controller.max_active_keys,
            wave_size=owner.settings["wave_size"], max_batch=None, enough_rows=None, schedule=None,
            seed=owner.settings["seed"], listeners=(), clock=owner.clock,
        )  # fmt: skip
        self._owner = owner
        self._set_engine(Engine(True))

    def _guarded(self) -> AbstractContextManager[object]:
        return self._owner._guarded()

    def _start(self, streams: Iterable[Stream]) -> Iterable[Stream]:
        self._owner._active = self
        self._owner._start([Stream([], False, "predict")])
        if self._owner._draining:
            self._owner._ask()  # so that no worker still changes weights that others predict with
        self.controller.teams = len(self._owner.names)
        return streams

    def _read(self, source: Iterator[Instance], most: int, into: list[Instance]) -> None:
        self._owner._read(source, most, into)

    def _stage(self, instances: Mapping[int, Instance], stream: Stream) -> Sequence[int]:
        return self._owner._workers.predicting.stage(instances, False, self.controller.sending)

    def _retire(self, instances: Column, train: bool) -> None:
        self._owner._workers.predicting.retired(instances)

    def _pump(self) -> None:
        super()._pump()
        self._owner._workers.predicting.pumped(self.controller.coming)

    def _turn(self) -> None:
        self._owner._turn()

    def _settle(self) -> None:
        self._owner._settle()

    def _rested(self) -> None:
        self._owner._active = self._owner
        self._owner._rested()

    def _abandon(self) -> None:
        self._owner._active = self._owner
        self._owner._abandon()

    def held(self) -> dict[str, int]:
        return self._owner.held()

    def counts(self) -> Counts:
        return self._owner.counts()

    def stats(self) -> RunStats:
        return self._owner.stats()

    def close(self) -> None:
        """Does nothing: the workers belong to the owner."""
