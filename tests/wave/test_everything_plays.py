"""Whatever can be written is played in waves, in any order: gradients are those of the eager model, or of messages."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampnet import Graph, Inline, Instance, Stream, Update, feed, replicate
from ampnet.data import generated
from ampnet.instance import Feed
from ampnet.lang import Model, Seq, compile, each, fold, loss, reduce
from ampnet.nodes import Cond, Dropout, Function, Isu, LayerNorm, Linear, Loss, Module, Phi, Tanh
from ampnet.replicas.replicate import ROUTES
from ampnet.testing import assert_close, assert_compiled
from ampnet.testing.written import OPTIONS_OF, READS, WIDTH, WrittenModel, example
from ampnet.testing.written.instances import MOST, Sizes, instance
from tests.pages import ROOT
from tests.replicas.small import MODELS, case, doubled, taken
from tests.replicas.small import chain as replicated_chain
from tests.replicas.small import rows as replicated_rows
from tests.wave.both import assert_same, outcome
from tests.wave.test_gradients import F64, chain, rows_of

SGD = partial(torch.optim.SGD, lr=0.1)
ORDERS: list[dict[str, Any]] = [
    {"schedule": "backward-first", "max_active_keys": 5},
    {"schedule": "fifo", "max_active_keys": 4, "wave_size": 1},
    {"schedule": "sweep", "max_active_keys": 5, "wave_size": 2},
    {"schedule": "random", "seed": 1, "max_active_keys": 6, "wave_size": 1},
]


def assert_plays(graph: Graph, instances: Sequence[Instance], tolerance: float = 1e-10) -> None:
    """All of it in waves, in every order: gradients, losses and predictions of messages. `outcome` counts instances."""
    want = outcome(graph, instances, waves=False, max_active_keys=3)
    for how in ORDERS:
        assert_same(outcome(graph, instances, waves=True, **how), want, tolerance)
        with Inline(graph, **how) as runtime:
            assert (runtime.stats().engine, runtime.stats().reason) == ("waves", None)


# Trees


def forest(seed: int) -> list[tuple[Any, ...]]:
    """Instances with trees of one to five leaves."""
    rng = np.random.default_rng(seed)
    return [instance(rng, Sizes(2, 2, 1, leaves, 3, leaves % 3, 1)) for leaves in (2, 1, 4, 3, 5, 2)]


@pytest.mark.parametrize("reads", READS)
def test_branches_of_every_kind(reads: str) -> None:
    """`assert_compiled` plays waves in several orders, and asks whether all instances were played."""
    for use, source in zip(OPTIONS_OF["use"], itertools.cycle(OPTIONS_OF["source"]), strict=False):
        program = [("tree", reads, source, ["linear"], ["other"], use)]
        assert_compiled(WrittenModel(program), forest(len(use)), graph=None, max_active_keys=6)


@pytest.mark.parametrize(
    "inner", ["norm", "prelu", "own", "few", "scale", ("residual", ["linear"]), ("gate", ["norm"])]
)
def test_programs_inside_of_branches(inner: Any) -> None:
    for reads in ("apart", "gru", "lstm", "residual"):
        model = WrittenModel([("tree", reads, "both", [inner], [inner], "both")])
        assert_compiled(model, forest(3), max_active_keys=4)


def test_the_models_are_compiled_by_an_example_with_inner_nodes() -> None:
    assert len(example()[4]) > 1
    assert MOST.leaves > 1
    assert example()[0].shape == (WIDTH,)


def tutorial() -> dict[str, Any]:
    """The names of the tutorial, up to its model."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "class TreeLstm" in b)
    names: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(compile_source(block), names)
    return names


def compile_source(text: str) -> Any:
    import builtins

    return builtins.compile(text, "tutorial.py", "exec")


def test_the_tree_lstm_of_the_tutorial() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = tutorial()["TreeLstm"](9, 4, 5).double()
    trees = list(generated.trees(7, 0, 9, 5))
    graph = assert_compiled(model, trees, max_active_keys=4)
    with Inline(graph, update=Update(SGD, 2, "instances"), max_active_keys=4) as runtime:
        runtime.train(graph.instances(trees))
        stats = runtime.stats()
    assert (stats.engine, stats.instances) == ("waves", 7)


