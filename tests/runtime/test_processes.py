"""Worker processes: the same results as inline, and one named error, soon, when something goes wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ampnet import (
    AmpnetError,
    Graph,
    GraphError,
    Inline,
    Instance,
    Messages,
    NodeError,
    Processes,
    StallError,
    Stream,
    Update,
    feed,
)
from ampnet.data import generated
from ampnet.data.list_reduction import generate
from ampnet.errors import WorkerDied
from ampnet.events.check import check
from ampnet.events.log import EventLog
from ampnet.lang import Compiled, compile
from ampnet.models import AdaptiveDepth, Mlp, PermutedLayers, Qm9, TreeLstm, by_hand, list_reduction
from ampnet.nodes import Bcast, Concat, Function, Linear, Loss, Sink
from ampnet.nodes.node import Node, Outputs, backward_to, forward_to
from ampnet.testing import assert_close
from tests.runtime.conftest import children

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


def doubled(rows: Any) -> Any:
    return rows.double() if isinstance(rows, Tensor) and rows.is_floating_point() else rows


def small(name: str) -> tuple[Compiled, list[Instance]]:
    """A small model in float64, and a few instances."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        models: dict[str, tuple[Any, list[Any]]] = {
            "mlp": (Mlp(12, 3, 4), list(generated.images(7, 0, 12, 4))),
            "tree": (TreeLstm(20, 4, 5), list(generated.trees(6, 0, 20, 6))),
            "qm9": (Qm9(3, 6, 2, 2), list(generated.molecules(6, 0, 3, 2, 6))),
            "permuted": (PermutedLayers(6, 4, 3), list(generated.permutations(8, 0, 6, 4, 3, 3))),
            "depth": (AdaptiveDepth(2, 5, 2), list(generated.rotations(8, 0, 3))),
        }
    finally:
        torch.set_default_dtype(torch.float32)
    model, data = models[name]
    for arguments in data:
        for given in arguments:
            if hasattr(given, "_columns"):
                given._columns = {n: doubled(c) for n, c in given._columns.items()}
    data = [tuple(doubled(a) for a in arguments) for arguments in data]
    graph = compile(model, *data[-1])
    return graph, [graph.instance(*arguments) for arguments in data]


def gradients(graph: Graph) -> dict[str, Tensor]:
    out = {name: total.clone() for name, total in graph.gradients().items()}
    for total in graph.gradients().values():
        total.zero_()
    return out


@pytest.mark.parametrize("name", ["mlp", "tree", "qm9", "permuted", "depth"])
@pytest.mark.parametrize("workers", [2, 3])
def test_gradients_are_those_of_the_inline_runtime(name: str, workers: int) -> None:
    graph, instances = small(name)
    with Inline(graph, update=None, max_active_keys=3) as inline:
        want_loss = inline.train(instances).loss
    want = gradients(graph)
    rng = np.random.default_rng(workers)
    affinity = {node: int(rng.integers(workers)) for node in graph.nodes}
    log = EventLog()
    with Processes(graph, workers=workers, affinity=affinity, max_active_keys=3, listeners=[log]) as runtime:
        stats = runtime.train(instances)
        assert not runtime.held()
        again = runtime.infer(instances)
    assert stats.loss == pytest.approx(want_loss, abs=1e-12)
    assert again.loss == pytest.approx(want_loss, abs=1e-12)
    assert_close(gradients(graph), want)
    assert check(log.events) == []


@pytest.mark.parametrize("apart", ["layers_*", "layers_0", "classify"])
def test_waves_that_come_again_have_the_gradients_of_the_first_time(apart: str) -> None:
    """Once, gradients of rows that crossed were added to those of the wave before, from the third time on."""
    graph, instances = small("permuted")
    with Inline(graph, update=None) as inline:
        inline.train(instances)
    want = gradients(graph)
    with Processes(graph, workers=2, affinity={"*": 0, apart: 1}, max_active_keys=1) as runtime:
        for _ in range(4):
            runtime.train(instances)
        assert runtime.stats().engine == "waves"
    assert_close(gradients(graph), {name: 4 * total for name, total in want.items()})


