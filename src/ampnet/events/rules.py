"""Rules over the event log about messages and instances: pairing (P1), leaks (P5), throttle (P6) and inference (P10).

A rule gets every event of a log, in order, and reports each violation of its promise once. It stores only the messages
in flight, so its memory does not grow with the log. See `ampnet.events.check` for the promises and the order of events.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ampnet.events.log import (
    FORWARD,
    Backward,
    Begin,
    Event,
    Forward,
    Played,
    Pump,
    Rest,
    Restart,
    Retire,
    Return,
    Synced,
    Updated,
    Wave,
)
from ampnet.events.staleness import Row, rows_of
from ampnet.events.waves import Key, key_of, words_of_wave
from ampnet.state import States

INPUT = "the controller, input"


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept."""

    promise: str
    """Its number: "P1", "P5", ..."""
    sentence: str
    """What was seen, with node and state, and what should have been."""
    position: int
    """Number of the event, from 0, at which it showed."""


class Rule:
    """Base class of the rules: subclasses check events in `__call__`, and the final state in `close`."""

    def __init__(self, found: list[Violation], complete: bool = True) -> None:
        """Violations are appended to ``found``. Without ``complete``, runs may be incomplete."""
        self.found, self.complete, self.position = found, complete, -1

    def __call__(self, event: Event) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Called at the end of the log."""

    def report(self, promise: str, sentence: str, position: int | None = None) -> None:
        """Report a violation at this event, or at an earlier one that could not be judged then."""
        self.found.append(Violation(promise, sentence, self.position if position is None else position))


class Settled(Rule):
    """Base class of rules about messages that must be answered before a run is at rest."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Rest):
            self._settle()
        elif isinstance(event, Begin):
            self.close()
        elif isinstance(event, Restart):
            self._clear()
        else:
            self._look(event)

    def _look(self, event: Event) -> None:
        raise NotImplementedError

    def _settle(self) -> None:
        """At the end of a run: report open items, and clear them."""
        raise NotImplementedError

    def _clear(self) -> None:
        """Drop all open items."""
        raise NotImplementedError

    def close(self) -> None:
        if self.complete:
            self._settle()
        else:
            self._clear()


class Pairing(Settled):
    """P1: a training message sent out of a port comes back to it once, and not before it was sent.

    Ports are those of nodes, and the controller's inputs. An instance in a wave is answered by the wave as a whole
    (`ampnet.events.wave_rules`): nothing comes back to the controller's inputs for it.
    """

    def __init__(self, found: list[Violation], complete: bool = True) -> None:
        super().__init__(found, complete)
        self._out: defaultdict[tuple[str, tuple[str, ...]], Counter[Row]] = defaultdict(Counter)
        self._early: defaultdict[tuple[str, tuple[str, ...]], Counter[Row]] = defaultdict(Counter)

    def _look(self, event: Event) -> None:
        match event:
            case Forward(train=True):
                for port, states in event.sent:
                    self._send(_port(event.node, port), states)
            case Backward():
                self._receive(_port(event.node, event.port), event.received)
            case Pump(train=True):
                for port, states in event.sent:
                    self._send(_input(port), states)
            case Return():
                self._receive(_input(event.port), event.states)
            case Wave(train=True):
                self._travel(set(event.instances))
            case _:
                pass

    def _send(self, where: str, states: States) -> None:
        fields, rows = rows_of(states)
        early = self._early.get((where, fields))
        if early:  # reported already when the answer came
            rows = [row for row in rows if not _take(early, row)]
        self._out[where, fields].update(rows)

    def _receive(self, where: str, states: States) -> None:
        fields, rows = rows_of(states)
        out = self._out[where, fields]
        foreign = [row for row in rows if not _take(out, row)]
        if foreign:
            self._early[where, fields].update(foreign)
            self.report(
                "P1",
                f"{where} got a backward for {words_of(fields, foreign)}, which was not out: it had not been sent yet, "
                f"or had been answered already",
            )

    def _travel(self, instances: set[int]) -> None:
        for (where, fields), out in self._out.items():
            if where.startswith(INPUT):
                place = fields.index("instance")
                for row in [row for row in out if row[place] in instances]:
                    del out[row]

    def _settle(self) -> None:
        for (where, fields), out in self._out.items():
            if out:
                self.report(
                    "P1", f"{where} sent {words_of(fields, list(out.elements()))} and never got a backward for it"
                )
        self._clear()

    def _clear(self) -> None:
        self._out.clear()
        self._early.clear()


