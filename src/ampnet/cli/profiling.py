"""Profiling a model that ships with the package, on generated data: the work of ``ampnet profile``.

The defaults are the fastest known for the model: large instances if many examples can be combined (buckets), otherwise
many instances in flight; in waves, or by messages with nodes that take all waiting messages.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ampnet.cli.models import built
from ampnet.cli.profile import BUCKETS
from ampnet.cli.report import write_json
from ampnet.data import generated
from ampnet.data.list_reduction import generate
from ampnet.graph import Graph
from ampnet.instance import Instance
from ampnet.lang import Compiled
from ampnet.models import by_hand, list_reduction
from ampnet.profile import profile, table
from ampnet.reference.schedule import ENOUGH_ROWS
from ampnet.replicas.replicate import replicate
from ampnet.runtime.inline import Inline
from ampnet.runtime.processes import Processes
from ampnet.runtime.runtime import Runtime
from ampnet.update.policy import MakeOptimizer, Update

OPTIMIZERS: dict[str, MakeOptimizer | None] = {
    "adam": partial(torch.optim.Adam, lr=1e-4, fused=True),
    "sgd": partial(torch.optim.SGD, lr=1e-3),
    "none": None,
}
"""Optimizers by name; None: frozen."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """The instances of a model, and their default settings."""

    instances: Callable[[Graph, int], Iterator[Instance]]
    """Yields instances for a graph and a number of examples per instance."""
    frequency: int
    """Instances in an update."""
    alone: int
    """Instances in flight, inline."""
    each: int
    """Instances in flight for each of several workers."""
    enough_rows: int | None = None
    """The number of rows from which a node does not wait for a larger batch; None: no limit."""


def _single(data: Callable[[], Iterator[tuple[Any, ...]]]) -> Callable[[Graph, int], Iterator[Instance]]:
    def make(graph: Graph, bucket: int) -> Iterator[Instance]:
        assert isinstance(graph, Compiled)
        return graph.instances(data())

    return make


def _sequences(graph: Graph, bucket: int) -> Iterator[Instance]:
    data, rng = generate(20_000 if bucket > 1 else 3_000, 0), np.random.default_rng(0)
    if isinstance(graph, Compiled):
        return list_reduction.instances(graph, data, bucket, rng)
    return by_hand.instances(data, bucket, rng)


def _images(graph: Graph, bucket: int) -> Iterator[Instance]:
    assert isinstance(graph, Compiled)
    data = list(generated.images(20 * bucket, 0))
    if bucket == 1:
        yield from graph.instances(data)
        return
    images, labels = torch.stack([i for i, _ in data]), torch.stack([y for _, y in data])
    for i in range(0, len(data), bucket):
        yield graph.bucket(bucket, images[i : i + bucket], labels[i : i + bucket])


WORKLOADS: dict[str, Profiled] = {
    "mnist": Profiled(_images, 1, 1, 2, ENOUGH_ROWS),
    "list-reduction": Profiled(_sequences, 1, 4, 4, ENOUGH_ROWS),
    "sentiment": Profiled(_single(partial(generated.trees, 600, 0, most_leaves=38)), 25, 50, 100),
    "babi15": Profiled(_single(partial(generated.deductions, 400, 0)), 10, 120, 120),
    "qm9": Profiled(_single(partial(generated.molecules, 1000, 0, most_atoms=27)), 20, 64, 128),
    "permuted-layers": Profiled(_single(partial(generated.permutations, 1000, 0)), 64, 256, 256),
    "adaptive-depth": Profiled(_single(partial(generated.rotations, 2000, 0)), 20, 400, 400),
    "by-hand": Profiled(_sequences, 1, 4, 4, ENOUGH_ROWS),
}
"""Workloads by model name."""


def run(args: argparse.Namespace) -> int:
    """Measure, and print the table."""
    if args.bucket is not None and args.model not in BUCKETS:
        args.parser.error(f"--bucket: {args.model} has single instances only; {', '.join(BUCKETS)} have buckets")
    torch.set_num_threads(1)
    bucket = args.bucket or (100 if args.model in BUCKETS else 1)
    runtime = make_runtime(args, bucket)
    with runtime:
        found = profile(runtime, WORKLOADS[args.model].instances(runtime.graph, bucket), seconds=args.seconds)
    told = {"model": args.model, "bucket": bucket, "optimizer": args.optimizer, **found.settings}
    if args.json is not None:
        write_json(args.json, {**found.to_json(), "settings": told})
    print(_title(told, found.waves))
    print(table(found, top=args.top, sort=args.sort))
    return 0


def make_runtime(args: argparse.Namespace, bucket: int) -> Runtime:
    """Returns the runtime for the command line's settings."""
    workload, graph = WORKLOADS[args.model], built(args)
    if args.replicas > 1:
        replicate(graph, None, args.replicas, route="shortest", sync="shared")
    workers = args.replicas if args.workers is None else args.workers
    many = max(1, 100 // bucket) if args.model in BUCKETS else 1
    optimizer = OPTIMIZERS[args.optimizer]
    settings: dict[str, Any] = {
        "update": None if optimizer is None else Update(optimizer, workload.frequency * many, "instances"),
        "max_active_keys": args.max_active_keys or many * (workload.alone if workers == 1 else workload.each * workers),
        "wave_size": args.wave_size,
        "schedule": args.schedule,
    }
    waves = not args.messages and args.max_batch is None and args.enough_rows is None
    if workers > 1:
        if not waves:
            args.parser.error("--messages: worker processes play waves, and pass no messages; give --workers 1")
        return Processes(graph, workers=workers, **settings)
    rows = workload.enough_rows if args.enough_rows is None else args.enough_rows or None
    return Inline(graph, **settings, max_batch=args.max_batch, enough_rows=rows, waves=waves)


def _title(told: dict[str, Any], waves: bool) -> str:
    """Returns a title with the settings of the run."""
    where = "inline" if told["runtime"] == "inline" else f"{told['workers']} workers"
    rows = "all that waits" if told["enough_rows"] is None else f"{told['enough_rows']} rows"
    copies = {len(group["members"]) for group in told.get("replicas", [])}
    parts = [f"{told['model']}, {where}", f"{told['max_active_keys']} in flight"]
    together = "in waves" if told["wave_size"] is None else f"in waves of {told['wave_size']}"
    order = [] if told["schedule"] == ("backward-first" if waves else "sweep") else [told["schedule"]]
    parts += [together if waves else f"{rows} at once", *order, told["optimizer"]]
    return ", ".join(parts + [f"{n} replicas" for n in copies])
