"""The result of a profile: statistics of nodes and of processes, all frozen.

Of nodes, calls and their times are those of the timed stretches, operators and copies those of the watched ones;
`ampnet.profile.kernels` puts them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

from ampnet.profile.kernels import Watching, kernels_of
from ampnet.profile.meter import (
    BACKWARD,
    CHECK,
    CONTROLLER,
    FORWARD,
    LAYOUT,
    LOOP,
    PAYLOADS,
    QUEUE,
    REHEARSE,
    TRANSPORT,
    UPDATE,
    WAITING,
    Cell,
    Costs,
    Key,
)

SEVERAL = "(several)"
"""Stands for a node where several of them take one step."""


@dataclass(frozen=True, slots=True)
class Record:
    """The measurements of a meter in one process, in one interval."""

    process: str
    """The worker's name, "inline", or "controller"."""
    seconds: float
    """How long it measured."""
    cells: Mapping[Key, Cell]
    """The time by cell."""

    def plus(self, other: Record) -> Record:
        """Returns the sum of two intervals."""
        cells: dict[Key, Cell] = {}
        for given in (self.cells, other.cells):
            for key, cell in given.items():
                cells.setdefault(key, Cell()).add(cell)
        return Record(self.process, self.seconds + other.seconds, cells)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of the run."""

    name: str
    """"bare": nothing is measured but this. "timed": with clocks. "watched": with clocks, and operators watched."""
    seconds: float
    """From the first pump to the last retirement."""
    instances: int
    """Instances trained on."""
    records: int
    """Examples in them."""
    invocations: int
    """Batches handled by nodes, by the workers' own count."""
    messages: int
    """Messages in them, likewise."""

    @property
    def rate(self) -> float:
        """Instances a second."""
        return self.instances / self.seconds

    def plus(self, other: Stretch) -> Stretch:
        """Two of one kind, as one."""
        mine, theirs = astuple(self)[1:], astuple(other)[1:]
        return Stretch(self.name, *(a + b for a, b in zip(mine, theirs, strict=True)))


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """A torch operator at one node, in the watched stretch."""

    calls: int
    """The number of calls."""
    seconds: float
    """Time in it."""
    copied: int
    """Bytes written, where it is one that copies."""


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """A node in one direction (or its updates), in one process. Of the timed stretch, where not said otherwise."""

    process: str
    """Its process."""
    node: str
    """Its name; `SEVERAL` for updates that several nodes make in one step."""
    kind: str
    """The kind of node: "Linear"."""
    direction: str
    """"forward", "backward" or "update"."""
    calls: int
    """Batches handled, operations of waves, or updates made."""
    messages: int
    """Messages in them; of updates, gradients in the node's own unit. Waves know it of nodes with parameters, and of
    losses."""
    rows: int
    """Payload rows in them, of waves those that were made; of updates none."""
    seconds: float
    """Time in the node, without that of the clocks."""
    kernels: float
    """Part of it inside of torch operators; 0 where the watched stretch had no call."""
    waited: float
    """Seconds that messages waited in the node's queues, added up over messages. Messages passed on at once did not
    wait."""
    merging: float
    """Seconds in which the worker took batches from these queues and merged them. Not in ``seconds``."""
    copied: float
    """Bytes written by torch operators that copy (cat, index_select, clone, ...) in the node; see ``merged``."""
    merged: float
    """The same while batches were merged. Both are measured in the watched interval, for as many calls."""
    operators: float
    """Torch operators of a call, in the watched stretch."""
    watched_calls: int
    """Calls in the watched stretch."""
    watched_seconds: float
    """Time in the node in that stretch as measured, the watching included."""
    share: float
    """Part of its process's time."""
    by_operator: dict[str, OperatorUse]
    """Operators by name, those of most time first."""

    @property
    def bookkeeping(self) -> float:
        """Seconds outside of torch operators: Python and NumPy."""
        return self.seconds - self.kernels


