"""Alternate: speeds are compared only within one run, in turns, so that what else the machine does hits all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Train = Callable[[float], tuple[float, float]]
"""Trains for so many seconds: (records per second, updates for as many records as the peer has in one)."""


def alternate(
    rows: Mapping[str, Train], seconds: float, repeats: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """By row: the speeds of all repeats, and the updates of the last, after a short warm-up of each."""
    for train in rows.values():
        train(0.5)
    speeds: dict[str, list[float]] = {name: [] for name in rows}
    updates: dict[str, float] = {}
    for _ in range(repeats):
        for name, train in rows.items():
            speed, updates[name] = train(seconds)
            speeds[name].append(speed)
    return speeds, updates
