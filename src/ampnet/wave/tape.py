"""Tape: the native calls of a layout that is used again and again, played without Python in between.

The second time that a layout with fixed memory is played, all that its operations compute with is where it was the
time before, and so it will be the next time: the native calls of an operation are the same words
(`ampnet.native.calls`). They are written down while the operation is played as always; from the next time on,
neighbours that were written down are one call:

    operations    input  embed  cell 0  cell 1  cell 2  ...  last  loss
    played by     Python        └──────── one call ────────────┘   Python

Backward, a call goes on through the gradients of weights: what they are added to has to count as zero where it did.

An operation is not written down if torch computes anything of it, or allocates memory for it: a dispatch mode watches
what torch does meanwhile, and lets views pass only. Who looks at every operation (a trace) has them one by one.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampnet.native import calls
from ampnet.plan.layout import Layout, Operation
from ampnet.update.sums import Sums
from ampnet.wave.arena import Arena

if TYPE_CHECKING:
    from ampnet.wave.kernels.kernel import Kernel

_AGAIN = 2
"""The play of a layout with fixed memory in which its calls are written down."""
_aten = torch.ops.aten
_VIEWS = {
    _aten.alias,
    _aten.as_strided,
    _aten.detach,
    _aten.expand,
    _aten.permute,
    _aten.select,
    _aten.slice,
    _aten.split,
    _aten.split_with_sizes,
    _aten.squeeze,
    _aten.t,
    _aten.transpose,
    _aten.unsqueeze,
    _aten.view,
}


class _Watch(TorchDispatchMode):
    """Notices whether torch does anything but look at memory in another way."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.foreign: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket not in _VIEWS:
            self.foreign = str(func)
        return func(*args, **(kwargs or {}))


class Calls:
    """The calls of an operation, or of several, and what else there is to be done when they are made."""

    __slots__ = ("_blank", "_gets", "_places", "_words")

    def __init__(self) -> None:
        self._words = array("q")
        self._blank: dict[Arena, int] = {}
        self._places: dict[Arena, tuple[int, int]] = {}
        """Of each arena that is read: where its rows are, and the numbers of equal ones."""
        self._gets: dict[Arena, None] = {}

    def add(self, words: array[int], arenas: Sequence[Arena], reads: Iterable[Arena]) -> None:
        """More calls, which were just made. ``arenas``: of the layout."""
        self._words.extend(words)
        self._places.update((arena, arena.places()) for arena in reads)
        self._blank.update((arena, arena.blank) for arena in arenas if arena.blank)
        self._gets.update(dict.fromkeys(arena for arena in arenas if arena.touched))

    def extend(self, other: Calls) -> None:
        """The calls of the next operation."""
        self._words.extend(other._words)
        self._blank |= other._blank
        self._places |= other._places
        self._gets |= other._gets

    def holds(self) -> bool:
        """Whether rows are where they were when the calls were written down, and those that are left out because they
        are zero are the same."""
        if any(arena.blank != blank for arena, blank in self._blank.items()):
            return False
        return all(arena.places() == places for arena, places in self._places.items())

    def make(self) -> None:
        """Make the calls. Arenas have gradients then as they had."""
        calls.replay(self._words)
        for arena in self._gets:
            arena.touched = True


class Stretch(Calls):
    """Operations that are played in one call."""

    __slots__ = ("begins", "last", "stop")

    def __init__(self, ops: Sequence[Operation], stop: int) -> None:
        """``stop``: the position of the next operation, in the direction of play."""
        super().__init__()
        self.begins = [op for op in ops if op.trained and op.first]
        """The first operations of sites with parameters."""
        self.stop, self.last = stop, ops[-1]


@dataclass(frozen=True, slots=True)
class _Collected:
    """The calls that collect the gradients of a site."""

    calls: Calls
    sums: list[Sums]
    old: list[tuple[bool, ...]]
    """Which sums counted as zero before."""
    after: list[tuple[bool, ...]]
    """And after."""


class Run(Calls):
    """Stretches of the backward with the gradients of weights behind them, in one call."""

    __slots__ = ("_sums", "collected", "stop")

    def __init__(self) -> None:
        super().__init__()
        self.collected: list[Operation] = []
        """Those whose sites are collected in it."""
        self.stop = 0
        self._sums: dict[int, tuple[Sums, tuple[bool, ...], tuple[bool, ...]]] = {}
        """By identity: the sums that are added to, and which of them count as zero before and after."""

    def add_stretch(self, stretch: Stretch, known: _Collected) -> None:
        """The next stretch, and the gradients of its last operation's site."""
        self.extend(stretch)
        self.extend(known.calls)
        self.collected.append(stretch.last)
        self.stop = stretch.stop
        for some, old, after in zip(known.sums, known.old, known.after, strict=True):
            before = self._sums.get(id(some))  # a node with several sites
            self._sums[id(some)] = (some, old if before is None else before[1], after)

    def fits(self) -> bool:
        """Whether all is as it was when the calls were written down."""
        return all(some.old == old for some, old, _ in self._sums.values()) and self.holds()

    def make(self) -> None:
        super().make()
        for some, _, after in self._sums.values():
            some.old = after


