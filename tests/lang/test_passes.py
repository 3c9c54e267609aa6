"""Passes: with and without each the gradients are the same, and the graph has fewer nodes with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampnet.errors import ModelError
from ampnet.lang import Edges, Model, Seq, Tree, choose, compile, each, fold, loss, reduce, repeat
from ampnet.models import AdaptiveDepth, Babi15, ListReduction, Mlp, PermutedLayers, Qm9, TreeLstm
from ampnet.testing import assert_close, assert_compiled, compiled_gradients

PASSES = ("remove_dead", "fuse_linear", "fuse_loops", "fuse_rows")
OFF: dict[str, Any] = dict.fromkeys(PASSES, False)


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def graphs(width: int, last: Callable[[int], Tensor]) -> list[tuple[Any, ...]]:
    out = []
    for n, e in ((3, 5), (1, 0), (2, 3)):
        nodes, ends = Seq(x=rows(n, width)), np.random.default_rng(e).integers(0, n, (2, e))
        out.append((nodes, Edges(nodes, ends[0], ends[1], kind=np.arange(e) % 4), last(n)))
    return out


def trees() -> list[tuple[Any, ...]]:
    shapes = [[2, 2, -1], [-1], [-1, 0, 0, 1, 1]]
    return [
        (
            Tree(
                p,
                leaves={"word": torch.arange((len(p) + 1) // 2)},
                label=torch.arange(len(p)) % 3,
            ),
        )
        for p in shapes
    ]


MODELS: dict[str, tuple[Callable[[], Model], Callable[[], list[tuple[Any, ...]]]]] = {
    "Mlp": (lambda: Mlp(4, 3, 3), lambda: [(rows(4), torch.tensor(i)) for i in range(3)]),
    **{
        f"ListReduction {cell}": (
            lambda cell=cell: ListReduction(4, cell),  # type: ignore[misc]
            lambda: [(Seq(torch.arange(n)), torch.tensor(n)) for n in (3, 1, 5)],
        )
        for cell in ("relu", "gru", "lstm")
    },
    "TreeLstm": (lambda: TreeLstm(9, 3, 4, 3), trees),
    "Babi15": (lambda: Babi15(3, 2), lambda: graphs(3, lambda n: torch.tensor(n - 1))),
    "Qm9": (lambda: Qm9(2, 4, 2), lambda: graphs(2, lambda n: rows(1))),
    "PermutedLayers": (
        lambda: PermutedLayers(4, 3, 3),
        lambda: [(rows(4), Seq(order), torch.tensor(1)) for order in ([2, 0, 1], [1], [0, 2])],
    ),
    "AdaptiveDepth": (lambda: AdaptiveDepth(2, 4, 2), lambda: [(rows(2), k, rows(2)) for k in (2, 0, 3)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_pass_changes_a_gradient_of_any_model(name: str) -> None:
    torch.manual_seed(0)
    make, data = MODELS[name]
    model, given = make().double(), data()
    graph = assert_compiled(model, given, graph=compile(model, *given[0], **OFF), max_active_keys=2)
    want = compiled_gradients(graph, given)
    all_on = compile(model, *given[0])
    assert len(all_on.nodes) <= len(graph.nodes)
    assert_close(compiled_gradients(all_on, given, max_active_keys=3), want)
    for switch in PASSES:
        only = compile(model, *given[0], **{**OFF, switch: True})
        assert_close(compiled_gradients(only, given, max_active_keys=3), want)
        without = compile(model, *given[0], **{switch: False})  # type: ignore[arg-type]
        assert_close(compiled_gradients(without, given, schedule="random", max_active_keys=3), want)


class Wasteful(Model):
    """Something for each pass: what nobody uses, activations behind layers, a choice among layers, a loop, chains."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.ways = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x: Tensor, seq: Seq, k: int, y: Tensor) -> None:
        h = torch.relu(self.a(x))
        h = repeat(lambda h, i: choose((k + i) % 2, self.ways, h), h, times=3)
        fold(lambda s, t: torch.tanh(self.unused(s) + t), seq, h)
        each(self.unused, seq)
        g = torch.sigmoid(self.b(h)) * 2 + x
        loss((g - h).exp() * 0.5 + reduce(seq), y, "squared_error")


@pytest.mark.parametrize("switch", PASSES)
def test_each_pass_makes_the_graph_smaller_and_changes_no_gradient(switch: str) -> None:
    torch.manual_seed(0)
    model = Wasteful().double()
    data = [(rows(3), Seq(rows(n, 3)), n % 2, rows(3)) for n in (2, 1, 3)]
    plain = compile(model, *data[0], **OFF)
    passed = compile(model, *data[0], **{**OFF, switch: True})
    assert len(passed.nodes) < len(plain.nodes)
    want = compiled_gradients(plain, data, max_active_keys=2)
    assert_close(compiled_gradients(passed, data, max_active_keys=2), want)
    assert_compiled(model, data, graph=passed, max_active_keys=2)
    everything = compile(model, *data[0])
    assert len(everything.nodes) < len(compile(model, *data[0], **{switch: False}).nodes)  # type: ignore[arg-type]


def test_what_no_loss_depends_on_is_not_in_the_graph() -> None:
    data = (torch.zeros(3), Seq(torch.zeros(2, 3)), 1, torch.zeros(3))
    assert "unused" not in compile(Wasteful(), *data).nodes
    assert "unused" in compile(Wasteful(), *data, remove_dead=False).nodes


