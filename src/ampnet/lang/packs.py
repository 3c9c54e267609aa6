"""Packs: the values that a loop, a tree or a choice carries, packed into as few messages as possible.

A loop may carry a nest of values: ``(h, c)``. Those of one scope are concatenated in one message, its **lane**, so that
a round costs one Phi, one Isu and one Cond for any number of values. Values of other scopes (one for each atom) or of
another shape have separate lanes; integers have none, because they are computed from the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ampnet.lang import ops
from ampnet.lang.ints import Int, Rounds
from ampnet.lang.nest import leaves, rebuild, shape
from ampnet.lang.scope import Axis, Frame
from ampnet.lang.symbols import Each, Symbolic
from ampnet.lang.trace import Trace
from ampnet.lang.value import Value


@dataclass(eq=False, slots=True)
class Lane:
    """Values that are concatenated in one message."""

    axes: tuple[Axis, ...]
    """The axes of a family, outermost first; empty for values of the current scope."""
    value: Value
    """All of them, concatenated."""


@dataclass(frozen=True, slots=True)
class Spot:
    """The position of a leaf of the nest: columns of a lane, or an integer."""

    lane: int
    start: int
    stop: int
    """-1: the whole lane."""
    number: int = -1
    """The index of an integer among the integers."""


class Pack:
    """A nest of values, in lanes."""

    def __init__(
        self,
        trace: Trace,
        nest: Any,
        rounds: Rounds | None = None,
        like: Pack | None = None,
        what: str = "",
    ) -> None:
        """``rounds`` collects the integers; ``like`` is a pack whose structure this one must have."""
        self.trace, self.nest, self.rounds = trace, nest, rounds
        self.lanes: list[Lane] = []
        self.spots: list[Spot] = []
        if like is None:
            self._lay_out()
        else:
            self.spots = like.spots
            values = like._laid(nest, what)
            self.lanes = [Lane(lane.axes, v) for lane, v in zip(like.lanes, values, strict=True)]

    def _leaves(self, nest: Any) -> list[tuple[tuple[Axis, ...], Any]]:
        """Returns each leaf's axes and value, at the current scope."""
        out: list[tuple[tuple[Axis, ...], Any]] = []
        for leaf in leaves(nest):
            if isinstance(leaf, Int) or (self.rounds is not None and type(leaf) is int):
                if self.rounds is None:
                    self.trace.fail(
                        "an integer of the instance is handed on as a value; only repeat(...) carries them. Calculate "
                        "it outside: n // 2 + (n % 2) * (2 * n)"
                    )
                out.append(((), leaf))
            elif isinstance(leaf, Symbolic):
                with self.trace.inside(*frames(leaf._axis)):
                    ((inner, value),) = self._leaves([leaf._element()])
                    out.append(((leaf._axis, *inner), value))
            else:
                if leaf is None:
                    self.trace.fail("a function returns None where a value is needed: is a 'return' missing?")
                # A constant stays outside rounds and choices: it is pumped where it is needed.
                out.append(((), self.trace.bring(leaf)))
        return out

    def _lay_out(self) -> None:
        given = self._leaves(self.nest)
        groups: dict[Any, list[int]] = {}
        for i, (axes, value) in enumerate(given):
            if isinstance(value, Value):
                packable = value.row.dim() == 1 and value.row.is_floating_point()
                groups.setdefault((axes, value.row.dtype) if packable else i, []).append(i)
        spots: dict[int, Spot] = {}
        for members in groups.values():
            axes = given[members[0]][0]
            values = [given[i][1] for i in members]
            at = 0
            for i, value in zip(members, values, strict=True):
                width = value.row.shape[-1] if len(members) > 1 else -1
                spots[i] = Spot(len(self.lanes), at, at + width if width >= 0 else -1)
                at += max(width, 0)
            self.lanes.append(Lane(axes, self._beside(axes, values)))
        numbers = 0
        for i, (_, value) in enumerate(given):
            if not isinstance(value, Value):
                spots[i] = Spot(-1, 0, 0, numbers)
                numbers += 1
        self.spots = [spots[i] for i in range(len(given))]

    def _beside(self, axes: Sequence[Axis], values: Sequence[Value]) -> Value:
        if len(values) == 1:
            return values[0]
        with self.trace.inside(*frames(*axes)):
            return ops.beside(self.trace, values, torch.cat([v.row for v in values], -1))

    def unpacked(self, values: Sequence[Value], after: Axis | None = None) -> Any:
        """Returns the nest with the values of these lanes. ``after``: the loop that they have left."""
        out: list[Any] = []
        for spot in self.spots:
            if spot.lane < 0:
                assert self.rounds is not None
                now = self.rounds.value(spot.number)
                out.append(now if after is None else Int("after", self.rounds, spot.number, after.size))
                continue
            axes, value = self.lanes[spot.lane].axes, values[spot.lane]
            with self.trace.inside(*frames(*axes)):
                part: Any = value if spot.stop < 0 else ops.cut(self.trace, value, spot.start, spot.stop)
            for axis in reversed(axes):
                part = Each(self.trace, axis, part)
            out.append(part)
        return rebuild(self.nest, iter(out))

    def inside_out(self, values: Sequence[Value]) -> Any:
        """Returns the nest with one value for each family, from the reduced lanes."""
        self.lanes = [Lane(lane.axes[1:], value) for lane, value in zip(self.lanes, values, strict=True)]
        return self.unpacked(values)

    def repacked(self, nest: Any, what: str) -> list[Value]:
        """Returns the lanes of another nest of the same structure."""
        return self._laid(nest, what)

    def _laid(self, nest: Any, what: str) -> list[Value]:
        if shape(nest) != shape(self.nest):
            self.trace.fail(f"{what} must give what it was given: nested alike, got {nest!r} for {self.nest!r}")
        given = self._leaves(nest)
        first = self._rows()
        members: list[list[Value]] = [[] for _ in self.lanes]
        for i, (spot, (axes, value)) in enumerate(zip(self.spots, given, strict=True)):
            if spot.lane < 0:
                if isinstance(value, Value):
                    self.trace.fail(f"{what} gives a tensor in place of an integer")
                assert self.rounds is not None
                self.rounds.updates.append(value)
                continue
            wanted, row = self.lanes[spot.lane].axes, first[i]
            if not isinstance(value, Value) or axes != wanted:
                self.trace.fail(f"{what} must give values of the same scope as it was given, value {i + 1} is not")
            if value.row.shape != row.shape or value.row.dtype != row.dtype:
                self.trace.fail(
                    f"{what} must give values of the same shape and dtype every time: {tuple(row.shape)} {row.dtype} "
                    f"before, {tuple(value.row.shape)} {value.row.dtype} now"
                )
            members[spot.lane].append(value)
        return [self._beside(lane.axes, some) for lane, some in zip(self.lanes, members, strict=True)]

    def _rows(self) -> list[Any]:
        """Returns shape and dtype of every leaf."""
        out: list[Any] = []
        for spot in self.spots:
            if spot.lane < 0:
                out.append(None)
            else:
                row = self.lanes[spot.lane].value.row
                out.append(row if spot.stop < 0 else row[spot.start : spot.stop])
        return out


def frames(*axes: Axis) -> list[Frame]:
    """Returns these axes as frames."""
    return [frame for axis in axes for frame in (axis, axis.real) if frame is not None]
