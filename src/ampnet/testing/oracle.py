"""Gradient oracle: plain autograd in float64 says what is right.

`assert_transform` drives one payload transform through the message path: forward in one random composition of batches,
backward in another. `assert_gradients` runs whole graphs with updates frozen and compares what has added up with the
gradient of the same computation in plain torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampnet.graph import Graph
from ampnet.instance import Instance
from ampnet.message import Messages
from ampnet.nodes.node import Report
from ampnet.nodes.transform import Parameterised, Transform
from ampnet.runtime.inline import Inline
from ampnet.state import States
from ampnet.testing.leaks import assert_at_rest

TOLERANCE = 1e-10
"""Largest difference allowed in float64, relative to the larger of 1 and the gradient's own size."""


def assert_close(got: Mapping[str, Tensor], want: Mapping[str, Tensor], tolerance: float = TOLERANCE) -> None:
    """Fail, naming every tensor that differs and by how much."""
    faults = [f"{name}: only on one side" for name in got.keys() ^ want.keys()]
    for name in got.keys() & want.keys():
        a, b = got[name].detach(), want[name].detach()
        if a.shape != b.shape:
            faults.append(f"{name}: shapes {tuple(a.shape)} and {tuple(b.shape)}")
            continue
        scale = max(1.0, float(b.abs().max()) if b.numel() else 0.0)
        difference = float((a.double() - b.double()).abs().max()) if b.numel() else 0.0
        if not difference <= tolerance * scale:
            faults.append(f"{name}: differs by {difference:.3g} (scale {scale:.3g})")
    if faults:
        raise AssertionError("not equal:" + "".join(f"\n  - {fault}" for fault in sorted(faults)))


def assert_transform(
    node: Transform | Parameterised,
    x: Tensor,
    *,
    seed: int = 0,
    batches: int = 3,
    reference: Callable[[Tensor], Tensor] | None = None,
    tolerance: float = TOLERANCE,
) -> None:
    """Every row of ``x`` is a message. Output, input gradient and parameter gradients must equal autograd's."""
    rng = np.random.default_rng(seed)
    rows = len(x)
    messages = Messages(x, States.of(instance=np.arange(rows), t=np.arange(rows) % 3))
    with torch.no_grad():
        got_y = _send(node, messages, rng, batches, forward=True)
        g = torch.from_numpy(rng.standard_normal(tuple(got_y.shape))).to(got_y.dtype)
        got_dx = _send(node, messages.with_payload(g), rng, batches, forward=False)
    leaf = x.detach().clone().requires_grad_(x.is_floating_point())
    parameters = dict(node.parameters) if isinstance(node, Parameterised) else {}
    want_y = (reference or node.reference)(leaf)
    wanted = [*parameters.values()] + ([leaf] if leaf.requires_grad else [])
    grads = torch.autograd.grad(want_y, wanted, g, allow_unused=True)
    want = {name: _known(grad, p) for (name, p), grad in zip(parameters.items(), grads, strict=False)}
    got = dict(zip(parameters, node.updater.sums, strict=True)) if isinstance(node, Parameterised) else {}
    got = {**{n: t.clone() for n, t in got.items()}, "output": got_y}
    want["output"] = want_y.detach()
    if leaf.requires_grad:
        got["input"], want["input"] = got_dx, _known(grads[-1], leaf)
    assert_close(got, want, tolerance)
    left = {k: v for k, v in node.held().items() if v}
    assert not left, f"the node still holds {left}"


def _known(grad: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if grad is None else grad


def _send(
    node: Transform | Parameterised, messages: Messages, rng: np.random.Generator, batches: int, *, forward: bool
) -> Tensor:
    """Send messages in a random composition of batches; return the payloads in the original order."""
    order = rng.permutation(len(messages))
    pieces, places = [], []
    for where in np.array_split(order, min(batches, len(order))):
        handle = node.forward if forward else node.backward
        for output in handle(0, messages.take(where)):
            assert not isinstance(output, Report)
            payload = output[2].payload
            if payload is not None:
                pieces.append(payload)
                places.append(output[2].states.instance)
    if not pieces:
        return torch.zeros(0)
    return torch.cat(pieces)[torch.from_numpy(np.argsort(np.concatenate(places), kind="stable"))]


def graph_gradients(
    graph: Graph,
    instances: Sequence[Instance],
    *,
    on_rest: Callable[[Inline], None] = lambda runtime: None,
    **settings: Any,
) -> dict[str, Tensor]:
    """The gradients of all instances together, by ``node.parameter``, with updates frozen. Leaves the sums at zero.

    ``settings`` are those of `Inline`. Checks that nothing is left behind. ``on_rest`` is called with the runtime after
    the run.
    """
    _forget_sums(graph)
    with Inline(graph, update=None, **settings) as runtime:
        runtime.train(instances)
        assert_at_rest(runtime)
        on_rest(runtime)
    out = {name: total.clone() for name, total in graph.gradients().items()}
    _forget_sums(graph)
    return out


def _forget_sums(graph: Graph) -> None:
    for node in graph.parameterised().values():  # replicas and tiles have their own sums
        for total in node.updater.sums:
            total.zero_()


def eager_gradients(graph: Graph, losses: Sequence[Tensor]) -> dict[str, Tensor]:
    """Autograd's gradients of the sum of these losses, by ``node.parameter``."""
    named = {f"{n}.{p}": w for n, node in graph.parameterised().items() for p, w in node.parameters.items()}
    grads = torch.autograd.grad(torch.stack(list(losses)).sum(), list(named.values()), allow_unused=True)
    return {name: _known(g, w).detach() for (name, w), g in zip(named.items(), grads, strict=True)}


def assert_gradients(
    graph: Graph,
    instances: Sequence[Instance],
    losses: Sequence[Tensor],
    *,
    tolerance: float = TOLERANCE,
    **settings: Any,
) -> None:
    """The message path's gradients of ``instances`` must equal autograd's of ``losses``, one loss an instance."""
    assert_close(graph_gradients(graph, instances, **settings), eager_gradients(graph, losses), tolerance)
