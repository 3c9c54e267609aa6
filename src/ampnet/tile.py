"""Tile: one large Linear as several nodes, each with a part of its weights, so that several workers share its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from ampnet.graph import Graph


@dataclass(frozen=True, slots=True)
class Tiled:
    """A Linear that was split."""

    module: nn.Linear
    """It, whole. The parameters of the tiles are views of its own."""
    names: tuple[str, ...]
    """Its tiles, in order."""


def whole_modules(graph: Graph, modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The modules by node, with the whole Linear in place of its tiles."""
    return modules


def whole_gradients(graph: Graph, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradients by ``node.parameter``, with those of the whole Linear in place of its tiles'."""
    return gradients


def retie(graph: Graph, *args: Any, **kwargs: Any) -> None:
    """Move or cast the whole Linears, as `torch.nn.Module.to` does, and make their tiles views of them again."""
