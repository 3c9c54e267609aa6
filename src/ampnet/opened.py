"""Opened: a stream that has begun and not ended: its source, one instance ahead, and the counts of its instances.

    source ──peek──> ahead ──take──> in flight ──retire──> tally

A stream with a `Position` continues there: `peek` skips what had retired, and stops at what was in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ampnet.coming import coming
from ampnet.errors import AmpnetError, DataError, WorkerDied
from ampnet.instance import Instance, Stream, StreamStats
from ampnet.position import Position
from ampnet.reuse import BufferWatch
from ampnet.tally import Tally

Read = Callable[[Iterator[Instance]], Instance]
"""Takes the next instance from an iterator."""


@dataclass(slots=True, eq=False)
class Opened:
    """A stream that has begun and not ended."""

    stream: Stream
    source: Iterator[Instance]
    number: int
    """Its number within the run; unique, also if one `Stream` is given twice."""
    watch: BufferWatch | None
    """None if the instances are in a list: no loader can overwrite one then."""
    tally: Tally
    ahead: Instance | None = None
    """The next instance; None after the last one."""
    read: int = 0
    """Instances read from the source; ``ahead`` is the last of them."""
    reach: int = 0
    """Positions below this one have been pumped, if they are not in ``again``."""
    again: set[int] = field(default_factory=set)
    """Positions that were in flight where the stream continues, and are not pumped again yet."""
    told: dict[int, Mapping[str, int]] = field(default_factory=dict)
    """By such a position: the messages that were tallied before, by Loss node."""
    pumped: int = 0
    """Instances retired or in flight."""
    retired: int = 0
    records: int = 0
    began: float | None = None
    """The time when its first instance was pumped; where it continues, as much earlier as it took before."""
    before: float = 0.0
    """The seconds it took before."""
    cut: bool = False
    """Whether data remained when the run was stopped."""
    numbers: list[int] = field(default_factory=list)
    """The numbers of its instances, in inference."""
    warned: bool = False
    """Whether the warning about a prediction that is not finite was given."""

    @classmethod
    def of(cls, stream: Stream, number: int, losses: Mapping[str, str]) -> Opened:
        """Open a stream, at its start or its position. ``losses``: as in `Tally`."""
        watch = None if isinstance(stream.instances, list | tuple) else BufferWatch(stream.name)
        opened = cls(stream, iter(stream.instances), number, watch, Tally(losses))
        if (position := stream.position) is not None:
            opened.tally.restore(position.tally)
            opened.reach, opened.again, opened.told = position.pumped, set(position.in_flight), dict(position.told)
            opened.pumped = opened.retired = position.retired
            opened.records, opened.before = position.records, position.seconds
        return opened

    def peek(self, read: Read) -> None:
        """Read the next instance that is to be pumped into ``ahead``; None at the end of the data."""
        while (instance := self._next(read)) is not None:
            self.read += 1
            if self.read > self.reach or self.read - 1 in self.again:
                break
        self.ahead = instance
        if instance is None and self.read < self.reach:
            raise DataError(
                f"stream '{self.stream.name}' ended after {self.read} instances, and {self.reach} of it had been "
                f"pumped where it continues: resume with the data that it began with"
            )
        if instance is not None and self.watch is not None:
            self.watch.read(instance, self.read - 1)

    def _next(self, read: Read) -> Instance | None:
        """Returns the next instance; only StopIteration is the end of the data."""
        try:
            instance = read(self.source)
        except StopIteration:
            return None
        except WorkerDied:  # during the call of the loader
            raise
        except AmpnetError as error:
            raise DataError(f"{self._name}, instance {self.read + 1}: {error}") from error
        except Exception as error:
            raise DataError(
                f"{self._name}: the loader failed at instance {self.read + 1}: {type(error).__name__}: {error}"
            ) from error
        if instance is None:
            raise DataError(
                f"instance {self.read + 1} of {self._name} is None; a loader must yield Instance objects, and ends by "
                f"returning. Usual cause: a function of an example that returns nothing: filter such examples out"
            )
        if not isinstance(instance, Instance):
            raise DataError(f"{self._name}, instance {self.read + 1}: expected an Instance, got {instance!r}")
        return instance

    @property
    def _name(self) -> str:
        return f"stream '{self.stream.name}'"

    def take(self, read: Read, most: int) -> list[tuple[int, Instance]]:
        """Returns the next instances with their positions, to be pumped, and reads the one behind them."""
        out: list[tuple[int, Instance]] = []
        while self.ahead is not None and len(out) < most:
            position = self.read - 1
            out.append((position, self.ahead))
            self.pumped += 1
            if position >= self.reach:
                self.reach = position + 1
            if self.again:
                self.again.discard(position)
            self.peek(read)
        return out

    def coming(self, most: int) -> list[Instance]:
        """Returns instances that are not pumped yet, ``most`` at most, the next one first; without reading any."""
        if self.ahead is None or most < 1:
            return []
        return [self.ahead, *coming(self.stream.instances, self.read, most - 1)]

    def begin(self, now: float) -> None:
        """Called at each pump."""
        if self.began is None:
            self.began = now - self.before

    def seconds(self, now: float) -> float:
        """Returns the seconds since its first pump."""
        return self.before if self.began is None else now - self.began

    def position(self, flying: Mapping[int, Mapping[str, int]], now: float) -> Position:
        """Returns where it is. ``flying``: the positions in flight, with the messages tallied of each."""
        told = {at: counts for at, counts in (self.told | dict(flying)).items() if counts}
        places = tuple(sorted({*flying, *self.again}))
        told = {at: told[at] for at in places if at in told}
        return Position(self.reach, places, self.records, self.seconds(now), self.tally.state(), told)

    def stats(self, now: float) -> StreamStats:
        """Returns its statistics."""
        return StreamStats(
            self.stream.name,
            self.stream.train,
            self.retired,
            self.records,
            self.tally.loss,
            self.tally.metrics,
            self.seconds(now),
            self.tally.skipped,
            not self.cut,
            self.tally.predictions,
            self.tally.losses,
        )