def test_training_one_at_a_time_is_inline_training() -> None:
    update = Update(partial(torch.optim.Adam, lr=0.01), 2, "instances")
    losses, weights = [], []
    for make in (partial(Inline, max_active_keys=1), partial(Processes, workers=2, max_active_keys=1)):
        graph, instances = small("qm9")
        with make(graph, update=update) as runtime:
            losses.append([runtime.train(instances).loss for _ in range(3)])
        weights.append({n: p.detach().clone() for n, p in graph.model.named_parameters()})
    assert losses[0] == pytest.approx(losses[1], abs=1e-10)
    assert_close(weights[1], weights[0])


def test_a_model_learns_and_its_weights_are_in_this_process() -> None:
    graph = list_reduction.build(32, seed=0)
    data = generate(2000, 0)
    before = {n: p.detach().clone() for n, p in graph.model.named_parameters()}
    update = Update(partial(torch.optim.Adam, lr=3e-3), 1, "instances")
    log = EventLog()
    settings = {"affinity": {"*": 0, "classify": 1, "loss": 1}, "update": update, "max_active_keys": 4}
    with Processes(graph, workers=2, listeners=[log], **settings) as runtime:
        stats = [runtime.train(list_reduction.instances(graph, data, 50)) for _ in range(3)]
        assert set(runtime.hosts.values()) == {0, 1}
        known = runtime.infer(list_reduction.instances(graph, data, 50))
    assert stats[-1].loss < stats[0].loss
    assert all((before[n] != p).any() for n, p in graph.model.named_parameters())
    assert check(log.events) == []
    with Inline(graph) as inline:
        assert inline.infer(list_reduction.instances(graph, data, 50)).loss == pytest.approx(known.loss, rel=1e-5)


def test_predictions_come_back() -> None:
    graph, instances = small("tree")
    with Inline(graph) as inline:
        want = inline.infer(instances, keep_predictions=True).predictions
    with Processes(graph, workers=2) as runtime:
        got = runtime.infer(instances, keep_predictions=True).predictions
    assert got.keys() == want.keys()
    for place, results in want.items():
        mine = {tuple(sorted(s.items())): rows for _, s, rows in got[place]}
        for (_, state, _rows), (_, other, _) in zip(results, got[place], strict=True):
            state["instance"] = other["instance"]
        assert {tuple(sorted(s.items())) for _, s, _ in results} == mine.keys()


def failing(kind: type[BaseException] | None) -> Graph:
    """x -> a -> bad -> loss, where bad fails, or sleeps for ever, on a row that starts with 13."""

    def bad(x: Tensor) -> Tensor:
        if bool((x[:, 0] == 13).any()):
            if kind is None:
                while True:
                    signal.pause()
            raise kind("unlucky")
        return x

    graph = Graph("failing")
    graph.add("first", Function(lambda x: x * 1.0))
    graph.add("bad", Function(bad))
    graph.add("last", Linear(2, 2))
    graph.add("loss", Loss("squared_error"))
    graph.input("x", "first")
    graph.input("y", "loss.label")
    graph.chain("first", "bad", "last")
    graph.connect("last", "loss.prediction")
    return graph


def pairs(*first: float) -> list[Instance]:
    return [Instance({"x": feed(torch.tensor([[v, 0.0]])), "y": feed(torch.zeros(1, 2))}) for v in first]


APART = {"first": 0, "bad": 1, "last": 0, "loss": 1}


def test_an_error_in_a_worker_is_raised_once_with_its_name_and_the_runtime_goes_on() -> None:
    with Processes(failing(ValueError), workers=2, affinity=APART, max_active_keys=3) as runtime:
        runtime.train(pairs(1, 2, 3))
        with pytest.raises(NodeError, match="'bad' failed in forward.*instance=5.*worker1.*unlucky") as caught:
            runtime.train(pairs(1, 2, 13, 4, 5, 6))
        assert isinstance(caught.value.__cause__, ValueError)
        assert not runtime.held()
        assert runtime.train(pairs(1, 2, 3)).instances == 3