class Tape:
    """What is known of a layout's calls, by positions of operations: forward, and backward."""

    def __init__(self, layout: Layout, weights: list[int]) -> None:
        """``weights``: where the copies lie that a wave computes with; empty where there are none."""
        self._layout, self._plays, self.weights = layout, 0, weights
        self.single: tuple[dict[int, Calls], dict[int, Calls]] = ({}, {})
        """Of single operations, for whoever looks at each."""
        self.stretches: tuple[dict[int, Stretch], dict[int, Stretch]] = ({}, {})
        """By the position where they begin."""
        self.runs: dict[int, Run] = {}
        """Backward, by the position where they begin."""
        self._collected: dict[int, _Collected] = {}
        """By position of a site's first operation."""
        self.foreign: dict[str, str] = {}
        """By node: what torch did, where an operation could not be written down."""
        self.recording = self._ready = False

    def begin(self, train: bool) -> None:
        """Called when a passage begins. ``train``: it is going to play both directions."""
        self._plays += train
        self.recording = train and not self._ready and self._plays >= _AGAIN

    def end(self) -> None:
        """Called when it has ended."""
        if self.recording:
            self.recording, self._ready = False, True
            for backward in (False, True):
                self._join(backward)
            self._join_runs()

    def play(self, at: int, op: Operation, backward: bool, kernel: Kernel) -> None:
        """Play one operation: by its calls if they are known, else as always; write them down if it is time to."""
        known = self.single[backward].get(at)
        if known is not None and not self.recording and known.holds():
            known.make()
            return
        play = kernel.backward if backward else kernel.forward
        if not self.recording:
            play(op)
        elif words := self._words(op, kernel, partial(play, op)):
            found = self.single[backward][at] = Calls()
            found.add(words, self._layout.arenas, _read_by(op, kernel))

    def collect(self, at: int, op: Operation, kernel: Kernel, sums: Sequence[Sums]) -> None:
        """Collect the gradients of a site, by its calls if they are known for sums like these."""
        old = [some.old for some in sums]
        known = self._collected.get(at)
        fits = known is not None and known.old == old and known.calls.holds()
        if known is not None and fits and all(map(operator.is_, known.sums, sums)):
            known.calls.make()
            for some, after in zip(sums, known.after, strict=True):
                some.old = after
        elif not self.recording or kernel.may_go_direct():  # what one wave does is not what the next one does
            kernel.collect()
        elif words := self._words(op, kernel, kernel.collect):
            found = Calls()
            found.add(words, self._layout.arenas, _read_by(op, kernel))
            self._collected[at] = _Collected(found, list(sums), old, [some.old for some in sums])

    def _words(self, op: Operation, kernel: Kernel, play: Callable[[], None]) -> array[int] | None:
        """Play, and return the calls; None if these are not all of it."""
        if not kernel.tapes or any(arena.varies for arena in _read_by(op, kernel)):
            play()
            return None
        watch = _Watch()
        words, calls.writer = array("q"), get_ident()
        calls.tape = words
        try:
            with watch:
                play()
            if calls.tape is not words:  # one that trains in another thread writes its own: some of ours are missing
                watch.foreign = "calls of another thread"
        finally:
            calls.tape = None
        if watch.foreign is not None:
            self.foreign[op.site.name] = watch.foreign
            return None
        return words

    def _join(self, backward: bool) -> None:
        operations, single, found = self._layout.operations, self.single[backward], self.stretches[backward]
        step, positions = -1 if backward else 1, sorted(single, reverse=backward)
        while positions:
            first = positions[0]
            ops: list[Operation] = []
            while positions and positions[0] == first + step * len(ops):
                ops.append(operations[positions.pop(0)])
                if backward and ops[-1].first and ops[-1].trained:  # its gradients are collected next
                    break
            stretch = found[first] = Stretch(ops, first + step * len(ops))
            for i in range(len(ops)):
                stretch.extend(single[first + step * i])

    def _join_runs(self) -> None:
        stretches, run = self.stretches[True], Run()
        for first in sorted(stretches, reverse=True):
            stretch = stretches[first]
            known = self._collected.get(stretch.stop + 1)
            if not run.collected or run.stop != first:
                run = Run()
            if known is not None:
                run.add_stretch(stretch, known)
                if len(run.collected) == 1:
                    self.runs[first] = run


def _read_by(op: Operation, kernel: Kernel) -> list[Arena]:
    """The arenas that an operation reads and that hold rows by now."""
    unread = kernel.unread(op)
    found = [read.arena for slot, read in enumerate(op.reads) if slot not in unread] + [bag.arena for bag in op.bags]
    return [arena for arena in dict.fromkeys(found) if arena.data is not None]
