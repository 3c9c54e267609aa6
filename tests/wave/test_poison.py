"""Numbers that are not finite never reach a weight: the run ends and names them, or leaves them out and counts them.

payload      refused at the door (DataError: input, state), or its instance is left out
loss         NodeError: loss, state, or its instance is left out
gradient     NodeError: the node that meets it, state, before any update; or the instance is left out from there on
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampnet import Graph, Inline, Instance, NodeError, StreamStats, Update, feed
from ampnet.errors import DataError, LossError, NotFiniteWarning
from ampnet.instance import Feed
from ampnet.lang import Model, Seq, choose, compile, each, fold, loss, reduce
from ampnet.nodes import Function, Linear, Loss, Tanh
from ampnet.testing import assert_close
from tests.wave.both import NAMES, model
from tests.wave.test_gradients import F64, chain

SGD = partial(torch.optim.SGD, lr=0.05)
ADAM = partial(torch.optim.Adam, lr=0.01)
BAD = [math.inf, -math.inf, math.nan]


def floating(name: str) -> list[str]:
    """The inputs of a model whose payloads are no integers."""
    _, instances = model(name)
    return [n for n, f in instances[0].feeds.items() if f.payload is not None and f.payload.is_floating_point()]


PLACES = [(name, given) for name in NAMES for given in floating(name)]
AT = 1


def poisoned(instances: Sequence[Instance], given: str, value: float, at: int = AT) -> list[Instance]:
    """One number of one instance is not finite."""
    out, one = list(instances), instances[at]
    old = one.feeds[given]
    assert old.payload is not None
    payload = old.payload.clone()
    payload.view(-1)[-1] = value
    out[at] = Instance({**one.feeds, given: Feed(payload, old.fields, old.columns, old.offsets)}, one.structure)
    return out


@contextmanager
def restored(graph: Graph, on_nan: str = "stop") -> Iterator[dict[str, Tensor]]:
    """Gives the weights; afterwards the graph has them again, and its losses stop again."""
    losses = [node for node in graph.nodes.values() if isinstance(node, Loss)]
    before = {name: value.clone() for name, value in graph.module().state_dict().items()}
    for node in losses:
        node.on_nan = on_nan  # type: ignore[assignment]
    try:
        yield before
    finally:
        graph.module().load_state_dict(before)
        for node in losses:
            node.on_nan = "stop"


def weights(graph: Graph) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in graph.module().state_dict().items()}


def trained(
    graph: Graph, instances: Sequence[Instance], update: Update, epochs: int = 1, **how: Any
) -> tuple[dict[str, Tensor], StreamStats]:
    """The weights that training ends with, and what was told of its last epoch. The graph keeps its weights."""
    before = weights(graph)
    with Inline(graph, update=update, **how) as runtime:
        for _ in range(epochs):
            stats = runtime.train(instances)
        assert runtime.held() == {}
        assert runtime.stats().engine == "waves"
    found = weights(graph)
    graph.module().load_state_dict(before)
    return found, stats


def test_every_model_with_numbers_is_here() -> None:
    assert {name for name, _ in PLACES} == {
        "mnist", "qm9", "permuted-layers", "adaptive-depth", "by-hand"
    } | {name for name in NAMES if floating(name)}  # fmt: skip
    assert len(PLACES) >= 8


# Payloads


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize(("name", "given"), PLACES)
def test_a_payload_is_refused_and_no_weight_changes(name: str, given: str, value: float) -> None:
    graph, instances = model(name)
    count = len(instances)
    for how in (
        {"max_active_keys": count},
        {"max_active_keys": count, "wave_size": 1, "schedule": "fifo"},
        {"max_active_keys": 3, "wave_size": 2, "schedule": "random"},
    ):
        with restored(graph) as before, Inline(graph, update=Update(ADAM, count, "instances"), **how) as runtime:  # type: ignore[arg-type]
            with pytest.raises(DataError, match=rf"input '{given}' .*not finite at \(instance={AT}\b"):
                runtime.train(poisoned(instances, given, value))
            assert runtime.held() == {}
            assert all(torch.equal(now, before[n]) for n, now in weights(graph).items())
            assert not any(total.any() for total in graph.gradients().values())
            stats = runtime.train(instances)  # the graph is usable
            assert stats.instances == count
            assert math.isfinite(stats.loss)
            assert all(bool(torch.isfinite(w).all()) for w in weights(graph).values())
            assert any(not torch.equal(now, before[n]) for n, now in weights(graph).items())


@pytest.mark.parametrize(
    "update", [Update(SGD, 1, "instances"), Update(ADAM, 1, "instances"), Update(ADAM, 1)], ids=str
)
@pytest.mark.parametrize(("name", "given"), PLACES)
def test_the_first_instance_of_all(name: str, given: str, update: Update) -> None:
    """With an update for each instance, those before it count; of itself there is no trace."""
    graph, instances = model(name)
    versions = _versions(graph)
    with restored(graph) as before, Inline(graph, update=update) as runtime:
        with pytest.raises(DataError, match=rf"input '{given}' .*not finite at \(instance=0\b"):
            runtime.train(poisoned(instances, given, math.nan, at=0))
        assert all(torch.equal(now, before[n]) for n, now in weights(graph).items())
        assert _versions(graph) == versions


def _versions(graph: Graph) -> dict[str, int]:
    return {name: node.updater.version for name, node in graph.parameterised().items()}


def losses_of(graph: Graph, instance: Instance) -> int:
    """How many losses judge an instance."""
    with Inline(graph) as runtime:
        return len(runtime.infer([instance], keep_predictions=True).predictions[0])


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize(("name", "given"), PLACES)
def test_a_payload_is_left_out_with_its_instance(name: str, given: str, value: float) -> None:
    """Training is that without the instance: gradients, divisor, momentum, loss; and it is counted."""
    graph, instances = model(name)
    without = [one for i, one in enumerate(instances) if i != AT]
    many = len(instances)
    skipped = losses_of(graph, instances[AT])
    assert skipped >= 1
    with restored(graph, "skip"):
        for update, keys in (
            (Update(SGD, many, "instances"), many),
            (Update(ADAM, many, "instances"), 2),
            (Update(ADAM, 1, "instances"), 1),
            (Update(SGD, 10**6, "messages"), many),
            (Update(SGD, 10**6, "instances", average=False), 3),
        ):
            for epochs in (1, 2):
                want, alone = trained(graph, without, update, epochs, max_active_keys=keys)
                got, stats = trained(graph, poisoned(instances, given, value), update, epochs, max_active_keys=keys)
                assert stats.skipped == skipped
                assert stats.instances == many
                assert stats.loss == pytest.approx(alone.loss, rel=1e-9)
                assert all(bool(torch.isfinite(w).all()) for w in got.values())
                if name == "babi15" and update.optimizer is ADAM:  # a bias of all scores: its gradient is rounding
                    got, want = ({n: w for n, w in some.items() if w.numel() > 1} for some in (got, want))
                assert_close(got, want, 1e-8 if update.optimizer is ADAM else 1e-10)


@pytest.mark.parametrize(("name", "given"), PLACES)
def test_many_in_flight_leave_out_the_same(name: str, given: str) -> None:
    """With frozen weights the order decides nothing: the gradients are those without the instance."""
    graph, instances = model(name)
    without = [one for i, one in enumerate(instances) if i != AT]
    with restored(graph, "skip"):
        with Inline(graph) as runtime:
            runtime.train(without)
        want = _sums(graph)
        for schedule in ("fifo", "sweep", "random"):
            for size in (1, 2):
                how: dict[str, Any] = {"schedule": schedule, "max_active_keys": 5, "wave_size": size}
                with Inline(graph, **how) as runtime:
                    stats = runtime.train(poisoned(instances, given, math.nan))
                assert stats.skipped >= 1
                assert_close(_sums(graph), want)


def _sums(graph: Graph) -> dict[str, Tensor]:
    """The gradients that have added up; leaves them at zero."""
    out = {name: total.clone() for name, total in graph.gradients().items()}
    for node in graph.parameterised().values():
        node.updater.reset()
    return out


def test_several_instances_one_of_them_twice() -> None:
    graph, instances = model("qm9")
    first, second = floating("qm9")[:2]
    bad = poisoned(poisoned(poisoned(instances, first, math.nan, 0), second, math.inf, 0), second, -math.inf, 3)
    good = [one for i, one in enumerate(instances) if i not in (0, 3)]
    update = Update(ADAM, len(instances), "instances")
    with restored(graph, "skip"):
        got, stats = trained(graph, bad, update, max_active_keys=len(instances))
        want, _ = trained(graph, good, update, max_active_keys=len(instances))
    assert stats.skipped == 2
    assert_close(got, want, 1e-8)


def test_all_of_a_stream_is_left_out() -> None:
    """There is no update at all, not even one with a gradient of zero, which would move Adam's memory and momentum."""
    graph, instances = model("mnist")
    (given, *_) = floating("mnist")
    for optimizer in (ADAM, partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)):
        versions = _versions(graph)
        with restored(graph, "skip") as before:
            bad = [poisoned(instances, given, math.nan, i)[i] for i in range(4)]
            got, stats = trained(graph, bad, Update(optimizer, 2, "instances"), max_active_keys=2)
            assert stats.skipped == 4
            assert math.isnan(stats.loss)
            assert all(torch.equal(got[name], value) for name, value in before.items())
            assert _versions(graph) == versions


