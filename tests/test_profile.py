"""Where the time goes: sums that agree with one another, and times that are where they were spent."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampnet import Graph, Inline, Instance, Messages, Processes, Update, feed, native, replicate
from ampnet.data.list_reduction import generate
from ampnet.errors import AmpnetError, DataError, NodeError
from ampnet.models import by_hand
from ampnet.nodes import Direction, Linear, Loss
from ampnet.nodes.kept import Kept
from ampnet.nodes.transform import Residuals, Transform
from ampnet.profile import SEVERAL, Profile, hooks, meter, profile, table
from ampnet.profile.kernels import Watching, fit, kernels_of
from ampnet.profile.meter import Cell, Costs, Meter, Watch
from ampnet.reference.schedule import Lane
from ampnet.runtime.runtime import Runtime
from ampnet.state import States
from ampnet.testing import assert_at_rest
from tests.pages import ROOT, run_page

HOOKED = {"_begin", "_collect", "_checked", "_check_finite"}
"""Functions of a player that are replaced while it is measured."""
linux = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
ADAM = Update(partial(torch.optim.Adam, lr=1e-3), 1, "instances", remedies=())


class Spin(Transform):
    """Passes rows on, and does nothing for two milliseconds, in Python."""

    def apply(self, x: Tensor, messages: Messages) -> tuple[Tensor, Residuals]:
        end = time.perf_counter() + 2e-3
        while time.perf_counter() < end:
            pass
        return x, ()

    def gradient(self, g: Tensor, kept: Kept) -> Tensor:
        return g


class Twice(Transform):
    """Puts rows together with themselves, and passes the first half on."""

    def apply(self, x: Tensor, messages: Messages) -> tuple[Tensor, Residuals]:
        return torch.cat((x, x))[: len(x)], ()

    def gradient(self, g: Tensor, kept: Kept) -> Tensor:
        return g


class Fail(Transform):
    """Cannot do anything."""

    def apply(self, x: Tensor, messages: Messages) -> tuple[Tensor, Residuals]:
        raise ValueError("no")


def chain(width: int, **nodes: Transform | Linear) -> Graph:
    """Nodes one after the other, and a loss."""
    graph = Graph()
    names = [*nodes, "loss"]
    for name, node in nodes.items():
        graph.add(name, node)
    graph.add("loss", Loss("squared_error"))
    graph.input("x", names[0])
    for name, following in pairwise(names):
        graph.connect(name, following if following != "loss" else "loss.prediction")
    graph.input("label", "loss.label")
    return graph


def some(count: int, rows: int, width: int) -> list[Instance]:
    x = torch.randn(rows, width)
    return [Instance({"x": feed(x, messages=1), "label": feed(x, messages=1)}) for _ in range(count)]


def sequences() -> Iterator[Instance]:
    return by_hand.instances(generate(300, 1), 20, np.random.default_rng(0), 16)


def assert_consistent(found: Profile, runtime: Runtime, pumped: int = 0) -> None:
    """Sums over nodes are the workers' own counts; parts add up to the whole.

    ``pumped``: of this many operations of a wave that workers count, forwards and backwards, nodes know nothing. In
    waves, messages are known of nodes with parameters and of losses only.
    """
    assert found.waves == (runtime.stats().engine == "waves")
    front = [node for node in found.nodes if node.process == "controller"]
    assert all(node.kind == "Cond" for node in front)
    nodes = [node for node in found.nodes if node.direction != "update" and node not in front]
    timed, watched = found.stretches["timed"], found.stretches["watched"]
    assert sum(node.calls for node in nodes) == timed.invocations - pumped * timed.instances > 0
    if not found.waves:
        assert sum(node.messages for node in nodes) == timed.messages > 0
    assert sum(node.watched_calls for node in nodes) == watched.invocations - pumped * watched.instances > 0
    assert runtime.counts().invocations > timed.invocations + watched.invocations
    for node in found.nodes:
        assert node.kernels + node.bookkeeping == pytest.approx(node.seconds)
        assert 0 <= node.kernels <= node.seconds
        assert node.waited >= -1e-6
        assert 0 <= node.share <= 1
        assert node.operators == pytest.approx(sum(u.calls for u in node.by_operator.values()) / node.watched_calls)
    for one in found.processes:
        parts = [one.nodes, one.updates, one.rehearsing, one.layout, one.payloads, one.checking, one.merging]
        parts += [one.loop, one.transport, one.controller, one.waiting, one.timers]
        assert min(parts) > -0.01 * one.seconds
        assert sum(parts) == pytest.approx(one.seconds)
        mine = [node for node in found.nodes if node.process == one.name]
        assert sum(node.seconds for node in mine) == pytest.approx(one.nodes + one.updates)
        assert sum(node.kernels for node in mine) == pytest.approx(one.kernels)
        assert sum(node.merging for node in mine) == pytest.approx(one.merging, abs=1e-3)


def test_sums_agree_and_nothing_stays_behind() -> None:
    graph = by_hand.build(hidden=16)
    with Inline(graph, update=ADAM, max_active_keys=3, waves=False) as runtime:
        found = profile(runtime, sequences(), seconds=0.6)
        assert_consistent(found, runtime)
        assert not found.waves
        assert [one.name for one in found.processes] == ["inline"]
        assert found.processes[0].waiting == found.processes[0].transport == 0
        assert {node.direction for node in found.nodes if node.node == "linear1"} == {"forward", "backward"}
        gradients = sum(node.messages for node in found.nodes if node.direction == "update")
        assert 2 <= gradients / found.stretches["timed"].instances <= len(graph.parameterised())
        assert runtime.worker is not None
        assert all(type(lane) is Lane for lane in runtime.worker.lanes)
        changed = {name for node in graph.nodes.values() for name in vars(node)}
        assert not changed & {"forward", "backward"}
        assert "step" not in vars(runtime.worker)
        assert_at_rest(runtime)
        before = runtime.counts().invocations
        runtime.train(sequences())
        assert runtime.counts().invocations > before


def test_in_waves_operations_count_for_their_nodes() -> None:
    """A wave here is one instance, with two inputs: pumped rows are made by no node, forwards, and get no backward."""
    graph = chain(8, one=Linear(nn.Linear(8, 8)), two=Linear(nn.Linear(8, 8)))
    with Inline(graph, update=ADAM, max_active_keys=1) as runtime:
        player = runtime.player
        assert player is not None
        found = profile(runtime, some(4, 50, 8), seconds=0.6)
        assert_consistent(found, runtime, pumped=4)
        assert found.waves
        assert runtime.stats().instances >= sum(one.instances for one in found.stretches.values())
        nodes = {(node.node, node.direction): node for node in found.nodes}
        instances = found.stretches["timed"].instances
        for name, direction in itertools.product(("one", "two", "loss"), ("forward", "backward")):
            node = nodes[name, direction]
            assert (node.calls, node.messages, node.rows) == (instances, instances, 50 * instances)
            assert node.operators > 0
            assert node.merging == node.waited == 0
        process = found.processes[0]
        assert process.layout > 0 < process.payloads
        assert process.checking > 0
        assert process.merging == 0
        assert "waits" not in table(found)
        assert not {"step", "stage", *HOOKED} & set(vars(player))
        assert "_rehearse" not in vars(player.planner)
        kept = [
            kernel for layouts in player.planner._layouts.values() for one in layouts for kernel in one.kernels.values()
        ]
        assert kept
        assert not any({"forward", "backward"} & set(vars(kernel)) for kernel in kept)
        assert not {"flush", "pass_token", "tell_work"} & set(vars(player.updates))
        for node in graph.parameterised().values():
            assert not {"apply", "begin_step"} & set(vars(node.updater))


@pytest.mark.parametrize("schedule", ["fifo", "sweep", "random"])
def test_waves_that_interleave_are_measured_as_they_are_played(schedule: str) -> None:
    """Each of 4 instances is a wave of its own, with one operation a node, forward and backward, whatever the order."""
    graph = chain(8, one=Linear(nn.Linear(8, 8)), two=Linear(nn.Linear(8, 8)))
    with Inline(graph, update=ADAM, max_active_keys=4, wave_size=1, schedule=schedule) as runtime:
        found = profile(runtime, some(4, 50, 8), seconds=0.4)
        assert_consistent(found, runtime, pumped=4)
        assert runtime.stats().in_flight > 1
    instances = found.stretches["timed"].instances
    nodes = {(node.node, node.direction): node for node in found.nodes}
    assert {node.calls for node in nodes.values() if node.direction != "update"} == {instances}
    assert sum(node.messages for node in found.nodes if node.direction == "update") == 2 * instances


def test_collecting_gradients_and_making_a_wave_are_told_apart() -> None:
    """A product takes long to collect, over all rows; a loop of Python in a payload's way is none of the node's."""
    width = 300
    graph = chain(width, product=Linear(nn.Linear(width, width)))
    with Inline(graph, max_active_keys=1) as runtime:
        player = runtime.player
        assert player is not None
        slow, begin = time.perf_counter, player.planner.layout

        def layout(*args: Any) -> Any:
            end = slow() + 3e-3
            while slow() < end:
                pass
            return begin(*args)

        player.planner.layout = layout  # type: ignore[method-assign]
        found = profile(runtime, some(4, 200, width), seconds=0.5)
    backward = next(node for node in found.nodes if (node.node, node.direction) == ("product", "backward"))
    assert (
        sum(use.calls for name, use in backward.by_operator.items() if "mm" in name or name == "product")
        >= backward.watched_calls
    )
    instances = found.stretches["timed"].instances
    assert found.processes[0].layout > 2.9e-3 * instances
    assert found.processes[0].nodes < found.processes[0].seconds - 2.9e-3 * instances


def test_in_waves_a_node_of_several_rounds_has_an_operation_for_each() -> None:
    graph = by_hand.build(hidden=16)
    with Inline(graph, update=ADAM, max_active_keys=3) as runtime:
        found = profile(runtime, sequences(), seconds=0.6)
    nodes = {(node.node, node.direction): node for node in found.nodes}
    instances = found.stretches["timed"].instances
    assert nodes["linear1", "forward"].calls == nodes["linear1", "backward"].calls > 2 * instances
    assert nodes["loss", "forward"].calls == instances
    assert not any(node.kind in ("Phi", "Cond", "Isu") for node in found.nodes)  # they take part in rehearsals only


def test_a_rehearsal_is_of_no_node() -> None:
    """What nodes are asked while nothing is computed is not theirs: it is once for each kind of instance."""
    graph = by_hand.build(hidden=16)
    with Inline(graph, update=ADAM, max_active_keys=3) as runtime:
        clocked = Meter("controller", Costs())
        put = hooks.Hooks(clocked)
        put.runtime(runtime)
        for _ in range(2):
            stats = runtime.train(sequences())
        put.undo()
        cells = clocked.cells
        assert runtime.stats().waves == 2 * stats.instances
    assert 0 < cells["", "rehearse"].calls <= stats.instances  # in the first epoch only
    assert cells["", "layout"].calls == 2 * stats.instances
    assert cells["", "payloads"].calls > 2 * stats.instances
    assert cells["", "check"].calls >= 2 * stats.instances
    assert {node for (node, what), cell in cells.items() if what == "forward" and cell.calls} == {
        "embedding",
        "linear1",
        "linear2",
        "relu",
        "loss",
    }


def test_a_step_of_several_nodes_has_a_line_of_its_own() -> None:
    graph = chain(8, one=Linear(nn.Linear(8, 8)), two=Linear(nn.Linear(8, 8)))
    fused = Update(partial(torch.optim.Adam, lr=1e-3, fused=True), 1, "instances")
    with Inline(graph, update=fused, max_active_keys=1) as runtime:
        found = profile(runtime, some(4, 50, 8), seconds=0.3)
    (update,) = [node for node in found.nodes if node.direction == "update"]
    instances = found.stretches["timed"].instances
    assert (update.node, update.calls, update.messages) == (SEVERAL, instances, 2 * instances)
    assert update.seconds == pytest.approx(found.processes[0].updates, abs=1e-3)
    if native.state().native:
        assert update.by_operator["adam"].calls == update.watched_calls, "one call for weights and biases of both nodes"
    else:
        assert update.by_operator["_fused_adam_"].calls == update.watched_calls


@pytest.mark.parametrize("waves", [True, False])
def test_python_is_bookkeeping_and_products_are_kernels(waves: bool) -> None:
    width = 400
    graph = chain(width, spin=Spin(), product=Linear(nn.Linear(width, width)))
    with Inline(graph, waves=waves) as runtime:
        found = profile(runtime, some(4, 200, width), seconds=0.5)
    nodes = {(node.node, node.direction): node for node in found.nodes}
    spin, product = nodes["spin", "forward"], nodes["product", "backward"]
    assert spin.bookkeeping / spin.calls > 1.9e-3
    assert spin.kernels < (0.1 if waves else 0.05) * spin.seconds  # in waves its rows are copied to where they lie
    assert product.bookkeeping < 0.4 * product.seconds
    assert product.by_operator["product" if native.state().native else "addmm_" if waves else "mm"].seconds > 0
    assert not any(node.direction == "update" for node in found.nodes)  # frozen


def test_bytes_of_a_copy_are_counted() -> None:
    graph = chain(8, twice=Twice())
    with Inline(graph, waves=False) as runtime:
        found = profile(runtime, some(4, 50, 8), seconds=0.3)
    twice = next(node for node in found.nodes if (node.node, node.direction) == ("twice", "forward"))
    bytes_each = 2 * 50 * 8 * 4
    assert twice.by_operator["cat"].copied == bytes_each * twice.watched_calls
    assert twice.copied == pytest.approx(bytes_each * twice.calls)
    assert twice.merged == 0


def test_what_is_put_into_a_place_counts_not_the_place() -> None:
    clocked = Meter("loop", Costs())
    big, rows, at = torch.zeros(1000, 4), torch.ones(2, 4), torch.tensor([3, 4])
    with Watch(clocked):
        big.index_copy_(0, at, rows)
        big[at] = rows
        big[:2].copy_(rows)
        rows.clone()
        rows + rows
    assert clocked.now.copied == 4 * rows.numel() * rows.element_size()


def cell(calls: int, seconds: float, operators: int = 0, kernels: float = 0.0) -> Cell:
    out = Cell()
    out.calls, out.seconds, out.operators, out.kernels = calls, seconds, operators, kernels
    return out


def test_what_watching_did_is_told_from_what_it_did_to_each_node() -> None:
    """The machine was 1.5 times as slow, an operator took 8 ms to watch: 6 by calibration, which cells have counted."""
    costs = Costs(operator=6e-3)
    timed, watched = {}, {}
    for name, seconds, operators in (("product", 2.0, 30), ("views", 0.5, 200), ("python", 1.0, 0)):
        timed[name, "forward"] = cell(100, seconds)
        seen = watched[name, "forward"] = cell(50, 0.5 * seconds * 1.5 + 8e-3 * operators, operators)
        seen.timers = 6e-3 * operators
    timed["", "loop"], watched["", "loop"] = cell(1, 7.0), cell(1, 1.0)  # no node
    found = fit([(timed, watched)], costs)
    assert (found.slower, found.operator, found.least) == pytest.approx((1.5, 8e-3, 6e-3))
    assert fit([({}, {})], costs) == Watching(1.0, 6e-3, 6e-3)


@pytest.mark.parametrize(
    ("timed", "watched", "kernels"),
    [
        ((100, 1.0), (50, 0.50, 0, 0.20), 0.4),  # as many for a call
        ((100, 1.0), (50, 1.00, 0, 0.90), 0.9),  # it was slow while watched: the same part of it
        ((100, 1.0), (50, 0.95, 100, 0.40), 0.8),  # 0.35 to 0.45 s went into watching
        ((100, 1.0), (0, 0.0, 0, 0.0), 0.0),  # never seen
    ],
)
def test_kernels_of_a_call(timed: tuple[int, float], watched: tuple[int, float, int, float], kernels: float) -> None:
    assert kernels_of(cell(*timed), cell(*watched), Watching(1.0, 4.5e-3, 0.0)) == pytest.approx(kernels)


class Hands:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (meter, hooks):
            monkeypatch.setattr(module, "clock", lambda: self.now)


def test_every_moment_belongs_to_one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """loop 0-1, node 1-3, update 3-6, node 6-10, loop 10-15."""
    hands = Hands(monkeypatch)
    clocked = Meter("loop", Costs(inside=0.5, outside=0.25))
    node, update = clocked.cell("n", "backward"), clocked.cell("n", "update")

    def updating() -> None:
        hands.now = 6

    def handling() -> None:
        hands.now = 3
        clocked.section(update, updating)()
        hands.now = 10

    hands.now = 1
    clocked.section(node, handling)()
    hands.now = 15
    assert clocked.stop() == 15
    assert [clocked.now.seconds, node.seconds, update.seconds] == [6, 6, 3]
    assert [clocked.now.timers, node.timers, update.timers] == [0.25, 0.75, 0.5]


def test_messages_wait_from_their_coming_to_their_going(monkeypatch: pytest.MonkeyPatch) -> None:
    """time        1             2              4                    10

    comes       instances 0 1    2 3 4
    goes                                     0 1 2                  3 4
    waited                                   3 3 2                  8 8    24 in all
    """
    hands = Hands(monkeypatch)
    clocked = Meter("loop", Costs())
    lane = Lane(Spin(), Direction.FORWARD, 0, True)
    node, queue = Cell(), Cell()
    lane.__class__ = hooks._timed_lane(clocked, {lane: (node, queue)})

    def messages(*numbers: int) -> Messages:
        return Messages(torch.zeros(len(numbers), 1), States.of(instance=list(numbers)))

    hands.now = 1
    lane.push(messages(0, 1), 1)
    hands.now = 2
    lane.push(messages(2, 3, 4), 2)
    hands.now = 4
    assert len(lane.take(3)) == 3
    hands.now = 10
    assert len(lane.take()) == 2
    assert (node.waited, queue.calls) == (24, 2)


def test_an_error_takes_the_hooks_out_and_there_must_be_data() -> None:
    graph = chain(4, spin=Spin(), fail=Fail())
    with Inline(graph) as runtime:
        with pytest.raises(NodeError, match="'fail'"):
            profile(runtime, some(2, 3, 4), seconds=0.1)
        assert "forward" not in vars(graph.nodes["spin"])
        with pytest.raises(DataError, match="no instance"):
            profile(runtime, [])


@linux
def test_in_worker_processes() -> None:
    graph = by_hand.build(hidden=16)
    with Processes(graph, workers=2, affinity={"*": 0, "linear1": 1}, update=ADAM, max_active_keys=4) as runtime:
        found = profile(runtime, sequences(), seconds=0.8)
        assert found.waves
        assert [one.name for one in found.processes] == ["worker0", "worker1", "controller"]
        assert {node.node for node in found.nodes if node.process == "worker1" and node.calls} == {"linear1"}
        assert all(one.nodes > 0 < one.updates for one in found.processes[:2])
        assert all(one.waiting > 0 and one.transport > 0 for one in found.processes)
        with pytest.raises(AmpnetError, match="run already cannot be profiled"):
            profile(runtime, sequences())


@linux
def test_in_replicas_of_a_whole_model() -> None:
    graph = by_hand.build(hidden=16)
    replicate(graph, None, 2, route="shortest", sync="shared")
    with Processes(graph, workers=2, update=ADAM, max_active_keys=8) as runtime:
        found = profile(runtime, sequences(), seconds=0.8)
        assert found.waves
        stats = runtime.stats()
        assert stats.engine == "waves"
        assert stats.instances >= sum(one.instances for one in found.stretches.values())
    assert {node.node for node in found.nodes if node.kind == "Linear" and node.process == "worker0"} == {
        "linear1#1",
        "linear2#1",
    }
    for one in found.processes[:2]:
        assert one.nodes > 0 < one.layout
        assert one.updates > 0 < one.payloads
    text = table(found, top=2, sort="graph")
    assert text.splitlines()[2].split()[:2] == ["process", "node"]
    assert "more lines" in text


def test_the_example_of_the_page() -> None:
    run_page(ROOT / "docs" / "profile.md", "profiled.py")
