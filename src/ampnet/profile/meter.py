"""Meter: to whom every moment of a process belongs.

At any time exactly one **cell** is on the clock: a node in one direction, a node's update, a queue from which a batch
is taken, what comes before a wave is played, or one of the few things that a process does besides. A section puts its
cell on the clock and then the one before it back, so the seconds of all cells add up to the time that has passed, and
nothing is counted twice:

    controller  |──────|                                    |──────|
    loop               |───|    |───|          |────────|───|
    linear, forward        |────|
    linear, queue                   |──|
    linear, backward                   |───────|  (its update is a section of its own)

`Watch` adds what torch does: the time of every operator and the bytes that copying operators write go to the cell on
the clock. Both cost time themselves, so each cell also keeps what the measuring took in it, as found by `calibrate`.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ampnet.message import Messages
from ampnet.native import calls
from ampnet.state import States

clock = time.perf_counter

LOOP, CONTROLLER, TRANSPORT, WAITING = "loop", "controller", "transport", "waiting"
"""The work of a process outside nodes: cells of no node."""
FORWARD, BACKWARD, UPDATE, QUEUE = "forward", "backward", "update", "queue "
"""The kinds of work of a node. Queues are named by direction: "queue forward"."""
REHEARSE, LAYOUT, PAYLOADS, CHECK = "rehearse", "layout", "payloads", "check"
"""Work for a wave outside nodes: before they compute, and before gradients are applied."""

Key = tuple[str, str]
"""A node (or "") and what is done."""


class Cell:
    """Sums of one cell."""

    __slots__ = (
        "by_operator",
        "calls",
        "copied",
        "kernels",
        "messages",
        "operators",
        "rows",
        "seconds",
        "timers",
        "waited",
    )

    def __init__(self) -> None:
        self.calls = self.messages = self.rows = 0
        self.seconds = 0.0
        """As measured, what the measuring took included."""
        self.timers = 0.0
        """The part of it that is the cost of measuring."""
        self.waited = 0.0
        """Seconds that messages waited before they were taken, added up over messages."""
        self.kernels, self.operators, self.copied = 0.0, 0, 0
        """Seconds in torch operators; how many; bytes written by those that copy."""
        self.by_operator: dict[str, list[float]] = {}
        """Calls, seconds and bytes by name."""

    @property
    def own(self) -> float:
        """Seconds without the cost of measuring."""
        return max(0.0, self.seconds - self.timers)

    def plain(self) -> dict[str, Any]:
        """As plain data, to be sent."""
        return {name: getattr(self, name) for name in self.__slots__}

    def add(self, other: Cell) -> None:
        """Add the sums of another one."""
        for name in self.__slots__[1:]:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, use in other.by_operator.items():
            mine = self.by_operator.get(name, [0, 0.0, 0])
            self.by_operator[name] = [a + b for a, b in zip(mine, use, strict=True)]

    @classmethod
    def of(cls, data: dict[str, Any]) -> Cell:
        """The result of `plain`."""
        cell = cls()
        for name in cls.__slots__:
            setattr(cell, name, data[name])
        return cell


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of the measurement itself, in seconds. Set by `calibrate`."""

    inside: float = 0.0
    """The cost of a section, while its own cell is timed."""
    outside: float = 0.0
    """The cost of a section, while the enclosing cell is timed."""
    batch: float = 0.0
    """More of that, where messages and rows are counted."""
    push: float = 0.0
    """The cost of recording when a batch joined a queue."""
    operator: float = 0.0
    """The cost of watching an operator."""
    operator_inside: float = 0.0
    """The part of it between the two readings of the clock."""


