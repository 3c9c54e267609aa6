"""The tape: the calls of a kept layout are written down once, and played again with the same results to the bit."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ampnet
from ampnet import Graph, Inline, Instance, Model, Seq, Update, native
from ampnet.errors import NodeError
from ampnet.events.log import Event, Played
from ampnet.lang import choose, each, loss, reduce
from ampnet.native import calls
from ampnet.nodes import Linear
from ampnet.wave.kernels.embedding import EmbeddingKernel
from ampnet.wave.tape import Run, Tape
from tests.replicas.small import case
from tests.wave.both import model, player_of

pytestmark = pytest.mark.skipif(not native.state().native, reason="kernels are not compiled here")
MODELS = ("list-reduction-gru", "list-reduction-lstm", "sentiment", "babi15", "qm9", "adaptive-depth")


def fresh(name: str) -> tuple[Graph, list[Instance]]:
    """A graph with parameters of its own: those of a case are shared by the graphs of other tests."""
    return copy.deepcopy(case(name).graph()), model(name)[1]


def tapes_of(runtime: Inline) -> list[Tape]:
    kept = player_of(runtime).planner._layouts.values()
    return [layout.tape for layouts in kept for layout in layouts if isinstance(layout.tape, Tape)]


def train(
    name: str, epochs: int, *, taped: bool = True, update: Update | None = None, **settings: object
) -> list[Tensor]:
    """The weights after some epochs of the same waves."""
    graph, instances = fresh(name)
    policy = update or Update(partial(torch.optim.Adam, lr=0.01), 3, "instances")
    with pytest.MonkeyPatch.context() as patch:
        if not taped:
            patch.setattr("ampnet.wave.passage.Passage._find_tape", lambda self: None)
        with Inline(graph, update=policy, max_active_keys=3, **settings) as runtime:  # type: ignore[arg-type]
            losses = [runtime.train(instances).loss for _ in range(epochs)]
            assert taped == any(tape.stretches[0] and tape.stretches[1] for tape in tapes_of(runtime))
    return [torch.tensor(losses), *graph.module().state_dict().values()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(map(torch.equal, a, b))


@pytest.mark.parametrize("name", MODELS)
def test_played_again_it_trains_the_same_to_the_bit(name: str) -> None:
    assert same(train(name, 6), train(name, 6, taped=False))


@pytest.mark.parametrize("every", [1, 7])
def test_sums_that_are_added_to_and_sums_that_are_begun(every: int) -> None:
    """Several waves in an update, and one: a gradient is written to a sum that was applied, and added to another."""
    update = Update(partial(torch.optim.Adam, lr=0.01), every, "instances")
    assert same(train("qm9", 6, update=update), train("qm9", 6, update=update, taped=False))


def test_few_calls_are_left() -> None:
    graph, instances = fresh("qm9")
    with Inline(graph, update=Update(min_update_frequency=3, count="instances"), max_active_keys=3) as runtime:
        used = []
        for _ in range(6):
            before = calls.count
            runtime.train(instances)
            used.append(calls.count - before)
    assert used[-1] == used[-2]
    assert used[-1] < used[0] / 2


def test_backward_is_one_call_with_the_gradients_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, instances = fresh("qm9")
    policy = Update(partial(torch.optim.Adam, lr=0.01), 3, "instances")
    made: list[Run] = []
    make = Run.make
    monkeypatch.setattr(Run, "make", lambda self: (made.append(self), make(self)))
    with Inline(graph, update=policy, max_active_keys=3) as runtime:
        for _ in range(4):
            runtime.train(instances)
        for tape in tapes_of(runtime):
            collected = {op.site.name for run in tape.runs.values() for op in run.collected}
            assert len(collected) > len(tape.runs) > 0, "several sites in a run"
            assert any(run in made for run in tape.runs.values())


class Words(Model):
    """Words of vocabularies that are larger than a wave, read by sums, by a choice, and by reductions."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.embedding, self.second = how, nn.Embedding(60, 4), nn.Embedding(70, 4)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.last = nn.Linear(4, 3)

    def forward(self, words: Seq, label: Tensor) -> None:
        h, second = each(self.embedding, words.word), each(self.second, words.word)
        h = each(lambda h, route: h + choose(route, self.experts, h), h, words.route)
        h = each(lambda h, more: h + more, h, second)
        loss(self.last(reduce(h, self.how)), label)  # type: ignore[arg-type]


