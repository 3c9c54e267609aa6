"""Settings of a training run: what every workload has. A workload's own settings add to them, and set its defaults.

    Training ──> mnist.Settings, sentiment.Settings, ...          one frozen dataclass a workload: the paper's numbers

A setting is a field here or there, a line in `ampnet.cli.train_options` (which makes the option of it), and its effect:
on the runtime (`ampnet.experiments.running`), on the model or on the data (the workload's module).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from ampnet.nodes.products import Precision
from ampnet.reference.schedule import ENOUGH_ROWS
from ampnet.replicas.sync import When

Optimizer = Literal["adam", "sgd", "momentum", "adagrad"]


@dataclass(frozen=True, slots=True)
class Training:
    """All that decides the course of a run, whatever is trained."""

    max_active_keys: int | Literal["auto"] = 0
    """Instances in flight at most; 0: as many as `in_flight` says, for each replica, or as keep its workers busy;
    "auto": to be found out, by `ampnet.tune`. Until then it is as 0."""
    min_update_frequency: int = 0
    """Gradients that make an update of a node; 0: as many as `frequency` says."""
    update_after: Mapping[str, int] = field(default_factory=dict)
    """The same for single nodes, by name or pattern."""
    count: Literal["messages", "instances"] = "instances"
    """What counts as one gradient."""
    epochs: int = 12
    """Epochs at most."""
    target: float | None = None
    """Stop once a validation has this value of the workload's metric."""
    seed: int = 0
    """Of generated data, the weights, the order of instances and of the random schedule."""
    limit: int | None = None
    """Use the first training records only."""
    keep: int = 200_000
    """Instances kept from epoch to epoch, at most; 0: each is made anew."""
    wave_size: int | None = None
    """Instances that travel together in a wave; None: as many as are in flight or, where updates count instances, as
    the next update waits for."""
    schedule: str | None = None
    """Which of the waves in flight plays its next operation: a name in `ampnet.wave.schedule`. None: "backward-first"
    in waves, "sweep" where messages are passed."""
    max_batch: int | None = None
    """Messages handed to a node at once, at most. A setting of message passing: with it, there are no waves."""
    enough_rows: int | None = ENOUGH_ROWS
    """Of message passing: rows beyond which a larger batch is not waited for; None: any number."""
    waves: bool = True
    """Compute instances in waves; False: pass messages from node to node, one batch at a time, as the paper does."""
    learning_rate: float = 1e-3
    """Of the first epoch."""
    rate_of: Mapping[str, float] = field(default_factory=dict)
    """The same for single nodes, by name or pattern."""
    decay: float = 1.0
    """Factor of the learning rate after every epoch."""
    optimizer: Optimizer = "adam"
    """Of every node."""
    beta2: float = 0.999
    """Adam's beta2."""
    weight_decay: float = 0.0
    """Weight decay: with Adam decoupled from the gradient (AdamW), else added to the gradient."""
    clip_norm: float | None = None
    """Scale a node's gradient down to this norm."""
    weights: Literal["current", "stash"] = "current"
    """Weights used in the backward pass: the current ones, or those of the forward pass ("stash")."""
    barrier: bool = False
    """Let each stream end before the next begins."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the weights are, and the work on them is done."""
    precision: Precision = "float32"
    """Of the factors of matrix products."""
    workers: int | Literal["auto"] | None = None
    """Worker processes; 1: everything in this process; "auto": as many as are expected to pay, with copies and tiles of
    single nodes where those pay; None: one for each replica."""
    affinity: Mapping[str, int] | Literal["auto"] = "auto"
    """The worker of nodes, by name or pattern; nodes that it does not name are placed by what they cost."""
    memory_per_worker: int | None = None
    """Bytes that a worker process may take; nodes are placed so that parameters, sums and optimizers fit."""
    pin: bool = False
    """Keep each worker on a core of its own."""
    threads: int = 1
    """Torch threads, of each worker."""
    replicas: int | Literal["auto"] = 1
    """Copies of the model, or of a part of it; "auto": as many as are expected to pay."""
    replicate: tuple[str, ...] | Mapping[str, int] | None = None
    """The nodes to make copies of: names or patterns of a part of the model, of which there are ``replicas``; or single
    nodes, each with its own number of copies. None: the whole model."""
    tile: Mapping[str, int] = field(default_factory=dict)
    """Linears to split into tiles, by node, with their number."""
    route: str | None = None
    """How messages, or whole instances, are shared out among replicas; None: "shortest", of single nodes "instance"."""
    sync: When = "shared"
    """How replicas are kept together."""
    sync_every: int = 100
    """Updates between two synchronisations, where the policy counts them."""
    sync_optimizer: Literal["average", "keep"] = "average"
    """Average the replicas' optimizer state when they are synchronised, or keep it separate."""
    on_nan: Literal["stop", "skip"] = "stop"
    """What to do when a loss is not finite."""

    def in_flight(self) -> int:
        """Instances in flight for each replica, where nothing else is said."""
        return 1

    def frequency(self) -> int:
        """Gradients in an update, where nothing else is said."""
        return 1

    def complete(self) -> Self:
        """The same with nothing left open."""
        replicas = 1 if self.replicas == "auto" else self.replicas
        single = isinstance(self.replicate, Mapping)
        copies = max(self.replicate.values(), default=1) if isinstance(self.replicate, Mapping) else replicas
        workers = copies if self.workers is None else self.workers
        frequency = self.min_update_frequency or self.frequency()
        in_flight = 0 if self.max_active_keys == "auto" else self.max_active_keys
        if not in_flight:
            in_flight = self.in_flight() * replicas
            teams = replicas if self.replicate is None else 1
            if isinstance(workers, int) and workers > teams:  # two waves for each worker, as large as on one core
                wave = min(self.in_flight(), frequency) if self.count == "instances" else self.in_flight()
                in_flight = max(in_flight, 2 * workers * wave)
        return replace(
            self,
            workers=workers,
            max_active_keys=in_flight,
            min_update_frequency=frequency,
            route=self.route or ("instance" if single else "shortest"),
        )
