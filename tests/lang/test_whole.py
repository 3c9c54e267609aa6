"""Modules taken whole: several inputs and outputs, images, BatchNorm in eval mode, buffers, frozen parameters."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from ampnet import Inline, Model, ModelError, NodeError, Processes, Replicate, Seq, Update, compile
from ampnet.lang import each, loss, reduce, repeat, whole
from ampnet.testing import assert_compiled

F64 = torch.float64
CLASSES = 3


class Fused(NamedTuple):
    scores: Tensor
    rest: list[Tensor]


class Fusion(nn.Module):
    """An image, a word and a matrix, nested and by name; a named tuple of tensors of different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES))
        self.words, self.look = nn.Embedding(5, CLASSES), nn.Conv2d(1, CLASSES, 2)

    def forward(self, image: Tensor, parts: tuple[Tensor, Tensor], *, scale: float = 1.0, kind: str = "max") -> Fused:
        word, rows = parts
        seen = self.look(image)
        seen = seen.amax((-1, -2)) if kind == "max" else seen.mean((-1, -2))
        h = seen + self.words(word) * scale
        return Fused(h * self.weight, [rows @ h, torch.outer(h, h)])


class Fuses(Model):
    def __init__(self) -> None:
        super().__init__()
        self.fusion, self.twice = Fusion(), nn.Linear(CLASSES, CLASSES)

    def forward(self, image: Tensor, word: Tensor, rows: Tensor, y: Tensor) -> None:
        made = self.fusion(image, (word, self.twice(rows)), scale=0.5)
        loss(made.scores, y)
        loss(made.rest[0], torch.zeros(2, dtype=F64), "squared_error")
        again, _ = self.fusion(image, (word, rows), kind="mean")
        loss(again + made.rest[1].sum(0), y)


def samples(count: int = 5, seed: int = 0) -> list[tuple[Tensor, ...]]:
    g = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(1, 4, 4, dtype=F64, generator=g),
            torch.randint(5, (), generator=g),
            torch.randn(2, CLASSES, dtype=F64, generator=g),
            torch.randint(CLASSES, (), generator=g),
        )
        for _ in range(count)
    ]


def test_several_inputs_and_outputs() -> None:
    torch.manual_seed(0)
    graph = assert_compiled(Fuses().double(), samples(), max_active_keys=5)
    assert "fusion" in graph.nodes


def test_several_inputs_on_two_workers() -> None:
    torch.manual_seed(0)
    data = samples(16)
    graph = compile(Fuses().double(), *data[0])
    update = Update(partial(torch.optim.Adam, lr=0.02), min_update_frequency=4)
    places = {"fusion": 0, "twice": 1}
    with Processes(graph, workers=2, update=update, max_active_keys=8, affinity=places) as runtime:
        losses = [runtime.train(graph.instances(data)).loss for _ in range(4)]
        assert runtime.stats().engine == "waves"
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("route", ["round-robin", "instance"])
def test_copies_of_a_module_of_several_inputs(route: Any) -> None:
    torch.manual_seed(0)
    model, data = Fuses().double(), samples()
    graph = compile(model, *data[0], replicas={"fusion": Replicate(2, route=route)})
    assert_compiled(model, data, graph=graph, max_active_keys=5)


