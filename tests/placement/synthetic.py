"""Costs as a trial would find them, made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from ampnet.placement import Costs, Flow, Made


def chain(*seconds: float, size: float = 0.0, rounds: float = 1.0) -> Costs:
    """Nodes a, b, c, ... in a row: each reads what the one before it makes."""
    names = [chr(ord("a") + i) for i in range(len(seconds))]
    made = {(a, 0): Made(size, {b: Flow(rounds, size)}) for a, b in pairwise(names)}
    return Costs(dict(zip(names, seconds, strict=True)), made, dict.fromkeys(names, 3.0))


def together(hosts: dict[str, int], names: Iterable[str]) -> bool:
    """Whether these nodes are on one worker."""
    return len({hosts[name] for name in names}) == 1