def given_of(tokens: list[list[int]]) -> list[tuple[Seq, Tensor]]:
    return [
        (Seq(word=torch.tensor(some), route=[i % 3 for i in range(len(some))]), torch.tensor(some[0] % 3))
        for some in tokens
    ]


def words(how: str, tokens: list[list[int]], kind: Any = Words) -> tuple[Graph, list[Instance]]:
    torch.manual_seed(0)
    model, given = kind(how).double(), given_of(tokens)
    graph = ampnet.compile(model, *given[0])
    return graph, [graph.instance(*one) for one in given]


SOME = [[5, 9, 5, 5, 5], [1, 2, 9, 9, 9, 9], [4, 4]]
AS_MANY = [[6, 9, 6, 6, 6], [1, 2, 9, 9, 9, 9], [3, 3]]
FEWER = [[9, 9, 9, 9, 9], [1, 2, 9, 9, 9, 9], [4, 4]]
DIFFERENT = [[5, 9, 6, 7, 8], [1, 2, 3, 10, 11, 12], [4, 13]]
OTHERS = [[15, 19, 16, 17, 18], [1, 2, 3, 10, 11, 9], [20, 13]]


def labelled(graph: Graph, tokens: list[list[int]]) -> list[Instance]:
    """Instances of these words, whichever they are with the same labels."""
    return [
        graph.instance(Seq(word=torch.tensor(some), route=[i % 3 for i in range(len(some))]), torch.tensor(i))
        for i, some in enumerate(tokens)
    ]


def train_words(
    how: str, epochs: list[list[list[int]]], *, taped: bool, few: int = 0
) -> tuple[list[Tensor], list[Tape], bool]:
    """Of the same structures with other words in each epoch: the weights, the tapes, and whether it was found that the
    number of rows varies. ``few``: as in `ampnet.wave.kernels.embedding`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ampnet.wave.kernels.embedding.FEW", few)
        if not taped:
            patch.setattr("ampnet.wave.passage.Passage._find_tape", lambda self: None)
        graph, _ = words(how, SOME)
        policy = Update(partial(torch.optim.Adam, lr=0.01), 3, "instances")
        with Inline(graph, update=policy, max_active_keys=3) as runtime:
            for tokens in epochs:
                runtime.train(labelled(graph, tokens))
            tapes = tapes_of(runtime)
            kept = [one for layouts in player_of(runtime).planner._layouts.values() for one in layouts]
            varies = any(one.varying for one in kept)
            assert any(isinstance(kernel, EmbeddingKernel) for one in kept for kernel in one.kernels.values())
            assert varies == any(arena.varies for one in kept for arena in one.arenas)
    return [v.clone() for v in graph.module().state_dict().values()], tapes, varies


@pytest.mark.parametrize("how", ["mean", "logsumexp", "max", "sum"])
@pytest.mark.parametrize(
    ("first", "last"),
    [(SOME, SOME), (SOME, AS_MANY), (SOME, FEWER), (SOME, DIFFERENT), (DIFFERENT, OTHERS), (DIFFERENT, FEWER)],
    ids=["the same", "as many", "fewer", "then different", "different", "then equal"],
)
def test_words_of_a_large_table(how: str, first: list[list[int]], last: list[list[int]]) -> None:
    """Readers of a table are on the tape as long as waves have as many rows of it, whichever they are."""
    epochs = [first, first, first, first, last, last, first, last, last, first]
    plain, _, _ = train_words(how, epochs, taped=False)
    found, tapes, varies = train_words(how, epochs, taped=True)
    assert same(plain, found)
    assert varies == (last is FEWER or last is DIFFERENT)
    readers = {tape._layout.operations[at].site.kind for tape in tapes for at in tape.single[0]}
    names = {tape._layout.operations[at].site.name for tape in tapes for at in tape.single[0]}
    assert readers
    assert varies or any(name.startswith("experts") for name in names), names
    assert varies or ("segments" in readers) == (how in ("mean", "logsumexp"))


def test_few_words_have_a_row_each() -> None:
    """However many of them are equal: which they are changes nothing that is on the tape."""
    epochs = [SOME, FEWER, DIFFERENT, SOME, OTHERS]
    found, tapes, varies = train_words("mean", epochs, taped=True, few=64)
    assert not varies
    assert any(tape._layout.operations[at].site.name.startswith("experts") for tape in tapes for at in tape.single[0])
    assert same(train_words("mean", epochs, taped=False, few=64)[0], found)


class Normed(Model):
    """Each different word is normalised once; the result is read in place, and by a layer."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.embedding, self.norm, self.deep = nn.Embedding(60, 4), nn.LayerNorm(4), nn.Linear(4, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, words: Seq, label: Tensor) -> None:
        h = each(self.norm, each(self.embedding, words.word))
        h = each(lambda h: h + torch.tanh(self.deep(h)), h)
        loss(self.last(reduce(h, "mean")), label)