def test_a_large_sum_of_finite_numbers_is_no_fault() -> None:
    graph = chain(Linear(4, 4, dtype=F64), Tanh(), loss="squared_error")
    rows = torch.full((1, 4), 1e308, dtype=F64)
    instance = Instance({"x": feed(rows), "label": feed(torch.zeros(1, 4, dtype=F64))})
    with Inline(graph) as runtime:
        assert math.isfinite(runtime.train([instance]).loss)


# Losses


@pytest.mark.parametrize("how", [{}, {"schedule": "fifo", "wave_size": 1}], ids=["one wave", "in flight"])
def test_a_loss_that_overflows(how: dict[str, Any]) -> None:
    graph = chain(Linear(4, 4, dtype=F64), Function(torch.exp))
    instances = ordinary()
    instances[AT] = of(1e4)
    with torch.no_grad():
        graph.parameterised()["n0"].updater.weights[0].abs_()
    update = Update(SGD, len(instances), "instances")
    with restored(graph) as before, Inline(graph, update=update, max_active_keys=4, **how) as runtime:
        with pytest.raises(NodeError, match=rf"node 'loss' .*the loss is inf at \(instance={AT}\)") as caught:
            runtime.train(instances)
        assert isinstance(caught.value.__cause__, LossError)
        assert all(torch.equal(now, before[n]) for n, now in weights(graph).items())
        assert runtime.train(ordinary()).instances == 4
    with restored(graph, "skip"):
        got, stats = trained(graph, instances, update, max_active_keys=4, **how)
        want, alone = trained(graph, without(instances), update, max_active_keys=4, **how)
        assert stats.skipped == 1
        assert stats.loss == pytest.approx(alone.loss)
        assert_close(got, want)


