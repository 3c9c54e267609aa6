"""Modules of sequences, each as one node: recurrent networks, attention, transformer layers, and a user's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampnet import Inline, Model, ModelError, Processes, Replicate, Seq, Tree, Update, compile
from ampnet.errors import SlowModuleWarning
from ampnet.lang import choose, each, loss, reduce, repeat, self_attention, whole
from ampnet.nodes import Module
from ampnet.testing import assert_compiled

WIDTH, CLASSES = 4, 4
F64 = torch.float64


class Sequences(Model):
    """Anything that makes a family of a family, between two layers, with a loss for each element."""

    def __init__(self, middle: nn.Module, apply: Callable[[Any, Any], Any], width: int = WIDTH) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(WIDTH, WIDTH), middle, nn.Linear(width, CLASSES)
        self.apply_to = apply

    def forward(self, xs: Any, y: Tensor) -> Any:
        made = self.apply_to(self.middle, each(self.first, xs))
        ys, once = made if isinstance(made, tuple) else (made, None)
        if once is not None:
            loss(once.sum(0)[:CLASSES], y)
        each(lambda h: loss(self.last(h), y), ys)


def sequences(count: int = 5, seed: int = 0) -> list[tuple[Seq, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    lengths = (3, 1, 5, 2, 5, 4)
    return [
        (Seq(torch.randn(lengths[i % 6], WIDTH, dtype=F64, generator=g)), torch.randint(CLASSES, (), generator=g))
        for i in range(count)
    ]


def encoder(**more: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, **more)


MODELS: dict[str, Callable[[], Model]] = {
    "gru": lambda: Sequences(nn.GRU(WIDTH, 4), lambda m, xs: m(xs)),
    "deep gru both ways": lambda: Sequences(
        nn.GRU(WIDTH, 4, num_layers=2, bidirectional=True), lambda m, xs: m(xs), width=8
    ),
    "lstm": lambda: Sequences(nn.LSTM(WIDTH, 5, proj_size=4), lambda m, xs: (m(xs)[0], m(xs)[1][1]), width=4),
    "rnn": lambda: Sequences(nn.RNN(WIDTH, 4, nonlinearity="relu"), lambda m, xs: m(xs)),
    "attention": lambda: Sequences(
        nn.MultiheadAttention(WIDTH, 2, batch_first=True), lambda m, xs: m(xs, xs, xs, need_weights=False)[0]
    ),
    "causal attention": lambda: Sequences(
        nn.MultiheadAttention(WIDTH, 2), lambda m, xs: m(xs, key=xs, value=xs, is_causal=True)[0]
    ),
    "encoder layer, called twice": lambda: Sequences(encoder(), lambda m, xs: m(m(xs), is_causal=True)),
    "encoder": lambda: Sequences(
        nn.TransformerEncoder(encoder(batch_first=True), 2, nn.LayerNorm(WIDTH)), lambda m, xs: m(xs)
    ),
    "no module": lambda: Sequences(nn.Identity(), lambda m, xs: self_attention(xs, xs, xs, heads=2, causal=True)),
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("name", MODELS)
def test_a_module_of_sequences_is_one_node(name: str) -> None:
    torch.manual_seed(0)
    graph = assert_compiled(MODELS[name]().double(), sequences(), max_active_keys=5)
    layers = 2 if name == "encoder" else 1
    assert sum(isinstance(getattr(n, "faces", [n])[0], Module) for n in graph.nodes.values()) == layers


class Translates(Model):
    """Two sequences of different lengths meet; the first state of a GRU is a value of the instance."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = nn.GRU(WIDTH, WIDTH, bidirectional=True), nn.GRU(WIDTH, WIDTH)
        self.turn = nn.Linear(2 * WIDTH, WIDTH)
        self.look = nn.MultiheadAttention(WIDTH, 2)
        self.layer = nn.TransformerDecoderLayer(WIDTH, 2, 8, dropout=0.0)

    def forward(self, source: Any, target: Any, y: Tensor) -> Any:
        states, last = self.read(source)
        memory = each(self.turn, states)
        hs, _ = self.write(target, last[:1])
        seen, _ = self.look(hs, memory, memory)
        out = self.layer(seen, memory, tgt_is_causal=True)
        each(lambda h, x: loss(h + x, y), out, self_attention(hs, memory, memory))


