"""Copies of nodes, subgraphs and whole models: gradients stay what they are, and every message finds one copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ampnet import Graph, GraphError, Inline, Messages, Processes, Replicate, StateError, Sync, Update, replicate, tile
from ampnet.errors import NodeError
from ampnet.events.check import assert_kept, check
from ampnet.events.log import Backward, EventLog, Forward, Played
from ampnet.lang import Model, compile, loss
from ampnet.models import registry
from ampnet.nodes import Cond, Phi
from ampnet.nodes.collect import Collect
from ampnet.nodes.dispatch import Dispatch
from ampnet.replicas.replicate import ROUTES, concerned, entrances
from ampnet.state import States
from ampnet.testing import assert_close, assert_compiled, graph_gradients
from ampnet.testing.oracle import eager_gradients
from ampnet.testing.strategies import RandomModel, examples, programs, schedules
from tests.replicas.small import MODELS, SGD, both_ways, case, chain, doubled, hand, rows, taken, weights

ORDERS = [("sweep", None), ("fifo", 1), ("backward-first", 2), ("random", 3), ("fifo", None), ("random", 7)]


# Gradients (P2, P3)


def test_every_model_of_the_registry_is_here() -> None:
    assert {name for name in MODELS if name in registry.GRAPHS} | {"by-hand"} == set(registry.GRAPHS)


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_in_copies_has_plain_autograds_gradients(name: str) -> None:
    of, orders = case(name), cycle(ORDERS)
    for n in (2, 3, 5):
        for route in ("instance", "shortest", "round-robin"):
            schedule, most = next(orders)
            for way in both_ways(most):
                graph, log = of.graph(replicas=Replicate(n, route)), EventLog()
                how: dict[str, Any] = {"schedule": schedule, "max_active_keys": 4, "seed": n, **way}
                with Inline(graph, update=None, listeners=[log], **how) as runtime:
                    stats = runtime.train(of.instances(graph))
                    assert runtime.stats().instances == (len(of.data) if "wave_size" in way else 0)
                assert stats.instances == len(of.data)
                assert_close(of.found(graph), of.want)
                assert_kept(log)


def test_the_oracles_of_the_package_know_replicas() -> None:
    """Once, they asked for the names of copies in the model, and left the sums of copies as they were."""
    of = case("sentiment")
    graph = of.graph(replicas=3)
    assert_compiled(of.model, of.data, graph=graph, max_active_keys=3)
    assert not any(float(total.abs().sum()) for node in graph.parameterised().values() for total in node.updater.sums)
    wired, instances = hand()
    want = graph_gradients(wired, instances)
    replicate(wired, "linear*", 2)
    for _ in range(2):
        assert_close(graph_gradients(wired, instances), want)


@pytest.mark.parametrize("route", ["instance", "shortest"])
def test_the_graph_wired_by_hand_in_copies(route: str) -> None:
    graph, instances = hand()
    want = graph_gradients(graph, instances)
    for n, (schedule, most) in zip((2, 3, 5, 2), ORDERS, strict=False):
        for how in both_ways(most):
            graph, instances = hand()
            replicate(graph, None, n, route=route)  # type: ignore[arg-type]
            Inline(graph, update=None, schedule=schedule, max_active_keys=3, **how).train(instances)
            assert_close(taken(graph), want)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("part", ["cell", "embedding", "classify", ("cell", "embedding"), "*"])
def test_nodes_of_a_recurrent_network_by_every_route(part: Any, route: Any) -> None:
    of = case("list-reduction")
    for n, (schedule, most) in zip((2, 3), ORDERS[len(route) % 3 :], strict=False):
        for how in both_ways(most):
            graph, log = of.graph(), EventLog()
            if part == "*" and route == "position":
                with pytest.raises(GraphError, match="would send messages of one instance to different copies"):
                    replicate(graph, part, n, route=route)
                return
            assert replicate(graph, part, n, route=route)
            with Inline(graph, update=None, max_active_keys=4, schedule=schedule, listeners=[log], **how) as run:
                run.train(of.instances(graph))
                run.infer(of.instances(graph))
            assert_close(of.found(graph), of.want)
            assert_kept(log)


@pytest.mark.parametrize("route", ["instance", "position", "round-robin", "shortest"])
def test_a_node_with_several_sites(route: str) -> None:
    """A module that is called in three places is one node: every place has a way in and a way out of its own."""

    class Sites(Model):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Any, y: Any) -> None:
            loss(self.linear(torch.tanh(self.linear(torch.tanh(self.linear(x))))), y, "squared_error")

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = Sites().double()
    data = [tuple(torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(i))) for i in range(7)]
    want = graph_gradients(compile(model, *data[0]), list(compile(model, *data[0]).instances(data)))
    graph, log = compile(model, *data[0]), EventLog()
    assert graph.parameterised()["linear"].sites == 3
    replicate(graph, "linear", 3, route=route)  # type: ignore[arg-type]
    with Inline(graph, update=None, max_active_keys=5, listeners=[log]) as runtime:
        runtime.train(graph.instances(data))
    assert_close(taken(graph), want)
    assert_kept(log)


@settings(max_examples=40)
@given(
    programs(), examples(6), schedules(), st.integers(2, 4), st.sampled_from(["instance", "round-robin", "shortest"]),
    st.integers(0, 2**16),
)  # fmt: skip
def test_any_part_of_any_graph(program: Any, given: Any, how: Any, n: int, route: Any, seed: int) -> None:
    """Joins, groups, loops and choices, cut wherever it may be: whole instances go to one copy."""
    model = RandomModel(program)
    want = eager_gradients(model.graph, [model.loss(e) for e in given])
    names = [name for name in model.graph.nodes if np.random.default_rng(seed).random() < 0.5] or ["loss"]
    replicate(model.graph, names, n, route=route)
    log = EventLog()
    with Inline(model.graph, update=None, listeners=[log], **how) as runtime:
        runtime.train([model.instance(e) for e in given])
        runtime.infer([model.instance(e) for e in given])
    assert_close(taken(model.graph), want)
    assert check(log) == []


@settings(max_examples=40)
@given(st.sampled_from(sorted(MODELS)), st.integers(2, 5), st.sampled_from(ROUTES), schedules(), st.integers(0, 2**16))
def test_any_nodes_of_any_model(name: str, n: int, route: Any, how: Any, seed: int) -> None:
    of, rng = case(name), np.random.default_rng(seed)
    graph, log = of.graph(), EventLog()
    some = list(rng.choice(list(graph.nodes), int(rng.integers(1, len(graph.nodes) + 1)), replace=False))
    try:
        replicate(graph, some, n, route=route)
    except GraphError:
        assert route == "position"
        replicate(graph, some, n)
    with Inline(graph, update=None, listeners=[log], **how) as runtime:
        runtime.train(of.instances(graph))
    assert_close(of.found(graph), of.want)
    assert check(log) == []


@pytest.mark.parametrize("name", MODELS)
def test_on_two_workers(name: str) -> None:
    of = case(name)
    graph, log = of.graph(replicas=2), EventLog()
    with Processes(graph, workers=2, update=None, max_active_keys=4, listeners=[log]) as runtime:
        runtime.train(of.instances(graph))
        assert not runtime.held()
        homes = {name: runtime.hosts[name] for name in graph.copies}
    assert homes == {name: found.number for name, found in graph.copies.items()}
    assert_close(of.found(graph), of.want)
    assert_kept(log)


# 10,000 messages by random routing functions (P9)

MESSAGES: Counter[str] = Counter()


def by_hash(n: int, salt: int) -> Callable[[States], Any]:
    """A routing function that nobody would write: any state may go anywhere, but always there."""

    def route(s: States) -> Any:
        mixed = (s.instance * 2_654_435_761 + s.t * 40_503 + salt) & 0x7FFFFFFF
        return (mixed ^ (mixed >> 7)) % n

    return route


kinds = st.lists(st.sampled_from(["linear", "tanh"]), min_size=1, max_size=6)
sizes = st.lists(st.integers(5, 60), min_size=2, max_size=8)


@settings(max_examples=120)
@given(
    kinds, sizes, st.integers(1, 5), st.integers(0, 2**20), st.sampled_from(["function", *ROUTES]), schedules(),
    st.booleans(), st.integers(1, 64),
)  # fmt: skip
def test_no_message_is_lost_and_none_visits_two_replicas(
    nodes: list[str], lengths: list[int], n: int, salt: int, route: str, how: Any, train: bool, subset: int
) -> None:
    graph = chain(*nodes, "linear")
    inner = [name for name in graph.nodes if name != "loss"]
    part = [name for i, name in enumerate(inner) if subset >> i & 1] or [inner[-1]]
    replicate(graph, part, n, route=by_hash(n, salt) if route == "function" else route)  # type: ignore[arg-type]
    log, data = EventLog(), rows(*lengths, seed=salt)
    with Inline(graph, update=None, listeners=[log], **how) as runtime:
        stats = runtime.train(data) if train else runtime.infer(data)
    assert stats.instances == len(lengths)
    assert check(log) == []

    if how.get("waves", True):
        made: dict[int, Counter[str]] = {0: Counter(), 1: Counter(), 2: Counter()}
        for op in (op for event in log if isinstance(event, Played) for op in event.operations()):
            made[op.direction][graph.called(op.node)] += op.rows
        behind = inner[inner.index(next(name for name in inner if name.startswith("linear"))) :]  # have a backward
        assert all(made[0][name] == sum(lengths) for name in inner)
        assert all(made[1][name] == (sum(lengths) if train else 0) for name in behind)
        MESSAGES[route] += sum(lengths)
        return

    # The same from the events themselves: every state comes to one copy of each node, once, and is answered there.
    whole = {(i, t) for i, size in enumerate(lengths) for t in range(size)}
    came: dict[str, Counter[tuple[int, int]]] = {name: Counter() for name in inner}
    where: dict[tuple[str, tuple[int, int]], set[str]] = {}
    answered: dict[str, Counter[tuple[int, int]]] = {name: Counter() for name in inner}
    for event in log:
        if isinstance(event, Forward | Backward) and graph.called(event.node) in came:
            called = graph.called(event.node)
            for state in zip(event.received.instance.tolist(), event.received.t.tolist(), strict=True):
                (came if isinstance(event, Forward) else answered)[called][state] += 1
                where.setdefault((called, state), set()).add(event.node)
    for name in inner:
        assert set(came[name].values()) == {1}
        assert came[name].total() == sum(lengths)
        assert came[name].keys() == whole
        assert answered[name] == (came[name] if train else Counter())
    assert all(len(visited) == 1 for visited in where.values())
    MESSAGES[route] += sum(lengths)


def test_those_were_ten_thousand_messages() -> None:
    """Of the test before; it is not asked of a run that leaves that test out."""
    if not MESSAGES:
        pytest.skip("the messages were not sent")
    assert MESSAGES.total() >= 10_000
    assert set(MESSAGES) == {"function", *ROUTES}


# What a graph with copies looks like


def test_a_node_becomes_cond_copies_and_phi() -> None:
    graph = chain("linear", "tanh", "linear")
    assert replicate(graph, "linear1", 3) == ("linear1",)
    assert list(graph.nodes) == [
        "x_route", "linear1#1", "linear1#2", "linear1#3", "linear1_joined", "tanh2", "linear3", "loss",
    ]  # fmt: skip
    assert isinstance(graph.nodes["x_route"], Cond)
    assert isinstance(graph.nodes["linear1_joined"], Phi)
    assert graph.inputs[0].target == "x_route"
    wiring = graph.validate()
    assert entrances(graph, wiring) == {"x_route": 0}
    group = graph.replicas["linear1"]
    assert group.members == ("linear1#1", "linear1#2", "linear1#3")
    assert (group.route, group.by_instance) == ("instance", True)
    assert {graph.called(name) for name in group.members} == {"linear1"}


def test_of_a_whole_model_nothing_but_the_ways_in_are_left_in_front() -> None:
    graph = chain("linear", "tanh")
    replicate(graph, None, 2)
    ways = [name for name in graph.nodes if name not in graph.copies]
    assert ways == ["x_route", "y_route"]
    assert not any(isinstance(node, Phi) for node in graph.nodes.values())
    assert [graph.nodes[f"loss#{i}"].label for i in (1, 2)] == ["loss", "loss"]  # type: ignore[attr-defined]
    assert concerned(graph.copies, ["linear1#1", "loss#1"]) == [(2, 0)]
    assert concerned(graph.copies, graph.copies) == [(2, 0), (2, 1)]
    assert concerned(graph.copies, ["x_route"]) is None


def test_single_messages_by_turns_are_recorded_in_the_state() -> None:
    graph = chain("linear", "tanh", "linear")
    replicate(graph, ["linear1", "tanh2"], 2, route="round-robin")
    replicate(graph, "linear3", 2, route="shortest")
    first, second = (graph.nodes[name] for name in ("x_route", "linear3_route"))
    assert isinstance(first, Dispatch)
    assert isinstance(second, Dispatch)
    assert (first.field, second.field) == ("replica", "replica2")
    assert isinstance(graph.nodes["tanh2_joined"], Collect)
    log = EventLog()
    Inline(graph, update=None, max_active_keys=2, waves=False, listeners=[log]).train(rows(3, 2, 4))
    fields = {e.node: e.received.fields for e in log if isinstance(e, Forward)}
    assert fields["tanh2#1"] == ("instance", "t", "replica")
    assert fields["linear3#2"] == ("instance", "t", "replica2")
    assert fields["loss"] == ("instance", "t")


def test_shortest_shares_whole_instances_out_where_a_part_must_see_all_of_one() -> None:
    of = case("list-reduction")
    graph = of.graph(replicas=Replicate(2, "shortest"))
    assert all(group.balanced and group.by_instance for group in graph.replicas.values())
    assert not any(isinstance(node, Dispatch) for node in graph.nodes.values())


def test_one_copy_is_the_node_itself() -> None:
    graph = chain("linear")
    before = dict(graph.nodes)
    assert replicate(graph, None, 1) == ("linear1", "loss")
    assert graph.nodes == before
    assert not graph.copies


def test_a_name_that_is_taken_is_not_used() -> None:
    graph = chain("linear")
    graph.nodes["x_route"] = graph.nodes.pop("linear1")
    graph.nodes["x_route"].name = "x_route"
    graph.edges = [("x_route", "loss.prediction")]
    graph.inputs[0] = type(graph.inputs[0])("x", "x_route", ("t",))
    replicate(graph, "x_route", 2)
    assert {"x_route2", "x_route#1", "x_route#2", "x_route_joined"} < set(graph.nodes)
    graph.validate()


def test_patterns_in_two_calls_and_notes() -> None:
    graph = chain("linear", "tanh", "linear", "linear")
    graph.notes["linear1"] = "the first"
    assert replicate(graph, "linear[13]", 2) == ("linear1", "linear3")
    assert replicate(graph, ("linear4", "loss"), 3) == ("linear4", "loss")
    assert graph.notes == {"linear1#1": "the first", "linear1#2": "the first"}
    assert {name: len(group.members) for name, group in graph.replicas.items()} == {
        "linear1": 2, "linear3": 2, "linear4": 3,
    }  # fmt: skip
    log = EventLog()
    Inline(graph, update=None, max_active_keys=4, listeners=[log]).train(rows(*[2] * 9))
    assert_kept(log)


def test_copies_begin_with_the_same_weights_and_have_memory_of_their_own_unless_shared() -> None:
    for sync, same in (("epoch", False), ("shared", True)):
        graph = chain("linear")
        replicate(graph, "linear1", 2, sync=sync)
        first, second = (graph.parameterised()[f"linear1#{i}"].updater.weights for i in (1, 2))
        for mine, theirs in zip(first, second, strict=True):
            assert torch.equal(mine, theirs)
            assert (mine.data_ptr() == theirs.data_ptr()) is same


# Weights from elsewhere


@pytest.mark.parametrize("sync", ["epoch", "shared", "gradients"])
def test_keys_of_the_state_are_those_without_replicas_and_loading_is_for_all(sync: str) -> None:
    of = case("list-reduction")
    plain, graph = of.graph(), of.graph(replicas=Replicate(3, sync=sync))
    assert list(graph.module().state_dict()) == list(plain.module().state_dict())
    before = {name: value.clone() for name, value in of.model.state_dict().items()}
    try:
        with Inline(graph, update=Update(SGD), max_active_keys=3) as runtime:
            runtime.train(of.instances(graph))
            other = {name: value + 1 for name, value in graph.module().state_dict().items()}
            graph.module().load_state_dict(other)
            want = runtime.infer(of.instances(graph)).loss
            for group in graph.replicas.values():
                for name in group.members:
                    mine = graph.parameterised()[name].module.state_dict()
                    assert all(torch.equal(mine[key], other[f"{group.name}.{key}"]) for key in mine)
            of.model.load_state_dict(before)
            runtime.infer(of.instances(graph))
            assert all(
                torch.equal(graph.parameterised()[f"cell#{i}"].parameters["weight"], before["cell.weight"])
                for i in (1, 2, 3)
            )
            graph.module().load_state_dict(other)
        with Inline(plain) as runtime:
            assert runtime.infer(of.instances(plain)).loss == pytest.approx(want, abs=1e-12)
    finally:
        of.model.load_state_dict(before)


@pytest.mark.parametrize("sync", ["epoch", "shared"])
def test_a_graph_that_is_cast_keeps_its_ties(sync: str) -> None:
    graph = chain("linear", "linear")
    replicate(graph, None, 2, sync=sync)
    graph.to(torch.float32)
    for name in ("linear1", "linear2"):
        first, second = (graph.parameterised()[f"{name}#{i}"].updater for i in (1, 2))
        for mine, theirs in zip(first.weights, second.weights, strict=True):
            assert mine.dtype is theirs.dtype is torch.float32
            assert (mine.data_ptr() == theirs.data_ptr()) is (sync == "shared")
        for updater in (first, second):
            for weight, parameter in zip(updater.weights, updater.parameters, strict=True):
                assert weight.data_ptr() == parameter.data_ptr()


@pytest.mark.parametrize("sync", ["epoch", "shared", "gradients"])
def test_a_model_that_is_cast_behind_the_graphs_back(sync: str) -> None:
    """Once, only the first copy was cast and frozen with it: the others failed, and shared weights were not shared."""

    class Two(Model):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Any, y: Any) -> None:
            loss(self.two(torch.tanh(self.one(x))), y, "squared_error")

    model = Two()
    data = [tuple(torch.randn(2, 3)) for _ in range(6)]
    graph = compile(model, *data[0], replicas=Replicate(2, sync=sync))
    model.double()
    bias = model.one.bias.detach().clone()
    model.one.bias.requires_grad_(False)
    doubles = [tuple(map(doubled, row)) for row in data]
    again = compile(model, *doubles[0])  # instances of the new dtype
    with Inline(graph, update=Update(SGD), max_active_keys=3) as runtime:
        runtime.train(again.instances(doubles))
    for group in graph.replicas:
        first, second = (graph.parameterised()[f"{group}#{i}"].updater.weights for i in (1, 2))
        for mine, theirs in zip(first, second, strict=True):
            assert mine.dtype is theirs.dtype is torch.float64
            assert torch.equal(mine, theirs)
            assert (mine.data_ptr() == theirs.data_ptr()) is (sync == "shared")
    for i in (1, 2):
        assert torch.equal(graph.parameterised()[f"one#{i}"].updater.weights[1], bias)


# Settings by name


def test_updates_by_the_name_of_all_by_a_replicas_own_and_by_pattern() -> None:
    graph = chain("linear", "tanh", "linear")
    replicate(graph, "linear1", 2)
    one, two, three = (Update(SGD, frequency) for frequency in (1, 2, 3))

    def frequencies(updates: dict[str, Any]) -> list[int]:
        Inline(graph, update=one, updates=updates)
        return [node.updater.policy.min_update_frequency for node in graph.parameterised().values()]  # type: ignore[union-attr]

    assert frequencies({}) == [1, 1, 1]
    assert frequencies({"linear1": two}) == [2, 2, 1]
    assert frequencies({"linear*": two}) == [2, 2, 2]
    assert frequencies({"linear1#2": two}) == [1, 2, 1]
    assert frequencies({"linear1": two, "linear1#2": three}) == [2, 3, 1]
    assert frequencies({"*#2": three}) == [1, 3, 1]
    with pytest.raises(GraphError, match="updates names 'linear2', but no node with parameters is called that"):
        frequencies({"linear2": two})


# Errors


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("linear9", "replicate names 'linear9', but no node is called that; did you mean 'linear1'?"),
        (["linear1", "no*"], "replicate names 'no\\*'"),
        ([], "there is no node to replicate"),
    ],
)
def test_nodes_that_are_not_there(part: Any, said: str) -> None:
    with pytest.raises(GraphError, match=said):
        replicate(chain("linear", "tanh"), part, 2)


@pytest.mark.parametrize("n", [0, -1, 2.0, "2", None])
def test_a_number_that_is_none(n: Any) -> None:
    with pytest.raises(ValueError, match=f"the number of replicas must be 1 or more, got {n!r}"):
        replicate(chain("linear"), None, n)


def test_settings_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="route must be one of instance, position, round-robin, shortest, or a fun"):
        replicate(chain("linear"), None, 2, route="longest")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sync must be one of epoch, updates, ring, shared, gradients; got 'never'"):
        replicate(chain("linear"), None, 2, sync="never")


def test_a_replica_is_not_replicated_again() -> None:
    graph = chain("linear", "tanh", "linear")
    replicate(graph, "linear1", 2)
    for part in (None, "linear1#1", "linear*"):
        with pytest.raises(GraphError, match="node 'linear1#1' is a replica already; replicate each node once"):
            replicate(graph, part, 2)
    graph.validate()


def test_by_position_a_join_would_wait_for_ever() -> None:
    graph, _ = hand()
    for part in (None, "concat", ("linear1", "phi"), "loss"):
        with pytest.raises(GraphError, match=r"route='position' would send .* must see all of them; use route='i"):
            replicate(graph, part, 2, route="position")
    assert not graph.copies


def test_tiles_are_not_replicated() -> None:
    graph = chain("linear", "tanh")
    tile(graph, "linear1", 3)
    for part in (None, "linear1~*", "*~1"):
        with pytest.raises(GraphError, match="'linear1' is in tiles, and tiles cannot be replicated"):
            replicate(graph, part, 2)


def test_a_graph_with_faults_is_not_touched() -> None:
    graph = chain("linear")
    graph.connect("nowhere", "loss")
    before = list(graph.nodes)
    with pytest.raises(GraphError, match="'nowhere' names no node"):
        replicate(graph, None, 2)
    assert list(graph.nodes) == before


def test_a_graph_in_flight_is_not_copied() -> None:
    graph = chain("tanh", "linear")
    node = graph.nodes["tanh1"]
    node.forward(0, Messages(torch.ones(1, 3), States.of(instance=[0], t=0)))
    with pytest.raises(GraphError, match="node 'tanh1' holds messages; replicate a graph while nothing is in flight"):
        replicate(graph, None, 2)


def test_replicas_are_frozen_all_or_none() -> None:
    graph = chain("linear", "linear")
    replicate(graph, "linear1", 3)
    with pytest.raises(GraphError, match="replica 'linear1#2' is frozen and others of 'linear1' are not"):
        Inline(graph, update=Update(SGD), updates={"linear1#2": None})
    before = weights(graph)
    log = EventLog()
    with Inline(graph, update=Update(SGD), updates={"linear1": None}, listeners=[log]) as runtime:
        runtime.train(rows(2, 3, 4))
    after = weights(graph)
    frozen = [name for name in before if "#" in name]
    assert all(torch.equal(a, b) for name in frozen for a, b in zip(before[name], after[name], strict=True))
    assert not torch.equal(before["linear2"][0], after["linear2"][0])
    assert_kept(log)


@pytest.mark.parametrize(
    ("route", "said"),
    [
        (lambda s: s.t, "the routing function chose port 2 of 2 for"),
        (lambda s: s.t - 1, "the routing function chose port -1 of 2 for"),
        (lambda s: s.t * 0.5, "must give one integer or truth value per message"),
        (lambda s: s.nothing, "nothing"),
    ],
)
def test_a_routing_function_that_is_wrong_is_an_error_that_says_so(route: Any, said: str) -> None:
    graph = chain("linear")
    replicate(graph, "linear1", 2, route=route)
    with pytest.raises((NodeError, GraphError, StateError), match=said):
        Inline(graph, update=None).train(rows(3))


def test_a_truth_value_is_a_route() -> None:
    graph: Graph = chain("linear")
    replicate(graph, "linear1", 2, route=lambda s: s.t > 1, sync=Sync("gradients"))
    for waves in (True, False):
        log = EventLog()
        Inline(graph, update=None, waves=waves, listeners=[log]).train(rows(3, 4))
        played = {n for e in log if isinstance(e, Played) for n in e.nodes}
        met = {e.node for e in log if isinstance(e, Forward)} | played
        ways = ["controller"] if waves else ["x_route", "linear1_joined"]
        assert met == {"linear1#1", "linear1#2", "loss", *ways}
        assert_kept(log)
