"""The rule over the event log about operations of waves (P1): every forward that wants a backward gets it, once.

    cell, port 0   forward 0   forward 1   forward 2   backward 2   backward 1   backward 0   collect
                   wanted      wanted      wanted      the rows of its forward, after it      once, after the last

An operation is known by (wave, node, port, round). The rules, for a wave in training:

    forward     once; ``wanted`` says whether a backward follows
    backward    answers one forward that was wanted, after it, with as many rows
    collect     once for a port of a node with parameters that had a backward, after the last of them; it holds no more
                messages than they brought (fewer, where losses were skipped)
    a port whose forwards were not wanted has neither backward nor collect

A `Played` follows its `Wave`. A wave is dropped when its instances have retired and none of its operations is open; at
rest nothing may be open. Inference has forwards only, which `ampnet.events.rules.Inference` checks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ampnet.events.log import BACKWARD, FORWARD, Event, Operation, Played, Retire, Wave
from ampnet.events.rules import Settled, Violation
from ampnet.events.waves import Key, WavesUnderWay, key_of, words_of_wave

Site = tuple[str, int]
"""(node, port)."""


@dataclass(slots=True)
class _Passage:
    """The operations played of a wave."""

    forwards: dict[tuple[str, int, int], bool] = field(default_factory=dict)
    """(node, port, round) -> whether a backward is wanted."""
    open: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Forwards not answered yet, with their rows."""
    waiting: Counter[Site] = field(default_factory=Counter)
    """The number of them at each site."""
    brought: Counter[Site] = field(default_factory=Counter)
    """Messages of the backwards at each site of a node with parameters that is not collected yet."""
    due: set[Site] = field(default_factory=set)
    """Sites of nodes with parameters that had a backward and are not collected yet."""
    collected: set[Site] = field(default_factory=set)

    @property
    def over(self) -> bool:
        return not self.open and not self.due


class WavePairing(Settled):
    """P1 in waves; and (P5) that waves begin before they are played, and an instance is in one at a time."""

    def __init__(self, found: list[Violation], complete: bool = True) -> None:
        super().__init__(found, complete)
        self._waves = WavesUnderWay()
        self._passages: dict[Key, _Passage] = {}
        self._last: dict[str, int] = {}
        """The highest number of a wave on each worker."""

    def _look(self, event: Event) -> None:
        match event:
            case Wave():
                self._begin(event)
            case Played():
                self._played(event)
            case Retire():
                for wave in self._waves.retire(event.instances):
                    self._forget(key_of(wave))
            case _:
                pass

    def _begin(self, event: Wave) -> None:
        key = key_of(event)
        last = self._last.get(event.worker)
        if last is not None and event.wave <= last:
            self.report("P5", f"{words_of_wave(key)} begins after wave {last}; the numbers of waves rise")
            if key in self._passages:
                return
        for number in event.instances:
            others = [other for other in self._waves.of(number) if other[0] == event.worker]
            if others:
                self.report(
                    "P5", f"{words_of_wave(key)} holds instance {number}, which is in {words_of_wave(others[0])}"
                )
                break
        self._last[event.worker] = max(event.wave, self._last.get(event.worker, 0))
        self._waves.begin(event)
        self._passages[key] = _Passage()

    def _played(self, event: Played) -> None:
        key = key_of(event)
        if event.wave > self._last.get(event.worker, 0):
            self.report("P5", f"{words_of_wave(key)} is played and has not begun")
            self._last[event.worker] = event.wave
        passage = self._passages.setdefault(key, _Passage())
        for operation in event.operations():
            if operation.direction == FORWARD:
                self._forward(key, passage, operation)
            elif operation.direction == BACKWARD:
                self._backward(key, passage, operation)
            else:
                self._collect(key, passage, operation)
        if key not in self._waves.waves:
            self._forget(key)

    def _forward(self, key: Key, passage: _Passage, op: Operation) -> None:
        name, site = (op.node, op.port, op.round), (op.node, op.port)
        if name in passage.forwards:
            self._wrong(key, op, "is played forward twice")
            return
        if op.wanted and site in passage.collected:
            self._wrong(key, op, "is played forward after the port was collected")
        passage.forwards[name] = op.wanted
        if op.wanted:
            passage.open[name] = op.rows
            passage.waiting[site] += 1

    def _backward(self, key: Key, passage: _Passage, op: Operation) -> None:
        name, site = (op.node, op.port, op.round), (op.node, op.port)
        rows = passage.open.pop(name, None)
        if rows is None:
            wanted = passage.forwards.get(name)
            why = {None: "was not played forward", False: "wants none", True: "had it already"}[wanted]
            self._wrong(key, op, f"gets a backward and {why}")
            return
        if rows != op.rows:
            self._wrong(key, op, f"gets a backward of {op.rows} rows; its forward had {rows}")
        passage.waiting[site] -= 1
        if op.version is not None:
            passage.due.add(site)
            passage.brought[site] += op.messages

    def _collect(self, key: Key, passage: _Passage, op: Operation) -> None:
        site = (op.node, op.port)
        if site in passage.collected:
            self._wrong(key, op, "is collected twice")
        elif site not in passage.due:
            had = any((node, port) == site for node, port, _ in passage.forwards)
            self._wrong(key, op, "is collected without a backward" + ("" if had else " or a forward"))
        elif passage.waiting[site]:
            rounds = sorted(number for node, port, number in passage.open if (node, port) == site)
            self._wrong(key, op, f"is collected before its last backward: round {rounds[0]} is not answered")
        elif op.messages > passage.brought[site]:
            self._wrong(
                key, op, f"is collected with {op.messages} messages; its backwards brought {passage.brought[site]}"
            )
        passage.collected.add(site)
        passage.due.discard(site)

    def _wrong(self, key: Key, op: Operation, sentence: str) -> None:
        place = f"node '{op.node}', port {op.port}" + ("" if op.direction > BACKWARD else f", round {op.round}")
        self.report("P1", f"{place}, {sentence} in {words_of_wave(key)}")

    def _forget(self, key: Key) -> None:
        """Drop a wave whose instances have retired, unless operations are open: those are reported at the end."""
        passage = self._passages.get(key)
        if passage is not None and passage.over:
            del self._passages[key]

    def _settle(self) -> None:
        for key, passage in self._passages.items():
            for node, port, number in sorted(passage.open)[:1]:
                others = f", and {len(passage.open) - 1} more," if len(passage.open) > 1 else ","
                place = f"node '{node}', port {port}, round {number}{others}"
                self.report("P1", f"{place} in {words_of_wave(key)} never got a backward")
            left = sorted(site for site in passage.due if not passage.waiting[site])
            for node, port in left[:1]:
                others = f", and {len(left) - 1} more," if len(left) > 1 else ","
                self.report("P1", f"node '{node}', port {port}{others} was never collected in {words_of_wave(key)}")
        self._clear()

    def _clear(self) -> None:
        self._passages.clear()
        self._waves.clear()
        self._last.clear()