class InLoop(Model):
    """A module of two inputs, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Bilinear(3, 3, 3)
        self.turn = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def forward(self, x: Tensor, times: int, y: Tensor) -> None:
        h = repeat(lambda h: whole(self.turn, self.mix(h, x)), x, times=times)
        loss(h, y)


def test_inside_of_a_loop() -> None:
    data = [(torch.randn(3, dtype=F64), n, torch.randint(3, ())) for n in (2, 0, 3, 1)]
    assert_compiled(InLoop().double(), data, max_active_keys=4)


# -- BatchNorm in eval mode


class Cnn(Model):
    def __init__(self, together: bool = False) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(3)
        )
        self.out, self.together = nn.Linear(3, CLASSES), together
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 0.5]))
        for norm in (self.net[1], self.net[5]):
            norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr, operator]
            norm.running_var.uniform_(1, 2)  # type: ignore[union-attr, operator]
            norm.eval()

    def forward(self, image: Tensor, y: Tensor) -> None:
        rows = whole(self.net, image[None]) if self.together else self.net(image[None])
        loss(self.out(rows[0] * self.scale), y)


def images(count: int = 5) -> list[tuple[Tensor, Tensor]]:
    return [(image, y) for image, _, _, y in samples(count)]


def buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: b.clone() for name, b in model.named_buffers()}


@pytest.mark.parametrize("together", [True, False])
def test_batch_norm_in_eval_mode_reads_its_statistics(together: bool) -> None:
    torch.manual_seed(1)
    model = Cnn(together).double()
    before = buffers(model)
    assert_compiled(model, images(), max_active_keys=5)
    torch.testing.assert_close(buffers(model), before)


@pytest.mark.parametrize("workers", [0, 2])
def test_it_stays_in_eval_mode_whoever_calls_train(workers: int) -> None:
    """Its weight and bias train, statistics and frozen parameters stay; the model's mode is left as it is."""
    torch.manual_seed(2)
    model, data = Cnn(together=True).double(), images(12)
    model.net[0].requires_grad_(False)
    plain, before = copy.deepcopy(model), buffers(model)
    frozen = model.net[0].weight.clone()  # type: ignore[operator, union-attr]
    graph = compile(model, *data[0])
    update = Update(partial(torch.optim.SGD, lr=0.1), min_update_frequency=4, count="instances")
    made = Processes(graph, workers=workers, update=update, max_active_keys=4) if workers else None
    with made or Inline(graph, update=update, max_active_keys=4) as runtime:
        model.train()
        runtime.train(graph.instances(data[:4]))
        assert runtime.stats().engine == "waves"
    assert model.net[1].training
    torch.testing.assert_close(buffers(model), before)
    assert torch.equal(model.net[0].weight, frozen)  # type: ignore[arg-type]
    (sum(plain.loss(*one) for one in data[:4]) / 4).backward()  # type: ignore[union-attr]
    for (name, p), q in zip(plain.named_parameters(), model.parameters(), strict=True):
        want = p.detach() if p.grad is None else p.detach() - 0.1 * p.grad
        torch.testing.assert_close(q.detach(), want, msg=name)
        assert name.startswith("net.0") or not torch.equal(p, q)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False).eval()])
def test_batch_norm_that_looks_at_the_batch_is_refused_at_its_line(norm: nn.Module) -> None:
    class Trains(Cnn):
        def forward(self, image: Tensor, y: Tensor) -> None:
            rows = self.net(image[None])  # here
            loss(self.out(rows[0]), y)

    model = Trains()
    model.net[1] = norm
    with pytest.raises(ModelError, match="BatchNorm2d .* Remedy: .eval") as caught:
        compile(model.double(), *images(1)[0])
    assert caught.value.line is not None
    assert caught.value.line.text.endswith("# here")


def test_a_module_without_tensors_or_with_integers_of_the_instance_is_refused() -> None:
    class Asks(Model):
        def __init__(self, given: Any) -> None:
            super().__init__()
            self.fusion, self.given = Fusion(), given

        def forward(self, image: Tensor, n: int, y: Tensor) -> None:
            loss(whole(self.fusion, *([image, n] if self.given else [3])), y)

    example = (images(1)[0][0], 2, images(1)[0][1])
    with pytest.raises(ModelError, match="integer of the instance"):
        compile(Asks(True), *example)
    with pytest.raises(ModelError, match="no tensor to compute with"):
        compile(Asks(False), *example)


def test_what_does_not_fit_is_named_with_its_shapes() -> None:
    class Wrong(Fuses):
        def forward(self, image: Tensor, word: Tensor, rows: Tensor, y: Tensor) -> None:
            loss(self.fusion(rows, (word, rows)).scores, y)

    with pytest.raises(ModelError, match=r"Fusion 'fusion' cannot be applied to \(2, 3\)"):
        compile(Wrong().double(), *samples(1)[0])


# -- what a row-wise layer, or a second look, would get wrong


class Scaled(nn.Bilinear):
    """Does more than the layer that it extends."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return super().forward(a, b) / a.norm()


class Best(nn.Module):
    """Scores of a row or of rows, and which is the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, CLASSES))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = x @ self.weight
        return scores, scores.argmax(-1)


class Several(Model):
    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.best, self.words = Scaled(3, 3, 3), Best(), nn.Embedding(CLASSES, CLASSES)

    def forward(self, xs: Seq, x: Tensor, y: Tensor) -> None:
        scores, best = self.best(xs)
        rows = each(lambda s, i: s * self.words(i), scores, best)
        loss(reduce(rows, "sum") + self.words(self.best(x)[1]), y)


def sequences() -> list[tuple[Any, ...]]:
    x = torch.randn(4, 3, dtype=F64)
    return [(Seq(torch.randn(n, 3, dtype=F64)), x[n], torch.tensor(n % CLASSES)) for n in (2, 1, 3, 2)]


@pytest.mark.filterwarnings("ignore:.*batching rule for aten..bilinear")
def test_a_class_that_extends_a_layer_is_not_taken_for_it() -> None:
    """Once it was given all rows as one batch: the norm was that of all of them, silently."""

    class Extends(Several):
        def forward(self, xs: Seq, x: Tensor, y: Tensor) -> None:
            loss(self.scaled(x, x * 2), y)

    torch.manual_seed(3)
    assert_compiled(Extends().double(), sequences(), max_active_keys=4)