# Gradients
#
#     x -> n0 -> exp -> tanh -> n3 -> loss        n0 x = 1e4: exp is infinite, tanh of it 1, so the loss is finite;
#                                                 backward, 0 times infinity is no number, and comes to n0


def of(value: float) -> Instance:
    return Instance(
        {"x": feed(torch.full((1, 4), value, dtype=F64)), "label": feed(torch.full((1, 4), 0.5, dtype=F64))}
    )


def ordinary() -> list[Instance]:
    return [of(value) for value in (0.1, -0.2, 0.3, 0.4)]


def without(instances: Sequence[Instance]) -> list[Instance]:
    return [one for i, one in enumerate(instances) if i != AT]


def overflowing(*between: Any) -> tuple[Graph, list[Instance]]:
    """All of the second instance is finite, but for the gradient that comes to the first layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, last = Linear(4, 4, dtype=F64), Linear(4, 4, dtype=F64)
    with torch.no_grad():
        first.updater.weights[0].abs_()
    graph = chain(first, Function(torch.exp), Tanh(), *between, last)
    instances = ordinary()
    instances[AT] = of(1e4)
    return graph, instances


@pytest.mark.parametrize("optimizer", [SGD, ADAM])
@pytest.mark.parametrize("keys", [1, 4])
def test_a_gradient_is_named_and_nothing_is_applied(optimizer: Any, keys: int) -> None:
    graph, instances = overflowing()
    frequency = 1 if keys == 1 else 4
    if keys == 1:
        instances = instances[AT:]
    at = 0 if keys == 1 else AT
    with restored(graph) as before:
        with Inline(graph, update=Update(optimizer, frequency, "instances"), max_active_keys=keys) as runtime:
            with pytest.raises(NodeError, match=rf"node 'n0' failed in backward at \(instance={at}\)") as caught:
                runtime.train(instances)
            assert isinstance(caught.value.__cause__, LossError)
            assert "a gradient is not finite" in str(caught.value)
            assert runtime.held() == {}
            assert all(torch.equal(now, before[n]) for n, now in weights(graph).items())
            assert not any(total.any() for total in graph.gradients().values())
            stats = runtime.train(ordinary())
        assert math.isfinite(stats.loss)
        assert all(bool(torch.isfinite(w).all()) for w in weights(graph).values())
        assert any(not torch.equal(now, before[n]) for n, now in weights(graph).items())


@pytest.mark.parametrize("schedule", ["fifo", "sweep", "random"])
def test_a_gradient_is_named_with_its_own_wave_among_several(schedule: str) -> None:
    """Sums are those of all waves in flight; the one that is not finite is found, with frozen weights as well."""
    for update in (None, Update(SGD, 2, "instances")):
        graph, instances = overflowing()
        with restored(graph):
            how: dict[str, Any] = {"schedule": schedule, "max_active_keys": 4, "wave_size": 1}
            with Inline(graph, update=update, **how) as runtime:
                with pytest.raises(NodeError, match=rf"node 'n0' failed in backward at \(instance={AT}\)"):
                    runtime.train(instances)
                assert all(bool(torch.isfinite(w).all()) for w in weights(graph).values())
                assert runtime.train(ordinary()).instances == 4


@pytest.mark.parametrize("words", [3, 40], ids=["whole table", "rows asked for"])
def test_a_gradient_of_a_row_that_many_share_is_named(words: int) -> None:
    """Equal rows of a table have one gradient. Once, it was nobody's, and the error named no state."""

    class Shares(Model):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.last = nn.Embedding(words, 4), nn.Linear(4, 1)

        def forward(self, tokens: Any, y: Any) -> None:
            h = reduce(each(lambda token: torch.tanh(torch.exp(self.table(token))), tokens), "sum")
            loss(self.last(h), y, "squared_error")

    shares = Shares()
    with torch.no_grad():
        shares.table.weight[2] = 1e4
    data = [(Seq(torch.tensor(tokens)), torch.zeros(1)) for tokens in ([0, 1, 0], [1, 2, 2], [0, 0, 1])]
    graph = compile(shares, *data[0])
    with Inline(graph, update=Update(SGD, 3, "instances"), max_active_keys=3) as runtime:
        with pytest.raises(NodeError, match=r"node 'table' failed in backward at \(instance=1, tokens=1"):
            runtime.train(graph.instances(data))
        assert bool(torch.isfinite(shares.table.weight).all())
        assert runtime.stats().engine == "waves"


