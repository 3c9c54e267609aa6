"""Batch: the records of one update, which every contender makes ready in its own way before anything is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Record = tuple[Any, ...]
"""What a model takes, of one example."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Records that take the same way, as `Compiled.bucket` takes them: wherever a record has a row, there are many."""

    count: int
    arguments: Record

    def __len__(self) -> int:
        return self.count


Batch = Bucket | Sequence[Record]
