"""A compiled model on worker processes, against the same model run eagerly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ampnet import Processes
from ampnet.lang import Model, compile
from ampnet.testing import model_gradients
from ampnet.testing.language import by_model_names
from ampnet.testing.oracle import assert_close


def assert_on_workers(model: Model, data: Sequence[Sequence[Any]], workers: int = 2) -> None:
    """The gradients of all instances, in waves on so many workers, must be those of the eager model."""
    graph = compile(model, *data[0])
    want = model_gradients(model, data)
    with Processes(graph, workers=workers, update=None, max_active_keys=4, wave_size=2) as runtime:
        runtime.train(graph.instances(data))
        stats = runtime.stats()
        assert stats.engine == "waves", stats.reason
        assert_close(by_model_names(graph, graph.gradients()), want)
