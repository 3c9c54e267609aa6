"""Ahead: the first instances of a stream, read before there are workers, to find out what nodes cost.

They are read before any of them is computed with, so a loader that fills one buffer again and again is found here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice, takewhile

from ampnet.instance import Instance, Stream
from ampnet.placement import peek
from ampnet.reuse import BufferWatch


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
