"""Kernels: how much of a node's time is inside of torch operators.

**Timed** intervals have clocks only, and measure how long a call takes. **Watched** ones also trace every operator, and
say how long a call is in operators:

    timed      |─── kernels ───|── rest ──|                      what the clocks took is taken off, by calibration
    watched    |─── kernels ───|── rest ──|── watching ──|       what watching took is known less well

So bookkeeping is what a timed call has beside the kernels of a watched one (`kernels_of`). That holds as far as the
machine was as fast in both, which the nodes tell: for all of them, watched = slower x timed + cost x operators (`fit`).
An operator's own time is known to two or three microseconds: the smaller the operators of a node and the more of them,
the less is known of its bookkeeping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ampnet.profile.meter import BACKWARD, FORWARD, UPDATE, Cell, Costs, Key

Cells = Mapping[Key, Cell]
_DEAREST = 2.5
"""Upper bound of the cost of watching an operator, as a multiple of the calibrated cost."""


@dataclass(frozen=True, slots=True)
class Watching:
    """How a watched stretch differs from a timed one."""

    slower: float
    """The slowdown by other load on the machine; 1 without any."""
    operator: float
    """Seconds it took to watch an operator."""
    least: float
    """The same by calibration, with all its data in the caches."""


def kernels_of(timed: Cell, watched: Cell, watching: Watching) -> float:
    """Seconds of a timed cell in torch operators.

    As many for a call as in the watched stretch. But where a cell was slow in one stretch and not in the other, its
    kernels were so too: so the part that they are of it has the last word, with as little and as much taken off for the
    watching as it may have been.
    """
    if not watched.calls:
        return 0.0
    seconds, kernels, whole = timed.own, max(0.0, watched.kernels), watched.own
    rest = whole - (watching.operator - watching.least) * watched.operators
    low, high = (seconds * min(1.0, kernels / part) if part > 0 else seconds for part in (whole, rest))
    return min(max(low, kernels / watched.calls * timed.calls / watching.slower), high)


def fit(pairs: Sequence[tuple[Cells, Cells]], costs: Costs) -> Watching:
    """What watching did to a run, from what it did to each node; ``pairs``: timed and watched, of each process."""
    rows = []
    for timed, watched in pairs:
        for key, seen in watched.items():
            cell = timed.get(key)
            if key[1] in (FORWARD, BACKWARD, UPDATE) and cell is not None and cell.calls:
                spent = seen.seconds - (seen.timers - seen.operators * costs.operator)
                if spent > 0 < cell.own:
                    rows.append((cell.own * seen.calls / cell.calls, seen.operators, spent))
    if not rows:
        return Watching(1.0, costs.operator, costs.operator)
    alone, operators, spent = np.array(rows).T
    weight = 1 / np.sqrt(spent)
    given = np.stack((alone * weight, operators * weight), axis=1)
    (_, cost), _, rank, _ = np.linalg.lstsq(given, spent * weight)
    # Where nodes are too much alike to tell one from the other, and where a node went astray.
    cost = min(max(float(cost), costs.operator), _DEAREST * costs.operator) if rank == 2 else costs.operator
    slower = float(((spent - cost * operators) * weight) @ given[:, 0] / (given[:, 0] @ given[:, 0]))
    return Watching(min(max(slower, 1 / _DEAREST), _DEAREST), cost, costs.operator)
