"""Faults that once were, each with its story."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ampnet import DataError, Graph, GraphError, Inline, Instance, NodeError, Structure, Update, feed
from ampnet.errors import PayloadError, StateError
from ampnet.events.check import assert_kept
from ampnet.events.log import EventLog, Updated
from ampnet.fitting import fit
from ampnet.key import Packer
from ampnet.message import Messages
from ampnet.nodes import (
    Bcast,
    Concat,
    Embedding,
    Flatmap,
    Function,
    Group,
    Isu,
    LayerNorm,
    Linear,
    Loss,
    Module,
    Node,
    Reduce,
    Relu,
    Ungroup,
)
from ampnet.nodes.node import Report
from ampnet.nodes.store import Store
from ampnet.state import States

SGD = partial(torch.optim.SGD, lr=0.1)
NAN = torch.tensor([[1.0, math.nan]])


def line(*nodes: tuple[str, Node], loss: Loss | None = None, fields: tuple[str, ...] = ()) -> Graph:
    graph = Graph()
    for name, node in nodes:
        graph.add(name, node)
    graph.add("loss", loss or Loss("squared_error", key=("instance",)))
    graph.input("x", nodes[0][0], fields)
    graph.input("label", "loss.label")
    graph.chain(*(name for name, _ in nodes), "loss.prediction")
    return graph


def one(x: torch.Tensor, label: torch.Tensor | None = None, **fields: Any) -> Instance:
    return Instance({"x": feed(x, **fields), "label": feed(torch.zeros(1, 2) if label is None else label)})


def fan(s: States) -> tuple[np.ndarray, States]:
    owner = np.repeat(np.arange(len(s)), 2)
    return owner, s.take(owner).replace(child=np.arange(2 * len(s)) % 2)


@pytest.mark.parametrize("keys", [1, 2, 4])
def test_an_unlabelled_instance_stays_unlabelled_in_company(keys: int) -> None:
    """Once, a label of None that met real labels in one batch became zeros: class 0, silently judged."""
    graph = line(("linear", Linear(2, 3)), loss=Loss("cross_entropy"))
    labelled = Instance({"x": feed(torch.ones(1, 2)), "label": feed(torch.tensor([1]))})
    blank = Instance({"x": feed(torch.ones(1, 2)), "label": feed(None, messages=1)})
    with Inline(graph, max_active_keys=keys) as runtime:
        alone = runtime.infer([labelled])
        mixed = runtime.infer([labelled, blank, labelled, blank], keep_predictions=True)
        assert mixed.loss == pytest.approx(alone.loss)
        assert mixed.metrics == alone.metrics
        assert sorted(mixed.predictions) == [0, 1, 2, 3]
        with pytest.raises(NodeError, match="no label for"):
            runtime.train([labelled, blank])


@pytest.mark.parametrize("max_batch", [None, 1, 2, 3])
@pytest.mark.parametrize("way", ["flatmap", "bcast"])
def test_a_skipped_instance_leaves_no_nan_however_it_is_batched(way: str, max_batch: int | None) -> None:
    """Once, an empty answer that met gradients became a gradient of zero, and zero times a kept NaN is NaN."""
    graph = Graph()
    graph.add("linear", Linear(2, 2))
    graph.add("loss", Loss("squared_error", on_nan="skip", key=("instance", "child") if way == "flatmap" else None))
    graph.input("x", "linear", ("child",))
    graph.input("label", "loss.label", ("child",))
    if way == "flatmap":
        graph.add("fan", Flatmap(fan))
        graph.chain("linear", "fan", "loss.prediction")
    else:
        graph.add("bcast", Bcast(("a", "b")))
        graph.add("concat", Concat(("a", "b")))
        graph.add("back", Linear(4, 2))
        graph.connect("linear", "bcast")
        graph.connect("bcast.a", "concat.a")
        graph.connect("bcast.b", "concat.b")
        graph.chain("concat", "back", "loss.prediction")
    children = 2 if way == "flatmap" else 1
    labels = {"label": feed(torch.zeros(children, 2), child=np.arange(children))}
    instances = [Instance({"x": feed(NAN if i % 3 == 1 else torch.ones(1, 2), child=0)} | labels) for i in range(9)]
    for seed in range(5):
        for waves in (True, False) if max_batch is None else (False,):
            how: dict[str, Any] = {"max_active_keys": 5, "schedule": "random", "seed": seed, "waves": waves}
            with Inline(graph, update=Update(SGD, 2), max_batch=max_batch, **how) as runtime:
                stats = runtime.train(instances)
            assert stats.skipped == 3 * children
            assert all(bool(torch.isfinite(p).all()) for p in graph.module().parameters())


def test_each_metric_is_divided_by_its_own_rows() -> None:
    """Once, a perfect classifier beside a regression had an accuracy of one half."""
    graph = Graph()
    graph.add("bcast", Bcast(("a", "b")))
    graph.add("classes", Loss("cross_entropy"))
    graph.add("values", Loss("squared_error"))
    graph.input("x", "bcast")
    graph.input("class", "classes.label")
    graph.input("value", "values.label")
    graph.connect("bcast.a", "classes.prediction")
    graph.connect("bcast.b", "values.prediction")
    x = torch.tensor([[9.0, 0.0]])
    instance = Instance({"x": feed(x), "class": feed(torch.tensor([0])), "value": feed(x + 1)})
    with Inline(graph, max_active_keys=2) as runtime:
        metrics = runtime.infer([instance] * 3).metrics
    assert (metrics["classes.accuracy"], metrics["values.absolute_error"]) == (1.0, 1.0)


def test_a_batch_handed_on_stops_where_the_counter_fills() -> None:
    """Once, two batches for one node were both let pass before either was counted: updates of four instead of three."""
    graph = line(
        ("norm", LayerNorm(2)),
        ("fan", Flatmap(fan)),
        ("linear", Linear(2, 2)),
        ("group", Group(state=lambda s: s.replace(child=0), size=lambda s: s.child * 0 + 2)),
        ("sum", Reduce("sum")),
        fields=("child",),
    )
    log = EventLog()
    with Inline(
        graph, update=Update(SGD, 3), max_active_keys=4, enough_rows=1, max_batch=2, waves=False, listeners=[log]
    ) as runtime:
        runtime.train([one(torch.randn(1, 2), child=0) for _ in range(12)])
    assert_kept(log)
    assert {e.count for e in log if isinstance(e, Updated) and e.reason == "full"} == {3}


def test_a_graph_works_for_the_runtime_made_last() -> None:
    """Once, a second runtime froze the first one's weights without a word."""
    graph = line(("linear", Linear(2, 2)))
    first = Inline(graph, update=Update(SGD))
    Inline(graph).train([one(torch.ones(1, 2))])
    with pytest.raises(GraphError, match="another runtime was made on this graph since"):
        first.train([one(torch.ones(1, 2))])


