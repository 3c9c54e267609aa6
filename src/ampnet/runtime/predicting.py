"""Predicting: computes what a model returns for data, with the engine that trains it.

    predict(data) ──> the graph of what forward returns (`Graph.prediction`) ──> waves ──> results, in order

A runtime that predicts has a second graph, and an inner runtime for it: in the same process, or on the same workers.
Both graphs share the model's parameters, so predictions use the weights at the call of `predict`. Nothing else is in
flight then: a runtime does one run at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from ampnet.errors import AmpnetError
from ampnet.instance import Instance, Stream

if TYPE_CHECKING:
    from ampnet.runtime.runtime import Runtime

_CHUNK = 16
"""By default a run of `predict_stream` has this many times ``max_active_keys`` samples."""


def predict(runtime: Runtime, data: Any) -> list[Any]:
    """Returns the results of all samples, in order. ``runtime``: an inner one, of the prediction graph."""
    graph: Any = runtime.graph
    gathered = graph.gathered()

    def instances() -> Iterator[Instance]:
        for sample in graph.samples(data):
            if not runtime.engine.waves and isinstance(sample, Instance):
                raise AmpnetError(
                    "where messages are passed, how many results an Instance has is not known: give predict the "
                    "arguments of forward, or a runtime that plays waves"
                )
            instance = graph.take(sample)
            gathered.pump(instance)
            yield instance

    runtime.controller.collect = gathered.add
    try:
        (stats,) = runtime.run([Stream(instances(), False, "predict")])
    finally:
        runtime.controller.collect = None
    results: list[Any] = gathered.results(stats.instances)
    return results


def predict_stream(inner: Callable[[], Runtime], data: Any, chunk: int | None) -> Iterator[Any]:
    """Yields the results of all samples, in order, with a run for each ``chunk``. ``inner`` returns the runtime."""
    graph: Any = inner().graph
    source = iter(graph.samples(data))
    for first in source:
        runtime = inner()
        size = _CHUNK * runtime.controller.max_active_keys if chunk is None else chunk
        yield from predict(runtime, chain([first], islice(source, size - 1)))
