"""Controller: pumps instances into the graph, bounds the asynchrony, and retires instances that are complete.

    streams  ──>  [1] pump   while fewer than max_active_keys instances are in flight
                  [2] answers come back: an instance without outstanding answers retires and frees its place
                  [3] a stream without remaining instances ends: training streams flush the nodes' leftover gradients

An instance is in flight until everything due has arrived: in waves, a report of each worker that plays it; with message
passing, an answer to each message in training, and in inference as many results as label messages were pumped.

Streams follow one another without a barrier (the next is pumped while the last instances of the one before are still
in flight) unless ``barrier`` is set; with ``together`` they are pumped in turns.

A run can be paused, for a checkpoint: nothing is pumped until nothing is in flight, a function is called at this
*drained point*, and pumping goes on. `positions` says how far each open stream has come, at any time.

    pumped       1 2 3 4 5 6 7 8 │ pause          │ 9 10 11 ...
    in flight    └──── 4 ────┘  4 3 2 1 0 [call]   └── 4
"""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from ampnet.errors import AmpnetError, DataError, NotFiniteWarning, PairingError
from ampnet.events.log import Announcer, Epoch, PortStates, Pump, Retire, Return
from ampnet.instance import Instance, Stream, StreamStats, merge_feeds
from ampnet.message import Messages
from ampnet.nodes.node import Report
from ampnet.numbers import Numbers
from ampnet.opened import Opened, Read, read_some
from ampnet.position import Position
from ampnet.pumped import Pumped, played_too_often
from ampnet.state import Column, Ints
from ampnet.structure import Structure
from ampnet.tally import part_of
from ampnet.told import Told


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run, for displays."""

    stream: str
    """The stream pumped last."""
    train: bool
    """Whether it is training."""
    records: int
    """Its examples retired so far."""
    seconds: float
    """Since its first pump."""
    loss: float
    """Its mean loss so far."""
    metrics: dict[str, float]
    """Its metrics so far."""
    in_flight: int
    """Instances in flight, of all streams."""


class Controller:
    """Pumps streams of instances and retires them. Knows no node: it posts messages by input number."""

    def __init__(
        self,
        inputs: Mapping[str, tuple[str, ...]],
        label_inputs: Iterable[str],
        max_active_keys: int,
        *,
        post: Callable[[int, Messages, bool], None],
        shelve: Callable[[Mapping[int, Structure]], None],
        retire: Callable[[Column, bool], None],
        forget: Callable[[Column], None],
        flush: Callable[[], None],
        stage: Callable[[Mapping[int, Instance], Stream], Sequence[int]] = lambda instances, stream: (),
        read: Read = read_some,
        moduli: Iterable[int] = (),
        losses: Mapping[str, str] | None = None,
        announce: Announcer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``stage`` takes whole instances, and returns the number of workers that will play each. If it returns
        nothing, they are posted message by message; ``post`` also gets whether a batch is the last of its instances.

        ``read`` takes the next instances from an iterator. ``moduli``: numbers of replicas that must have equally many
        instances in flight (see `Numbers`). ``losses``: maps the names of losses in reports to those in statistics.
        """
        if max_active_keys < 1:
            raise ValueError(f"max_active_keys must be 1 or more, got {max_active_keys}")
        self.inputs = {name: i for i, name in enumerate(inputs)}
        self.fields = {name: ("instance", *fields) for name, fields in inputs.items()}
        self.label_inputs = frozenset(label_inputs)
        self.max_active_keys, self.clock = max_active_keys, clock
        self._announce = announce if announce is not None else Announcer()
        self._stage, self._read = stage, read
        self._post, self._shelve, self._retire, self._forget, self._flush = post, shelve, retire, forget, flush
        self.teams = 1
        """The number of teams: instance i belongs to team i modulo this; a batch belongs to one team."""
        self.numbers, self._losses = Numbers(moduli), dict(losses or {})
        self.skips = False
        """Whether losses skip messages that are not finite; set by the runtime."""
        self.holding = False
        """Set by the runtime while replicas are synchronised at a stream's end: nothing is pumped (see `release`)."""
        self._told = Told()
        self._held: list[Opened] = []
        self._in_flight: dict[int, Pumped] = {}
        self._coming: Iterator[Stream] = iter(())
        self._open: list[Opened] = []
        self._draining: list[Opened] = []
        self._together = self._barrier = False
        self.stopping = False
        """Whether `stop` was called; reset at the start of a run."""
        self._last: Opened | None = None
        self._streams = 0
        self._at_pause: tuple[Callable[[], None], bool] | None = None
        """The function to call at the next pause, and whether nothing may be in flight then."""
        self._pause_after: tuple[int, Callable[[], None], bool] | None = None
        """The number of training instances until the next pause; otherwise likewise."""
        self.sending = 0
        """The number, in this run, of the stream whose instances are staged or posted now."""
        self.finished: list[StreamStats] = []
        self.on_end: Callable[[StreamStats], None] = lambda stats: None
        self.collect: Callable[[Report, Ints], None] | None = None
        """For a prediction graph: called with results, and the positions of their instances in the stream."""

    def begin(self, streams: Iterable[Stream], *, together: bool, barrier: bool) -> None:
        """Begin a run over streams: one after the other, or ``together``. ``barrier``: each waits for the one
        before."""
        if together and barrier:
            raise ValueError("streams that run together cannot wait for one another: give together or barrier")
        self._coming, self._together, self._barrier = iter(streams), together, barrier
        self._open, self._draining, self.finished = [], [], []
        self._told.clear()  # a number may occur again, after `Runtime.restore`
        self._streams = 0
        while self._open_next() and together:
            pass

    def share_out(self, copies: int, together: int) -> None:
        """Before anything is pumped: number instances so that ``together`` of them in a row go to the same one of
        ``copies`` copies, the one with the fewest in flight. Nothing changes if they are numbered so already, or if all
        the instances go to the copies of the whole model in turns."""
        if copies == 1 or self.numbers.is_like([copies], together):
            return
        if self.teams > 1 and not self.numbers.balances(copies):
            return
        state, self.numbers = self.numbers.state(), Numbers([copies], together)
        self.numbers.restore(state)

    def stop(self) -> None:
        """Stop pumping; instances in flight still complete. May be called from anywhere, also from a loader."""
        self.stopping = True

    def _stop_now(self) -> None:
        self.stopping, self._coming = False, iter(())
        for opened in self._open:
            opened.cut = opened.ahead is not None
            opened.ahead = None
        self._draining += self._open
        self._open = []
        self._close_drained()

    @property
    def busy(self) -> bool:
        """Whether any instance is in flight or waits to be pumped."""
        return bool(self._in_flight or self._open or self.holding)

    @property
    def in_flight(self) -> list[int]:
        return list(self._in_flight)

    @property
    def free(self) -> int:
        """Places left under ``max_active_keys``."""
        return self.max_active_keys - len(self._in_flight)

    def _open_next(self) -> bool:
        """Open the next stream that has an instance; peek one instance ahead."""
        for stream in iter(lambda: next(self._coming, None), None):
            opened = Opened.of(stream, self._streams, self._losses)
            self._streams += 1
            opened.peek(self._read)
            if opened.ahead is None:
                self._end(opened)
                continue
            self._open.append(opened)
            return True
        return False

    def pump(self) -> None:
        """[1] Fill every free place, as long as there is data."""
        self._fill()
        while self.pausing and self._open and not self._in_flight and not self.holding:
            self._fill()  # a pause that was asked for during a pause, or by a signal handler: nothing else would end it

    def _fill(self) -> None:
        if self.stopping:
            self._stop_now()
        self._call_if_drained()
        if self.stopping:  # by the function called
            self._stop_now()
        while self._open and len(self._in_flight) < self.max_active_keys and not self.holding and not self.pausing:
            opened = self._open[0]
            most = 1 if self._together and len(self._open) > 1 else self.free
            if opened.stream.train and self._pause_after is not None:
                most = min(most, self._pause_after[0])
            places, instances = opened.take(self._read, most)
            numbers = self.numbers.some(len(instances))
            positions = dict(zip(numbers, places, strict=True))
            if opened.ahead is None:
                self._open.pop(0)
                self._draining.append(opened)
            else:
                self._open.append(self._open.pop(0))
            if not self._open and not self._barrier:
                self._open_next()
            if opened.stream.train:
                self._count_down(len(instances))
            for part in self._apart(dict(zip(numbers, instances, strict=True))):
                self._send(opened, part, positions)
            if self.stopping:
                self._stop_now()

    def look(self, number: int, most: int) -> list[Instance]:
        """Returns instances of an open stream that are not pumped yet, ``most`` at most, without reading any."""
        return next((opened.coming(most) for opened in self._open if opened.number == number), [])

    @property
    def coming(self) -> set[int]:
        """The numbers of the open streams that have more instances."""
        return {opened.number for opened in self._open}

    @property
    def pausing(self) -> bool:
        """Whether nothing is pumped until the function of a pause has been called."""
        return self._at_pause is not None

    def pause(self, call: Callable[[], None], *, drain: bool = True) -> None:
        """Call a function once, at the next moment at which nothing is in flight; nothing is pumped until then. Without
        ``drain``: at the next moment at which it can be called. Never while replicas are synchronised."""
        self._at_pause = (call, drain)

    def pause_after(self, instances: int, call: Callable[[], None], *, drain: bool = True) -> None:
        """Pause when this number of further training instances was pumped, in this run or the next ones."""
        self._pause_after = (instances, call, drain)

    @property
    def until_pause(self) -> int | None:
        """The number of training instances until the next pause; None: none is due."""
        return None if self._pause_after is None else self._pause_after[0]

    def no_pause(self) -> None:
        """Cancel pauses that have not begun."""
        self._at_pause = self._pause_after = None

    def _count_down(self, pumped: int) -> None:
        if self._pause_after is not None:
            left, call, drain = self._pause_after
            self._pause_after = (left - pumped, call, drain) if left > pumped else None
            if left <= pumped:
                self.pause(call, drain=drain)

    def _call_if_drained(self) -> None:
        if self._at_pause is not None and not self.holding:
            call, drain = self._at_pause
            if not (drain and self._in_flight):
                self._at_pause = None
                call()

    def positions(self) -> dict[str, Position]:
        """Returns how far each open stream has come, by its name. Not while replicas are synchronised (`holding`)."""
        flying: dict[int, dict[int, Counter[str]]] = {}
        counted = self._told.counted(self._in_flight)
        for number, waiting in self._in_flight.items():
            at = flying.setdefault(waiting.stream.number, {})
            at[waiting.position(number)] = counted.get(number, Counter())
        now = self.clock()
        streams = sorted([*self._draining, *self._open], key=lambda opened: opened.number)
        return {opened.stream.name: opened.position(flying.get(opened.number, {}), now) for opened in streams}

    def _apart(self, batch: dict[int, Instance]) -> list[dict[int, Instance]]:
        if self.teams == 1 or len(batch) == 1:
            return [batch]
        teams = [number % self.teams for number in batch]
        if min(teams) == max(teams):
            return [batch]
        out: dict[int, dict[int, Instance]] = {}
        for team, (number, instance) in zip(teams, batch.items(), strict=True):
            out.setdefault(team, {})[number] = instance
        return list(out.values())

    def _send(self, opened: Opened, batch: dict[int, Instance], positions: Mapping[int, int]) -> None:
        train = opened.stream.train
        self._last, self.sending = opened, opened.number
        opened.begin(self.clock())
        if not train:
            opened.numbers += batch
        fields = self.fields
        for instance in batch.values():
            if not instance.fits(fields):
                self._complain(opened, next(number for number in batch if batch[number] is instance), instance)
        at = self.clock()  # before staging: workers may begin at once
        staged = self._stage(batch, opened.stream)
        # In a wave, a worker reports the results of an instance before it reports it as played.
        reported = bool(staged) and (train or self.collect is not None)
        due = {} if reported else {number: self._due(one, train) for number, one in batch.items()}
        if opened.told:
            self._count_before(opened, batch, positions, due)
        pumped = Pumped(opened, dict(batch), positions, due, staged)
        self._in_flight.update(dict.fromkeys(batch, pumped))
        if not staged:
            self._post_all(opened, batch)
        elif self._announce.wants(Pump):
            self._tell_pumped(opened, batch, (), at)

    def _count_before(
        self, opened: Opened, batch: Iterable[int], positions: Mapping[int, int], due: dict[int, int]
    ) -> None:
        """Where a stream continues: messages that were counted before are not counted again, nor waited for."""
        for number in batch:
            if counts := opened.told.pop(positions[number], None):
                self._told.count_before(number, counts)
                if not opened.stream.train and due.get(number):
                    due[number] -= min(due[number], sum(counts.values()))

    def replay(self) -> None:
        """Stage all instances in flight again, after workers were lost. What was counted of them stays counted."""
        self._told.again(self._in_flight)
        for waiting in dict.fromkeys(self._in_flight.values()):
            self._last, self.sending = waiting.stream, waiting.stream.number
            playing: dict[int, int] = {}
            for part in self._apart(dict(waiting.instances)):
                playing |= zip(part, self._stage(part, waiting.stream.stream), strict=True)
            waiting.play_again([playing[number] for number in waiting.instances])

    def _complain(self, opened: Opened, number: int, instance: Instance) -> None:
        for name, given in instance.feeds.items():
            if name not in self.inputs:
                raise DataError(
                    f"stream '{opened.stream.name}': instance {number} has messages for input '{name}', which the "
                    f"graph does not have; it has {', '.join(self.inputs)}"
                )
            if given.fields != self.fields[name]:
                raise DataError(
                    f"stream '{opened.stream.name}': instance {number} has messages for input '{name}' with state "
                    f"fields ({', '.join(given.fields)}); the graph declares ({', '.join(self.fields[name])})"
                )

    def _post_all(self, opened: Opened, batch: Mapping[int, Instance]) -> None:
        train = opened.stream.train
        structures = {n: i.structure for n, i in batch.items() if i.structure is not None}
        if structures:
            self._shelve(structures)
        sent: list[tuple[int, Messages]] = []
        for name, port in self.inputs.items():
            given = [(n, i.feeds[name]) for n, i in batch.items() if name in i.feeds and len(i.feeds[name])]
            try:
                sent += [(port, m) for m in merge_feeds([n for n, _ in given], [f for _, f in given], train)]
            except AmpnetError as error:
                first, last = given[0][0], given[-1][0]
                raise DataError(
                    f"stream '{opened.stream.name}', input '{name}', instances {first} to {last}: {error}"
                ) from error
        if train:
            self._check_finite(opened, sent)
        if self._announce.wants(Pump):
            self._tell_pumped(opened, batch, tuple((port, messages.states) for port, messages in sent), self.clock())
        for left, (port, messages) in enumerate(sent, start=1 - len(sent)):
            self._post(port, messages, left == 0)

    def _check_finite(self, opened: Opened, sent: Sequence[tuple[int, Messages]]) -> None:
        """Raise `DataError` for a training payload that is not finite. (Waves check it when they begin.)"""
        names = list(self.inputs)
        for port, messages in sent:
            payload = messages.payload
            if payload is None or payload.is_meta or not payload.is_floating_point() or payload.is_sparse:
                continue
            if math.isfinite(float(payload.sum())):
                continue
            rows = (~torch.isfinite(payload)).flatten(1).any(1) if payload.dim() > 1 else ~torch.isfinite(payload)
            bad = np.flatnonzero(rows.numpy(force=True))
            if len(bad) and not self.skips:
                owner = np.repeat(np.arange(len(messages)), messages.row_counts())[bad[:1]]
                raise DataError(
                    f"stream '{opened.stream.name}': input '{names[port]}' has a payload that is not finite at "
                    f"{messages.states.take(owner).describe()}: the update would make the weights NaN. Remedy: fix the "
                    f"data, or Loss(..., on_nan='skip')"
                )

    @property
    def _more(self) -> bool:
        """Whether data waits to be pumped."""
        return bool(self._open) and not self.pausing

    def _tell_pumped(self, opened: Opened, batch: Mapping[int, Instance], states: PortStates, at: float) -> None:
        stream, pumped = opened.stream, tuple(batch)
        self._announce(Pump(at, stream.name, stream.train, pumped, states, len(self._in_flight), self._more))

    def _due(self, instance: Instance, train: bool) -> int:
        """Returns the number of answers (training) or results (inference) that the instance waits for."""
        if train:
            return sum(len(f) for f in instance.feeds.values())
        if instance.results is not None:
            return instance.results
        labels = sum(len(f) for name, f in instance.feeds.items() if name in self.label_inputs)
        if not labels:
            raise DataError(
                "an inference instance has no label message, so its end is not known: pump a label for each "
                "prediction wanted (its payload may be None), or give Instance(results=...)"
            )
        return labels

    def returned(self, port: int, messages: Messages) -> None:
        """[2] Called with answers to pumped messages."""
        if self._announce.wants(Return):
            self._announce(Return(self.clock(), port, messages.states))
        self._settle(messages.states.column("instance"))

    def played(self, instances: Column) -> None:
        """Called when a worker has played its part of these instances."""
        numbers, over = instances.tolist(), list[int]()
        if len(set(numbers)) < len(numbers):
            raise played_too_often(max(numbers, key=numbers.count))
        for waiting, same in groupby(numbers, self._in_flight.get):
            some = list(same)
            if waiting is None:
                raise played_too_often(some[0])
            over += waiting.played(some)
        self._retire_all(over)

    def report(self, report: Report) -> None:
        """Called with the report of a loss. Its messages may be of two streams (no barrier). Those that were counted
        before, and are computed again, are left out."""
        numbers = report.states.column("instance").tolist()
        new = self._told.new(report.node, numbers)
        self._told.add(report.node, numbers, self._in_flight)
        if new is not None:
            if not new:
                return
            report, numbers = part_of(report, np.array(new)), [numbers[place] for place in new]
        if self.collect is not None:
            self._collect(self.collect, report)
            return
        by_stream: dict[int, tuple[Opened, list[int]]] = {}
        found: Counter[int] = Counter()
        for place, number in enumerate(numbers):
            waiting = self._in_flight.get(number)
            if waiting is None:  # in inference, it may have had all results already
                continue
            if not report.train:
                if found[number] == waiting.due.get(number, 0):
                    continue
                found[number] += 1
            by_stream.setdefault(id(waiting.stream), (waiting.stream, []))[1].append(place)
        for opened, places in by_stream.values():
            part = report if len(places) == len(numbers) else part_of(report, np.array(places))
            opened.tally.add(part)
            if opened.stream.keep_predictions:
                flying = self._in_flight
                opened.tally.keep(part, {n: flying[n].position(n) for n in numbers if n in flying})
            if not part.train:
                if len(part.skipped) and not opened.warned:
                    opened.warned = True
                    self._warn(opened, part)
                self._settle(part.states.column("instance"))

    def _collect(self, collect: Callable[[Report, Ints], None], report: Report) -> None:
        """Pass the rows of a Result to the collector."""
        numbers = report.states.column("instance")
        found, inverse = np.unique(numbers, return_inverse=True)
        flying = self._in_flight
        collect(report, np.array([flying[number].position(number) for number in found.tolist()])[inverse])
        if flying[first := int(found[0])].due.get(first):
            self._settle(numbers)

    @staticmethod
    def _warn(opened: Opened, report: Report) -> None:
        """Warn once per stream that a prediction is not finite; it is left out of the mean loss."""
        state = report.states.take(report.skipped[:1]).describe()
        warnings.warn(
            f"stream '{opened.stream.name}': the loss or prediction of '{report.node}' is not finite at {state}. Such "
            f"messages are counted in StreamStats.skipped and left out of the means. Usual causes: bad input, weights "
            f"that diverged in training",
            NotFiniteWarning,
            stacklevel=2,
        )

    def _settle(self, instances: Column) -> None:
        over: list[int] = []
        for number, count in Counter(instances.tolist()).items():
            waiting = self._in_flight.get(number)
            if waiting is None:
                raise PairingError(f"an answer came back for instance {number}, which is not in flight")
            if waiting.settle(number, count):
                over.append(number)
        self._retire_all(over)

    def _retire_all(self, over: Sequence[int]) -> None:
        """These instances are complete. They may be of several streams."""
        done: dict[Opened, list[int]] = {}
        for waiting, some in groupby(over, self._in_flight.pop):
            numbers, opened = list(some), waiting.stream
            opened.retired += len(numbers)
            opened.records += waiting.take(numbers)
            if opened.watch is not None:
                opened.watch.done_all(waiting.positions(numbers))
            done.setdefault(opened, []).extend(numbers)
        self.numbers.free(over)
        left = len(self._in_flight) + len(over)
        for opened, gone in done.items():
            train = opened.stream.train
            at = self.clock() if self._announce.wants(Retire) else 0.0
            self._retire(np.array(gone), train)
            left -= len(gone)  # of other streams, instances retire in the next event
            if self._announce.wants(Retire):
                self._announce(Retire(at, opened.stream.name, train, tuple(gone), left, self._more))
        if done:
            self._close_drained()
            if not self._open and not (self._barrier and self._in_flight):
                self._open_next()

    def _close_drained(self) -> None:
        while (opened := next((o for o in self._draining if o.retired == o.pumped), None)) is not None:
            self._draining.remove(opened)  # first: a callback of the end may stop the run, and re-enter this method
            self._end(opened)

    def _end(self, opened: Opened) -> None:
        """[3] End a stream without remaining instances."""
        if opened.stream.train and opened.pumped:
            self._flush()
        elif opened.numbers:
            self._forget(np.array(opened.numbers))
        if self.holding:
            self._held.append(opened)
        else:
            self._ended(opened)

    def release(self) -> None:
        """Resume pumping after replicas were synchronised, and end the streams that waited for it."""
        self.holding = False
        held, self._held = self._held, []
        for opened in held:
            self._ended(opened)

    def _ended(self, opened: Opened) -> None:
        stats = opened.stats(self.clock())
        if self._announce.wants(Epoch):
            self._announce(Epoch(self.clock(), stats.name, stats.train, stats.loss, stats.metrics))
        self.finished.append(stats)
        self.on_end(stats)

    def progress(self) -> Progress | None:
        """Returns the progress of the stream pumped last."""
        opened = self._last
        if opened is None:
            return None
        return Progress(
            opened.stream.name,
            opened.stream.train,
            opened.records,
            opened.seconds(self.clock()),
            opened.tally.loss,
            opened.tally.metrics,
            len(self._in_flight),
        )

    def abandon(self) -> None:
        """Drop everything in flight, after an error."""
        self.numbers.clear()
        self._in_flight.clear()
        self._told.clear()
        self._held, self.holding = [], False
        self._open, self._draining, self._coming = [], [], iter(())
        self.no_pause()