class Flight(Rule):
    """P5 and P6: the instances in flight, their maximal number, and whether all of them retire.

    The instances of a wave are in flight when it begins. That the pump is never idle is checked for message passing
    only: a wave waits until it is full.
    """

    def __init__(self, found: list[Violation], complete: bool = True) -> None:
        super().__init__(found, complete)
        self._running = self._in_turns = self._more = False
        self._most: int | None = None
        self._flying: set[int] = set()
        self._claims: list[tuple[int, int, int]] = []
        """(position, claimed, counted) instances in flight after a retirement."""
        self._idle: Violation | None = None

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Retire | Updated | Synced):
            self._check_claims()
        match event:
            case Begin():
                self.close()
                self._running, self._more = True, False
                self._most = event.settings.get("max_active_keys")
                # Elsewhere workers continue while the controller pumps: no order between the two is guaranteed.
                self._in_turns = event.settings.get("runtime") == "inline"
            case Pump():
                self._pump(event)
            case Retire():
                self._retire(event)
            case Forward() | Backward():
                self._work(event)
            case Wave():
                gone = sorted(set(event.instances) - self._flying)
                if gone:
                    self.report("P5", f"{words_of_wave(key_of(event))} holds {_instances(gone)}, not in flight")
            case Return():
                gone = sorted(set(event.states.column("instance").tolist()) - self._flying)
                if gone:
                    self.report("P5", f"an answer came back for {_instances(gone)} after retirement, or never pumped")
            case Rest():
                for what, count in event.held.items():
                    self.report("P5", f"at rest, '{what}' still holds {count}")
                self._land()
            case _:
                pass

    def _pump(self, event: Pump) -> None:
        self._confirm(True)
        twice = self._flying.intersection(event.instances)
        if twice:
            self.report("P5", f"{_instances(twice)} of stream '{event.stream}' pumped while in flight already")
        self._flying.update(event.instances)
        flying, self._more = len(self._flying), event.more
        if self._most is not None and flying > self._most:
            self.report("P6", f"{flying} instances are in flight, max_active_keys is {self._most}")
        if event.in_flight != flying:
            self.report("P6", f"the controller counts {event.in_flight} instances in flight, the log has {flying}")

    def _retire(self, event: Retire) -> None:
        self._confirm(event.more)
        unknown = set(event.instances) - self._flying
        if unknown:
            self.report("P5", f"{_instances(unknown)} of stream '{event.stream}' retired without being in flight")
        self._flying.difference_update(event.instances)
        self._claims.append((self.position, event.in_flight, len(self._flying)))
        self._more = event.more

    def _check_claims(self) -> None:
        """Check the counts of simultaneous retirements: in flight after all of them, or after each."""
        for position, claimed, counted in self._claims:
            if claimed not in (counted, len(self._flying)):
                self.report(
                    "P6", f"the controller counts {claimed} instances in flight, the log has {counted}", position
                )
        self._claims.clear()

    def _work(self, event: Forward | Backward) -> None:
        free = self._more and self._most is not None and len(self._flying) < self._most
        if free and self._in_turns and self._idle is None:
            self._idle = Violation(
                "P6",
                f"node '{event.node}' worked on {event.received.describe()} while data waited to be pumped and "
                f"{len(self._flying)} of {self._most} places were taken",
                self.position,
            )

    def _confirm(self, waited: bool) -> None:
        """Confirm or drop suspected idling: waiting data must be pumped later, unless the run was stopped."""
        if self._idle is not None and waited:
            self.found.append(self._idle)
        self._idle = None

    def _land(self) -> None:
        if self._flying:
            self.report("P5", f"the run is over and {_instances(self._flying)} never retired")
        self._flying.clear()
        self._running, self._idle = False, None

    def close(self) -> None:
        self._check_claims()
        if self.complete and self._running:
            self.report("P5", f"a run never came to rest, with {len(self._flying)} instance(s) in flight")
        self._flying.clear()
        self._running, self._idle = False, None


