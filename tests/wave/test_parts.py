"""Parts: nodes on several workers, rows crossing between them, in any order (P2, P3, P7, P19, P21)."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampnet import DataError, Graph, Inline, Instance, LossError, NodeError, Update
from ampnet.errors import PlanError
from ampnet.lang import compile
from ampnet.nodes import Linear, Loss
from ampnet.replicas.replicate import ROUTES, replicate
from ampnet.testing import assert_close, graph_gradients, model_gradients
from ampnet.testing.language import by_model_names
from ampnet.testing.parted import Parted, random_hosts
from ampnet.testing.written import WrittenModel, example, seeded
from ampnet.tile import tile
from tests.replicas.small import taken
from tests.wave.both import NAMES, model
from tests.wave.test_gradients import F64, chain, rows_of
from tests.wave.test_poison import poisoned

SCHEDULES = ["backward-first", "fifo", "sweep", "random"]
SGD = partial(torch.optim.SGD, lr=0.05)


def in_waves(instances: Sequence[Instance], size: int) -> list[Sequence[Instance]]:
    return [instances[i : i + size] for i in range(0, len(instances), size)]


# Frozen weights: where nodes are decides nothing


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_gradients_on_any_workers_are_those_of_one_process(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    graph, instances = model(name)
    want = graph_gradients(graph, instances, max_active_keys=len(instances))
    workers, seed = data.draw(st.integers(2, 4)), data.draw(st.integers(0, 10_000))
    schedule = data.draw(st.sampled_from(SCHEDULES))
    parted = Parted(graph, random_hosts(graph, workers, seed), schedule=schedule, seed=seed)
    in_flight = data.draw(st.none() | st.integers(1, 4))
    for _ in range(2):  # the second time with layouts that were kept
        parted.run(in_waves(instances, data.draw(st.integers(1, 4))), in_flight=in_flight)
    assert parted.held() == {}
    assert_close(parted.gradients(), {name: 2 * total for name, total in want.items()})
    reports = len(parted.reports)
    parted.run(in_waves(instances, 2), train=False)
    assert len(parted.reports) > reports
    assert parted.held() == {}
    assert_close(parted.gradients(), {name: 2 * total for name, total in want.items()})


def check(seed: int) -> None:
    """A random model on random workers in a random order."""
    program, drawn = seeded(seed)
    model = WrittenModel(program)
    graph = compile(model, *example())
    instances = list(graph.instances(drawn))
    rng = np.random.default_rng(seed)
    schedule = SCHEDULES[int(rng.integers(4))]
    hosts = random_hosts(graph, int(rng.integers(2, 5)), seed)
    parted = Parted(graph, hosts, schedule=schedule, seed=seed)
    parted.run(in_waves(instances, int(rng.integers(1, 4))))
    assert parted.held() == {}
    assert_close(by_model_names(graph, parted.gradients()), model_gradients(model, drawn))


@pytest.mark.parametrize("seed", range(40))
def test_seeds(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_many_seeds(first: int) -> None:
    failed: dict[int, str] = {}
    for seed in range(first, first + 100):
        try:
            check(seed)
        except Exception as error:
            failed[seed] = f"{type(error).__name__}: {error}"
    assert not failed, "\n".join(f"seed {seed}: {why}" for seed, why in failed.items())


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", ["list-reduction", "sentiment", "qm9"])
def test_replicas_of_one_node_on_several_workers(name: str, route: str) -> None:
    graph, instances = model(name)
    want = graph_gradients(graph, instances)
    graph = copy.deepcopy(graph)
    cell = next(n for n in graph.nodes if "cell" in n and "leaf" not in n)
    replicate(graph, cell, 3, route=route)  # type: ignore[arg-type]
    hosts = {n: graph.copies[n].number if n in graph.copies else 0 for n in graph.nodes}
    for seed in range(2):
        parted = Parted(graph, hosts, seed=seed)
        parted.run(in_waves(instances, 2))
        assert parted.held() == {}
        assert_close(parted.gradients(), want)
        taken(graph)


def test_tiles_on_several_workers() -> None:
    graph, instances = model("mnist")
    want = graph_gradients(graph, instances)
    for by in ("outputs", "inputs"):
        tiled = copy.deepcopy(graph)
        wide = next(n for n, node in tiled.nodes.items() if isinstance(node, Linear))
        tiles = tile(tiled, wide, 2, by=by)  # type: ignore[arg-type]
        parted = Parted(tiled, {n: int(n == tiles[-1]) for n in tiled.nodes})
        parted.run(in_waves(instances, 2))
        assert_close(parted.gradients(), want)


# Training


def test_one_wave_at_a_time_trains_as_one_process_does() -> None:
    for name in NAMES:
        graph, instances = model(name)
        update = Update(SGD, 2, "instances")
        parted = Parted(graph, random_hosts(graph, 3, 1), update=update)
        for _ in range(2):
            parted.run(in_waves(instances, 2), in_flight=1)
            parted.flush()
        one = copy.deepcopy(graph)
        with Inline(one, update=update, max_active_keys=2) as runtime:
            runtime.train(instances)
            runtime.train(instances)
        want = {f"{n}.{p}": w for n, node in one.parameterised().items() for p, w in node.parameters.items()}
        assert_close(parted.weights(), want)


def staleness(parted: Parted) -> dict[str, Counter[int]]:
    """Of each node: waves by how many updates it made between their forward and their backward."""
    found: dict[str, Counter[int]] = {}
    for player in parted.players.values():
        note = player.updates.note_lags

        def noted(node, lags, note=note):  # type: ignore[no-untyped-def]
            found.setdefault(node.name, Counter()).update(dict(lags))
            note(node, lags)

        player.updates.note_lags = noted  # type: ignore[method-assign]
    return found


def layers() -> tuple[Graph, dict[str, int]]:
    """Three layers on three workers, the loss with the last."""
    graph = chain(*(Linear(4, 4, dtype=F64, activation="tanh") for _ in range(3)))
    return graph, {"n0": 0, "n1": 1, "n2": 2, "loss": 2}


@pytest.mark.parametrize("seed", range(3))
def test_the_staleness_of_a_pipeline_is_at_most_the_waves_ahead(seed: int) -> None:
    """
    worker 0   1 2 3 . . . 1b 4 2b         three waves in flight: between the forward of wave 3 and its backward, the
    worker 1     1 2 3 1b . 2b             first layer updates for waves 1 and 2, the last for none
    worker 2       1 1b 2 2b
    """
    graph, hosts = layers()
    parted = Parted(graph, hosts, update=Update(SGD, 1, "instances"), seed=seed)
    found = staleness(parted)
    parted.run(in_waves(rows_of(*[1] * 12), 1), in_flight=3)
    assert {node: sum(lags.values()) for node, lags in found.items()} == {"n0": 12, "n1": 12, "n2": 12}
    assert max(found["n0"]) == 2
    assert set(found["n2"]) == {0}


@pytest.mark.parametrize("seed", range(3))
def test_stashed_weights_are_let_go(seed: int) -> None:
    graph, hosts = layers()
    update = Update(SGD, 1, "instances", weights="stash")
    parted = Parted(graph, hosts, update=update, seed=seed, schedule="random")
    parted.run(in_waves(rows_of(*[1] * 8), 1), in_flight=4)
    assert parted.held() == {}
    assert not any(node.updater.stashed() for g in parted.graphs for node in g.parameterised().values())


# What goes wrong


def test_a_payload_that_is_not_finite_is_refused_by_the_worker_that_reads_it() -> None:
    graph, instances = model("mnist")
    parted = Parted(graph, random_hosts(graph, 2, 0), update=Update(SGD, 1))
    before = parted.weights()
    with pytest.raises(DataError, match="not finite"):
        parted.run(in_waves(poisoned(instances, "image", float("nan"), at=0), 2), in_flight=1)
    assert_close(parted.weights(), before, 0.0)


def test_instances_that_are_left_out_are_left_out_everywhere() -> None:
    graph, instances = model("mnist")
    graph = copy.deepcopy(graph)
    for node in graph.nodes.values():
        if isinstance(node, Loss):
            node.on_nan = "skip"
    want = graph_gradients(graph, instances[1:])
    parted = Parted(graph, {n: i % 2 for i, n in enumerate(graph.nodes)})
    parted.run([poisoned(instances, "image", float("nan"), at=0)])
    assert_close(parted.gradients(), want)
    counters = {n.updater.counter for g in parted.graphs for n in g.parameterised().values() if n.updater.counter}
    assert counters == {len(instances) - 1}
    assert sum(len(report.skipped) for report in parted.reports) == 1


def test_a_loss_that_is_not_finite_is_named_by_its_worker() -> None:
    graph, instances = model("list-reduction")
    parted = Parted(graph, random_hosts(graph, 2, 0))
    for g in parted.graphs:
        for node in g.parameterised().values():
            for weight in node.updater.weights:
                weight.fill_(1e300)
    with pytest.raises(NodeError) as failed:
        parted.run(in_waves(instances, 2))
    assert isinstance(failed.value.__cause__, LossError)


def test_a_worker_with_another_layout_is_found_out() -> None:
    """P21. One worker's scores say that rows lie elsewhere."""
    graph, instances = model("qm9")
    parted = Parted(graph, random_hosts(graph, 2, 3))
    parted.run(in_waves(instances, 2))
    planner = parted.players[1].planner
    for key, score in planner._scores.items():
        planner._scores[key] = replace(score, digest=bytes(8))
    planner.forget_layouts()
    with pytest.raises(PlanError, match="has another layout"):
        parted.run(in_waves(instances, 2))


def test_a_worker_that_gets_nothing_says_what_it_waits_for() -> None:
    graph, hosts = layers()
    parted = Parted(graph, hosts)
    parted._stage(rows_of(1), True)
    lost = parted.players[1]
    with torch.no_grad():
        while lost.step(1):
            pass
    assert lost.waits() == ["wave 1 waits for rows of node 'n0' from worker 0"]