# Instances without a label


@pytest.mark.parametrize("how", ORDERS, ids=lambda how: how["schedule"])
def test_instances_without_a_label_among_others(how: dict[str, Any]) -> None:
    """Their predictions are those that they have with a label; and the loss is the mean of the others."""
    of = case("list-reduction-gru")
    graph = of.graph()
    labelled = of.instances(graph)
    mixed = []
    for i, one in enumerate(labelled):
        given = one.feeds["label"]
        blank = Feed(None, given.fields, given.columns, given.offsets)
        mixed.append(one if i % 2 else Instance({**one.feeds, "label": blank}, one.structure))
    assert sum(not one.complete for one in mixed) == 3
    with Inline(graph, **how) as runtime:
        (want,) = runtime.run([Stream(labelled, False, "all", keep_predictions=True)])
        (some,) = runtime.run([Stream(labelled[1::2], False, "some")])
        (got,) = runtime.run([Stream(mixed, False, "mixed", keep_predictions=True)])
        assert runtime.stats().instances == 2 * len(labelled) + 3
    assert got.instances == len(labelled)
    assert got.skipped == 0
    assert (got.loss, got.metrics) == (pytest.approx(some.loss, rel=1e-12), pytest.approx(some.metrics))
    for position, ((_, _, rows),) in want.predictions.items():
        assert_close({"p": got.predictions[position][0][2]}, {"p": rows})


# Replicas in one process


@pytest.mark.parametrize("route", ["instance", "shortest", "round-robin"])
@pytest.mark.parametrize("name", MODELS)
def test_replicas_of_whole_models(name: str, route: Any) -> None:
    of = case(name)
    for how in ORDERS:
        graph = of.graph()
        replicate(graph, None, 3, route=route)
        with Inline(graph, **how) as runtime:
            runtime.train(of.instances(graph))
            stats = runtime.stats()
        assert (stats.engine, stats.instances) == ("waves", len(of.data))
        assert_close(of.found(graph), of.want)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("list-reduction", "cell"), ("list-reduction", "embedding"), ("list-reduction", ["cell", "classify"]),
        ("mnist", "hidden_1"), ("qm9", "propagate_along_*"), ("sentiment", "classify"), ("babi15", "mix"),
    ],
)  # fmt: skip
def test_replicas_of_single_nodes(name: str, part: Any, route: Any) -> None:
    of = case(name)
    for how in ORDERS:
        graph = of.graph()
        assert replicate(graph, part, 3, route=route)
        with Inline(graph, **how) as runtime:
            runtime.train(of.instances(graph))
            runtime.infer(of.instances(graph))
            stats = runtime.stats()
        assert (stats.engine, stats.instances) == ("waves", 2 * len(of.data))
        assert_close(of.found(graph), of.want)


@pytest.mark.parametrize("route", ["round-robin", "shortest"])
def test_messages_that_are_sent_in_turns(route: Any) -> None:
    """A Dispatch sends every message to another copy, also those of one instance, and differently every time."""
    want = replicated_chain("linear", "tanh", "linear")
    instances = replicated_rows(3, 1, 4, 2, 5, 1)
    with Inline(want) as runtime:
        runtime.train(instances)
    for how in ORDERS:
        graph = replicated_chain("linear", "tanh", "linear")
        replicate(graph, ["linear1", "tanh2"], 3, route=route)
        replicate(graph, "linear3", 2, route=route)
        assert sum(type(node).__name__ == "Dispatch" for node in graph.nodes.values()) == 2
        with Inline(graph, **how) as runtime:
            for _ in range(2):
                runtime.train(instances)
            stats = runtime.stats()
        shares = [float(node.updater.sums[0].abs().sum()) for node in graph.parameterised().values()]
        assert all(shares)
        assert (stats.engine, stats.instances) == ("waves", 12)
        assert_close({n: t / 2 for n, t in taken(graph).items()}, dict(want.gradients()))


# Routes by the number of an instance


