"""Processes: a graph on several worker processes of one machine. The controller stays in the caller's process.

    controller ── wave 17: instances 204..207 ──>  worker 0      worker 1      every worker hosts some of the nodes
        ^                                            │  rows ──────> │         and plays its part of each wave
        │                                            │ <── gradients │
        └──────── played, losses, errors ────────────┴───────────────┘

All of it (rings in shared memory, parameters, the graph itself) is made before the workers fork from the caller's
process, so nothing is pickled, and no named resource can be left behind. Its modules:

    workers    the resources that live from the fork to the end
    crew       the processes: fork, watch (`watch`), end
    shared     parameters in shared memory
    transport  rings between processes

Guarantees on failure: an error in a node ends the run, not the workers, and nothing is in flight any more. If a worker
died, was stopped or is stuck, all of them are started again and training goes on (`recovery`); after ``max_restarts``
such losses the caller gets a `WorkerDied` within seconds. Workers end by themselves when their maker is gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ampnet.errors import AmpnetError
from ampnet.events.log import Listener
from ampnet.graph import Graph
from ampnet.nodes.products import Precision
from ampnet.runtime.distributed import Distributed
from ampnet.runtime.workers import Workers, WorkerSettings
from ampnet.update.policy import Update


class Processes(Distributed):
    """Runs a graph on ``workers`` processes.

    ``affinity`` maps nodes, by name or pattern, to workers; all others are placed by their costs in a short trial on
    the first instances (``"auto"``), within ``memory_per_worker`` bytes if given (then
    no copies of weights are kept, unless an `Update` asks for them). Each worker has ``threads`` torch
    threads; with ``pin`` it is pinned to one core. A worker that makes no step and uses no processor time for
    ``stuck_after`` seconds counts as stuck (None: never), unless it runs in a debugger: a long computation is never
    ended, a long wait for a network may be. A lost worker is replaced, up to ``max_restarts`` times in all (0: the
    first loss is an error). ``capacity``: bytes of the ring between two processes; frames that do not
    fit wait at the sender.

    The other settings are those of `Inline`. Instances are computed in waves of ``wave_size`` (None: one wave in
    flight for each worker; two where they are smaller, as none straddles an update that counts instances).

    Workers start with the first run and stay until `close`. If that run is a prediction, there is no trial, and nodes
    are placed by an estimate of their costs: train first where the placement matters. From the first run on, parameters
    are in shared memory: the model in this process always has the current weights. Linux only.
    """

    kind = "processes"

    def __init__(
        self,
        graph: Graph,
        *,
        workers: int = 2,
        affinity: Mapping[str, int] | Literal["auto"] = "auto",
        memory_per_worker: int | None = None,
        threads: int = 1,
        pin: bool = False,
        stuck_after: float | None = 3.0,
        max_restarts: int = 3,
        capacity: int = 8 << 20,
        update: Update | None = None,
        updates: Mapping[str, Update | None] | None = None,
        max_active_keys: int = 4,
        wave_size: int | None = None,
        schedule: str | None = None,
        seed: int = 0,
        listeners: Sequence[Listener] = (),
        clock: Callable[[], float] = time.perf_counter,
        precision: Precision = "float32",
    ) -> None:
        if not hasattr(os, "fork") or not hasattr(os, "eventfd"):
            raise AmpnetError("worker processes need Linux (fork and eventfd); use the inline runtime")
        how = WorkerSettings(
            workers, threads, pin, stuck_after, capacity, max_active_keys, wave_size, schedule, seed, precision
        )
        super().__init__(
            graph,
            how,
            affinity=affinity,
            memory_per_worker=memory_per_worker,
            max_restarts=max_restarts,
            update=update,
            updates=updates,
            listeners=listeners,
            clock=clock,
        )

    def _made_workers(self) -> Workers:
        return Workers(
            self.graph,
            self._wiring,
            self.hosts,
            self._how,
            self._events,
            self.clock,
            self._known,
            self._rehearsed,
            self._prediction(),
            self._beginning,
            hear=self._hear,
            look=self._look,
            on_worker=self.on_worker,
        )