@dataclass(frozen=True, slots=True)
class ProcessProfile:
    """How a process spent its time in the timed stretch. The parts add up to ``seconds``, kernels left out."""

    name: str
    """The worker's name, "inline", or "controller"."""
    seconds: float
    """How long it was measured."""
    nodes: float
    """In nodes, forward and backward."""
    updates: float
    """In updates of their weights."""
    kernels: float
    """Part of these two inside of torch operators."""
    rehearsing: float
    """Seconds spent rehearsing instances, once for each new digest."""
    layout: float
    """In beginning waves: which instances, which rows there are and who reads which, memory."""
    payloads: float
    """In putting together the payloads of the instances of a wave, and looking whether they are finite."""
    checking: float
    """In looking whether the gradients of waves are finite, before they are applied."""
    merging: float
    """In taking batches from queues and putting together what waited there."""
    loop: float
    """In the rest of the worker's loop: scheduling, routing, queues, retiring; playing waves."""
    transport: float
    """In sending to other processes and receiving from them."""
    controller: float
    """In the controller: pumping, answers, losses; and in reading instances."""
    waiting: float
    """Waiting for other processes."""
    timers: float
    """In the clocks of the profile itself."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a run."""

    stretches: dict[str, Stretch]
    """"bare", "timed" and "watched"."""
    nodes: tuple[NodeProfile, ...]
    """The nodes that did anything, in the order of the graph: forward, backward, update."""
    processes: tuple[ProcessProfile, ...]
    """In the order of their numbers, the controller last."""
    costs: Costs
    """The costs of clocks and watching, by calibration."""
    watching: Watching
    """The slowdown of this run by watching."""
    settings: dict[str, Any]
    """The settings of the runtime."""

    @property
    def waves(self) -> bool:
        """Whether instances were computed in waves, and not message by message."""
        return any(process.layout for process in self.processes)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        nodes = [{**asdict(node), "bookkeeping": node.bookkeeping} for node in self.nodes]
        return {**asdict(self), "nodes": nodes}


def nodes_of(timed: Record, watched: Record, kinds: Mapping[str, str], watching: Watching) -> Iterable[NodeProfile]:
    """The nodes of a process. ``kinds``: the kind of each node, in the order of the graph."""
    whole = timed.seconds - sum(cell.timers for cell in timed.cells.values())
    for node, kind in {**kinds, "": "-"}.items():
        for what in (FORWARD, BACKWARD, UPDATE):
            cell = timed.cells.get((node, what))
            if cell is None or not cell.calls:
                continue
            seen = watched.cells.get((node, what), _NOTHING)
            queue = _NOTHING if what == UPDATE else _part(timed.cells.get((node, QUEUE + what)))
            queue_seen = _NOTHING if what == UPDATE else _part(watched.cells.get((node, QUEUE + what)))
            each = cell.calls / seen.calls if seen.calls else 0.0
            seconds = cell.own
            yield NodeProfile(
                timed.process,
                node or SEVERAL,
                kind,
                what,
                cell.calls,
                cell.messages,
                cell.rows,
                seconds,
                kernels_of(cell, seen, watching),
                cell.waited,
                queue.own,
                each * seen.copied,
                each * queue_seen.copied,
                seen.operators / seen.calls if seen.calls else 0.0,
                seen.calls,
                seen.seconds,
                seconds / whole if whole > 0 else 0.0,
                {
                    name: OperatorUse(int(calls), spent, int(copied))
                    for name, (calls, spent, copied) in sorted(seen.by_operator.items(), key=lambda item: -item[1][1])
                },
            )


def process_of(record: Record, nodes: Iterable[NodeProfile]) -> ProcessProfile:
    """All of a process. ``nodes``: its own."""
    spent: dict[str, float] = {}
    for (_, what), cell in record.cells.items():
        what = QUEUE if what.startswith(QUEUE) else what
        spent[what] = spent.get(what, 0.0) + cell.own
    return ProcessProfile(
        record.process,
        record.seconds,
        spent.get(FORWARD, 0.0) + spent.get(BACKWARD, 0.0),
        spent.get(UPDATE, 0.0),
        sum(node.kernels for node in nodes),
        spent.get(REHEARSE, 0.0),
        spent.get(LAYOUT, 0.0),
        spent.get(PAYLOADS, 0.0),
        spent.get(CHECK, 0.0),
        spent.get(QUEUE, 0.0),
        spent.get(LOOP, 0.0),
        spent.get(TRANSPORT, 0.0),
        spent.get(CONTROLLER, 0.0),
        spent.get(WAITING, 0.0),
        record.seconds - sum(spent.values()),
    )


_NOTHING = Cell()


def _part(cell: Cell | None) -> Cell:
    return _NOTHING if cell is None else cell