def test_a_low_loss_is_what_fit_aims_at() -> None:
    """Once, a target loss of 0.01 was reached by a loss of 13."""
    graph = line(("linear", Linear(2, 2)))
    data = [one(torch.ones(1, 2), torch.full((1, 2), 5.0)) for _ in range(4)]
    with Inline(graph, update=Update(partial(torch.optim.SGD, lr=1e-4))) as runtime:
        result = fit(runtime, train=lambda e: data, valid=lambda e: data, epochs=2, metric="loss", target=0.01)
        assert not result.reached
        with pytest.raises(ValueError, match="higher loss is not better"):
            fit(runtime, train=lambda e: data, valid=None, epochs=1, metric="loss", higher_is_better=True)


def test_concat_refuses_rows_without_a_width() -> None:
    """Once, payloads of one dimension were put one below the other."""
    node, states = Concat(("a", "b")), States.of(instance=[0, 1])
    node.forward(0, Messages(torch.zeros(2), states))
    with pytest.raises(PayloadError, match="rows of some width"):
        node.forward(1, Messages(torch.zeros(2), states))


def test_a_module_that_works_in_place_is_refused() -> None:
    """Once, it overwrote a payload that other nodes shared."""
    states = States.of(instance=[0, 1])
    for node in (Module(nn.ReLU(inplace=True)), Function(lambda x: x.mul_(2))):
        with pytest.raises(PayloadError, match="writes into its input"):
            node.forward(0, Messages(torch.ones(2, 2), states, train=False))


def test_a_gradient_that_was_sent_is_not_added_to() -> None:
    """Once, the first child's gradient became the sum, in place."""
    node = Flatmap(fan)
    node.forward(0, Messages(torch.ones(1, 2), States.of(instance=[0], child=[0])))
    sent = torch.ones(1, 2)
    assert node.backward(0, Messages(sent, States.of(instance=[0], child=[0]))) == []
    (answer,) = node.backward(0, Messages(5 * torch.ones(1, 2), States.of(instance=[0], child=[1])))
    assert not isinstance(answer, Report)
    assert answer[2].payload is not None
    assert answer[2].payload.tolist() == [[6.0, 6.0]]
    assert sent.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("node", [LayerNorm(nn.LayerNorm(2, elementwise_affine=False)), Module(nn.Tanh())])
