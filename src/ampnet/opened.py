"""Opened: a stream that has begun and not ended: its source, one instance ahead, and the counts of its instances.

    source ──peek──> ahead ──take──> in flight ──retire──> tally

A stream with a `Position` continues there: `peek` skips what had retired, and stops at what was in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ampnet.coming import coming
from ampnet.errors import AmpnetError, DataError, WorkerDied
from ampnet.instance import Instance, Stream, StreamStats
from ampnet.position import Position
from ampnet.reuse import BufferWatch
from ampnet.tally import Tally

Read = Callable[[Iterator[Instance], int, list[Instance]], None]
"""Appends the next instances of an iterator to a list, as many as asked for; fewer at its end. If it fails, those
before are in the list."""


def read_some(source: Iterator[Instance], most: int, into: list[Instance]) -> None:
    """See `Read`."""
    into.extend(islice(source, most))


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
        while found := self._next(read, 1):
            self.read += 1
            if self.read > self.reach or self.read - 1 in self.again:
                break
        self.ahead = found[0] if found else None
        if not found and self.read < self.reach:
            raise DataError(
                f"stream '{self.stream.name}' ended after {self.read} instances, and {self.reach} of it had been "
                f"pumped where it continues: resume with the data that it began with"
            )
        if found and self.watch is not None:
            self.watch.read(found[0], self.read - 1)

    def _next(self, read: Read, most: int) -> list[Instance]:
        """Returns the next instances, fewer at the end of the data."""
        found: list[Instance] = []
        try:
            read(self.source, most, found)
        except WorkerDied:  # during the call of the loader
            raise
        except Exception as error:
            self._check(found)
            number = self.read + len(found) + 1
            if isinstance(error, AmpnetError):
                raise DataError(f"{self._name}, instance {number}: {error}") from error
            raise DataError(
                f"{self._name}: the loader failed at instance {number}: {type(error).__name__}: {error}"
            ) from error
        self._check(found)
        return found

    def _check(self, found: Sequence[object]) -> None:
        """Raise a `DataError` for the first that is no instance. ``found``: what the loader gave after those read."""
        if {Instance}.issuperset(map(type, found)) or all(isinstance(one, Instance) for one in found):
            return
        number, wrong = next((self.read + i, one) for i, one in enumerate(found, 1) if not isinstance(one, Instance))
        if wrong is None:
            raise DataError(
                f"instance {number} of {self._name} is None; a loader must yield Instance objects, and ends by "
                f"returning. Usual cause: a function of an example that returns nothing: filter such examples out"
            )
        raise DataError(f"{self._name}, instance {number}: expected an Instance, got {wrong!r}")

    @property
    def _name(self) -> str:
        return f"stream '{self.stream.name}'"

    def take(self, read: Read, most: int) -> tuple[list[int], list[Instance]]:
        """Returns positions and instances of the next ones, to be pumped, and reads the one behind them."""
        places: list[int] = []
        out: list[Instance] = []
        while self.ahead is not None and len(out) < most:
            place = self.read - 1
            some = self._many(read, most - len(out)) or self._one(read)
            places += range(place, place + len(some))
            out += some
        self.pumped += len(out)
        return places, out

    def _one(self, read: Read) -> list[Instance]:
        """Returns the one read, and reads the next."""
        assert self.ahead is not None
        place, one = self.read - 1, self.ahead
        self.reach = max(self.reach, place + 1)
        self.again.discard(place)
        self.peek(read)
        return [one]

    def _many(self, read: Read, most: int) -> list[Instance]:
        """Returns the next instances at once; none where each of them must be looked at when it is read."""
        if self.watch is not None:
            most = min(most, self.watch.unseen(self.read))
        if most < 2 or self.again or self.read < self.reach:
            return []
        assert self.ahead is not None
        out = [self.ahead, *self._next(read, most)]
        self.read += len(out) - 1
        self.ahead = out.pop() if len(out) > most else None
        self.reach = self.read - (self.ahead is not None)
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
