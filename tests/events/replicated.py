"""Events of a made-up run of one node with replicas: instances go in by waves, and are answered by waves.

cell#1    > >  << << u    > >  << << u  |          > forward   << backward   u update, at every 2 instances
cell#2     > >  << << u    > >  << << u  |         |  synchronised, at every 2 waves and in the end
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ampnet.events.log import Backward, Begin, Epoch, Event, Forward, Pump, Rest, Retire, Return, Synced, Updated
from ampnet.state import States
from tests.events.worked import told


def group(node: str = "cell", count: int = 2, *, by_instance: bool = True, sync: str = "updates") -> dict[str, Any]:
    """A group as the settings of a run name it."""
    members = [f"{node}#{i + 1}" for i in range(count)]
    route = "instance" if by_instance else "state"
    return {"node": node, "members": members, "by_instance": by_instance, "route": route, "sync": sync, "every": 2,
            "optimizer": "average"}  # fmt: skip


class Script:
    """Writes a log that keeps its promises, event by event; the node counts messages or instances."""

    def __init__(self, count: int = 2, *, by_instance: bool = True, unit: str = "messages", sync: str = "updates"):
        self.events: list[Event] = []
        self.members = [f"cell#{i + 1}" for i in range(count)]
        self.by_instance, self.unit, self.sync, self.now = by_instance, unit, sync, 100.0
        self.versions: Counter[str] = Counter()
        self.since: Counter[str] = Counter()
        """Updates since the last synchronisation."""
        self.forwarded: dict[int, int] = {}
        self.rounds = 0

    def add(self, kind: type[Event], *values: Any) -> None:
        self.now += 1e-3
        self.events.append(kind(self.now, *values))  # type: ignore[call-arg]

    def begin(self, **settings: Any) -> None:
        about = group(count=len(self.members), by_instance=self.by_instance, sync=self.sync)
        self.add(Begin, {"runtime": "inline", "max_active_keys": 64, "replicas": [about], **settings})

    def where(self, instance: int) -> str:
        return self.members[instance % len(self.members)]

    def on(self, node: str) -> tuple[float, str, str]:
        return 0.5e-3, f"worker {self.members.index(node)}", node

    def changes(self, node: str) -> int:
        """How often the weights of a replica have changed: where all share them, by the updates of all."""
        return self.versions.total() if self.sync == "shared" else self.versions[node]

    def pump(self, *instances: int, train: bool = True) -> None:
        sent = States.of(instance=list(instances), t=0)
        self.add(Pump, "train" if train else "valid", train, instances, ((0, sent),), len(instances), False)

    def forward(self, instance: int, node: str | None = None, train: bool = True) -> None:
        node = node or self.where(instance)
        states = States.of(instance=instance, t=[0])
        self.forwarded[instance] = self.changes(node)
        self.add(Forward, *self.on(node), 0, train, states, ((0, states),), (), 4, self.versions[node])

    def backward(self, instance: int, node: str | None = None) -> None:
        node = node or self.where(instance)
        states, version = States.of(instance=instance, t=[0]), self.versions[node]
        lags = ((self.changes(node) - self.forwarded[instance], 1),)
        self.add(Backward, *self.on(node), 0, states, ((0, states),), 4, version, 1, lags)

    def update(self, node: str, count: int, reason: str = "full", frequency: int = 2) -> None:
        self.versions[node] += 1
        self.since[node] += 1
        self.add(Updated, *self.on(node), self.versions[node], count, reason, self.unit, frequency)

    def answer(self, instance: int) -> None:
        self.add(Return, 0, States.of(instance=[instance], t=0))

    def retire(self, *instances: int, left: int = 0, train: bool = True) -> None:
        self.add(Retire, "train" if train else "valid", train, instances, left, False)

    def synced(self, node: str, drift: float = 0.01, digest: int | None = None, number: int | None = None) -> None:
        moved = self.sync not in ("gradients", "shared")
        self.versions[node] += moved
        number = self.rounds if number is None else number
        digest = 1000 + number if digest is None else digest
        updates, self.since[node] = self.since[node], 0
        drift = drift if moved else 0.0
        self.add(Synced, *self.on(node), "cell", number, self.versions[node], moved, updates, drift, digest)

    def round(self, drift: float = 0.01) -> None:
        self.rounds += 1
        for i, node in enumerate(self.members):
            self.synced(node, drift * (1 + i))

    def wave(self, first: int, count: int = 4) -> None:
        """Instances together; every member gets ``count`` of them divided by the number of members."""
        numbers = range(first, first + count)
        got: Counter[str] = Counter()
        self.pump(*numbers)
        for i in numbers:
            self.forward(i)
        for i in numbers:
            self.backward(i)
            got[self.where(i)] += 1
            if self.unit == "messages" and got[self.where(i)] == 2:
                self.update(self.where(i), 2)
                got[self.where(i)] = 0
        for i in numbers:
            self.answer(i)
        if self.unit == "instances":
            for node in self.members:
                self.update(node, got[node] if self.by_instance else count)
        self.retire(*numbers)

    def end(self) -> list[Event]:
        self.add(Epoch, "train", True, 0.5, {"accuracy": 0.75})
        self.add(Rest, {})
        self.events = told(self.events)
        return self.events


def replicated(waves: int = 6, count: int = 2, **how: Any) -> list[Event]:
    """A good log: ``waves`` of two instances for each member; a synchronisation after every second, and at the end."""
    script = Script(count, **how)
    script.begin()
    for wave in range(waves):
        script.wave(2 * count * wave, 2 * count)
        if wave % 2:
            script.round(0.01 / (1 + wave))
    script.round(0.001)
    return script.end()