def pairs(count: int = 4) -> list[tuple[Seq, Seq, Tensor]]:
    return [(a, b, y) for (a, y), (b, _) in zip(sequences(count), sequences(count + 3, 1)[3:], strict=True)]


def test_sequences_of_different_lengths_meet() -> None:
    torch.manual_seed(1)
    assert_compiled(Translates().double(), pairs(), max_active_keys=4)


class Reader(nn.Module):
    """Reads a whole sequence, with a query: a row for each element, and two things that there are once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.mix = nn.Parameter(torch.randn(WIDTH, 3)), nn.Linear(3, CLASSES)
        self.register_buffer("places", torch.randn(50, 3))

    def forward(self, xs: Tensor, query: tuple[Tensor, Tensor], *, scale: float = 1.0) -> Any:
        h = torch.tanh(xs @ self.weight + self.places[: len(xs)]) * scale + query[1]  # type: ignore[index]
        share = torch.softmax(h @ query[0], 0)
        return {"each": self.mix(h), "all": self.mix(share @ h), "mean": h.mean()}


class Reads(Model):
    def __init__(self) -> None:
        super().__init__()
        self.reader, self.query = Reader(), nn.Linear(WIDTH, 3)

    def forward(self, xs: Any, x: Tensor, y: Tensor) -> None:
        made = self.reader(xs, (self.query(x), self.query(-x)), scale=2.0)
        each(lambda h: loss(h * made["mean"], y), made["each"])
        loss(made["all"], y)


def test_a_users_module_reads_whole_sequences() -> None:
    torch.manual_seed(2)
    data = [(xs, torch.randn(WIDTH, dtype=F64), y) for xs, y in sequences()]
    assert_compiled(Reads().double(), data, max_active_keys=5)


class Odd(Reader):
    """Cannot be mapped: it looks at numbers."""

    def forward(self, xs: Tensor, query: tuple[Tensor, Tensor], *, scale: float = 1.0) -> Any:
        if not xs.is_meta and float(xs.detach()[0, 0]) > 0:
            scale = 2 * scale
        return super().forward(xs, query, scale=scale)


def test_a_module_that_cannot_be_mapped_is_called_one_by_one_and_says_so() -> None:
    torch.manual_seed(2)
    model = Reads()
    model.reader = Odd()
    data = [(xs, torch.randn(WIDTH, dtype=F64), y) for xs, y in sequences()]
    with pytest.warns(SlowModuleWarning, match="Odd is computed sequence by sequence"):
        assert_compiled(model.double(), data, max_active_keys=5)


class OverNodes(Model):
    """The nodes of a tree as one sequence, inside of a choice-free model; and a module without parameters, whole."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(WIDTH, CLASSES), nn.Sequential(nn.Linear(CLASSES, CLASSES), nn.Tanh())

    def forward(self, tree: Any, y: Tensor) -> None:
        states, _ = self.gru(tree.x)
        best = whole(self.out, reduce(states, "max"))
        loss(best, y)


def test_nodes_of_a_tree_are_a_sequence_too() -> None:
    torch.manual_seed(3)
    data = [
        (Tree(parents, x=torch.randn(len(parents), WIDTH, dtype=F64)), torch.randint(CLASSES, ()))
        for parents in ([-1], [2, 2, -1], [1, -1, 1, 0, 0])
    ]
    assert_compiled(OverNodes().double(), data, max_active_keys=3)


class Anywhere(Model):
    """A sequence of sequences, each read by a GRU; then a layer, as many rounds as the instance specifies."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.read = nn.Embedding(9, WIDTH), nn.GRU(WIDTH, WIDTH)
        self.layer, self.other = encoder(), nn.RNN(WIDTH, WIDTH)

    def forward(self, text: Any, times: int, y: Tensor) -> None:
        sentences = each(lambda s: self.read(each(self.word, s.words))[1][0], text)
        deep = repeat(lambda xs: self.layer(xs), sentences, times=times)
        ys = choose(times % 2, [lambda: deep, lambda: self.other(deep)[0]])
        loss(reduce(ys, "mean"), y)


def test_inside_of_other_combinators() -> None:
    torch.manual_seed(6)
    lengths = ((3, 1), (2,), (4, 4, 1), (1, 2))
    data = [
        (Seq(words=[torch.randint(9, (n,)) for n in some]), times, torch.randint(CLASSES, ()))
        for times, some in enumerate(lengths)
    ]
    graph = assert_compiled(Anywhere().double(), data, max_active_keys=4)
    assert "test_sequences.py" in graph.explain()
    assert "bodies.py" not in graph.explain()


class FixedLength(Model):
    """A sequence as one tensor, of one length for all."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(WIDTH, WIDTH), middle

    def forward(self, xs: Tensor, y: Tensor) -> None:
        made = self.middle(self.first(xs))
        loss((made[0] if isinstance(made, tuple) else made).sum(0), y)


