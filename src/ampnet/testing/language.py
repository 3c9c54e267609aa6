"""Models against themselves: what a compiled model computes must be what the same model computes when it runs eagerly.

`assert_compiled` is all it takes to test a model of your own: gradients, losses and predictions of the graph against
plain torch with autograd. The graph is run in several ways, none of which may change a result:

    waves       as the settings say; one instance a wave; waves that interleave, in turns and at random
    messages    as the settings say

Every instance must have been played in a wave: a graph that falls back to messages is a failure, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ampnet.instance import Stream
from ampnet.lang import Compiled, Model, compile
from ampnet.lang.arguments import arguments_of
from ampnet.lang.eager import Judged
from ampnet.runtime.inline import Inline
from ampnet.testing.leaks import assert_at_rest
from ampnet.testing.oracle import TOLERANCE, assert_close, graph_gradients

_ORDERS: tuple[dict[str, Any], ...] = (
    {"schedule": "fifo", "wave_size": 1},
    {"schedule": "random", "wave_size": 2, "seed": 1},
)
"""Of waves."""
_IN_FLIGHT = 4
"""Instances in flight at least, where waves interleave."""
_OF_MESSAGES = ("max_batch", "enough_rows")
"""Settings of message passing."""


def assert_compiled(
    model: Model,
    instances: Sequence[Any],
    *,
    graph: Compiled | None = None,
    tolerance: float = TOLERANCE,
    **settings: Any,
) -> Compiled:
    """The compiled model must give the gradients, losses and predictions of the eager one. Returns the graph.

    ``instances`` holds the arguments of ``forward``, a tuple or a dict for each instance. ``graph`` is the compiled
    model; without it, the model is compiled by its first instance, with every `nn.Dropout` off (masks are random). The
    model and its data should be in float64. ``settings`` are those of `Inline`; the head of this file lists in which
    other ways the graph is run. With ``waves=False`` there are only messages. Checks that nothing is left behind, in
    training and in inference.

    Raises `AssertionError` naming what differs and in which way it was run, or why instances were not played in waves.
    """
    with without_dropout(model):
        graph = compile(model, *arguments_of(instances[0])) if graph is None else graph
        want = model_gradients(model, instances)
        for way in ways(settings):
            try:
                assert_close(compiled_gradients(graph, instances, **way), want, tolerance)
                assert_judged(graph, model, instances, tolerance=tolerance, **way)
            except AssertionError as error:
                raise AssertionError(f"{error}\nwith {', '.join(f'{k}={v!r}' for k, v in way.items())}") from error
    return graph


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """A context in which every `nn.Dropout` of a model has p = 0: the masks of two runs are never equal."""
    found = {module: module.p for module in model.modules() if isinstance(module, nn.Dropout)}
    for module in found:
        module.p = 0.0
    try:
        yield
    finally:
        for module, p in found.items():
            module.p = p


def ways(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Settings of `Inline` for each way in which `assert_compiled` runs a graph."""
    messages = {**settings, "waves": False}
    if settings.get("waves", True):
        common = {name: value for name, value in settings.items() if name not in _OF_MESSAGES}
        if not isinstance(settings.get("schedule"), str | None):  # it orders messages
            del common["schedule"]
        yield {**common, "waves": True}
        in_flight = max(_IN_FLIGHT, settings.get("max_active_keys", 1))
        for order in _ORDERS:
            yield {**common, "waves": True, "max_active_keys": in_flight, **order}
        messages.pop("wave_size", None)
    yield messages


def assert_played(runtime: Inline, instances: int) -> None:
    """A runtime must have played this many instances, all of them in waves."""
    stats = runtime.stats()
    if stats.engine != "waves":
        raise AssertionError(f"not played in waves but run message by message: {stats.reason}")
    if stats.instances != instances:
        raise AssertionError(f"{stats.instances} instances were played in waves, of {instances}")


def model_gradients(model: Model, instances: Sequence[Any]) -> dict[str, Tensor]:
    """Autograd's gradients of the sum of all losses of all instances, by the model's own names. Runs eagerly.

    Frozen parameters are left out.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = torch.stack([model.loss(*arguments_of(sample)) for sample in instances]).sum()
    if not total.requires_grad:  # no edge in any of the graphs, say
        return {name: torch.zeros_like(p) for name, p in named.items()}
    grads = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), grads, strict=True)}


def compiled_gradients(graph: Compiled, instances: Sequence[Any], **settings: Any) -> dict[str, Tensor]:
    """The graph's gradients of all instances, by the model's own names. Zeros for what no loss depends on.

    Updates are frozen, and the sums are left at zero. Frozen parameters are left out. Checks that nothing is left
    behind and, unless ``waves=False``, that all instances were played in waves.
    """

    def played(runtime: Inline) -> None:
        if settings.get("waves", True):
            assert_played(runtime, len(instances))

    return by_model_names(graph, graph_gradients(graph, list(graph.instances(instances)), on_rest=played, **settings))


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
    instances: Sequence[Any],
    *,
    tolerance: float = TOLERANCE,
    **settings: Any,
) -> None:
    """In inference, every instance must have the eager model's losses: as many, of the same predictions and mean.

    Unless ``waves=False``, all instances must have been played in waves.
    """
    with Inline(graph, update=None, **settings) as runtime:
        made = graph.instances(instances)
        streams = [Stream([instance], False, f"{i}", True) for i, instance in enumerate(made)]
        stats = {int(s.name): s for s in runtime.run(streams)}
        assert_at_rest(runtime)
        if settings.get("waves", True):
            assert_played(runtime, len(instances))
    for i, sample in enumerate(instances):
        with torch.no_grad():
            judged = model.judge(*arguments_of(sample))
        found = [rows for _, _, rows in stats[i].predictions[0]]
        if len(found) != len(judged):
            raise AssertionError(f"instance {i}: {len(found)} losses compiled, {len(judged)} eagerly")
        want = {name: torch.stack([j.value for j in judged if j.name == name]).mean() for name in _names(judged)}
        got = {name: torch.tensor(value, dtype=torch.float64) for name, value in stats[i].losses.items()}
        assert_close(_of(i, got), _of(i, want), tolerance)
        for j in judged:
            _take_nearest(found, j.prediction, f"instance {i}, loss '{j.name}'", tolerance)


def _names(judged: Sequence[Judged]) -> list[str]:
    """The names of losses, each once."""
    return list(dict.fromkeys(one.name for one in judged))


def _of(instance: int, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"mean of loss '{name}', instance {instance}": value for name, value in means.items()}


def _take_nearest(found: list[Tensor], prediction: Tensor, what: str, tolerance: float) -> None:
    """Losses come in any order: the nearest prediction of the same size is the one that is meant."""
    want = prediction.detach().reshape(-1)
    gaps = [float((f.reshape(-1) - want).abs().max()) if f.numel() == want.numel() else torch.inf for f in found]
    nearest = min(range(len(found)), key=gaps.__getitem__)
    if not gaps[nearest] <= tolerance * max(1.0, float(want.abs().max())):
        raise AssertionError(f"{what}: no prediction is within {tolerance} of {want.tolist()}; {gaps[nearest]:.3g} off")
    del found[nearest]
