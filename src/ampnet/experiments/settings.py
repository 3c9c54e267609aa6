"""Settings of a training run: what every workload has. A workload's own settings add to them, and set its defaults.

    Training ──> described.Mnist, described.Sentiment, ...        one frozen dataclass a workload: the paper's numbers

A setting is one field, made by `option`: its default, and its text in ``ampnet train WORKLOAD --help``.
`ampnet.cli.train_options` makes the options from the fields; a workload that sets another default says no more than
that. The effect of a setting is on the runtime
(`ampnet.experiments.running`), on the model or on the data (the workload's module).

Nothing here imports torch, so that help is quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, Self

GROUPS = {
    "model": "model and data",
    "optimizer": "optimizer",
    "updates": "updates and staleness",
    "waves": "how instances are batched (waves)",
    "workers": "worker processes and replicas",
}
"""The groups of options, after the most important ones, in the order of the help."""


@dataclass(frozen=True, slots=True)
class Option:
    """How a setting is given on the command line."""

    text: str
    """The help text. May hold ``{unit}``, ``{nodes}`` and other words of `ampnet.cli.train_options`."""
    group: str
    """A key of `GROUPS`."""
    shown: str = ""
    """The default as text; empty: the value itself."""
    metavar: str = ""
    """The value in help; empty: N for a number."""
    least: int = 1
    """The smallest number that is allowed, of integers."""
    within: Literal["positive", "fraction", "share"] = "positive"
    """The range of a float: above 0; above 0 and at most 1; from 0 up and below 1."""
    none: str = ""
    """The word that stands for None."""
    flag: str = ""
    """The name of the option, if it differs from the field."""
    also: tuple[str, ...] = ()
    """Other names of the option."""


def option(default: Any, text: str, group: str = "model", **more: Any) -> Any:
    """A field with an `Option`. A dict as default is copied for every object."""
    metadata = {"option": Option(text, group, **more)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


Optimizer = Literal["adam", "sgd", "momentum", "adagrad", "nesterov", "nadam"]


MANY_REPLICAS = 8
"""With n replicas, more than this, the rate decays n / 8 times as slowly: see `docs/asynchrony.md`."""


@dataclass(frozen=True, slots=True)
class Training:
    """The settings that all workloads share."""

    default_in_flight: ClassVar[int] = 1
    default_frequency: ClassVar[int] = 1

    epochs: int = option(12, "number of epochs; fewer if the target is reached earlier")
    target: float | None = option(
        None, "stop when the {metric} on the validation data is {beyond} this value", shown="{no_target}"
    )
    learning_rate: float = option(1e-3, "learning rate in the first epoch", metavar="RATE", also=("--lr",))
    limit: int | None = option(
        None,
        "use only the first N training records and the first N validation records, to try something quickly",
        shown="all",
    )
    max_active_keys: int | Literal["auto"] = option(
        0,
        "largest number of instances in flight, that is, started and not yet finished: more instances are computed "
        "together, and gradients can be older. auto: try several numbers before training and use the fastest",
        "waves",
        shown="{in_flight}; more with several workers or replicas",
        metavar="N|auto",
    )
    min_update_frequency: int = option(
        0,
        "number of gradients that a layer accumulates before its optimizer takes a step, comparable to the batch size",
        "updates",
        shown="{frequency}",
    )
    workers: int | Literal["auto"] | None = option(
        None,
        "worker processes among which the layers are distributed. 1: everything in this process; auto: measure "
        "briefly before training and use the number that is expected to be fastest",
        "workers",
        shown="one per replica",
        metavar="N|auto",
    )
    replicas: int | Literal["auto"] = option(
        1,
        "copies of the model (data parallelism), each on worker processes of its own; auto: as for --workers. With "
        "auto for both, the faster combination",
        "workers",
        metavar="N|auto",
    )
    cluster: str | None = option(
        None,
        "train on worker processes of a Ray cluster, which may be on several machines (docs/cluster.md): its address, "
        "HOST:PORT; auto: the cluster of this machine, and one that is started for the run if there is none",
        "workers",
        shown="processes of this machine",
        metavar="auto|ADDRESS",
    )
    seed: int = option(0, "random seed of generated data, initial weights, data order and --schedule random", least=0)
    device: Literal["cpu", "cuda"] = option("cpu", "device of weights and computation")
    precision: Literal["float32", "bfloat16"] = option(
        "float32", "data type of the inputs of matrix products; everything else stays float32"
    )
    optimizer: Optimizer = option(
        "adam",
        "torch optimizer; every layer has its own. momentum: SGD with momentum 0.9; nesterov, nadam: made for "
        "asynchronous pipelines, with momentum 0.99",
        "optimizer",
    )
    rate_of: Mapping[str, float] = option(
        {}, "learning rate of single layers, by node name or pattern", "optimizer", metavar="NODE=RATE,..."
    )
    decay: float = option(
        1.0,
        "multiply the learning rate by this after every epoch; with n replicas, more than 8, by its 8/n-th power",
        "optimizer",
        within="fraction",
        metavar="FACTOR",
    )
    beta2: float = option(0.999, "Adam's beta2", "optimizer", within="share", metavar="B")
    weight_decay: float = option(
        0.0,
        "weight decay: decoupled from the gradient with Adam (AdamW), added to the gradient with the others",
        "optimizer",
        within="share",
        metavar="W",
    )
    clip_norm: float | None = option(
        None, "clip the gradient of each layer to this norm; none: no clipping", "optimizer", none="none"
    )
    on_nan: Literal["stop", "skip"] = option(
        "stop", "if a loss is NaN or infinite: stop with an error, or skip its gradient and count it", "optimizer"
    )
    update_after: Mapping[str, int] = option(
        {}, "--min-update-frequency of single layers, by node name or pattern", "updates", metavar="NODE=N,..."
    )
    count: Literal["messages", "instances"] = option(
        "instances",
        "what counts as one gradient: an instance, or a message (one call of the layer: a sequence of nine tokens "
        "counts nine times)",
        "updates",
    )
    weights: Literal["auto", "current", "stash", "estimate", "predict"] = option(
        "auto",
        "which weights are used where updates come between a forward and its backward pass. current: always the "
        "newest; stash: backward, a copy of those used forward; estimate: an estimate of these; predict: forward and "
        "backward, those expected at the backward pass; auto: stash",
        "updates",
    )
    stale_rate: Literal["auto", "full", "annealed", "inverse", "root"] = option(
        "auto",
        "learning rate of stale gradients. full: the same as of others; inverse: divided by the staleness; root: by "
        "its square root; annealed: inverse at first, full after --stale-updates; auto: annealed for replicas that "
        "share weights (root with sgd, momentum, nesterov and adagrad), else full",
        "updates",
    )
    stale_updates: int = option(
        1000, "updates of a layer after which --stale-rate annealed is the full rate", "updates"
    )
    stale_momentum: Literal["full", "lowered"] = option(
        "full", "momentum (Adam's beta1) of stale gradients; lowered: by what asynchrony adds to it", "updates"
    )
    barrier: bool = option(
        False,
        "finish all instances of a training epoch before its validation starts, and all of the validation before the "
        "next epoch starts",
        "updates",
    )
    wave_size: int | None = option(
        None,
        "instances computed together, as one wave; auto: all in flight (a quarter of them if --schedule interleaves "
        "waves; with layers on n workers, an n-th), but not more than the next update needs",
        "waves",
        metavar="N|auto",
        none="auto",
    )
    schedule: Literal["backward-first", "fifo", "sweep", "random"] | None = option(
        None,
        "which wave computes its next operation. backward-first: finish the oldest wave, so that no gradient is stale; "
        "fifo: the wave that has waited longest; sweep: the least advanced wave; random: any. The last three "
        "interleave waves, so gradients are stale",
        "waves",
        shown="backward-first; with --no-waves sweep",
    )
    keep: int = option(
        200_000,
        "largest number of prepared instances kept in memory between epochs; 0: prepare each one again",
        "waves",
        least=0,
    )
    waves: bool = option(
        True,
        "pass single messages between nodes, as the paper does, instead of computing waves; slower",
        "waves",
        flag="--no-waves",
    )
    max_batch: int | None = option(
        None,
        "largest number of messages that a node computes together; implies --no-waves",
        "waves",
        shown="no limit",
    )
    enough_rows: int | None = option(
        100,
        "with --no-waves: number of rows from which a node does not wait for a larger batch; none: no such number",
        "waves",
        none="none",
    )
    threads: int = option(1, "torch threads of each process", "workers")
    affinity: Mapping[str, int] | Literal["auto"] = option(
        "auto",
        'JSON file with the worker of each node, like {{"embedding": 0, "cell*": 1}}; auto: distribute the nodes by '
        "their measured cost",
        "workers",
        metavar="FILE|auto",
    )
    memory_per_worker: int | None = option(
        None,
        "memory limit of a worker process, like 800M or 1.5GB: parameters, gradients and optimizer state of its nodes "
        "have to fit",
        "workers",
        shown="no limit",
        metavar="SIZE",
    )
    pin: bool = option(False, "pin each worker process to a CPU core of its own", "workers")
    max_restarts: int = option(
        3,
        "how often worker processes are started again in all, after one died or got stuck; the next loss is an error",
        "workers",
    )
    replicate: tuple[str, ...] | Mapping[str, int] | None = option(
        None,
        "copy only these nodes, by name or pattern ({nodes}); or give the number of copies for each ({node}=2), and "
        "what is computed with a node is copied with it",
        "workers",
        shown="the whole model",
        metavar="NAMES|NODE=N,...",
    )
    tile: Mapping[str, int] = option(
        {},
        "split the weight matrix of Linear layers into N parts, which different workers compute",
        "workers",
        metavar="NODE=N,...",
        least=2,
    )
    route: Literal["instance", "position", "round-robin", "shortest"] | None = option(
        None,
        "which replica an instance (with --replicate: a message) goes to: by instance number, by its position in the "
        "instance, in turn, or the one with the shortest queue",
        "workers",
        shown="shortest; instance if --replicate is NODE=N",
    )
    sync: Literal["epoch", "updates", "ring", "shared", "gradients"] | None = option(
        None,
        "how replicas stay equal. shared: one set of weights in shared memory, updated by all; gradients: average "
        "every gradient; epoch, updates, ring: average the weights after every epoch, after --sync-every updates of "
        "every replica, or by a message that goes round",
        "workers",
        shown="shared; updates with --cluster",
    )
    sync_every: int = option(100, "updates between two averages, for --sync updates and ring", "workers")
    sync_optimizer: Literal["average", "keep"] = option(
        "average",
        "average the replicas' optimizer state when their weights are averaged, or keep it separate",
        "workers",
    )

    def limited(self, count: int) -> int:
        """That number of records, or ``limit`` if it is smaller."""
        return count if self.limit is None else min(count, self.limit)

    def in_flight(self) -> int:
        """Default number of instances in flight for each replica."""
        return self.default_in_flight

    def frequency(self) -> int:
        """Default number of gradients in an update."""
        return self.default_frequency

    def stretched_decay(self) -> float:
        """Returns the factor of the learning rate after an epoch, for this number of replicas."""
        copies = 1 if self.replicas == "auto" or self.replicate is not None else self.replicas
        return float(self.decay ** (MANY_REPLICAS / max(copies, MANY_REPLICAS)))

    def complete(self) -> Self:
        """The settings with every default filled in."""
        replicas = 1 if self.replicas == "auto" else self.replicas
        single = isinstance(self.replicate, Mapping)
        copies = max(self.replicate.values(), default=1) if isinstance(self.replicate, Mapping) else replicas
        workers = copies if self.workers is None else self.workers
        frequency = self.min_update_frequency or self.frequency()
        in_flight = 0 if self.max_active_keys == "auto" else self.max_active_keys
        if not in_flight:
            in_flight = self.in_flight() * replicas
            teams = replicas if self.replicate is None else 1
            if isinstance(workers, int) and workers > teams:  # a wave for each worker, twice as large as on one core
                wave = min(self.in_flight(), frequency) if self.count == "instances" else self.in_flight()
                in_flight = max(in_flight, 2 * workers * wave)
        return replace(
            self,
            workers=workers,
            max_active_keys=in_flight,
            min_update_frequency=frequency,
            route=self.route or ("instance" if single else "shortest"),
            sync=self.sync or ("shared" if self.cluster is None else "updates"),
        )


def option_of(settings: type[Training], name: str) -> Option:
    """Returns the `Option` of a setting: the workload's own, or else that of `Training`."""
    for base in settings.__mro__:
        if is_dataclass(base):
            of = {item.name: item.metadata.get("option") for item in fields(base)}
            if isinstance(found := of.get(name), Option):
                return found
    raise LookupError(f"{settings.__name__}.{name} has no option(...)")
