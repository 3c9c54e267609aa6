"""Alternate: speeds are compared only within one run, in turns, so that what else the machine does hits all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any


def compare(
    name: str, rows: Mapping[str, Callable[[float], float]], base: str, seconds: float, repeats: int
) -> dict[str, Any]:
    """By row: best and median speed, and the best against the best of ``base``. Closes the runtimes, prints a table.

    A row gives records a second, and has the runtime that it measures as an attribute.
    """
    speeds: dict[str, list[float]] = {row: [] for row in rows}
    for _ in range(repeats):
        for row, measure in rows.items():
            speeds[row].append(measure(seconds))
    for measure in rows.values():
        measure.runtime.close()  # type: ignore[attr-defined]
    least = max(speeds[base])
    print(f"\n{name:42} {'best':>10} {'median':>10} {'ratio':>7}")
    out: dict[str, Any] = {}
    for row, values in speeds.items():
        out[row] = {"best": max(values), "median": statistics.median(values), "ratio": max(values) / least}
        print(f"{'  ' + row:42} {max(values):10,.0f} {statistics.median(values):10,.0f} {max(values) / least:7.2f}")
    return out
