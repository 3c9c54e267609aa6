"""Checkpoint: when `fit` writes checkpoints, and where.

    fit(..., checkpoint=Checkpoint("runs/first", every="30 s"), resume="auto")

At a *drained* point nothing is in flight: pumping stops, the instances in flight complete, the checkpoint is written,
pumping goes on. A *flying* one is written without a stop, with the instances in flight listed in it. They are pumped
again after a resume; some of their gradients may be in the weights already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ampnet.interval import Interval


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The settings of checkpoints. See the head of this file."""

    folder: str | Path
    """The folder of the checkpoints of one run; made if it is missing."""
    every: str | int = "1 epoch"
    """"30 s", "5 m", "2 h", "1 epoch", "500 instances" or 500: training instances."""
    keep: int = 3
    """How many checkpoints stay: the last ones."""
    at: Literal["drained", "flying"] = "drained"
    """Whether instances in flight complete first, or are listed."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings, as plain data: a resume with other values is refused."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Further plain data to keep; not compared."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"keep must be 1 or more, got {self.keep}")
        if self.at not in ("drained", "flying"):
            raise ValueError(f"at must be 'drained' or 'flying', got {self.at!r}")
        Interval.of(self.every)

    @property
    def interval(self) -> Interval:
        """``every``, parsed."""
        return Interval.of(self.every)