class Inference(Rule):
    """P10: inference instances are never answered and never trained on.

    A wave for inference is played forward only, and no wave in training holds an instance pumped for inference.
    """

    def __init__(self, found: list[Violation]) -> None:
        super().__init__(found)
        self._instances: set[int] = set()
        self._trains: dict[Key, bool] = {}
        """Whether each wave trains."""

    def __call__(self, event: Event) -> None:
        self.without(event)

    def without(self, event: Event) -> Event | None:
        """Returns the event without the part that broke this promise, for the other rules; None if nothing is left."""
        match event:
            case Begin():
                self._instances.clear()
                self._trains.clear()
            case Restart():
                self._trains.clear()
            case Wave():
                self._trains[key_of(event)] = event.train
                foreign_numbers = self._instances.intersection(event.instances) if event.train else None
                if foreign_numbers:
                    self.report(
                        "P10", f"{words_of_wave(key_of(event))} trains on inference: {_instances(foreign_numbers)}"
                    )
            case Played():
                return self._without_answers(event)
            case Pump(train=False):
                self._instances.update(event.instances)
            case Forward(train=False):
                for port, states in event.answered:
                    if len(states):
                        self.report(
                            "P10", f"node '{event.node}' answered inference at port {port}: {states.describe()}"
                        )
            case Forward():
                foreign, _ = self._part(event.received)
                if foreign is not None:
                    self.report("P10", f"node '{event.node}' trained on inference: {foreign.describe()}")
            case Backward():
                foreign, rest = self._part(event.received)
                if foreign is not None:
                    self.report("P10", f"node '{event.node}' got a backward for inference: {foreign.describe()}")
                    return (
                        replace(event, received=rest, gradients=min(event.gradients, len(rest))) if len(rest) else None
                    )
            case Return():
                foreign, rest = self._part(event.states)
                if foreign is not None:
                    self.report("P10", f"the controller got an answer for inference: {foreign.describe()}")
                    return replace(event, states=rest) if len(rest) else None
            case _:
                pass
        return event

    def _without_answers(self, event: Played) -> Played | None:
        """Returns the operations of a wave; for inference, only the forwards."""
        key = key_of(event)
        train = self._trains.get(key, event.train)
        if train != event.train:
            begun, played = ("training", "inference") if train else ("inference", "training")
            self.report("P10", f"{words_of_wave(key)} began for {begun} and is played for {played}")
            event = replace(event, train=train)
        if train or (not any(event.directions) and not any(event.wanted)):
            return event
        kept = []
        for op in event.operations():
            if op.direction == FORWARD and not op.wanted:
                kept.append(op)
            else:
                what = ("wants a backward", "got a backward", "was collected")[op.direction]
                self.report("P10", f"node '{op.node}' {what} in {words_of_wave(key)}, which is inference")
                if op.direction == FORWARD:
                    kept.append(op._replace(wanted=False))
        return Played.of(event.worker, event.wave, False, kept) if kept else None

    def _part(self, states: States) -> tuple[States | None, States]:
        """Returns the states of inference instances, or None, and the others."""
        column = states.column("instance").tolist() if self._instances else []
        if self._instances.isdisjoint(column):
            return None, states
        mine = np.array([n in self._instances for n in column])
        return states.take(np.flatnonzero(mine)), states.take(np.flatnonzero(~mine))


def _take(counts: Counter[Row], row: Row) -> bool:
    """Decrement a count; returns False if it is zero."""
    n = counts.pop(row, 0)
    if n > 1:
        counts[row] = n - 1
    return n > 0


def _port(node: str, port: int) -> str:
    return f"node '{node}', port {port},"


def _input(port: int) -> str:
    return f"{INPUT} {port},"


def words_of(fields: tuple[str, ...], rows: list[Row]) -> str:
    """Returns these states as text."""
    return States(fields, list(zip(*rows, strict=True))).describe()


def _instances(numbers: Iterable[int]) -> str:
    some = sorted(numbers)
    shown = ", ".join(map(str, some[:5])) + (f", ... {len(some)} in all" if len(some) > 5 else "")
    return f"instance{'s' if len(some) > 1 else ''} {shown}"