def by_number(route: Any, ways: int) -> Graph:
    graph, names = Graph("turns"), [f"way{i}" for i in range(ways)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name in names:
            graph.add(name, Linear(2, 2, dtype=F64))
    graph.add("cond", Cond(route, tuple(names)))
    graph.add("phi", Phi(tuple(names)))
    graph.add("loss", Loss("squared_error"))
    graph.input("x", "cond")
    graph.input("label", "loss.label")
    for way in names:
        graph.connect(f"cond.{way}", way)
        graph.connect(way, f"phi.{way}")
    graph.connect("phi", "loss.prediction")
    return graph


def pairs(count: int) -> list[Instance]:
    rows = torch.randn(2, count, 1, 2, generator=torch.Generator().manual_seed(1), dtype=F64)
    return [Instance({"x": feed(x), "label": feed(y)}) for x, y in zip(*rows, strict=True)]


@pytest.mark.parametrize(
    "route", [lambda s: s.instance % 3, lambda s: (s.instance // 2) % 3, lambda s: (s.instance > 4) * 1], ids="abc"
)
def test_a_cond_that_looks_at_the_number_of_an_instance(route: Any) -> None:
    assert_plays(by_number(route, 3), pairs(9))


def test_a_loop_whose_rounds_depend_on_the_number_of_an_instance() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        graph = Graph("loop")
        graph.add("fc", Linear(2, 2, dtype=F64, activation="tanh"))
    graph.add("phi", Phi())
    graph.add("isu", Isu(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1)))
    graph.add("cond", Cond(lambda s: s.t < 1 + s.instance % 3, ("done", "again")))
    graph.add("loss", Loss("squared_error", key=("instance",)))
    graph.input("x", "phi.start", ("t",))
    graph.input("label", "loss.label")
    graph.chain("phi", "fc", "isu", "cond")
    graph.connect("cond.again", "phi.loop")
    graph.connect("cond.done", "loss.prediction")
    rows = torch.randn(2, 8, 1, 2, generator=torch.Generator().manual_seed(1), dtype=F64)
    instances = [Instance({"x": feed(x, t=0), "label": feed(y)}) for x, y in zip(*rows, strict=True)]
    assert_plays(graph, instances)


# Parameters that are not trained


class Halves(Model):
    """An encoder that may be frozen, and what reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.norm = nn.Embedding(5, 3), nn.GRUCell(3, 3), nn.LayerNorm(3)
        self.out = nn.Linear(3, 3)

    def forward(self, words: Seq, x: Tensor, y: Tensor) -> None:
        h = fold(lambda h, w: self.norm(self.cell(self.embed(w), h)), words.w, x)
        loss(self.out(h), y, "squared_error")


def sentences(count: int) -> list[tuple[Any, ...]]:
    random = torch.Generator().manual_seed(0)
    return [
        (
            Seq(w=torch.randint(5, (1 + i % 3,), generator=random)),
            torch.randn(3, generator=random, dtype=F64),
            torch.randn(3, generator=random, dtype=F64),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize(
    "frozen", [("embed",), ("cell.weight_hh", "cell.bias_ih"), ("norm", "out.bias"), ("embed", "cell")]
)
def test_frozen_parameters(frozen: tuple[str, ...]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Halves().double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    data = sentences(7)
    graph = assert_compiled(model, data, max_active_keys=4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for how in ORDERS:
        with Inline(graph, update=Update(SGD, 2, "instances"), **how) as runtime:
            runtime.train(graph.instances(data))
            assert runtime.stats().engine == "waves"
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) is name.startswith(frozen), name


def test_a_graph_that_is_frozen_altogether() -> None:
    graph = chain(Linear(4, 4, dtype=F64), Tanh(), Linear(4, 4, dtype=F64))
    for parameter in graph.module().parameters():
        parameter.requires_grad_(False)
    before = {name: value.clone() for name, value in graph.module().state_dict().items()}
    with Inline(graph, update=Update(SGD, 1, "instances"), schedule="fifo", max_active_keys=3, wave_size=1) as runtime:
        runtime.train(rows_of(1, 2, 3, 1))
        assert runtime.stats().instances == 4
    assert all(torch.equal(value, before[name]) for name, value in graph.module().state_dict().items())
    assert all(node.updater.version == 0 for node in graph.parameterised().values())


# Dropout, dtypes, shapes


def test_dropout() -> None:
    """Masks depend on state and seed, so they are those of messages, in every order."""
    assert_plays(
        chain(Linear(4, 4, dtype=F64), Dropout(0.5, seed=1), Tanh(), Dropout(0.3, seed=2), Linear(4, 4, dtype=F64)),
        rows_of(3, 1, 2, 4, 1, 2),
    )


class Dropped(Model):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.linear = nn.Dropout(0.5), nn.Linear(3, 3)

    def forward(self, words: Seq, x: Tensor, y: Tensor) -> None:
        h = fold(lambda h, w: torch.tanh(self.drop(self.linear(h))), words.w, x)
        loss(h, y, "squared_error")


def test_dropout_in_a_loop() -> None:
    data = sentences(6)
    graph = compile(Dropped().double(), *data[0])
    assert any(isinstance(node, Dropout) for node in graph.nodes.values())
    assert_plays(graph, list(graph.instances(data)))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-6), (torch.bfloat16, 2e-2)]
)
def test_models_of_every_dtype(dtype: torch.dtype, tolerance: float) -> None:
    """Against messages. In bfloat16 a number has 8 bits: only the sums of gradients are wider."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        nodes = [
            Linear(4, 4, dtype=dtype, activation="relu"),
            LayerNorm(nn.LayerNorm(4, dtype=dtype)),
            Module(nn.Sequential(nn.Linear(4, 4), nn.Softplus()).to(dtype)),
            Linear(4, 4, dtype=dtype, bias=False),
        ]
    instances = [
        Instance({name: feed(given.payload.to(dtype), messages=1) for name, given in one.feeds.items()})  # type: ignore[union-attr]
        for one in rows_of(3, 1, 2, 4, 1)
    ]
    assert_plays(chain(*nodes), instances, tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_recurrent_models_of_every_dtype(dtype: torch.dtype) -> None:
    """Against the eager model in the same dtype."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Halves().to(dtype)
    data = [(words, x.to(dtype), y.to(dtype)) for words, x, y in sentences(5)]
    tolerance = {torch.float64: 1e-10, torch.float32: 2e-6, torch.bfloat16: 4e-2}[dtype]
    assert_compiled(model, data, max_active_keys=3, tolerance=tolerance)


class Matrices(Model):
    """Rows of rank 3 through Linears, norms, cats, sums and loops."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(3, 4), nn.Linear(7, 3), nn.LayerNorm(3)

    def forward(self, parts: Seq, x: Tensor, y: Tensor) -> None:
        h = fold(lambda h, p: self.norm(self.two(torch.cat((torch.tanh(self.one(h)), p), -1))), parts.p, x)
        both = reduce(each(lambda p: self.one(p), parts.p), "sum")
        loss(both.sum(0)[:3] + h.sum(0), y, "squared_error")


def test_payloads_of_rank_three() -> None:
    random = torch.Generator().manual_seed(0)
    data = [
        (
            Seq(p=torch.randn(1 + i % 3, 2, 3, generator=random, dtype=F64)),
            torch.randn(2, 3, generator=random, dtype=F64),
            torch.randn(3, generator=random, dtype=F64),
        )
        for i in range(5)
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Matrices().double()
    assert_compiled(model, data, max_active_keys=4)


def test_payloads_of_rank_three_in_a_graph_wired_by_hand() -> None:
    random = torch.Generator().manual_seed(0)
    instances = []
    for n in (2, 1, 3, 1):
        x, y = (torch.randn(n, 2, 4, generator=random, dtype=F64) for _ in range(2))
        instances.append(Instance({"x": feed(x, messages=1), "label": feed(y, messages=1)}))
    nodes = [
        Linear(4, 4, dtype=F64, activation="tanh"),
        LayerNorm(nn.LayerNorm(4, dtype=F64)),
        Function(lambda x: x.flip(-1)),
        Module(nn.Conv1d(2, 2, 1).double()),
        Linear(4, 4, dtype=F64, bias=False),
    ]
    assert_plays(chain(*nodes), instances)


def test_data_of_models_is_doubled() -> None:
    """The cases that are compared at 1e-10 are in float64."""
    assert all(p.dtype == F64 for name in MODELS for p in case(name).model.parameters() if p.is_floating_point())
    assert doubled(torch.ones(1)).dtype == F64
