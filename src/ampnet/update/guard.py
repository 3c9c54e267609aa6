"""Guard: an update that the device itself leaves out where a gradient is not finite.

To look at a number on a GPU, the host has to wait for all work before it. A guarded step is launched without a look:
the optimizer's kernel reads ``found`` (0: all is finite; 1: leave weights and state as they are), as it does for
`torch.amp.GradScaler`. The host reads it later (`ampnet.wave.ledger`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from ampnet.update.recorded import RecordedSteps


@dataclass(slots=True, eq=False)
class _Guard:
    found: Tensor | None = None
    recorded: RecordedSteps | None = None


_guard = _Guard()


def found() -> Tensor | None:
    """The number that decides about the steps being made; None: they are made."""
    return _guard.found


def recorded() -> RecordedSteps | None:
    """Where the steps being made are recorded, and repeated from; None: nowhere."""
    return _guard.recorded


@contextmanager
def guarded(by: Tensor, steps: RecordedSteps | None = None) -> Iterator[None]:
    """Context: optimizer steps are left out on the device where this number is 1."""
    before = _guard.found, _guard.recorded
    _guard.found, _guard.recorded = by, steps
    try:
        yield
    finally:
        _guard.found, _guard.recorded = before
