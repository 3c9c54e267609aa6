"""Coming: instances of a stream that are not read yet, where they can be looked at without being read.

    read        1 2 3 4 │ 5 6 7 8 9 ...  coming: planned together with the wave that is planned next
                        └── the next to be read

Planning 256 instances at once takes a fifth of the time of planning them one by one. Only data in memory are looked at:
a loader may do something when it is asked for an instance, and is asked for one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from ampnet.instance import Instance


@runtime_checkable
class Coming(Iterator[Instance], Protocol):
    """An iterator that can be looked ahead in."""

    def coming(self, most: int) -> Sequence[Instance]:
        """The next instances, ``most`` at most. The iterator returns the same objects later."""


class Made(Iterator[Instance]):
    """Instances made of samples in memory, when they are read or looked at."""

    def __init__(self, samples: Sequence[Any], make: Callable[[Any], Instance]) -> None:
        self._samples, self._make = samples, make
        self._at = 0
        self._ahead: deque[Instance] = deque()

    def __next__(self) -> Instance:
        if self._ahead:
            return self._ahead.popleft()
        if self._at >= len(self._samples):
            raise StopIteration
        sample = self._samples[self._at]
        self._at += 1
        try:
            return self._make(sample)
        except BaseException:
            self._at = len(self._samples)  # as a generator, it ends with its error
            raise

    def coming(self, most: int) -> Sequence[Instance]:
        """See `Coming`. Ends before a sample that no instance can be made of: its error is raised when it is read."""
        while len(self._ahead) < most and self._at < len(self._samples):
            try:
                made = self._make(self._samples[self._at])
            except Exception:
                break
            self._ahead.append(made)
            self._at += 1
        return list(islice(self._ahead, most))


class Passed(Iterator[Instance]):
    """An iterator that passes on the instances of a source, which becomes known when the first of them is read."""

    def __init__(self, instances: Iterator[Instance]) -> None:
        self._instances = instances
        self._read = 0
        self.source: object = None
        """Set while the first instance is read."""

    def __next__(self) -> Instance:
        self._read += 1
        return next(self._instances)

    def coming(self, most: int) -> Sequence[Instance]:
        """See `Coming`."""
        return coming(self.source, self._read, most)


def coming(source: object, read: int, most: int) -> Sequence[Instance]:
    """Returns the next instances of a source of which so many were read; none of one that cannot be looked ahead in."""
    if isinstance(source, list | tuple):
        return [one for one in source[read : read + most] if isinstance(one, Instance)]
    return source.coming(most) if isinstance(source, Coming) else ()