@pytest.mark.parametrize("middle", [lambda: nn.LSTM(WIDTH, CLASSES), encoder])
def test_a_matrix_is_a_sequence_of_fixed_length(middle: Callable[[], nn.Module]) -> None:
    data = [(torch.randn(6, WIDTH, dtype=F64), torch.randint(CLASSES, ())) for _ in range(4)]
    assert_compiled(FixedLength(middle()).double(), data, max_active_keys=4)


def trained(graph: Any, runtime: Any, data: Any) -> tuple[float, float]:
    losses = [runtime.train(graph.instances(data)).loss for _ in range(4)]
    return losses[0], losses[-1]


def test_on_two_workers() -> None:
    torch.manual_seed(4)
    data = pairs(12)
    graph = compile(Translates().double(), *data[0])
    update = Update(partial(torch.optim.Adam, lr=0.02), min_update_frequency=4)
    places = {"read": 0, "write": 1, "look": 0, "layer": 1}
    with Processes(graph, workers=2, update=update, max_active_keys=8, affinity=places) as runtime:
        first, last = trained(graph, runtime, data)
        assert runtime.stats().engine == "waves"
    assert last < first


def test_with_replicas_and_while_waves_take_turns() -> None:
    torch.manual_seed(5)
    data = sequences(24)
    update = Update(partial(torch.optim.Adam, lr=0.02), min_update_frequency=4)
    graph = compile(MODELS["no module"]().double(), *data[0], replicas=Replicate(2))
    with Inline(graph, update=update, max_active_keys=8, wave_size=2, schedule="fifo") as runtime:
        first, last = trained(graph, runtime, data)
    assert last < first


def test_copies_of_a_module_of_sequences() -> None:
    torch.manual_seed(7)
    model, data = Translates().double(), pairs()
    copies = {"read": Replicate(2, route="shortest"), "look": Replicate(2)}
    graph = compile(model, *data[0], replicas=copies)
    assert_compiled(model, data, graph=graph, max_active_keys=4)


# -- what is refused


def refused(model: Model, *example: Any) -> str:
    with pytest.raises(ModelError) as caught:
        compile(model, *example)
    return str(caught.value)


def test_dropout_inside_is_refused_with_its_remedy() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8)
    model = Sequences(layer, lambda m, xs: m(xs))
    said = refused(model, *sequences(1)[0])
    assert "p=0.1" in said
    assert "dropout=0.0" in said
    layer.eval()
    compile(model.double(), *sequences(1)[0])


def test_a_mask_of_fixed_size_is_refused() -> None:
    model = Sequences(encoder(), lambda m, xs: m(xs, torch.zeros(3, 3)))
    assert "is_causal=True" in refused(model.double(), *sequences(1)[0])
    with pytest.raises(ModelError, match="is_causal=True"):
        model.loss(*sequences(1)[0])


def test_keys_and_values_of_different_sequences_are_refused() -> None:
    class Mixes(Translates):
        def forward(self, source: Any, target: Any, y: Tensor) -> Any:
            ys, _ = self.look(target, source, target)
            each(lambda h: loss(h, y), ys)

    assert "needs a value for each key" in refused(Mixes().double(), *pairs(1)[0])


def test_rows_of_the_wrong_width_are_refused() -> None:
    model = Sequences(nn.GRU(3, 4), lambda m, xs: m(xs))
    assert "GRU 'middle' takes elements of (3,)" in refused(model.double(), *sequences(1)[0])


def test_a_layer_of_rows_still_wants_each() -> None:
    model = Sequences(nn.Linear(WIDTH, WIDTH), lambda m, xs: m(xs))
    assert "each(function, family)" in refused(model.double(), *sequences(1)[0])


class Changes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(WIDTH))

    def forward(self, xs: Tensor) -> Tensor:
        return (xs * self.w)[::2]


def test_an_output_of_another_length_is_refused() -> None:
    said = refused(Sequences(Changes(), lambda m, xs: m(xs)).double(), *sequences(1)[0])
    assert "only its first dimension may follow their number" in said
