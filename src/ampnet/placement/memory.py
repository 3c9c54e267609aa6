"""Memory: the bytes that a node needs where it is hosted, whatever is in flight.

    embedding   parameters 400 MB + sums of gradients 400 MB + what Adam keeps 800 MB = 1.6 GB

Rows in flight are not counted: they depend on the wave; nor is what an optimizer takes only while it steps. A worker
process takes `PROCESS` besides.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ampnet.graph import Graph
from ampnet.update.policy import Update

PROCESS = 300_000_000
"""Bytes of a worker process without nodes: the interpreter, torch, ampnet."""
_UNKNOWN = 2
"""Assumed number of tensors that an optimizer stores for each parameter, if it cannot be tried."""


def memory_of(graph: Graph, policies: Mapping[str, Update | None] | None = None) -> dict[str, int]:
    """Bytes by node, of nodes with parameters. ``policies``: instead of those that the nodes have now."""
    kept: dict[int, int] = {}
    out = {}
    for name, node in graph.parameterised().items():
        policy = node.updater.policy if policies is None else policies.get(name)
        if policy is not None and id(policy) not in kept:
            kept[id(policy)] = _kept_by(policy)
        copies = 0 if policy is None else kept[id(policy)]
        weights, sums = _bytes(node.updater.weights), _bytes(list.__iter__(node.updater.adding))
        out[name] = weights * (1 + copies) + sums
    return out


def shown(size: float) -> str:
    """A number of bytes as text, with a unit."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= 0.1 * factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size / 1e3:.1f} kB"


def _bytes(tensors: object) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)  # type: ignore[attr-defined]


def _kept_by(policy: Update) -> int:
    """How many tensors of a parameter's shape its optimizer keeps: found on a parameter of four numbers."""
    try:
        parameter = nn.Parameter(torch.zeros(2, 2))
        optimizer = policy.optimizer([parameter])
        parameter.grad = torch.zeros(2, 2)
        optimizer.step()
    except Exception:  # a function of the user's, which may want its own parameters
        return _UNKNOWN
    state = optimizer.state.get(parameter, {})
    return sum(isinstance(value, Tensor) and value.shape == parameter.shape for value in state.values())
