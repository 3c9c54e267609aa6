"""Recipes: a graph made again from its recipe is the same graph, without its weights."""

from __future__ import annotations

from threading import Lock
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ampnet
from ampnet import AmpnetError, GraphError, Model, replicate, tile
from ampnet.lang import Compiled, loss
from ampnet.recipe import digest, packed, recipe_of, unpacked

pytest.importorskip("ray")


class Tied(Model):
    """Two layers that share a weight, and a buffer."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 6)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.arange(4.0))

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        scores: Tensor = self.last(torch.tanh(self.second(torch.tanh(self.first(x * self.scale)))))
        loss(scores, label)
        return scores


def made(**options: Any) -> Compiled:
    return ampnet.compile(Tied(), torch.zeros(4), torch.tensor(1), **options)


def again(graph: Compiled) -> Compiled:
    found: Compiled = unpacked(packed(recipe_of(graph))).make()
    return found


@pytest.mark.parametrize("options", [{}, {"fuse_linear": False}, {"tiles": {"last": 2}}, {"replicas": 2}])
def test_a_graph_made_again_is_the_same(options: dict[str, Any]) -> None:
    graph = made(**options)
    twin = again(graph)
    assert digest(twin) == digest(graph)
    assert twin.model.second.weight is twin.model.first.weight
    assert torch.equal(twin.model.scale, torch.arange(4.0))


def test_later_calls_are_repeated_on_the_model_as_it_was_compiled() -> None:
    graph = made()
    tile(graph, "last", 3, by="inputs")
    replicate(graph, graph.order()[0], 2)
    graph.to(torch.float64)
    twin = again(graph)
    assert digest(twin) == digest(graph)
    assert twin.model.first.weight.dtype == twin.model.scale.dtype == torch.float64


def test_weights_are_not_in_the_bytes() -> None:
    graph = made()
    small = len(packed(recipe_of(graph)))
    big = ampnet.compile(Wide(), torch.zeros(512), torch.tensor(1))
    assert len(packed(recipe_of(big))) < small + 2_000
    assert not again(big).model.layer.weight.any()


class Wide(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(512, 512)

    def forward(self, x: Tensor, label: Tensor) -> None:
        loss(self.layer(x), label)


@pytest.mark.parametrize(
    "change", [{"tiles": {"last": 2}}, {"replicas": 2}, {"fuse_linear": False}], ids=["tiles", "replicas", "passes"]
)
def test_the_digest_tells_graphs_apart(change: dict[str, Any]) -> None:
    assert digest(made(**change)) != digest(made())


def test_what_cannot_be_sent_is_named() -> None:
    graph = made()
    graph.model.lock = Lock()
    with pytest.raises(AmpnetError, match="cannot be sent to other machines"):
        packed(recipe_of(graph))
    with pytest.raises(GraphError, match="wired by hand"):
        recipe_of(ampnet.Graph("by hand"))
