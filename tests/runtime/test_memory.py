"""Memory of worker processes: each has its own part of a model, and no more of the others' than it has to."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from bench.memory import large, records, resident

from ampnet import Graph, GraphError, Instance, Processes, Update
from ampnet.placement.memory import PROCESS, memory_of

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")

WORKERS = 4
STAGES = 4
SIZE = 200_000_000
"""Bytes of parameters, sums of gradients and what Adam keeps."""
LIMIT = SIZE // 3
"""Of a worker, beside what one has that hosts next to nothing."""
OPTIMIZERS = {
    "adam": partial(torch.optim.Adam, lr=1e-3),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2),  # has its memory before the first step
    "momentum": partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
}


def made(size: float) -> tuple[Graph, list[Instance]]:
    torch.manual_seed(0)
    graph = large(size, STAGES)
    return graph, [graph.instance(*record) for record in records(32, graph.model.tables[0].num_embeddings)]  # type: ignore[union-attr, operator]


def trained(size: float, update: Update, limit: int | None) -> tuple[list[int], list[int], list[float]]:
    """Bytes that workers have in memory after some epochs, those of their nodes, and the losses."""
    graph, instances = made(size)
    with Processes(graph, workers=WORKERS, memory_per_worker=limit, update=update, max_active_keys=16) as runtime:
        needs = memory_of(graph)
        losses = [runtime.train(instances).loss for _ in range(3)]
        taken = [resident(pid) for pid in runtime.pids]
        own = [sum(n for name, n in needs.items() if runtime.hosts[name] == worker) for worker in range(WORKERS)]
    return taken, own, losses


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_model_too_large_for_one_worker_trains_and_none_takes_more_than_its_limit(name: str) -> None:
    """Once, workers had the copy of the model that was tried, freed or not, and the optimizers of all nodes."""
    update = Update(OPTIMIZERS[name], 8, "instances")
    bare = max(trained(1e4, update, None)[0])
    taken, own, losses = trained(SIZE, update, PROCESS + LIMIT)
    assert losses[-1] < losses[0]
    assert sum(own) > 2 * LIMIT  # or it would have been no feat
    assert max(own) <= LIMIT
    beyond = [size - bare for size in taken]
    assert max(beyond) <= LIMIT, (beyond, own)


def test_a_limit_that_no_cut_can_meet_names_the_largest_node() -> None:
    graph, instances = made(SIZE)
    largest = max(memory_of(graph, dict.fromkeys(graph.nodes)).items(), key=lambda item: item[1])[0]
    update = Update(OPTIMIZERS["adam"], 8, "instances")
    for limit, words in (
        (PROCESS + SIZE // 20, f"node '{largest}' needs .* for parameters.*Remedy: a higher limit, or tiles"),
        (PROCESS + SIZE // 7, f"do not fit on {WORKERS} workers: .*node '{largest}' needs .*Remedy: more workers"),
    ):
        with (
            Processes(graph, workers=WORKERS, memory_per_worker=limit, update=update) as runtime,
            pytest.raises(GraphError, match=words),
        ):
            runtime.train(instances)


def test_the_maker_has_no_optimizers_while_workers_have() -> None:
    graph, instances = made(1e4)
    with Processes(graph, workers=2, update=Update(OPTIMIZERS["adagrad"], 8, "instances")) as runtime:
        runtime.train(instances)
        assert all(node.updater.optimizer is None for node in graph.parameterised().values())


def bench(limit: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: workers are forks, and have what the process of all these tests has in memory."""
    command = ("-m", "bench.memory", "--gigabytes", "0.02", "--workers", "2", "--limit", limit, "--instances", "16")
    root = Path(__file__).parents[2]
    return subprocess.run([sys.executable, *command], cwd=root, capture_output=True, text=True, check=False)


def test_the_bench_of_it() -> None:
    held, refused = bench("1.0"), bench("0.301")
    assert held.returncode == 0, held.stderr
    assert held.stdout.count(": held") == 2
    assert refused.returncode == 2
    assert "needs" in refused.stderr