@pytest.mark.parametrize("optimizer", [SGD, ADAM])
@pytest.mark.parametrize("keys", [1, 4])
def test_a_gradient_is_left_out_from_the_node_that_meets_it_on(optimizer: Any, keys: int) -> None:
    """The first layer is trained as without the instance. The last one, nearer to the loss, keeps what was finite."""
    graph, instances = overflowing()
    update = Update(optimizer, 4, "instances")
    with restored(graph, "skip"):
        got, stats = trained(graph, instances, update, max_active_keys=keys)
        want, _ = trained(graph, without(instances), update, max_active_keys=keys)
        assert stats.skipped == 1
        assert stats.instances == 4
        assert all(bool(torch.isfinite(w).all()) for w in got.values())
        assert_close({n: got[n] for n in ("n0.weight", "n0.bias")}, {n: want[n] for n in ("n0.weight", "n0.bias")})
        assert not torch.equal(got["n3.bias"], want["n3.bias"])
        again, stats = trained(graph, instances, update, 3, max_active_keys=keys)
        assert stats.skipped == 1
        assert all(bool(torch.isfinite(w).all()) for w in again.values())


@pytest.mark.parametrize("schedule", ["fifo", "sweep", "random"])
def test_many_in_flight_leave_out_the_same_gradient(schedule: str) -> None:
    graph, instances = overflowing()
    with restored(graph, "skip"):
        with Inline(graph) as runtime:
            runtime.train(without(instances))
        want = _sums(graph)
        with Inline(graph, schedule=schedule, max_active_keys=4, wave_size=1) as runtime:
            assert runtime.train(instances).skipped == 1
        got = _sums(graph)
        assert_close({n: got[n] for n in ("n0.weight", "n0.bias")}, {n: want[n] for n in ("n0.weight", "n0.bias")})
        assert all(bool(torch.isfinite(total).all()) for total in got.values())