def test_integers_beside_numbers_stay_integers() -> None:
    """Once they came out as floats, which no embedding takes."""
    torch.manual_seed(4)
    assert_compiled(Several().double(), sequences(), max_active_keys=4)
    with pytest.raises(ModelError, match="several dtypes"):
        compile(Several().bfloat16(), Seq(torch.randn(2, 3).bfloat16()), torch.randn(3).bfloat16(), torch.tensor(0))


def test_a_layer_that_is_replaced_is_looked_at_again() -> None:
    """Once the shapes that a module gives were remembered for as long as it lived."""

    class Grows(Model):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.out = Fusion(), nn.Linear(CLASSES, CLASSES)

        def forward(self, xs: Seq, x: Tensor, y: Tensor) -> None:
            loss(reduce(each(self.out, whole(self.net.look, xs)), "sum"), y)

    torch.manual_seed(5)
    model = Grows().double()
    for width in (3, 5):
        model.net.look, model.out = nn.Linear(3, width).double(), nn.Linear(width, CLASSES).double()  # type: ignore[assignment]
        assert_compiled(model, sequences(), max_active_keys=4)
        model.net.look = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, width)).double()  # type: ignore[assignment]
        assert_compiled(model, sequences(), max_active_keys=4)
        model.net.look[1], model.out = nn.Linear(4, 2).double(), nn.Linear(2, CLASSES).double()
        assert_compiled(model, sequences(), max_active_keys=4)


def test_random_numbers_inside_of_sequences_are_refused() -> None:
    """Once torch.vmap's refusal was taken for a module that it cannot map: sequence by sequence, it drew them."""

    class Draws(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, xs: Tensor) -> Tensor:
            return nn.functional.dropout(xs * self.scale, 0.5, self.training)

    class Random(Model):
        def __init__(self) -> None:
            super().__init__()
            self.draws = Draws()

        def forward(self, xs: Seq, x: Tensor, y: Tensor) -> None:
            loss(reduce(self.draws(xs), "sum"), y)

    model = Random().double()
    graph = compile(model, *sequences()[0])
    with Inline(graph) as runtime, pytest.raises(NodeError, match="'draws' .* draws random numbers"):
        runtime.train(graph.instances(sequences()))
    assert_compiled(model.eval(), sequences(), max_active_keys=4)


def test_another_librarys_way_to_call_modules_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once torch's own was put in its place after the first compilation."""
    torchs, calls = nn.Module.__call__, 0

    def counted(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return torchs(module, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", counted)
    model = Several().double()
    compile(model, *sequences()[0])
    model.loss(*sequences()[0])
    assert nn.Module.__call__ is counted
    assert calls


class Kept(nn.Module):
    """The first elements of a sequence, scaled to a length that is limited."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.weight, self.limit = nn.Parameter(torch.ones(3)), limit
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, xs: Tensor) -> Tensor:
        self.calls += 1  # type: ignore[operator]
        row = (xs[:4] * self.weight).sum(-2)
        return row / row.norm(dim=None if self.limit > 1 else -1, keepdim=self.limit <= 1).clamp(min=self.limit)


@pytest.mark.parametrize("limit", [0.5, 5.0, 2000.0])
@pytest.mark.parametrize("lengths", [(2, 2, 6), (6, 6), (2,) * 9 + (5,)])
def test_rows_are_not_mixed_whatever_their_size_and_number(limit: float, lengths: tuple[int, ...]) -> None:
    """Once whether all sequences could be given to a module at once was tried with few, short and small ones: it cut
    the list of sequences instead of each of them, and a norm that was limited became that of all."""

    class Pools(Model):
        def __init__(self) -> None:
            super().__init__()
            self.kept = Kept(limit)

        def forward(self, xs: Seq, y: Tensor) -> None:
            loss(whole(self.kept, xs), y, "squared_error")

    torch.manual_seed(6)
    data = [(Seq(limit * torch.randn(n, 3, dtype=F64)), torch.randn(3, dtype=F64)) for n in lengths]
    assert_compiled(Pools().double(), data, max_active_keys=10)


def test_a_tensor_that_is_no_buffer_is_named() -> None:
    class Loose(Fusion):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.ones(3)

        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return x * self.weight + self.table

    class Adds(Model):
        def __init__(self) -> None:
            super().__init__()
            self.loose = Loose()

        def forward(self, x: Tensor, y: Tensor) -> None:
            loss(self.loose(x), y)

    with pytest.raises(ModelError, match=r"'table' is no buffer: self.register_buffer\('table', ...\)"):
        compile(Adds(), torch.zeros(3), torch.tensor(0))
