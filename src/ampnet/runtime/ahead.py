"""Ahead: places nodes on workers by a trial on the first instances of a stream, read before the workers are forked.

They are all read before any is computed, so a loader that reuses one buffer is detected here.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice, takewhile

from ampnet.graph import Graph
from ampnet.instance import Instance, Stream
from ampnet.placement import Costs, Trial, known, peek, place
from ampnet.reuse import BufferWatch
from ampnet.runtime.cutting import size_of

_TRIED = 128
"""The maximal number of instances in a trial."""


def place_ahead(
    graph: Graph,
    stream: Stream,
    *,
    workers: int,
    affinity: Mapping[str, int],
    memory_per_worker: int | None,
    max_active_keys: int,
    wave_size: int | None,
    stopping: Callable[[], bool],
) -> tuple[dict[str, int], Stream, Costs | None]:
    """Returns the worker of each node, by their costs on the first instances, the stream with all instances, and the
    costs; None: there was no trial."""
    some, stream = read_ahead(stream, min(_TRIED, max_active_keys), stopping)
    costs = None
    if some and stream.train and len(known(graph, workers, affinity)) < len(graph.nodes):
        size = wave_size or size_of(workers, max_active_keys)
        costs = Trial(graph, max_active_keys=len(some), wave_size=size).run(some)
        gc.collect()  # free the trial's copy, which has reference cycles, before workers are forked
    return place(graph, workers, affinity, costs, memory_per_worker), stream, costs


def read_ahead(stream: Stream, count: int, stopping: Callable[[], bool]) -> tuple[list[Instance], Stream]:
    """Read up to ``count`` instances, until ``stopping``; returns them, and the stream with all instances.

    An error of the loader is raised later, when that instance is read from the returned stream.
    """
    if isinstance(stream.instances, list | tuple):
        some = list(stream.instances[:count])
    else:
        watch, source = BufferWatch(stream.name), chain.from_iterable((stream.instances,))

        def watched() -> Iterator[Instance]:
            for position, instance in enumerate(islice(source, count)):
                if isinstance(instance, Instance):
                    watch.read(instance, position)
                yield instance
                if stopping():
                    return

        some, instances = peek(watched(), count)
        if watch.fault is not None:
            raise watch.fault
        stream = replace(stream, instances=chain(instances, source))
    return list(takewhile(lambda instance: isinstance(instance, Instance), some)), stream