def test_the_same_waves_again_after_one_was_left_out() -> None:
    """A layout that comes again is used again; what was put aside for the one that was left out must not stay."""
    graph, instances = overflowing()
    with restored(graph, "skip"), Inline(graph, max_active_keys=4) as runtime:
        found = []
        for given in (ordinary(), instances, ordinary(), instances, ordinary()):
            stats = runtime.train(given)
            found.append((stats.skipped, _sums(graph)))
    assert [skipped for skipped, _ in found] == [0, 1, 0, 1, 0]
    for i in (2, 4):
        assert_close(found[i][1], found[0][1])
    assert_close(found[3][1], found[1][1])


class Overflowing(Model):
    """As above, behind an embedding, a loop and a choice: nothing of them may get any of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(4, 3), nn.GRUCell(3, 3)
        self.ways, self.out = nn.ModuleList(nn.Linear(3, 3) for _ in range(2)), nn.Linear(3, 3)

    def forward(self, words: Seq, x: Tensor, way: int, y: Tensor) -> None:
        h = fold(lambda h, w: self.cell(self.embed(w), h), words.w, x)
        z = choose(way, list(self.ways), h * x)
        loss(self.out(torch.tanh(torch.exp(z * x))), y, "squared_error")


@pytest.mark.parametrize(
    "how",
    [{"max_active_keys": 6}, {}, {"max_active_keys": 4, "wave_size": 2, "schedule": "fifo"}],
    ids=["one wave", "one by one", "in flight"],
)
def test_a_gradient_goes_no_further_than_to_the_row_it_came_to(how: dict[str, Any]) -> None:
    random = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        written = Overflowing().double()
    data = []
    for i in range(6):
        x, y = torch.randn(2, 3, generator=random, dtype=F64)
        tokens = Seq(w=torch.randint(4, (1 + i % 3,), generator=random))
        data.append((tokens, x.abs() * (1e4 if i == 2 else 1), i % 2, y))
    with torch.no_grad():
        for way in written.ways:
            way.bias.abs_()  # type: ignore[union-attr,operator]
            way.weight.zero_()  # type: ignore[union-attr,operator]
    graph = compile(written, *data[0])
    words = r"node 'ways_0' failed in backward at \(instance=2\b.*not finite"
    with restored(graph), Inline(graph, **how) as runtime, pytest.raises(NodeError, match=words):
        runtime.train(graph.instances(data))
    with restored(graph, "skip"), Inline(graph, **how) as runtime:
        assert runtime.train(graph.instances(one for i, one in enumerate(data) if i != 2)).skipped == 0
        want = _sums(graph)
        assert runtime.train(graph.instances(data)).skipped == 1
        got = _sums(graph)
    for some in (got, want):
        for name in ("out.weight", "out.bias"):
            assert bool(torch.isfinite(some.pop(name)).all())
    assert_close(got, want)


# Inference


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize(("name", "given"), PLACES)
def test_inference_tells_of_it(name: str, given: str, value: float) -> None:
    """It changes nothing, so nothing is refused; losses that are not finite are counted and left out of the mean."""
    graph, instances = model(name)
    with Inline(graph, max_active_keys=4) as runtime:
        want = runtime.infer([one for i, one in enumerate(instances) if i != AT])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got = runtime.infer(poisoned(instances, given, value), keep_predictions=True)
        assert all(issubclass(one.category, NotFiniteWarning) for one in caught)
        assert got.instances == len(instances)
        assert math.isfinite(got.loss)
        if math.isnan(value):
            assert got.skipped >= 1
        if got.skipped == len(got.predictions[AT]):
            assert got.loss == pytest.approx(want.loss, rel=1e-9)
        assert runtime.infer(instances).skipped == 0