def test_an_activation_is_fused_only_where_all_sites_have_it() -> None:
    class Sites(Model):
        def __init__(self, other: Callable[[Any], Any]) -> None:
            super().__init__()
            self.a, self.other = nn.Linear(3, 3), other

        def forward(self, x: Tensor, y: Tensor) -> None:
            h = torch.relu(self.a(x))
            loss(self.other(self.a(h)), y, "squared_error")

    data = [(rows(3), rows(3)) for _ in range(3)]
    for other, fused in ((torch.relu, True), (torch.tanh, False), (lambda h: h * 2, False)):
        model = Sites(other).double()
        graph = assert_compiled(model, data, max_active_keys=2)
        assert ("relu" in graph.nodes["a"].describe()) == fused


def test_an_activation_is_not_fused_where_the_product_is_used_elsewhere_too() -> None:
    class Twice(Model):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)

        def forward(self, x: Tensor, y: Tensor) -> None:
            h = self.a(x)
            loss(torch.relu(h) * h, y, "squared_error")

    graph = assert_compiled(Twice().double(), [(rows(3), rows(3)) for _ in range(3)], max_active_keys=2)
    assert "relu" not in graph.nodes["a"].describe()


def test_chains_are_not_fused_into_loops() -> None:
    """What does not depend on the loop is done for all its rounds at once."""

    class Around(Model):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)

        def forward(self, x: Tensor, seq: Seq, y: Tensor) -> None:
            loss(fold(lambda h, t: torch.tanh(h * 2 + (t.exp() + 1) * x), seq, self.a(x)), y, "squared_error")

    data = [(rows(3), Seq(rows(n, 3)), rows(3)) for n in (2, 1, 3)]
    graph = assert_compiled(Around().double(), data, max_active_keys=2)
    assert sum(type(node).__name__ == "Rows" for node in graph.nodes.values()) == 2


class Chooses(Model):
    """A choice among four layers, or two in a row among two each."""

    def __init__(self, halves: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
        self.halves = halves

    def forward(self, x: Tensor, k: int, y: Tensor) -> None:
        h = choose(k, self.layers[:2] if self.halves else self.layers, x)
        if self.halves:
            h = choose(k, self.layers[2:], h)
        loss(h if h.dim() == 1 else h.sum(0), y, "squared_error")


def chosen(*shape: int) -> list[tuple[Any, ...]]:
    return [(rows(*shape), k, rows(3)) for k in (0, 1, 1, 0)]


def test_rows_of_several_dimensions_go_through_a_choice() -> None:
    assert_compiled(Chooses().double(), chosen(2, 3), max_active_keys=3)


def test_two_choices_among_parts_of_one_list() -> None:
    assert_compiled(Chooses(halves=True).double(), chosen(3), max_active_keys=3)


def test_hooks_are_called_whatever_follows_or_chooses_the_layer() -> None:
    """Once a Linear with a hook lost it, silently, to the passes that took it for a plain one."""

    class Followed(Chooses):
        def forward(self, x: Tensor, k: int, y: Tensor) -> None:
            loss(torch.relu(self.layers[0](x)), y, "squared_error")

    for kind in (Chooses, Followed):
        model = kind().double()
        for layer in model.layers:
            layer.register_forward_hook(lambda module, given, made: 3 * made)
        assert_compiled(model, chosen(3), max_active_keys=3)


def test_layers_of_a_choice_that_share_a_parameter_are_one_node() -> None:
    model = Chooses().double()
    model.layers[1].weight = model.layers[0].weight  # type: ignore[union-attr]
    graph = assert_compiled(model, chosen(3), max_active_keys=3)
    assert "layers_0_layers_1" in graph.nodes


def test_frozen_layers_hand_gradients_on() -> None:
    model = Chooses(halves=True).double()
    model.layers[2:].requires_grad_(False)
    assert_compiled(model, chosen(3), max_active_keys=3)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.register_forward_hook(lambda module, given, made: made / made.norm()),
        lambda layer: layer.register_forward_pre_hook(lambda module, given: (given[0] / given[0].norm(),)),
        lambda layer: layer.register_full_backward_hook(lambda module, into, out: tuple(2 * g for g in into)),
        lambda layer: setattr(layer, "forward", lambda x: layer.weight @ x / x.norm()),
    ],
    ids=["forward hook", "pre-hook", "backward hook", "forward"],
)
def test_a_layer_that_was_changed_is_called_as_it_is_on_one_row(change: Callable[[nn.Linear], Any]) -> None:
    """Once backward hooks and a replaced forward were ignored, and other hooks were given batches."""

    class After(Chooses):
        def forward(self, x: Tensor, k: int, y: Tensor) -> None:
            loss(self.layers[1](self.layers[0](x)), y, "squared_error")

    model = After().double()
    change(model.layers[1])  # type: ignore[arg-type]
    assert_compiled(model, chosen(3), max_active_keys=4)


def test_a_hook_on_a_parameter_is_refused() -> None:
    """Once it was ignored."""
    model = Chooses()
    model.layers[1].weight.register_hook(lambda g: 0 * g)  # type: ignore[union-attr, operator]
    with pytest.raises(ModelError, match="the parameter 'weight' of Linear 'layers_1' has a hook"):
        compile(model, torch.zeros(3), 0, torch.zeros(3))