@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_worker_is_a_named_error(number: int) -> None:
    with Processes(failing(ValueError), workers=2, affinity=APART, max_active_keys=2, max_restarts=0) as runtime:
        runtime.train(pairs(1))
        os.kill(runtime.pids[number], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=f"worker{number}.*SIGKILL"):
            for _ in range(1000):
                runtime.train(pairs(1, 2, 3))
        with pytest.raises(AmpnetError, match="this runtime has ended"):
            runtime.train(pairs(1))


def test_a_stuck_worker_is_a_named_error() -> None:
    with (
        Processes(
            failing(None), workers=2, affinity=APART, max_active_keys=2, stuck_after=1.0, max_restarts=0
        ) as runtime,
        pytest.raises(WorkerDied, match=r"worker1.*no step for 1 s in node 'bad'"),
    ):
        runtime.train(pairs(1, 2, 13, 4))


def test_a_message_that_never_comes_is_a_stall_that_says_who_waits() -> None:
    graph = Graph("stalls")
    graph.add("both", Concat(("a", "b")))
    graph.add("linear", Linear(2, 1))
    graph.add("loss", Loss("squared_error"))
    graph.input("a", "both.a")
    graph.input("b", "both.b")
    graph.input("y", "loss.label")
    graph.chain("both", "linear")
    graph.connect("linear", "loss.prediction")
    lacking = Instance({"a": feed(torch.zeros(1, 1)), "y": feed(torch.zeros(1, 1))})
    with (
        Processes(graph, workers=2, affinity={"both": 0, "linear": 1, "loss": 1}) as runtime,
        pytest.raises(StallError, match="wait for port 'b'"),
    ):
        runtime.train([lacking])


def test_an_interrupted_caller_leaves_nobody_behind() -> None:
    graph = list_reduction.build(16, seed=0)
    data = generate(5000, 0)

    def interrupted(progress: object) -> None:
        raise KeyboardInterrupt

    with Processes(graph, workers=2) as runtime, pytest.raises(KeyboardInterrupt):
        runtime.run([Stream(list_reduction.instances(graph, data, 10))], on_turn=interrupted, turn_seconds=0.0)
    assert not children()


