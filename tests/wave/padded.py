"""Runs of waves that are padded and played as programs, as on a GPU, in float64 on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ampnet import Inline, Instance, Update
from ampnet.graph import Graph
from ampnet.instance import StreamStats
from ampnet.wave.captured import Captured

Weights = dict[str, list[Tensor]]


def on_programs(runtime: Inline) -> Captured:
    """Let a runtime play its waves as programs. On the CPU they are played call by call, on the same buffers."""
    player = runtime.player
    assert player is not None
    player.captured = Captured(player, player.planner, torch.device("cpu"))
    return player.captured


def weights_of(graph: Graph) -> Weights:
    return {name: [w.clone() for w in node.updater.weights] for name, node in graph.parameterised().items()}


def versions_of(graph: Graph) -> dict[str, int]:
    return {name: node.updater.version for name, node in graph.parameterised().items()}


def trained(
    make: Callable[[], Graph],
    epochs: Sequence[Callable[[Graph], Iterable[Instance]]],
    update: Update,
    padded: bool,
    **settings: Any,
) -> tuple[list[StreamStats], Weights, dict[str, int], Captured | None]:
    """Statistics of each epoch, weights and versions in the end."""
    graph = make()
    with Inline(graph, update=update, **settings) as runtime:
        captured = on_programs(runtime) if padded else None
        stats = [runtime.train(epoch(graph)) for epoch in epochs]
    return stats, weights_of(graph), versions_of(graph), captured


def assert_equal(a: Weights, b: Weights, tolerance: float = 1e-10) -> None:
    for name, tensors in a.items():
        for one, other in zip(tensors, b[name], strict=True):
            torch.testing.assert_close(
                one, other, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}"
            )
