"""From settings to something that runs: the graph with its tiles and replicas, the update policies, the runtime.

settings ──> graph ──tile──> ──replicate──> ──on a device──> Inline or Processes
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeVar

import torch
from torch.optim.lr_scheduler import ExponentialLR

from ampnet.errors import AmpnetError
from ampnet.events.log import Listener
from ampnet.experiments.settings import Training
from ampnet.experiments.workload import Facts, Workload
from ampnet.graph import Graph
from ampnet.instance import Instance
from ampnet.lang import Compiled
from ampnet.nodes.loss import Loss
from ampnet.placement.units import around
from ampnet.replicas.replicate import replicate
from ampnet.replicas.sync import Sync
from ampnet.runtime.inline import Inline
from ampnet.runtime.processes import Processes
from ampnet.runtime.runtime import Runtime
from ampnet.tile import tile
from ampnet.update.policy import MakeOptimizer, Update
from ampnet.update.remedies import AnnealedRate, AsyncNesterov, InverseRate, LoweredMomentum, Remedy
from ampnet.update.remedies.rate import grows

V = TypeVar("V")


def make_graph(workload: Workload[Any], settings: Training, facts: Facts) -> Compiled:
    """The graph of the workload's model, with its tiles and replicas, on its device."""
    graph, settings = workload.build(settings, facts), settings.complete()
    for name, count in settings.tile.items():
        tile(graph, name, count)
    assert settings.sync is not None
    sync = Sync(settings.sync, settings.sync_every, settings.sync_optimizer)
    parts: list[tuple[Sequence[str] | None, int]] = []
    if isinstance(settings.replicate, Mapping):  # what is computed with a node is copied with it
        parts = [(around(graph, name), count) for name, count in settings.replicate.items()]
    elif isinstance(settings.replicas, int) and settings.replicas > 1:
        parts = [(settings.replicate, settings.replicas)]
    for nodes, count in parts:
        replicate(graph, nodes, count, route=settings.route, sync=sync)  # type: ignore[arg-type]
    return graph.to(settings.device) if settings.device != "cpu" else graph


def make_runtime(
    graph: Graph,
    settings: Training,
    listeners: Sequence[Listener] = (),
    hosts: Mapping[str, int] | None = None,
    data: Any = None,
) -> Runtime:
    """A runtime on a graph, under these settings. ``hosts``: the worker of each node, where that is known already.
    ``data``: the instances that every machine of a cluster makes itself (`MakesInstances`)."""
    settings = settings.complete()
    for loss in (node for node in graph.nodes.values() if isinstance(node, Loss)):
        loss.on_nan = settings.on_nan
    update, updates = policies(settings, graph)
    common: dict[str, Any] = {
        "update": update,
        "updates": updates,
        "max_active_keys": settings.max_active_keys,
        "wave_size": settings.wave_size,
        "schedule": settings.schedule,
        "seed": settings.seed,
        "listeners": listeners,
        "precision": settings.precision,
    }
    assert settings.workers is not None
    if settings.workers == 1 and settings.cluster is None:
        limits: dict[str, Any] = {
            "max_batch": settings.max_batch,
            "enough_rows": settings.enough_rows,
            "waves": settings.waves,
        }
        return Inline(graph, **common, **limits)
    if not settings.waves or settings.max_batch is not None:
        raise AmpnetError("worker processes play waves, and pass no messages: workers=1, or waves and no max_batch")
    common |= {
        "workers": len(os.sched_getaffinity(0)) if settings.workers == "auto" else settings.workers,
        "affinity": settings.affinity if hosts is None else hosts,
        "memory_per_worker": settings.memory_per_worker,
        "threads": settings.threads,
        "max_restarts": settings.max_restarts,
    }
    if settings.cluster is not None:
        from ampnet.runtime.cluster.runtime import Cluster

        return Cluster(graph, address=settings.cluster, data=data, **common)
    return Processes(graph, pin=settings.pin, **common)


