"""Sites: one module that a model calls in several places, as one node with a port for each."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ampnet import Graph, Inline, Instance, Update, feed
from ampnet.errors import GraphError, PairingError
from ampnet.events.check import assert_kept
from ampnet.events.log import EventLog
from ampnet.events.staleness import staleness_of
from ampnet.message import Messages
from ampnet.nodes import Bcast, Concat, Cond, Direction, Isu, Linear, Loss, Phi, Relu, Sink, Tanh
from ampnet.state import States
from ampnet.testing import assert_close, assert_gradients, graph_gradients

F64 = torch.float64
F, B = Direction.FORWARD, Direction.BACKWARD


def test_a_node_has_one_site_unless_told_otherwise() -> None:
    node = Linear(2, 3)
    assert (node.sites, node.inputs, node.outputs) == (1, ("in",), ("out",))
    assert node.with_sites(3) is node
    assert (node.sites, node.inputs, node.outputs) == (3, ("in", "in2", "in3"), ("out", "out2", "out3"))
    assert node.held() == {"cache": 0, "cache2": 0, "cache3": 0, "stash": 0}
    with pytest.raises(ValueError, match="at least one site"):
        node.with_sites(0)


def test_what_comes_in_at_a_site_leaves_by_it_and_comes_back_to_it() -> None:
    """The same states are out at two sites at the same time; each site has a memory of its own."""
    torch.manual_seed(0)
    node = Linear(2, 3, dtype=F64).with_sites(2)
    states = States.of(instance=[1, 2])
    x = [torch.randn(2, 2, dtype=F64) for _ in range(2)]
    g = [torch.randn(2, 3, dtype=F64) for _ in range(2)]
    for port in (0, 1):
        ((way, out, sent),) = node.forward(port, Messages(x[port], states))  # type: ignore[misc]
        assert (way, out) == (F, port)
        assert_close({"y": sent.payload}, {"y": node.reference(x[port]).detach()})
    assert node.held() == {"cache": 2, "cache2": 2, "stash": 0}
    for port in (1, 0):
        ((way, out, sent),) = node.backward(port, Messages(g[port], states))  # type: ignore[misc]
        assert (way, out) == (B, port)
        assert_close({"dx": sent.payload}, {"dx": g[port] @ node.updater.weights[0]})
    assert not any(node.held().values())
    assert_close({"w": node.updater.sums[0]}, {"w": g[0].T @ x[0] + g[1].T @ x[1]})
    with pytest.raises(PairingError, match=r"its cache2, keyed by \(instance\)"):
        node.backward(1, Messages(g[0], states))


def test_sites_may_have_keys_of_their_own() -> None:
    node = Linear(2, 2).with_sites([("instance",), ("instance", "t"), None])
    node.forward(0, Messages(torch.zeros(1, 2), States.of(instance=[1], t=[5])))
    node.forward(1, Messages(torch.zeros(2, 2), States.of(instance=[1, 1], t=[5, 6])))
    node.forward(2, Messages(torch.zeros(1, 2), States.of(instance=[1], node=[4])))
    assert node.held() == {"cache": 1, "cache2": 2, "cache3": 1, "stash": 0}
    with pytest.raises(GraphError, match="while messages are in flight"):
        node.with_sites(2)
    node.forget()
    assert not any(node.held().values())


def twice() -> Graph:
    """linear, tanh, the same linear again, relu; half of it also goes to a Sink."""
    torch.manual_seed(1)
    graph = Graph("twice")
    graph.add("linear", Linear(3, 3, dtype=F64).with_sites(2))
    for name, node in (("tanh", Tanh()), ("bcast", Bcast(("a", "b"))), ("relu", Relu()), ("sink", Sink())):
        graph.add(name, node)
    graph.add("loss", Loss("squared_error"))
    graph.input("x", "linear.in")
    graph.input("label", "loss.label")
    for source, target in (
        ("linear.out", "tanh"),
        ("tanh", "linear.in2"),
        ("linear.out2", "bcast"),
        ("bcast.a", "relu"),
        ("bcast.b", "sink"),
        ("relu", "loss.prediction"),
    ):
        graph.connect(source, target)
    return graph


X = torch.randn(12, 1, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
DATA = [Instance({"x": feed(x), "label": feed(x + 1)}) for x in X]


def loss(graph: Graph, x: torch.Tensor) -> torch.Tensor:
    linear = graph.module()["linear"]
    return nn.functional.mse_loss(torch.relu(linear(torch.tanh(linear(x)))), x + 1)


@pytest.mark.parametrize("schedule", ["sweep", "backward-first", "fifo", "random"])
def test_gradients_over_sites_equal_autograd(schedule: str) -> None:
    graph = twice()
    graph.validate()  # linear -> tanh -> linear is no loop: a message leaves by the site at which it came in
    losses = [loss(graph, x) for x in X]
    assert_gradients(graph, DATA, losses, schedule=schedule, seed=2, max_active_keys=5, max_batch=2, waves=False)
    losses = [loss(graph, x) for x in X]
    assert_gradients(graph, DATA, losses, schedule=schedule, seed=2, max_active_keys=5, wave_size=2)


@pytest.mark.parametrize("how", [{"waves": False, "max_batch": 2}, {"wave_size": 1}], ids=["messages", "waves"])
@pytest.mark.parametrize("weights", ["current", "stash"])
def test_staleness_and_stashed_weights_over_sites(weights: str, how: dict[str, Any]) -> None:
    graph, log = twice(), EventLog()
    update = Update(partial(torch.optim.SGD, lr=0.05), 3, weights=weights)  # type: ignore[arg-type]
    with Inline(graph, update=update, max_active_keys=6, schedule="random", seed=3, listeners=[log], **how) as runtime:
        runtime.train(DATA)
    assert_kept(log)
    assert staleness_of(log)["linear"].max > 0
    node = graph.nodes["linear"]
    assert isinstance(node, Linear)
    assert node.updater.version > 2 and not any(node.held().values())


def test_a_stashed_version_lives_as_long_as_any_site_needs_it() -> None:
    node = Linear(1, 1, bias=False, dtype=F64).with_sites(2)
    updater = node.updater
    updater.adopt(Update(partial(torch.optim.SGD, lr=1.0), 1, weights="stash"))
    updater.live_versions = node.live_versions
    states, one = States.of(instance=[0]), torch.ones(1, 1, dtype=F64)
    old = updater.weights[0].clone()
    node.forward(0, Messages(one, states))
    node.forward(1, Messages(one, states))
    node.backward(0, Messages(one, states))
    node.after_backward()
    assert updater.apply() is not None
    assert not torch.equal(updater.weights[0], old) and node.held()["stash"] == 1
    ((_, _, back),) = node.backward(1, Messages(one, states))  # type: ignore[misc]
    assert torch.equal(back.payload, old)
    node.after_backward()
    assert not any(node.held().values())


def test_a_module_used_before_and_inside_of_a_loop() -> None:
    """The loop is still cut at its Phi, and the graph is still found to be without fault."""
    torch.manual_seed(1)
    graph = Graph()
    graph.add("linear", Linear(3, 3, dtype=F64).with_sites(2))
    graph.add("phi", Phi())
    graph.add("tanh", Tanh())
    graph.add("isu", Isu(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1)))
    graph.add("cond", Cond(lambda s: s.t < 3, ("done", "again")))
    graph.add("loss", Loss("squared_error", key=("instance",)))
    graph.input("x", "linear.in", ("t",))
    graph.input("label", "loss.label")
    graph.chain("tanh", "isu", "cond")
    for source, target in (
        ("linear.out", "phi.start"),
        ("phi", "linear.in2"),
        ("linear.out2", "tanh"),
        ("cond.again", "phi.loop"),
        ("cond.done", "loss.prediction"),
    ):
        graph.connect(source, target)
    graph.validate()
    order = graph.order()
    assert order.index("tanh") < order.index("isu") < order.index("cond") < order.index("loss")
    data = [Instance({"x": feed(x, t=0), "label": feed(x + 1)}) for x in X]
    linear = graph.module()["linear"]
    losses = []
    for x in X:
        h = linear(x)
        for _ in range(3):
            h = torch.tanh(linear(h))
        losses.append(nn.functional.mse_loss(h, x + 1))
    assert_gradients(graph, data, losses, schedule="random", seed=1, max_active_keys=4)


def test_faults_are_those_of_the_site() -> None:
    graph = twice()
    graph.nodes["linear"] = Linear(3, 3).with_sites([None, ("instance", "t")])
    with pytest.raises(GraphError, match=r"node 'linear': its key needs field 't'"):
        graph.validate()
    graph = twice()
    graph.edges.remove(("relu", "loss.prediction"))
    graph.add("concat", Concat(("a", "b")))
    graph.edges += [("relu", "concat.a"), ("concat", "concat.b")]
    with pytest.raises(GraphError) as caught:
        graph.validate()
    text = "\n".join(caught.value.faults)
    assert "node 'relu' leads to no Loss or Sink" in text and "'linear'" not in text


def test_a_graph_of_sinks_alone_has_no_loss() -> None:
    graph = Graph()
    graph.add("relu", Relu())
    graph.add("sink", Sink())
    graph.input("x", "relu")
    graph.connect("relu", "sink")
    with pytest.raises(GraphError, match="has no Loss") as caught:
        graph.validate()
    assert len(caught.value.faults) == 1


def test_a_gradient_comes_back_past_a_sink() -> None:
    """Everything of an instance is answered, the part in the Sink without a gradient."""
    assert set(graph_gradients(twice(), DATA)) == {"linear.weight", "linear.bias"}
    assert np.isfinite(float(graph_gradients(twice(), DATA)["linear.weight"].sum()))
