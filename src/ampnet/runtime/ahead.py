"""Ahead: where nodes go is found out with the first instances of a stream, read before there are workers.

They are read before any of them is computed with, so a loader that fills one buffer again and again is found here.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice, takewhile

from ampnet.graph import Graph
from ampnet.instance import Instance, Stream
from ampnet.placement import Trial, known, peek, place
from ampnet.reuse import BufferWatch

_TRIED = 128
"""Instances of a trial at most."""


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
) -> tuple[dict[str, int], Stream]:
    """The worker of each node, by what they cost on the first instances, and the stream with all instances."""
    some, stream = read_ahead(stream, min(_TRIED, max_active_keys), stopping)
    costs = None
    if some and stream.train and len(known(graph, workers, affinity)) < len(graph.nodes):
        size = wave_size or -(-max_active_keys // (2 * workers))
        costs = Trial(graph, max_active_keys=len(some), wave_size=size).run(some)
        gc.collect()  # the copy that was tried, which holds itself: workers are forked soon
    return place(graph, workers, affinity, costs, memory_per_worker), stream


def read_ahead(stream: Stream, count: int, stopping: Callable[[], bool]) -> tuple[list[Instance], Stream]:
    """Up to ``count`` instances, until ``stopping``, and the stream with all of them.

    An error of the loader is raised where it came, when that instance is read from the stream.
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
        stream = Stream(chain(instances, source), stream.train, stream.name, stream.keep_predictions)
    return list(takewhile(lambda instance: isinstance(instance, Instance), some)), stream