def make_judge(graph: Graph, settings: Training) -> Runtime:
    """A runtime for evaluation: in this process, in waves, weights frozen."""
    complete = settings.complete()
    assert isinstance(complete.max_active_keys, int)
    return Inline(graph, max_active_keys=complete.max_active_keys, wave_size=complete.wave_size, seed=complete.seed)


def policies(settings: Training, graph: Graph) -> tuple[Update, Mapping[str, Update]]:
    """The policy of all nodes, and of those that have another, by name."""
    decays = partial(ExponentialLR, gamma=settings.stretched_decay())
    common = Update(
        _optimizer(settings, settings.learning_rate),
        settings.min_update_frequency,
        settings.count,
        clip_norm=settings.clip_norm,
        schedule=decays if settings.decay < 1 else None,
        weights=settings.weights,
        remedies=_remedies(settings, shared=False),
    )
    shared = {graph.called(n) for g in graph.replicas.values() if g.sync.when == "shared" for n in g.members}
    own: dict[str, Update] = {}
    for node in dict.fromkeys(map(graph.called, graph.parameterised())):
        frequency, rate = of_node(settings.update_after, node), of_node(settings.rate_of, node)
        if frequency is not None:
            own[node] = common.but(min_update_frequency=frequency)
        if rate is not None:
            own[node] = own.get(node, common).but(optimizer=_optimizer(settings, rate))
        if node in shared and settings.stale_rate == "auto":
            own[node] = own.get(node, common).but(remedies=_remedies(settings, shared=True))
    return common, own


def of_node(given: Mapping[str, V], node: str) -> V | None:
    """The setting of a node: by its name, else by the last pattern that it matches."""
    matching = [value for pattern, value in given.items() if fnmatchcase(node, pattern)]
    return given[node] if node in given else matching[-1] if matching else None


def _remedies(settings: Training, *, shared: bool) -> tuple[Remedy, ...]:
    """Returns the remedies of a node. ``shared``: replicas of it share weights."""
    optimizer = _optimizer(settings, settings.learning_rate)([torch.zeros(1, requires_grad=True)])
    usual = "root" if grows(optimizer) else "annealed"
    chosen = settings.stale_rate if settings.stale_rate != "auto" else usual if shared else "full"
    rates: dict[str, tuple[Remedy, ...]] = {
        "annealed": (AnnealedRate(settings.stale_updates),),
        "inverse": (InverseRate(),),
        "root": (InverseRate(0.5),),
    }
    lowered = (LoweredMomentum(),) if settings.stale_momentum == "lowered" else ()
    return (*rates.get(chosen, ()), *lowered)


def _optimizer(settings: Training, rate: float) -> MakeOptimizer:
    weight_decay = settings.weight_decay
    if settings.optimizer == "adam":
        betas = (0.9, settings.beta2)
        if weight_decay:
            return partial(torch.optim.AdamW, lr=rate, betas=betas, weight_decay=weight_decay, fused=True)
        return partial(torch.optim.Adam, lr=rate, betas=betas, fused=True)
    if settings.optimizer == "adagrad":
        return partial(torch.optim.Adagrad, lr=rate, weight_decay=weight_decay, fused=settings.device == "cpu")
    if settings.optimizer == "nesterov":
        return partial(AsyncNesterov, lr=rate)
    if settings.optimizer == "nadam":
        decoupled = bool(weight_decay)
        betas = (0.99, settings.beta2)
        return partial(
            torch.optim.NAdam, lr=rate, betas=betas, weight_decay=weight_decay, decoupled_weight_decay=decoupled
        )
    momentum = 0.9 if settings.optimizer == "momentum" else 0
    return partial(torch.optim.SGD, lr=rate, momentum=momentum, weight_decay=weight_decay)


def on_device(instances: Iterable[Instance], settings: Training) -> Iterator[Instance]:
    """The instances with payloads moved to the device of the weights."""
    if settings.device == "cpu":
        yield from instances
        return
    for one in instances:
        feeds = {
            name: given if given.payload is None else replace(given, payload=given.payload.to(settings.device))
            for name, given in one.feeds.items()
        }
        yield replace(one, feeds=feeds)