@pytest.mark.parametrize("kind", [Words, Normed])
@pytest.mark.parametrize("few", [0, 64])
def test_what_came_before_changes_no_bit(kind: type[Model], few: int) -> None:
    """The gradients of a wave depend on its words alone, not on how many different ones the waves before had: once a
    run that was resumed from a checkpoint differed from one that was not, as it had not met them; and readers of a
    layer that was applied to each different word once looked where rows of another wave had been."""

    def gradients(before: list[list[list[int]]], tokens: list[list[int]]) -> list[Tensor]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ampnet.wave.kernels.embedding.FEW", few)
            graph, _ = words("mean", SOME, kind)
            with Inline(graph, max_active_keys=3) as runtime:
                for some in (*before, tokens):
                    for node in graph.parameterised().values():
                        node.updater.reset()
                    runtime.train(labelled(graph, some))
            return [total.clone() for node in graph.parameterised().values() for total in node.updater.sums]

    for tokens in (SOME, DIFFERENT, FEWER):
        wanted = gradients([], tokens)
        for before in ([SOME] * 4, [FEWER] * 3, [DIFFERENT] * 4, [DIFFERENT, FEWER, SOME, OTHERS], [FEWER, OTHERS] * 2):
            assert same(gradients(before, tokens), wanted)
    graph, instances = words("mean", SOME, kind)
    with Inline(graph, max_active_keys=3) as runtime:
        runtime.train(instances)
    model = graph.model
    assert isinstance(model, Model)
    model.zero_grad()
    sum(model.loss(*one) for one in given_of(SOME)).backward()  # type: ignore[union-attr]
    for node in graph.parameterised().values():
        for total, parameter in zip(node.updater.sums, node.updater.parameters, strict=True):
            torch.testing.assert_close(total, parameter.grad, rtol=1e-10, atol=1e-12)