def test_workers_end_by_themselves_when_their_maker_is_killed() -> None:
    script = textwrap.dedent(
        """
        import itertools, os, signal, torch
        from ampnet import Processes, Stream
        from ampnet.data.list_reduction import generate
        from ampnet.models import list_reduction
        graph = list_reduction.build(16, seed=0)
        data = generate(500, 0)
        runtime = Processes(graph, workers=2)
        def tell(progress):
            print(*runtime.pids, flush=True)
        endless = itertools.chain.from_iterable(list_reduction.instances(graph, data, 10) for _ in itertools.count())
        runtime.run([Stream(endless)], on_turn=tell, turn_seconds=0.0)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(p) for p in process.stdout.readline().split()]
    process.kill()
    process.wait()
    process.stdout.close()
    assert len(pids) == 2
    while any(os.path.exists(f"/proc/{pid}") and _runs(pid) for pid in pids):  # for ever, where they outlive it
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_affinity_names_nodes_that_exist_and_workers_that_exist() -> None:
    graph, instances = small("mlp")
    with (
        Processes(graph, workers=2, affinity={"hiden_*": 0, "classify": 7}) as runtime,
        pytest.raises(GraphError, match="no node is called that.*\n.*worker 7; there are 2"),
    ):
        runtime.train(instances)


def test_closing_twice_and_running_after_it() -> None:
    graph, instances = small("mlp")
    runtime = Processes(graph, workers=2)
    runtime.train(instances)
    runtime.close()
    runtime.close()
    with pytest.raises(AmpnetError, match="has ended"):
        runtime.train(instances)


def test_the_graph_wired_by_hand_runs_too() -> None:
    graph = by_hand.build(16, seed=0)
    data = generate(300, 0)
    with Processes(graph, workers=2, affinity={"linear1": 1, "relu": 1}, max_active_keys=4) as runtime:
        assert runtime.train(by_hand.instances(data, 10, hidden=16)).records == 300


class Own(Node):
    """Nobody knows beforehand what it does with rows."""

    def forward(self, port: int, messages: Messages) -> Outputs:
        return [forward_to(0, messages)]

    def backward(self, port: int, messages: Messages) -> Outputs:
        return [backward_to(0, messages)]


def test_a_node_that_cannot_be_played_is_refused_with_its_name() -> None:
    """Message passing runs in one process only."""
    graph = failing(ValueError)
    graph.nodes["bad"] = node = Own()
    node.name = "bad"
    with pytest.raises(GraphError, match=r"node 'bad' \(Own\) has a forward and backward of its own.*inline runtime"):
        Processes(graph, workers=2)


@pytest.mark.parametrize("together", [False, True])
def test_instances_that_workers_have_and_those_that_are_sent_travel_together(together: bool) -> None:
    graph, instances = small("tree")
    with Inline(graph, update=None) as inline:
        want = inline.train(instances).loss
    gradients(graph)
    half = instances[: len(instances) // 2]
    with Processes(graph, workers=2, update=None, max_active_keys=16, wave_size=8) as runtime:
        runtime.know(half)
        mixed = [i if n % 2 else replace(i) for n, i in enumerate(instances)]  # copies are not known
        for _ in range(2):
            found = runtime.run([Stream(iter(mixed)), Stream(iter(mixed), False)], together=together)
            assert [stats.loss for stats in found] == pytest.approx([want, want], abs=1e-12)
        assert not runtime.held()
        assert len(runtime._known) == len(half)


def test_statistics_say_how_busy_workers_were() -> None:
    """Nodes are placed by hand: by a trial on a busy machine, one of three workers may get none."""
    graph, instances = small("qm9")
    affinity = {"propagate_*": 1, "gate": 2, "value": 2, "loss": 0}
    with Processes(graph, workers=3, max_active_keys=6, wave_size=2, affinity=affinity) as runtime:
        assert runtime.stats().busy == ()
        runtime.train(instances)
        stats = runtime.stats()
        assert len(stats.busy) == 3
        assert all(0 < share <= 1 for share in stats.busy)
        assert (stats.waves, stats.instances) == (3, 6)  # each once, whoever plays it
    assert runtime.stats().busy == pytest.approx(stats.busy)
    words = runtime.stats().words()
    assert re.fullmatch(r"engine: waves, 3 played, at most \d in flight; busy: \d+ %, \d+ %, \d+ %", words)


@pytest.mark.parametrize("together", [False, True])
def test_there_is_one_full_wave_for_each_worker(together: bool) -> None:
    """Also where training and inference are pumped in turns. Once there were two for each worker, of half the size: 18
    waves."""
    graph, instances = small("qm9")
    affinity = {"propagate_*": 1, "gate": 0, "value": 0, "loss": 0}
    with Processes(
        graph,
        workers=2,
        max_active_keys=6,
        affinity=affinity,
        update=Update(partial(torch.optim.SGD, lr=0.01), 12, "instances"),
    ) as runtime:
        runtime.run([Stream(4 * instances), Stream(2 * instances, False)], together=together)
        stats = runtime.stats()
    assert stats.instances == 36
    if together:  # the last free places may be shared by instances of both streams
        assert 12 <= stats.waves < 18
    else:
        assert (stats.waves, stats.in_flight) == (12, 2)


def test_an_inference_is_over_when_every_worker_is_done_with_it() -> None:
    """P17: a branch without a loss that is slow does not pile up. Once, the loss alone retired an instance."""
    most, graph = 0, Graph("branches")
    graph.add("both", Bcast(("a", "b")))
    graph.add("slow", Function(lambda x: (time.sleep(0.005), x)[1]))
    graph.add("sink", Sink())
    graph.add("loss", Loss("squared_error"))
    graph.input("x", "both")
    graph.input("y", "loss.label")
    graph.connect("both.a", "slow")
    graph.connect("both.b", "loss.prediction")
    graph.chain("slow", "sink")

    def turned(progress: object) -> None:
        nonlocal most
        most = max(most, sum(n for what, n in runtime.held().items() if "worker1: instances staged" in what))

    affinity = {"slow": 1, "sink": 1, "loss": 0}
    with Processes(graph, workers=2, affinity=affinity, max_active_keys=4) as runtime:
        runtime.run([Stream(pairs(*range(60)), False)], on_turn=turned, turn_seconds=0.0)
        assert not runtime.held()
    assert 0 < most <= 4