def test_a_parameterised_node_without_parameters_just_works(node: Node) -> None:
    """Once, its counter filled, nothing emptied it, and the worker handed it empty batches."""
    graph = line(("first", Linear(2, 2)), ("node", node))
    with Inline(graph, update=Update(SGD), max_active_keys=2) as runtime:
        assert runtime.train([one(torch.randn(1, 2)) for _ in range(5)]).instances == 5


def test_fields_behind_a_concat_are_those_of_its_first_port() -> None:
    """Once, the fields of whichever port was known first were taken, and a right graph was refused."""
    graph = Graph()
    graph.add("behind", Linear(4, 2, key=("instance", "t")))
    graph.add("concat", Concat(("a", "b"), key=("instance",)))
    graph.add("before", Linear(2, 2))
    graph.add("loss", Loss("squared_error"))
    graph.input("a", "before", ("t",))
    graph.input("b", "concat.b")
    graph.input("label", "loss.label")
    graph.connect("before", "concat.a")
    graph.chain("concat", "behind", "loss.prediction")
    graph.validate()


def test_a_join_whose_fields_cannot_be_told_asks_for_its_key() -> None:
    """Once, the key was that of whichever port came first, so that a run depended on the schedule."""
    isu = Isu(lambda s, structure: s, lambda s: s)
    with pytest.raises(GraphError, match=r"node 'loss': which state fields .* give it key="):
        line(("isu", isu), loss=Loss("squared_error"), fields=("t",)).validate()


def test_a_loss_whose_gradient_is_one_number_seen_many_times() -> None:
    """Once, scaling the expanded gradient in place failed."""
    graph = line(("linear", Linear(2, 2)), loss=Loss(lambda p, t: p.sum(1)))
    instance = Instance({"x": feed(torch.ones(4, 2), messages=1), "label": feed(torch.zeros(4, 2), messages=1)})
    with Inline(graph, update=Update(SGD)) as runtime:
        assert math.isfinite(runtime.train([instance]).loss)


def test_what_an_inference_leaves_behind_is_dropped() -> None:
    """Once, a prediction nobody asked a result of waited for its label for ever."""
    graph = Graph()
    graph.add("bcast", Bcast(("a", "b")))
    graph.add("one", Loss("squared_error"))
    graph.add("two", Loss("squared_error"))
    graph.input("x", "bcast")
    graph.input("first", "one.label")
    graph.input("second", "two.label")
    graph.connect("bcast.a", "one.prediction")
    graph.connect("bcast.b", "two.prediction")
    rows = torch.ones(1, 2)
    asked = [Instance({"x": feed(rows), "first": feed(rows)}) for _ in range(5)]
    with Inline(graph, max_active_keys=3) as runtime:
        assert runtime.infer(asked).instances == 5
        assert not runtime.held()
    more = [Instance({"x": feed(rows), "first": feed(rows), "second": feed(rows)}, results=1) for _ in range(9)]
    for seed in range(10):
        with Inline(graph, max_active_keys=4, schedule="random", seed=seed) as runtime:
            stats = runtime.infer(more, keep_predictions=True)
        assert stats.instances == 9
        assert all(len(found) == 1 for found in stats.predictions.values())
    with pytest.raises(DataError, match="at least one result"):
        Instance({"x": feed(rows)}, results=0)


def test_dead_ends_of_an_inference_look_nothing_up() -> None:
    """Messages of an instance that has all its results are dropped at nodes that would need its structure."""
    graph = Graph()
    graph.add("bcast", Bcast(("a", "b")))
    graph.add("loss", Loss("squared_error", key=("instance",)))
    graph.add("end", Flatmap(lambda s, structure: (np.flatnonzero(structure.get("go", s.instance * 0)), s)))
    graph.add("never", Loss("squared_error", key=("instance",)))
    graph.input("x", "bcast")
    graph.input("label", "loss.label")
    graph.input("none", "never.label")
    graph.connect("bcast.a", "loss.prediction")
    graph.connect("bcast.b", "end")
    graph.connect("end", "never.prediction")
    graph.nodes["end"].generate.function = lambda s, structure: (  # type: ignore[attr-defined]
        np.zeros(0, dtype=np.int64),
        s.take(np.flatnonzero(structure.get("go", s.instance * 0) > 0)),
    )
    rows = torch.ones(1, 2)
    asked = [Instance({"x": feed(rows), "label": feed(rows)}, Structure(go=[0])) for _ in range(6)]
    for schedule in ("sweep", "fifo", "backward-first"):
        with Inline(graph, max_active_keys=2, schedule=schedule) as runtime:
            assert runtime.infer(asked).instances == 6


