"""Parts: nodes on several workers, rows crossing between them, in any order: the gradients of one process."""

from __future__ import annotations

import numpy as np
import pytest

from ampnet.lang import compile
from ampnet.testing import assert_close, graph_gradients, model_gradients
from ampnet.testing.language import by_model_names
from ampnet.testing.parted import Parted, random_hosts
from ampnet.testing.written import WrittenModel, example, seeded
from tests.wave.both import NAMES, model


def in_waves(instances: list, size: int) -> list[list]:
    return [instances[i : i + size] for i in range(0, len(instances), size)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("schedule", ["backward-first", "random"])
def test_models(name: str, seed: int, schedule: str) -> None:
    graph, instances = model(name)
    want = graph_gradients(graph, instances, max_active_keys=len(instances))
    parted = Parted(graph, random_hosts(graph, 2 + seed % 3, seed), schedule=schedule, seed=seed)
    parted.run(in_waves(instances, 1 + seed))
    assert parted.held() == {}
    assert_close(parted.gradients(), want)
    reports = len(parted.reports)
    parted.run(in_waves(instances, 2), train=False)
    assert len(parted.reports) > reports
    assert parted.held() == {}
    assert_close(parted.gradients(), want)


def check(seed: int) -> None:
    """A random model on random workers."""
    program, drawn = seeded(seed)
    model = WrittenModel(program)
    graph = compile(model, *example())
    instances = list(graph.instances(drawn))
    rng = np.random.default_rng(seed)
    schedule = ["backward-first", "fifo", "sweep", "random"][int(rng.integers(4))]
    hosts = random_hosts(graph, int(rng.integers(2, 5)), seed)
    parted = Parted(graph, hosts, schedule=schedule, seed=seed)
    parted.run(in_waves(instances, int(rng.integers(1, 4))))
    assert parted.held() == {}
    for name, total in graph.gradients().items():
        total.copy_(parted.gradients()[name])
    assert_close(by_model_names(graph, graph.gradients()), model_gradients(model, drawn))


@pytest.mark.parametrize("seed", range(40))
def test_seeds(seed: int) -> None:
    check(seed)
