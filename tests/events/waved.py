"""Logs of made-up runs by waves, several of them in flight, their operations interleaved.

    words   embed   cell 0   cell 1   cell 2   mix   cell (port 1)   readout   loss       forward, and backward again
    no parameter depends on it: no backward; ``rare`` is there in every third wave only

Every node updates itself after its last collect of a wave, if its counter is full. `script` gives a good log; `random`
plays the waves in flight in pieces of random length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, Literal

from ampnet.events import Violation, check
from ampnet.events.log import (
    BACKWARD,
    COLLECT,
    FORWARD,
    Begin,
    Epoch,
    Event,
    Operation,
    Played,
    Pump,
    Rest,
    Retire,
    Synced,
    Updated,
    Wave,
    Worked,
)
from tests.events.replicated import group

Unit = Literal["messages", "instances"]
WITH_PARAMETERS = ("embed", "rare", "cell", "readout")


class WaveScript:
    """Writes a log that keeps its promises. With ``copies``, the whole model is there that many times."""

    def __init__(self, unit: Unit = "messages", frequency: int = 24, copies: int = 1, **settings: Any):
        self.events: list[Event] = []
        self.unit, self.frequency, self.copies, self.now = unit, frequency, copies, 100.0
        self.settings = {"runtime": "inline" if copies == 1 else "processes", "max_active_keys": 64, **settings}
        self.sync = "updates"
        self.versions: Counter[str] = Counter()
        self.gradients: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.flying: set[int] = set()
        self.numbers: Counter[str] = Counter()
        self.waves: dict[tuple[str, int], _Script] = {}
        self.lags: dict[str, Counter[int]] = {}
        self.updates: Counter[str] = Counter()

    def add(self, kind: type[Event], *values: Any, seconds: float = 0.0) -> None:
        self.events.append(kind(self.now, *values))
        self.now = round(self.now + 1e-4 + seconds, 7)

    def begin(self) -> None:
        replicas = {}
        if self.copies > 1:
            groups = [group(node, self.copies, sync=self.sync) for node in WITH_PARAMETERS]
            replicas = {"replicas": groups}
        self.add(Begin, {**self.settings, **replicas})

    def pump(self, *instances: int, train: bool = True) -> None:
        self.flying.update(instances)
        self.add(Pump, "train" if train else "valid", train, instances, (), len(self.flying), True)

    def wave(self, *instances: int, train: bool = True, worker: int = 0, rare: bool = False) -> tuple[str, int]:
        """A wave begins. Returns its key."""
        name = f"worker{worker}"
        self.numbers[name] += 1
        key = name, self.numbers[name]
        copy = "" if self.copies == 1 else f"#{worker + 1}"
        self.waves[key] = _Script(self, key, instances, train, copy, rare)
        operations = sum(op.direction == FORWARD for op in self.waves[key].steps)
        self.add(Wave, 1e-4, name, key[1], train, instances, operations, seconds=1e-4)
        return key

    def play(self, key: tuple[str, int], steps: int = 1000) -> bool:
        """Play the next operations of a wave; returns whether it is over."""
        return self.waves[key].play(steps)

    def update(self, node: str, worker: str, reason: str = "full") -> None:
        count = self.gradients[node] if self.unit == "messages" else max(1, self.counted[node])
        self.versions[node] += 1
        self.updates[node] += 1
        self.gradients[node] = self.counted[node] = 0
        about = (self.versions[node], count, reason, self.unit, self.frequency)
        self.add(Updated, 5e-5, worker, node, *about, seconds=5e-5)

    def look(self, node: str, worker: str) -> None:
        """A node looks at its counter."""
        came = self.gradients[node] if self.unit == "messages" else self.counted[node]
        if self.gradients[node] and came >= self.frequency:
            self.update(node, worker)

    def retire(self, *instances: int, train: bool = True) -> None:
        self.flying.difference_update(instances)
        self.add(Retire, "train" if train else "valid", train, instances, len(self.flying), True)

    def round(self, number: int) -> None:
        """All replicas are made equal."""
        for node in WITH_PARAMETERS:
            for copy in range(1, self.copies + 1):
                name = f"{node}#{copy}"
                self.versions[name] += 1
                self.add(
                    Synced, 1e-5, f"worker{copy - 1}", name, node, number, self.versions[name], True, 1, 0.1, number
                )

    def end(self) -> list[Event]:
        for node, gradients in list(self.gradients.items()):
            if gradients:
                self.update(node, f"worker{int(node.partition('#')[2] or 1) - 1}", "flush")
        for node, lags in self.lags.items():
            worker = f"worker{int(node.partition('#')[2] or 1) - 1}"
            self.add(Worked, worker, node, lags.total(), tuple(sorted(lags.items())), self.updates[node])
        self.add(Epoch, "train", True, 0.5, {"accuracy": 0.75})
        self.add(Rest, {})
        return self.events


class _Script:
    """A wave on its way."""

    def __init__(
        self, run: WaveScript, key: tuple[str, int], instances: Sequence[int], train: bool, copy: str, rare: bool
    ):
        self.run, self.key, self.instances, self.train = run, key, tuple(instances), train
        self.next, self.seen = 0, dict[tuple[str, int, int], int]()
        n = len(instances)
        order = [("words", 0, 0), ("embed", 0, 0), *([("rare", 0, 0)] if rare else [])]
        order += [("cell", 0, 0), ("cell", 0, 1), ("cell", 0, 2), ("mix", 0, 0), ("cell", 1, 0)]
        order += [("readout", 0, 0), ("loss", 0, 0)]
        self.steps: list[Operation] = []
        sites: Counter[tuple[str, int]] = Counter()
        for node, port, number in order:
            has = node in WITH_PARAMETERS
            name = node + copy if has else node
            sites[name, port] += 1
            wanted = train and node != "words"
            # Later rounds have fewer rows: some instances are shorter.
            rows = 3 * n - number
            version = 0 if has else None
            self.steps.append(Operation(name, port, number, FORWARD, 0.0, 0.0, rows, rows, version, 0, wanted))
        left = Counter(sites)
        for op in reversed(self.steps[1:]) if train else ():
            back = op._replace(direction=BACKWARD, wanted=False)
            self.steps.append(back)
            left[op.node, op.port] -= 1
            if op.version is not None and not left[op.node, op.port]:
                messages = sum(o.messages for o in self.steps if o[:2] == op[:2] and o.direction == FORWARD)
                self.steps.append(back._replace(round=0, direction=COLLECT, messages=messages, rows=messages))
        self.ports = {op.node: {o.port for o in self.steps if o.node == op.node} for op in self.steps}
        self.collected: Counter[str] = Counter()

    def play(self, steps: int) -> bool:
        run, played = self.run, list[Operation]()
        worker, number = self.key

        def put() -> None:
            if played:
                run.events.append(Played.of(worker, number, self.train, played))
                played.clear()

        for op in self.steps[self.next : self.next + steps]:
            self.next += 1
            name = (op.node, op.port, op.round)
            lag = 0
            if op.version is not None:
                now = run.versions[op.node]
                if op.direction == FORWARD:
                    self.seen[name] = now
                elif op.direction == BACKWARD:
                    lag = now - self.seen.pop(name)
                    run.lags.setdefault(op.node, Counter())[lag] += op.messages
                op = op._replace(version=now, lag=lag)
            played.append(op._replace(start=run.now, seconds=5e-5))
            run.now = round(run.now + 6e-5, 7)
            if op.direction == COLLECT:
                run.gradients[op.node] += op.messages
                self.collected[op.node] += 1
                if self.collected[op.node] == len(self.ports[op.node]):
                    run.counted[op.node] += len(self.instances)
                    put()
                    run.look(op.node, worker)
        put()
        if self.next < len(self.steps):
            return False
        if self.train:
            copy = worker.removeprefix("worker")
            for node in [node for node, came in run.gradients.items() if came and not self.collected[node]]:
                if run.copies == 1 or node.endswith(f"#{int(copy) + 1}"):
                    run.counted[node] += len(self.instances)
                    if run.unit == "instances":
                        run.look(node, worker)
        run.retire(*self.instances, train=self.train)
        return True


@cache
def interleaved(unit: Unit = "messages", seed: int = 0, waves: int = 12, copies: int = 1) -> tuple[Event, ...]:
    """A good log: up to three waves in flight on each worker, played in pieces of random length."""
    random = Random(seed)
    run = WaveScript(unit, 24 if unit == "messages" else 6, copies)
    run.begin()
    live: list[tuple[str, int]] = []
    begun = 0
    while begun < waves or live:
        if begun < waves and ((len(live) < 3 * copies and random.random() < 0.5) or not live):
            worker = begun % copies
            first = 100 * begun
            numbers = [first - first % copies + worker + copies * i for i in range(random.randint(1, 4))]
            train = random.random() < 0.8
            run.pump(*numbers, train=train)
            live.append(run.wave(*numbers, train=train, worker=worker, rare=begun % 3 == 0))
            begun += 1
        else:
            key = random.choice(live)
            if run.play(key, random.randint(1, 12)):
                live.remove(key)
    return tuple(run.end())


def sequential(unit: Unit = "messages", waves: int = 4, frequency: int = 24, **how: Any) -> list[Event]:
    """A good log: one wave of three instances after the other."""
    run = WaveScript(unit, frequency, **how)
    run.begin()
    for i in range(waves):
        numbers = range(3 * i, 3 * i + 3)
        run.pump(*numbers)
        run.play(run.wave(*numbers, rare=i % 3 == 0))
    return run.end()


Change = Callable[[list[Operation]], list[Operation]]


def find(
    events: Sequence[Event], node: str, direction: int, *, skip: int = 3, **values: Any
) -> tuple[int, int, Operation]:
    """(position of the event, position in it, operation) of such an operation, ``skip`` before it."""
    for i, event in enumerate(events):
        if isinstance(event, Played):
            for j, op in enumerate(event.operations()):
                if (op.node, op.direction) == (node, direction) and all(getattr(op, k) == v for k, v in values.items()):
                    if not skip:
                        return i, j, op
                    skip -= 1
    raise LookupError(f"no operation of {node}")


def edited(events: Sequence[Event], position: int, change: Change) -> list[Event]:
    """The log with other operations in one event; without it, if none is left."""
    out = list(events)
    event = out[position]
    assert isinstance(event, Played)
    operations = change(list(event.operations()))
    if operations:
        out[position] = replace(Played.of(event.worker, event.wave, event.train, operations), time=event.time)
    else:
        del out[position]
    return out


def without_operation(events: Sequence[Event], node: str, direction: int, **values: Any) -> list[Event]:
    i, j, _ = find(events, node, direction, **values)
    return edited(events, i, lambda ops: ops[:j] + ops[j + 1 :])


def changed_operation(
    events: Sequence[Event], node: str, direction: int, to: dict[str, Any], **values: Any
) -> list[Event]:
    i, j, op = find(events, node, direction, **values)
    return edited(events, i, lambda ops: [*ops[:j], op._replace(**to), *ops[j + 1 :]])


def twice(events: Sequence[Event], node: str, direction: int, **values: Any) -> list[Event]:
    i, j, op = find(events, node, direction, **values)
    return edited(events, i, lambda ops: [*ops[: j + 1], op, *ops[j + 1 :]])


def first_of(violations: Sequence[Violation], promise: str) -> str:
    """The sentence of the first violation of a promise."""
    found = [v.sentence for v in violations if v.promise == promise]
    assert found, violations
    return found[0]


def only(events: Sequence[Event], promise: str, *words: str) -> None:
    """Only this promise is broken, and its first sentence has these words."""
    found = check(events)
    assert {v.promise for v in found} == {promise}, found
    for word in words:
        assert word in found[0].sentence, found[0].sentence