def test_messages_without_rows_pass_an_embedding() -> None:
    """Once, a message of no rows could not be given the shape of its embedding."""
    node = Embedding(3, 2)
    (out,) = node.forward(0, Messages(torch.zeros(0, dtype=torch.int64), States.of(instance=[0]), np.array([0, 0])))
    assert not isinstance(out, Report)
    assert out[2].payload is not None
    assert out[2].payload.shape == (0, 2)


def test_headroom_is_given_back_when_it_is_needed() -> None:
    """Once, a key of 60 bits was refused because earlier, smaller values had been given room to grow."""
    packer = Packer(("instance", "left", "right"))
    store = Store(packer, "the store")
    small = States.of(instance=[3], left=[200], right=[200])
    store.put(packer.pack(small), (torch.ones(1, 1),))
    packer.pack(States.of(instance=[1], left=[2**12], right=[2**12]))
    packer.pack(States.of(instance=[2**19], left=[2**19], right=[2**19]))
    store.take(Messages(None, States.of(instance=[3], left=[200], right=[200])))
    assert len(store) == 0


def test_states_refuse_fractions_and_understand_masks() -> None:
    """Once, halves were cut off and a mask was taken for positions."""
    s = States.of(instance=[5, 6, 7], t=[1, 2, 3])
    assert s.take(s.t > 1).instance.tolist() == [6, 7]
    assert not hasattr(s, "edge")
    for wrong in (lambda: s.replace(t=s.t / 2), lambda: s.adding(u=0.5), lambda: States(("t",), [[1.9]])):
        with pytest.raises(StateError, match="must be integers"):
            wrong()


def test_feeds_say_what_is_wrong_with_them() -> None:
    with pytest.raises(PayloadError, match="needs a dimension of rows"):
        feed(torch.tensor(3))
    with pytest.raises(StateError, match="controller's to fill in"):
        feed(torch.ones(1, 2), instance=5)
    with pytest.raises(PayloadError, match="10 rows are 10 messages, not 5"):
        feed(torch.ones(10, 2), messages=5)


def test_errors_among_several_in_flight_name_input_and_instances() -> None:
    """Once, rows of two widths that met gave an error without a name."""
    graph = line(("relu", Relu()))
    for waves, where in ((True, "instance 1"), (False, "instances 0 to 1")):
        with Inline(graph, max_active_keys=2, waves=waves) as runtime:
            with pytest.raises(DataError, match=rf"input 'x', {where}: payload rows of \(2,\).* and of \(3,\)"):
                runtime.train([one(torch.ones(1, 2)), one(torch.ones(1, 3))])
            with pytest.raises(DataError, match=r"fields \(instance, t\); the graph declares \(instance\)"):
                runtime.train([one(torch.ones(1, 2), t=1)])


def test_a_group_costs_the_same_however_many_others_wait() -> None:
    """Once, every arrival looked at every batch that waited. Counted, not timed: calls of take on what waits."""
    node = Group(state=lambda s: s.keep("instance"), size=lambda s: s.part * 0 + 2)
    for i in range(300):
        states = States.of(instance=[i], part=[0])
        assert node.forward(0, Messages(torch.ones(1, 1), states)) == []
    taken = 0
    original = Messages.take

    def take(self: Messages, index: np.ndarray) -> Messages:
        nonlocal taken
        taken += 1
        return original(self, index)

    Messages.take = take  # type: ignore[method-assign]
    try:
        node.forward(0, Messages(torch.ones(1, 1), States.of(instance=[7], part=[1])))
    finally:
        Messages.take = original  # type: ignore[method-assign]
    assert taken <= 4
    assert node.held()["waiting"] == 299


def test_memory_follows_what_lives_with_a_new_version_at_every_update() -> None:
    """Once, each weight version opened a block of 256 rows: 200 live messages kept 51,200 rows."""
    packer = Packer()
    store = Store(packer, "the store")
    for version in range(200):
        states = States.of(instance=[version])
        store.put(packer.pack(states), (torch.ones(1, 8),), tag=version)
    rows = sum(r.rows[0].shape[0] for r in store.records() if r.rows[0] is not None)
    assert len(store) == 200
    assert rows <= 4 * 200


def test_ungroup_and_group_undo_each_other_with_empty_messages_among_them() -> None:
    node = Ungroup(lambda s, i: s.adding(i=i))
    payload = torch.arange(3.0).unsqueeze(1)
    out, answered = node.forward(0, Messages(payload, States.of(instance=[1, 2]), np.array([0, 3, 3])))
    assert not isinstance(out, Report) and not isinstance(answered, Report)
    assert answered[2].states.instance.tolist() == [2]
    (back,) = node.backward(0, out[2])
    assert not isinstance(back, Report)
    assert back[2].payload is not None
    assert back[2].payload.tolist() == payload.tolist()
