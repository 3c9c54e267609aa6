"""Predictions against the model itself: `Runtime.predict` must give what ``forward`` returns when it runs eagerly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ampnet.lang import Compiled, Model, compile
from ampnet.lang.arguments import Signature, arguments_of
from ampnet.runtime.inline import Inline
from ampnet.testing.oracle import TOLERANCE


def eager(model: Model, sample: Any) -> Any:
    """What ``forward`` returns for a sample, run in plain torch without dropout."""
    signature, training = Signature(model), model.training
    args, named = signature.call(signature.bind(arguments_of(sample), {}))
    model.eval()
    try:
        with torch.no_grad():
            return model(*args, **named)
    finally:
        model.train(training)


def assert_predicts(
    model: Model,
    samples: Sequence[Any],
    *,
    data: Sequence[Any] | None = None,
    graph: Compiled | None = None,
    tolerance: float = TOLERANCE,
    **settings: Any,
) -> Compiled:
    """Predictions for ``samples`` must be what the model returns eagerly. Returns the graph.

    ``data``: the same samples without labels. ``settings``: of `Inline`. Raises `AssertionError` naming the sample.
    """
    graph = compile(model, *arguments_of(samples[0])) if graph is None else graph
    with Inline(graph, **settings) as runtime:
        found = runtime.predict(samples if data is None else data)
        assert runtime.stats().engine == "waves" or not settings.get("waves", True), runtime.stats().words()
    assert len(found) == len(samples), f"{len(found)} predictions for {len(samples)} samples"
    for place, (sample, got) in enumerate(zip(samples, found, strict=True)):
        assert_same(got, eager(model, sample), f"sample {place}", tolerance)
    return graph


def assert_same(got: Any, want: Any, where: str, tolerance: float = TOLERANCE) -> None:
    """Two predictions are equal: nested alike, with close tensors."""
    if isinstance(want, Tensor):
        assert isinstance(got, Tensor), f"{where}: a {type(got).__name__}, expected a tensor"
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, msg=lambda text: f"{where}: {text}")
    elif isinstance(want, dict):
        assert isinstance(got, dict), f"{where}: a {type(got).__name__}, expected a dict"
        assert list(got) == list(want), f"{where}: keys {list(got)}, expected {list(want)}"
        for name in want:
            assert_same(got[name], want[name], f"{where}, {name!r}", tolerance)
    elif isinstance(want, list | tuple) and len(want):
        assert type(got) is type(want), f"{where}: a {type(got).__name__}, expected a {type(want).__name__}"
        assert len(got) == len(want), f"{where}: {len(got)} values, expected {len(want)}"
        for i, (one, other) in enumerate(zip(got, want, strict=True)):
            assert_same(one, other, f"{where}, {i}", tolerance)
    elif isinstance(want, list | tuple):  # a family of no element, of which no shape is known
        assert len(got) == 0, f"{where}: {len(got)} values, expected none"
    else:
        assert got == want, f"{where}: {got!r}, expected {want!r}"
