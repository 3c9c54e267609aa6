"""Models against themselves: what a compiled model computes must be what the same model computes when it runs eagerly.

`assert_compiled` is all it takes to test a model of your own: gradients, losses and predictions of the graph against
plain torch with autograd, in any order of messages that ``settings`` lead to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ampnet.instance import Stream
from ampnet.lang import Compiled, Model, compile
from ampnet.runtime.inline import Inline
from ampnet.testing.leaks import assert_at_rest
from ampnet.testing.oracle import TOLERANCE, assert_close, graph_gradients


def assert_compiled(
    model: Model,
    instances: Sequence[Sequence[Any]],
    *,
    graph: Compiled | None = None,
    tolerance: float = TOLERANCE,
    **settings: Any,
) -> Compiled:
    """The compiled model must give the gradients, losses and predictions of the eager one. Returns the graph.

    ``instances`` holds the arguments of ``forward``, one tuple an instance. ``graph`` is the compiled model; without
    it, the model is compiled by its first instance. ``settings`` are those of `Inline`. The model and its data should
    be in float64. Checks that nothing is left behind, in training and in inference.
    """
    graph = compile(model, *instances[0]) if graph is None else graph
    assert_close(compiled_gradients(graph, instances, **settings), model_gradients(model, instances), tolerance)
    assert_judged(graph, model, instances, tolerance=tolerance, **settings)
    return graph


def model_gradients(model: Model, instances: Sequence[Sequence[Any]]) -> dict[str, Tensor]:
    """Autograd's gradients of the sum of all losses of all instances, by the model's own names. Runs eagerly.

    Frozen parameters are left out.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = torch.stack([model.loss(*arguments) for arguments in instances]).sum()
    if not total.requires_grad:  # no edge in any of the graphs, say
        return {name: torch.zeros_like(p) for name, p in named.items()}
    grads = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), grads, strict=True)}


def compiled_gradients(graph: Compiled, instances: Sequence[Sequence[Any]], **settings: Any) -> dict[str, Tensor]:
    """The message path's gradients of all instances, by the model's own names. Zeros for what no loss depends on.

    Updates are frozen, and the sums are left at zero. Frozen parameters are left out. Checks that nothing is left
    behind.
    """
    return by_model_names(graph, graph_gradients(graph, list(graph.instances(instances)), **settings))


def by_model_names(graph: Compiled, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradients by ``node.parameter``, as `Graph.gradients` has them, by the model's own names instead."""
    named = {name: p for name, p in graph.model.named_parameters() if p.requires_grad}
    names = {id(p): name for name, p in named.items()}
    out = {name: torch.zeros_like(p).detach() for name, p in named.items()}
    for label, parameter in graph.module().named_parameters():  # of replicas the first, of tiles the whole
        if parameter.requires_grad:
            out[names[id(parameter)]] += found[label]
    return out


def assert_judged(
    graph: Compiled,
    model: Model,
    instances: Sequence[Sequence[Any]],
    *,
    tolerance: float = TOLERANCE,
    **settings: Any,
) -> None:
    """In inference, every instance must have the eager model's losses: as many, of the same predictions and mean."""
    with Inline(graph, update=None, **settings) as runtime:
        streams = [Stream([graph.instance(*arguments)], False, f"{i}", True) for i, arguments in enumerate(instances)]
        stats = {int(s.name): s for s in runtime.run(streams)}
        assert_at_rest(runtime)
    for i, arguments in enumerate(instances):
        with torch.no_grad():
            judged = model.judge(*arguments)
        found = [rows for _, _, rows in stats[i].predictions[0]]
        if len(found) != len(judged):
            raise AssertionError(f"instance {i}: {len(found)} losses compiled, {len(judged)} eagerly")
        want = torch.stack([j.value for j in judged]).mean()
        got = torch.tensor(stats[i].loss, dtype=want.dtype)
        assert_close({f"mean loss of instance {i}": got}, {f"mean loss of instance {i}": want}, tolerance)
        for j in judged:
            _take_nearest(found, j.prediction, f"instance {i}, loss '{j.name}'", tolerance)


def _take_nearest(found: list[Tensor], prediction: Tensor, what: str, tolerance: float) -> None:
    """Losses come in any order: the nearest prediction of the same size is the one that is meant."""
    want = prediction.detach().reshape(-1)
    gaps = [float((f.reshape(-1) - want).abs().max()) if f.numel() == want.numel() else torch.inf for f in found]
    nearest = min(range(len(found)), key=gaps.__getitem__)
    if not gaps[nearest] <= tolerance * max(1.0, float(want.abs().max())):
        raise AssertionError(f"{what}: no prediction is within {tolerance} of {want.tolist()}; {gaps[nearest]:.3g} off")
    del found[nearest]
