"""Frames: what travels between the processes of a run.

A `Batch` is messages for an end of the graph; it is all of the traffic in numbers and bytes. A `Note` is everything
else: a few words (as JSON) and named arrays: losses, structures, retirements, errors, events. What the numbers mean
(``target``, ``kind``) is up to the runtime.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from ampnet.message import Messages


@dataclass(slots=True, eq=False)
class Batch:
    """Messages for a target (a number the runtime gives to each end of an edge), going one way."""

    target: int
    """0 or more."""
    direction: int
    """0 forward, 1 backward (`ampnet.nodes.node.Direction`)."""
    messages: Messages
    last: bool = False
    """Whether what was sent together (all messages of an instance, say) ends with it."""


@dataclass(slots=True, eq=False)
class Note:
    """A small control frame. ``data`` comes back as JSON gives it: tuples as lists, and every key a string."""

    kind: int
    data: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any] | Tensor] = field(default_factory=dict)
    """Arrays come back as arrays and tensors as tensors, of the same dtype and shape."""


Frame = Batch | Note
