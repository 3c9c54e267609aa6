"""Frames: the units sent between the processes of a run.

    Slice   rows of a crossing, or their gradients, from worker to worker: nearly all of the bytes
    Note    everything else: a few words (as JSON) and named arrays: instances, losses, errors, events

The runtime defines the meaning of a note's ``kind``. The numbers of a slice are explained in `ampnet.wave.slice`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from ampnet.wave.slice import Slice


@dataclass(slots=True, eq=False)
class Note:
    """A small control frame. ``data`` is received as JSON returns it: tuples as lists, and every key a string."""

    kind: int
    data: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any] | Tensor] = field(default_factory=dict)
    """Arrays are received as arrays and tensors as tensors, of the same dtype and shape."""


Frame = Note | Slice
