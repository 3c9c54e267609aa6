"""Bad input: each gives one named error with node, state and remedy, quickly, and leaves nothing behind (P11, P12).

After each of these nothing is left in any queue or cache (`fails` looks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from ampnet import DataError, Graph, Inline, Instance, NodeError, Processes, StallError, Stream, Update, feed
from ampnet.data.list_reduction import Sequences, generate
from ampnet.errors import LossError, PairingError, PayloadError, StateError
from ampnet.models import by_hand as rnn
from ampnet.nodes import Cond, Flatmap, Function, Group, Isu, Linear, Loss, Module, Node, Phi, Reduce, Relu
from ampnet.state import States

SGD = partial(torch.optim.SGD, lr=0.1)


def line(*nodes: tuple[str, Node], fields: tuple[str, ...] = ()) -> Graph:
    graph = Graph()
    for name, node in nodes:
        graph.add(name, node)
    graph.add("loss", Loss("squared_error", key=("instance",)))
    graph.input("x", nodes[0][0], fields)
    graph.input("label", "loss.label")
    graph.chain(*(name for name, _ in nodes), "loss.prediction")
    return graph


def one(x: torch.Tensor | None = None, **fields: Any) -> Instance:
    return Instance({"x": feed(torch.ones(1, 2) if x is None else x, **fields), "label": feed(torch.zeros(1, 2))})


def fails(graph: Graph, instances: Any, kind: type[Exception], words: str, **settings: Any) -> Exception:
    with Inline(graph, update=Update(SGD), **settings) as runtime:
        with pytest.raises(kind, match=words) as caught:
            runtime.train(instances)
        assert not runtime.held()
    return caught.value


def test_an_exception_in_a_user_function_singles_out_its_message() -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        if bool((x == 7).any()):
            raise ZeroDivisionError("seven")
        return x * 2

    graph = line(("picky", Function(picky)))
    instances = [one(torch.full((1, 2), float(i))) for i in range(20)]
    error = fails(
        graph,
        instances,
        NodeError,
        r"node 'picky' failed in forward at \(instance=7\) on worker 'inline': ZeroDivisionError: seven",
        max_active_keys=20,
    )
    assert isinstance(error, NodeError)
    assert (error.node, error.direction, error.worker) == ("picky", "forward", "inline")
    assert error.states is not None and error.states.instance.tolist() == [7]
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_an_exception_in_a_backward_names_the_batch() -> None:
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            raise ValueError("no way back")

    graph = line(("odd", Function(lambda x: Odd.apply(x))))
    words = r"node 'odd' failed in backward at \(instance=0\).*ValueError: no way back"
    fails(graph, [one()], NodeError, words, waves=False)  # a wave knows the node, but no state


def test_an_exception_in_a_state_function_is_named() -> None:
    graph = line(("cond", Cond(lambda s: s.t // (s.t - 3), ("a",))), fields=("t",))

    def crash(s: States) -> Any:
        raise KeyError("nothing of the kind")

    graph.nodes["cond"].function.function = crash  # type: ignore[attr-defined]
    fails(graph, [one(t=3)], NodeError, "node 'cond' failed in forward at .instance=0, t=3.*KeyError")


def test_an_exception_in_the_loader_names_stream_and_instance() -> None:
    def loader() -> Iterator[Instance]:
        yield one()
        raise OSError("disk gone")

    fails(
        line(("relu", Relu())),
        loader(),
        DataError,
        "stream 'train': the loader failed at instance 2: OSError: disk gone",
    )
    fails(line(("relu", Relu())), [one(), "not one"], DataError, "instance 2: expected an Instance, got 'not one'")


@pytest.mark.parametrize("listed", [True, False])
def test_none_from_a_loader_is_an_error_not_the_end_of_the_data(listed: bool) -> None:
    """Once, a loader that yielded None ended the epoch there, and the rest of the data was never seen."""
    given = [one(), one(), None, one()]
    words = "instance 3 of stream 'train' is None; a loader must yield Instance objects"
    fails(line(("relu", Relu())), given if listed else iter(given), DataError, words)


def test_none_from_a_loader_on_worker_processes() -> None:
    """There, the first instances are looked at before the run, to place the nodes."""
    graph = line(("relu", Relu()))
    for given in ([one(), None, one()], iter([one(), None, one()])):
        with Processes(graph, workers=2) as runtime, pytest.raises(DataError, match="instance 2 of stream 'mine' is"):
            runtime.train(given, name="mine")  # type: ignore[arg-type]


def test_an_input_that_the_graph_does_not_have() -> None:
    wrong = Instance({"y": feed(torch.zeros(1, 2))})
    fails(
        line(("relu", Relu())),
        [wrong],
        DataError,
        "messages for input 'y', which the graph does not have; it has x, label",
    )


def test_inference_without_labels_says_what_to_do() -> None:
    with (
        Inline(line(("relu", Relu()))) as runtime,
        pytest.raises(DataError, match=r"no label message.*payload may be None.*Instance\(results=...\)"),
    ):
        runtime.infer([Instance({"x": feed(torch.zeros(1, 2))})])


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (
            torch.ones(1, 3),
            r"node 'linear' failed in forward at \(instance=0\).*expects rows of width 2, got .*\(1, 3\)",
        ),
        (torch.ones(1, 2, dtype=torch.float64), "float32 parameters, got a payload of torch.float64"),
        (torch.ones(1, 2, dtype=torch.int64), "float32 parameters, got a payload of torch.int64"),
    ],
)
def test_a_payload_of_the_wrong_width_or_dtype(x: torch.Tensor, words: str) -> None:
    error = fails(line(("linear", Linear(2, 2))), [one(x)], NodeError, words)
    assert isinstance(error.__cause__, PayloadError)


def test_two_messages_with_one_key() -> None:
    twins = Instance({"x": feed(torch.ones(2, 2), t=[0, 1]), "label": feed(torch.zeros(1, 2))})
    graph = line(("linear", Linear(2, 2, key=("instance",))), fields=("t",))
    for waves, node in ((True, "loss"), (False, "linear")):  # in a wave rows are told apart by their place, not by keys
        words = rf"node '{node}'.*two messages with one key \(instance=0\)"
        error = fails(graph, [twins], NodeError, words, waves=waves)
        assert isinstance(error.__cause__, PairingError)


def test_a_wrong_inverse_that_no_sample_shows() -> None:
    """Right below t=2, which is what samples are; the first real batch tells."""
    isu = Isu(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=np.where(s.t > 2, s.t, s.t - 1)))
    graph = line(("linear", Linear(2, 2)), ("isu", isu), fields=("t",))
    error = fails(graph, [one(t=5)], NodeError, r"node 'isu'.*the inverse is wrong: f takes \(instance=0, t=5\)")
    assert isinstance(error.__cause__, StateError)


def test_a_wrong_inverse_that_shows_late_ends_at_the_node_that_finds_no_partner() -> None:
    isu = Isu(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=np.where(s.t > 20, s.t, s.t - 1)))
    graph = line(("linear", Linear(2, 2)), ("isu", isu), fields=("t",))
    instances = [one(t=t) for t in range(30)]
    words = r"node 'linear' failed in backward at \(instance=20, t=21\).*never forwarded.*Isu"
    fails(graph, instances, NodeError, words, waves=False)  # a wave goes back by the rows themselves, not by states


def test_a_group_that_never_fills_says_who_waits_for_what() -> None:
    graph = line(
        ("group", Group(state=lambda s: s.keep("instance"), size=lambda s: s.part * 0 + 3)),
        ("sum", Reduce("sum")),
        fields=("part",),
    )
    instance = Instance({"x": feed(torch.ones(2, 2), part=[0, 1]), "label": feed(torch.zeros(1, 2))})
    error = fails(graph, [instance], StallError, r"1 instance\(s\) are in flight \(0\)")
    text = str(error)
    assert "node 'group': group (instance=0) has 2 message(s) and waits for 1 more" in text
    assert "node 'loss': 1 message(s) of port 'label' wait for port 'prediction': (instance=0)" in text


def poisoned() -> list[Instance]:
    return [one(torch.tensor([[1.0, float("nan")]]) if i == 3 else torch.ones(1, 2)) for i in range(6)]


def test_nan_in_a_loss_stops_by_default() -> None:
    graph = line(("linear", Linear(2, 2)))
    for waves in (True, False):
        words = r"input 'x' has a payload that is not finite at \(instance=3\)"
        fails(graph, poisoned(), DataError, words, waves=waves)
    graph = line(("linear", Linear(2, 2)), ("log", Function(lambda x: (x * 0 - 1).log())))
    assert isinstance(fails(graph, [one()], NodeError, r"node 'loss'.*the loss is nan at").__cause__, LossError)


def test_nan_in_a_loss_can_be_skipped_and_counted() -> None:
    graph = line(("linear", Linear(2, 2)), ("relu", Relu()))
    graph.nodes["loss"].on_nan = "skip"  # type: ignore[attr-defined]
    with Inline(graph, update=Update(SGD, count="instances"), max_active_keys=4) as runtime:
        stats = runtime.train(poisoned())
    assert stats.instances == 6
    assert stats.skipped == 1
    assert np.isfinite(stats.loss)
    assert all(bool(torch.isfinite(p).all()) for p in graph.module().parameters())


def test_infinity_that_only_shows_in_the_loss() -> None:
    instances = [one(torch.full((1, 2), 3e38))]
    fails(line(("double", Function(lambda x: x * 10))), instances, NodeError, "the loss is (inf|nan) at")


def test_an_empty_sequence_and_an_instance_without_messages() -> None:
    data = Sequences(np.zeros((1, 10), dtype=np.int64), np.array([0]), np.array([0]))
    with pytest.raises(DataError, match=r"the sequence at \[0\] has no token"):
        rnn.instance(data, np.array([0]))
    with pytest.raises(DataError, match="without a single message"):
        Instance({"x": feed(torch.zeros(0, 2))})


def test_sequences_of_different_lengths_in_one_bucket() -> None:
    data = generate(50, 1)
    with pytest.raises(DataError, match="differ in length; bucket them first"):
        rnn.instance(data, np.arange(50))


def test_a_label_out_of_range_names_its_instance() -> None:
    data = generate(30, 1)
    data.labels[4] = 12
    instances = [rnn.instance(data, np.array([i]), 4) for i in range(30)]
    error = fails(
        rnn.build(4),
        instances,
        NodeError,
        r"label 12 at \(instance=4.*is out of range: there are 10 classes",
        max_active_keys=9,
    )
    assert isinstance(error.__cause__, LossError)


def test_a_token_out_of_range_names_its_instance() -> None:
    data = generate(30, 1)
    data.tokens[4, 0] = 14
    instances = [rnn.instance(data, np.array([i]), 4) for i in range(30)]
    fails(
        rnn.build(4),
        instances,
        NodeError,
        r"node 'embedding' failed in forward at \(instance=4, t=0.*index 14 is out of range",
        max_active_keys=9,
    )


def test_a_single_token_a_single_message_and_one_huge_instance() -> None:
    data = Sequences(np.full((2, 4000), 3), np.array([1, 4000]), np.array([1, 2]))
    graph = rnn.build(4, dtype=torch.float64)
    instances = [rnn.instance(data, np.array([i]), 4, torch.float64) for i in (0, 1, 0)]
    with Inline(graph, update=Update(SGD, 100), max_active_keys=3) as runtime:
        assert runtime.train(instances).instances == 3


def test_a_flatmap_without_children_answers_at_once() -> None:
    """A graph node without out-edges: nothing goes on, so its gradient is zero and the instance still retires."""
    graph = Graph()
    graph.add("linear", Linear(2, 2))
    graph.add(
        "flatmap", Flatmap(lambda s: (np.repeat(np.arange(len(s)), s.fan), s.take(np.repeat(np.arange(len(s)), s.fan))))
    )
    graph.add("loss", Loss("squared_error"))
    graph.input("x", "linear", ("fan",))
    graph.input("label", "loss.label")
    graph.chain("linear", "flatmap", "loss.prediction")
    instances = [
        Instance({"x": feed(torch.ones(1, 2), fan=fan)} | ({"label": feed(torch.zeros(1, 2))} if fan else {}))
        for fan in (1, 0, 1)
    ]
    with Inline(graph, update=Update(SGD), max_active_keys=3) as runtime:
        assert runtime.train(instances).instances == 3


def test_a_row_wise_module_that_is_not() -> None:
    class Mixing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flip(0)

    fails(
        line(("mix", Module(Mixing()))),
        [one(torch.tensor([[float(i), 0.0]])) for i in range(4)],
        NodeError,
        "node 'mix'.*not row-wise",
        max_active_keys=4,
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_active_keys": 0}, "max_active_keys must be 1 or more, got 0"),
        ({"max_batch": 0}, "max_batch must be 1 or more, got 0"),
        ({"enough_rows": 0}, "enough_rows must be 1 or more, got 0"),
        ({"schedule": "best"}, "unknown schedule 'best'; there are backward-first, fifo, sweep, random"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Inline(line(("relu", Relu())), **settings)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: feed(None), "needs messages="),
        (lambda: feed(torch.zeros(3, 1), offsets=[0, 2]), "rise from 0 to the 3 rows"),
    ],
)
def test_bad_feeds_payload(act: Callable[[], Any], words: str) -> None:
    with pytest.raises(PayloadError, match=words):
        act()


@pytest.mark.parametrize("value", [0.5, [1, 2, 3]])
def test_bad_feeds_fields(value: Any) -> None:
    with pytest.raises(StateError, match="must be a whole number, or 2 of them"):
        feed(torch.zeros(2, 1), t=value)


def test_after_an_error_the_runtime_can_train_again() -> None:
    graph = line(("linear", Linear(2, 2)))
    with Inline(graph, update=Update(SGD, 3), max_active_keys=4) as runtime:
        with pytest.raises(DataError):
            runtime.train(poisoned())
        stats = runtime.run([Stream([one() for _ in range(5)]), Stream([one()], False, "valid")])
    assert {s.name: s.instances for s in stats} == {"train": 5, "valid": 1}


def test_an_interrupt_leaves_nothing_behind() -> None:
    def loader() -> Iterator[Instance]:
        yield from (one() for _ in range(3))
        raise KeyboardInterrupt

    with Inline(line(("linear", Linear(2, 2)))) as runtime:
        with pytest.raises(KeyboardInterrupt):
            runtime.train(loader())
        assert not runtime.held()


def test_phi_that_gets_one_key_by_two_ways() -> None:
    graph = Graph()
    graph.add("phi", Phi(("a", "b")))
    graph.add("loss", Loss("squared_error"))
    graph.input("one", "phi.a")
    graph.input("two", "phi.b")
    graph.input("label", "loss.label")
    graph.connect("phi", "loss.prediction")
    rows = torch.ones(1, 2)
    both = Instance({"one": feed(rows), "two": feed(rows), "label": feed(rows)})
    for waves, node in ((True, "loss"), (False, "phi")):  # a wave needs no keys at a Phi; here they meet at the loss
        fails(graph, [both], NodeError, f"node '{node}'.*two messages with one key", waves=waves)