class Meter:
    """The clock of one process and thread, and its cells. ``base`` is on the clock while no section is."""

    def __init__(self, base: str, costs: Costs) -> None:
        self.cells: dict[Key, Cell] = {}
        self.costs = costs
        self.now = self.cell("", base)
        """On the clock."""
        self._outer: list[Cell] = []
        self.began = self._last = clock()

    def cell(self, node: str, what: str) -> Cell:
        """The cell of a node, or of none ("")."""
        return self.cells.setdefault((node, what), Cell())

    def enter(self, cell: Cell) -> None:
        """Put a cell on the clock."""
        outer, now = self.now, clock()
        outer.seconds += now - self._last
        self._outer.append(outer)
        cell.calls += 1
        self.now = cell
        self._last = now

    def leave(self) -> None:
        """Put the one before it back."""
        cell, now, costs = self.now, clock(), self.costs
        cell.seconds += now - self._last
        cell.timers += costs.inside
        self.now = outer = self._outer.pop()
        outer.timers += costs.outside
        self._last = now

    def stop(self) -> float:
        """The seconds since this meter was made; from now on nothing counts."""
        now = clock()
        self.now.seconds += now - self._last
        self._last = now
        return now - self.began

    def section(self, cell: Cell, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, as a section."""
        enter, leave = self.enter, self.leave

        def timed(*args: Any, **kwargs: Any) -> Any:
            enter(cell)
            try:
                return function(*args, **kwargs)
            finally:
                leave()

        return timed

    def more(self, cell: Cell, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same, of calls that are counted elsewhere."""
        section = self.section(cell, function)

        def timed(*args: Any, **kwargs: Any) -> Any:
            cell.calls -= 1
            return section(*args, **kwargs)

        return timed

    def batches(self, cell: Cell, function: Callable[..., Any]) -> Callable[..., Any]:
        """A node's ``forward`` or ``backward``, as a section that also counts messages and rows."""
        enter, leave, more = self.enter, self.leave, self.costs.batch

        def timed(port: int, messages: Messages) -> Any:
            count = messages.states.columns.shape[1]
            cell.messages += count
            cell.rows += count if messages.offsets is None else int(messages.offsets[-1])
            self.now.timers += more
            enter(cell)
            try:
                return function(port, messages)
            finally:
                leave()

        return timed


_WRITES: dict[str, int | None] = {
    **dict.fromkeys(("cat", "stack", "index_select", "index", "gather", "clone", "_to_copy", "repeat")),
    **dict.fromkeys(("constant_pad_nd", "copy_", "slice_copy", "index_copy", "index_put")),
    "index_copy_": 3,
    "index_put_": 2,
}
"""Operators that copy, and which argument it is that they copy; None: all of what they return."""


class Watch(TorchDispatchMode):
    """While it is entered, the time and the copies of every torch operator and native call go to the meter's cell that
    is on the clock."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.meter = meter
        self._known: dict[Any, tuple[str, bool, int | None]] = {}

    def __enter__(self) -> Self:
        calls.observer = self._native
        entered: Self = super().__enter__()  # type: ignore[no-untyped-call]
        return entered

    def __exit__(self, *error: object) -> None:
        calls.observer = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _native(self, name: str, words: array[int], dtype: torch.dtype) -> None:
        began = clock()
        calls.make(words)
        seconds = clock() - began
        cell = self.meter.now
        cell.kernels += seconds
        cell.operators += 1
        use = cell.by_operator.setdefault(name, [0, 0.0, 0])
        use[0] += 1
        use[1] += seconds
        if name == "fetch":
            rows, width = words[3:5]
            cell.copied += rows * width * dtype.itemsize
            use[2] += rows * width * dtype.itemsize

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = clock()
        out = func(*args, **kwargs) if kwargs else func(*args)
        seconds = clock() - began
        meter = self.meter
        cell, costs = meter.now, meter.costs
        known = self._known.get(func)
        if known is None:
            name = func._schema.name.rpartition("::")[2]
            known = self._known[func] = (name, name in _WRITES, _WRITES.get(name))
        name, copies, which = known
        seconds -= costs.operator_inside
        cell.kernels += seconds
        cell.operators += 1
        cell.timers += costs.operator
        use = cell.by_operator.get(name)
        if use is None:
            use = cell.by_operator[name] = [0, 0.0, 0]
        use[0] += 1
        use[1] += seconds
        if copies:
            written = out if which is None else args[which]
            if isinstance(written, Tensor):
                size = written.numel() * written.element_size()
                cell.copied += size
                use[2] += size
        return out


def calibrate() -> Costs:
    """Measure the costs of sections and `Watch` on this machine, now."""
    one = Messages(torch.zeros(1, 1), States.of(instance=[0]))
    meter = Meter(LOOP, Costs())
    cell = meter.cell("", "calibration")
    section, batches = meter.section(cell, _nothing), meter.batches(cell, _nothing)
    plain, _ = _each(lambda: _nothing(0, one))
    whole, inside = _each(lambda: section(0, one), lambda: cell.seconds)
    counted, _ = _each(lambda: batches(0, one))
    stamped, _ = _each(lambda: stamp(cell, one, 0.0))
    x, few = torch.zeros(4, 4), [torch.zeros(1, 4), torch.zeros(1, 4)]
    operators: list[Callable[[], Any]] = [lambda: x.add_(x), lambda: x.sum(0), lambda: x[1:3], lambda: torch.cat(few)]
    with torch.no_grad():
        bare = fmean(_each(operator)[0] for operator in operators)
        with Watch(meter):
            watched = [_each(operator, lambda: meter.now.kernels) for operator in operators]
    inside = max(0.0, inside - plain)
    return Costs(
        inside,
        max(0.0, whole - plain - inside),
        max(0.0, counted - whole),
        stamped,
        max(0.0, fmean(all_of_it for all_of_it, _ in watched) - bare),
        fmean(between for _, between in watched) - bare,
    )


def stamp(cell: Cell, messages: Messages, began: float) -> None:
    """Messages have joined a queue. Their leaving adds the same again: the difference is what they waited."""
    cell.waited -= messages.states.columns.shape[1] * (clock() - began)


def _nothing(port: int, messages: Messages) -> None:
    pass


def _each(function: Callable[[], Any], read: Callable[[], float] = float) -> tuple[float, float]:
    """Seconds of a call, and by how much it moves ``read``: of each the least mean of some rounds.

    Other work is done between any two calls, as in a run: an immediate repetition would find all data in the caches.
    """
    matrix = np.ones((96, 96), dtype=np.float32)
    best = least = float("inf")
    for _ in range(_ROUNDS):
        seconds, before = 0.0, read()
        for turn in range(_TURNS):
            matrix @ matrix
            _OTHER.update((key, (key, turn)) for key in range(100))
            began = clock()
            function()
            seconds += clock() - began
        best, least = min(best, seconds / _TURNS), min(least, (read() - before) / _TURNS)
    return best, least


_OTHER: dict[int, tuple[int, int]] = {}
_ROUNDS, _TURNS = 4, 60