class Shared(Model):
    """A table that is also the weight of the last layer, read by two sites."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, words: Seq, label: Tensor) -> None:
        h = each(lambda word, more: self.embedding(word) + self.embedding(more), words.word, words.more)
        loss(self.last(reduce(h, "sum")), label)


def test_an_index_is_checked_in_every_wave() -> None:
    """What Python looks at in an operation keeps it off the tape: an index out of range would be read from anywhere."""

    def instance(*tokens: int) -> tuple[Seq, Tensor]:
        return Seq(word=torch.tensor(tokens), more=torch.tensor(tokens)), torch.tensor(2)

    graph = ampnet.compile(Shared().double(), *instance(1, 2))
    good = [graph.instance(*instance(1, 2)), graph.instance(*instance(3, 3, 4))]
    policy = Update(partial(torch.optim.Adam, lr=0.01), 2, "instances")
    with Inline(graph, update=policy, max_active_keys=2) as runtime:
        for _ in range(5):
            runtime.train(good)
        assert any(tape.single[0] for tape in tapes_of(runtime))
        with pytest.raises(NodeError, match="9 is out of range"):
            runtime.train([graph.instance(*instance(1, 2)), graph.instance(*instance(3, 3, 9))])


def test_a_trace_has_every_operation_and_changes_nothing() -> None:
    told: list[Event] = []
    plain = train("sentiment", 6)
    assert same(plain, train("sentiment", 6, listeners=[told.append]))
    counts = [len(event.nodes) for event in told if isinstance(event, Played)]
    assert counts
    assert sum(counts[: len(counts) // 6]) == sum(counts[-(len(counts) // 6) :]), (
        "as many operations when they are played by the tape"
    )


def test_an_operation_that_torch_computes_is_not_written_down() -> None:
    graph, instances = fresh("qm9")
    with Inline(graph, update=Update(min_update_frequency=3, count="instances"), max_active_keys=3) as runtime:
        for _ in range(4):
            runtime.train(instances)
        for tape in tapes_of(runtime):
            written = {at for stretch in tape.single for at in stretch}
            losses = {i for i, op in enumerate(tape._layout.operations) if op.site.kind in ("loss", "input")}
            assert written
            assert not written & losses


def test_other_weights_are_noticed() -> None:
    """Weights that are put elsewhere (`Module.to`) make a tape worthless."""
    graph, instances = fresh("list-reduction-gru")
    with Inline(graph, update=None, max_active_keys=3) as runtime:
        for _ in range(4):
            runtime.train(instances)
        first = {n: g.clone() for n, g in graph.gradients().items()}
    graph.module().float()
    assert first
    graph.module().double()
    with Inline(graph, update=None, max_active_keys=3) as runtime:
        for node in graph.parameterised().values():
            node.updater.reset()
        for _ in range(4):
            runtime.train(instances)
        assert all(g.isfinite().all() for g in graph.gradients().values())


def test_sums_of_a_wave_that_remedies_change_are_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain descent goes into the weights themselves, once remedies let it: a tape of sums would keep it from that."""
    graph, instances = fresh("list-reduction-gru")
    changes, gone = True, []
    monkeypatch.setattr("ampnet.update.updater.Updater._changes", lambda self, staleness: changes)
    monkeypatch.setattr("ampnet.update.updater.Updater.went_direct", lambda self: gone.append(self))
    update = Update(partial(torch.optim.SGD, lr=0.01), 1, "instances")
    with Inline(graph, update=update, max_active_keys=1) as runtime:
        for _ in range(6):
            runtime.train(instances)
        assert not gone
        assert any(tape.runs for tape in tapes_of(runtime)), "what never goes there is written down"
        changes = False
        runtime.train(instances)
        assert gone


@pytest.mark.parametrize("clip", [None, 1.0])
def test_sums_that_are_never_left_out_are_written_down(clip: float | None) -> None:
    """A Linear of two inputs, and clipped gradients, always have sums: plain descent keeps them off no tape."""
    graph, instances = fresh("qm9" if clip is None else "list-reduction-gru")
    policy = Update(partial(torch.optim.SGD, lr=0.01), 1, "instances", clip_norm=clip)
    with Inline(graph, update=policy, max_active_keys=1) as runtime:
        for _ in range(4):
            runtime.train(instances)
        linear = {
            op.site.name
            for tape in tapes_of(runtime)
            for op in tape._layout.operations
            if isinstance(op.site.node, Linear) and (clip or len(op.reads) > 1)
        }
        written = {tape._layout.operations[at].site.name for tape in tapes_of(runtime) for at in tape._collected}
    assert linear
    assert linear <= written
