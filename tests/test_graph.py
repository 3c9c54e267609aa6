"""Graph and validate: wiring by name and port; every fault at once, before a run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ampnet import Graph, GraphError, Inline
from ampnet.models.by_hand import build
from ampnet.nodes import Bcast, Concat, Cond, Isu, Linear, Loss, Node, Phi, Relu


def chain(*nodes: tuple[str, Node], fields: tuple[str, ...] = ()) -> Graph:
    """input -> nodes -> loss, with a label."""
    graph = Graph()
    for name, node in nodes:
        graph.add(name, node)
    graph.add("loss", Loss())
    graph.input("x", nodes[0][0], fields)
    graph.input("label", "loss.label")
    graph.chain(*(name for name, _ in nodes), "loss.prediction")
    return graph


def faults(graph: Graph) -> str:
    with pytest.raises(GraphError) as caught:
        graph.validate()
    return "\n".join(caught.value.faults)


def test_the_paper_rnn_is_valid_and_in_topological_order() -> None:
    graph = build(hidden=4)
    wiring = graph.validate()
    assert len(wiring.forward) == 12
    order = graph.order()
    assert order.index("phi") < order.index("concat") < order.index("linear1") < order.index("relu")
    assert order.index("isu") < order.index("cond") < order.index("linear2") < order.index("loss")
    assert order.index("embedding") < order.index("concat")


def test_every_fault_is_reported_at_once() -> None:
    graph = Graph()
    graph.add("a", Linear(2, 2))
    graph.add("a", Linear(2, 2))
    graph.add("b.c", Relu())
    graph.add("cond", Cond(lambda s: s.t, ("no", "yes")))
    graph.add("lonely", Relu())
    graph.add("loss", Loss())
    graph.input("x", "a")
    graph.input("x", "loss.label")
    graph.connect("a", "cond")
    graph.connect("a", "loss.prediction")
    graph.connect("cond.maybe", "loss.prediction")
    graph.connect("nobody", "loss.prediction")
    text = faults(graph)
    for words in (
        "node name 'a' is taken",
        "node name 'b.c' is taken, empty, or has a dot",
        "input 'x' is declared 2 times",
        "output 'a' leads to 'cond' and to 'loss.prediction'; put a Bcast in between",
        "'cond.maybe' names no output port of node 'cond' (Cond); it has 'no', 'yes'",
        "'nobody' names no node; there are a, cond, lonely, loss",
        "input port 'lonely' of ReLU is not fed by anything",
        "output port 'lonely' of ReLU leads nowhere",
        "output port 'cond.no' of Cond leads nowhere",
        "node 'lonely' cannot be reached from any input",
        "node 'cond' leads to no Loss",
        "node 'cond': route of Cond fails on a state of (instance): no state field 't'",
    ):
        assert words in text, words


def test_a_runtime_refuses_a_faulty_graph_before_anything_runs() -> None:
    graph = chain(("linear", Linear(2, 2)))
    graph.connect("linear", "loss.label")
    with pytest.raises(GraphError, match="put a Bcast in between"):
        Inline(graph)


def test_a_port_fed_twice_wants_a_phi() -> None:
    graph = chain(("linear", Linear(2, 2)))
    graph.input("more", "linear")
    assert "input 'linear' is fed by the input 'x' and by the input 'more'; put a Phi in between" in faults(graph)


def test_an_empty_graph_and_one_without_loss() -> None:
    assert "no input" in faults(Graph()) and "no Loss" in faults(Graph())


def test_a_loop_without_a_way_out() -> None:
    graph = chain(("phi", Phi()), ("relu", Relu()), ("bcast", Bcast()))
    graph.edges, graph.inputs = [], []
    graph.input("x", "phi.start")
    graph.input("label", "loss.label")
    graph.chain("phi", "relu", "bcast")
    graph.connect("bcast.a", "phi.loop")
    graph.connect("bcast.b", "loss.prediction")
    assert "node 'phi' is in a loop without a Cond: messages would go round for ever" in faults(graph)


def test_one_parameter_in_two_nodes() -> None:
    shared = nn.Linear(3, 3)
    text = faults(chain(("a", Linear(shared)), ("b", Linear(shared))))
    assert "'a.weight' and 'b.weight' are one parameter in two nodes" in text


def test_one_node_under_two_names() -> None:
    node = Relu()
    assert "nodes 'a' and 'b' are one object" in faults(chain(("a", node), ("b", node)))


def test_a_key_needs_its_fields() -> None:
    text = faults(chain(("phi", Linear(2, 2, key=("instance", "node"))), fields=("t",)))
    assert "node 'phi': its key needs field 'node', but the state there is (instance, t)" in text


def test_a_wrong_inverse_is_found_on_samples() -> None:
    wrong = Isu(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 2))
    text = faults(chain(("isu", wrong), fields=("t",)))
    assert (
        "node 'isu': the inverse is wrong: f takes (instance=0, t=0) to (instance=0, t=1), and inverse takes that"
        in text
    )


def test_an_inverse_that_knows_more_than_the_samples_is_let_pass() -> None:
    """After a loop of `count` rounds the step is `count`: the inverse of a reset may rely on it."""
    reset = Isu(lambda s: s.replace(step=0), lambda s: s.replace(step=s.count))
    chain(("isu", reset), fields=("step", "count")).validate()


def test_routing_out_of_range_and_fields_lost_on_the_way() -> None:
    text = faults(
        chain(
            ("drop", Isu(lambda s: s.dropping("t"), lambda s: s.adding(t=0))),
            ("isu", Isu(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1))),
            fields=("t",),
        )
    )
    assert "node 'isu': f of Isu fails on a state of (instance): no state field 't'" in text


def test_ports_of_a_join_need_a_common_field_and_share_a_default_key() -> None:
    graph = Graph()
    graph.add("concat", Concat(("x", "h")))
    graph.add("loss", Loss())
    graph.input("x", "concat.x", fields=("t", "extra"))
    graph.input("h", "concat.h", fields=("t",))
    graph.input("label", "loss.label")
    graph.connect("concat", "loss.prediction")
    graph.validate()
    assert graph.nodes["concat"].key.fields == ("instance", "t")  # type: ignore[attr-defined]
    assert graph.nodes["loss"].key.fields == ("instance",)  # type: ignore[attr-defined]


def test_parameters_are_those_of_a_torch_module() -> None:
    graph = build(hidden=4, seed=1)
    module = graph.module()
    assert set(module.state_dict()) == {
        "embedding.weight",
        "linear1.weight",
        "linear1.bias",
        "linear2.weight",
        "linear2.bias",
    }
    other = build(hidden=4, seed=2)
    other.module().load_state_dict(module.state_dict())
    for a, b in zip(module.parameters(), other.module().parameters(), strict=True):
        assert torch.equal(a, b)


def test_to_casts_weights_and_sums() -> None:
    graph = build(hidden=4).to(torch.float64)
    assert {total.dtype for total in graph.gradients().values()} == {torch.float64}
    assert {p.dtype for p in graph.module().parameters()} == {torch.float64}
