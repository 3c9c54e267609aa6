"""Saver: writes the checkpoints of a `fit`, when they are due.

    every "30 s"             looked at ten times a second
    every "500 instances"    the controller counts training instances, and pauses after exactly so many
    every "1 epoch"          when the epoch's validation has ended and callbacks were called
    always                   at the end, so that a finished run is known as one; at the first Ctrl-C

What `fit` itself keeps is collected before the runtime's snapshot: while worker processes answer, instances retire and
streams end. So an instance that has retired in a checkpoint is wholly in its weights, and one in flight partly.

A checkpoint that cannot be written (full disk) is a warning, once; training goes on, and the last good one stays.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ampnet.checkpoint import Checkpoints
from ampnet.errors import CheckpointWarning, OutputError
from ampnet.fitting.callback import Callbacks
from ampnet.fitting.checkpointing import Checkpoint
from ampnet.fitting.generators import generator_states
from ampnet.fitting.packed import pack
from ampnet.fitting.resuming import KIND, VERSION, Described
from ampnet.position import Position

if TYPE_CHECKING:
    from ampnet.runtime.runtime import Runtime


@dataclass(slots=True)
class Saver:
    """Writes checkpoints of one `fit`."""

    checkpoint: Checkpoint
    runtime: Runtime
    described: Described
    callbacks: Callbacks
    state: Callable[[Mapping[str, Position]], dict[str, Any]]
    """Returns the state of the loop, given the positions of open streams."""
    clock: Callable[[], float] = time.monotonic
    left: int | None = None
    """The training instances until the next checkpoint, where a resumed run continues."""
    last: Path | None = None
    """The last checkpoint written."""
    _folder: Checkpoints = field(init=False)
    _due: float = field(init=False)
    _last_state: object = None
    """The state of the loop in the last checkpoint."""
    _warned: bool = False

    def __post_init__(self) -> None:
        self._folder = Checkpoints(Path(self.checkpoint.folder), self.checkpoint.keep)
        self._due = self.clock() + self._seconds
        self._arm(self.left)

    @property
    def _seconds(self) -> float:
        interval = self.checkpoint.interval
        return interval.count if interval.unit == "seconds" else float("inf")

    @property
    def _drain(self) -> bool:
        return self.checkpoint.at == "drained"

    def _arm(self, left: int | None = None) -> None:
        interval = self.checkpoint.interval
        if interval.unit == "instances":
            count = int(interval.count)
            self.runtime.controller.pause_after(min(left or count, count), self.write, drain=self._drain)

    def turn(self) -> None:
        """Called ten times a second within a run."""
        if self.clock() >= self._due:
            self._due = float("inf")
            self.runtime.controller.pause(self.write, drain=self._drain)

    def epoch_ended(self, epoch: int, *, running: bool) -> None:
        """Called at the end of an epoch, within a run or (not ``running``) between two."""
        interval = self.checkpoint.interval
        if interval.unit == "epochs" and epoch % int(interval.count) == 0:
            if running:
                self.runtime.controller.pause(self.write, drain=self._drain)
            else:
                self.write()

    def over(self) -> None:
        """Called after the last run: write the final state, if it is not written yet."""
        if self._last_state != _lasting(self.state({})):
            self.write()

    def write_and(self, then: Callable[[], None]) -> None:
        """Within a run: write a checkpoint when nothing is in flight, and call a function."""

        def both() -> None:
            self.write()
            then()

        self.runtime.controller.pause(both)

    def close(self) -> None:
        """Cancel the next checkpoint."""
        self.runtime.controller.no_pause()

    def write(self) -> None:
        """Write a checkpoint now."""
        began = self.clock()
        tensors: dict[str, Tensor] = {}
        state = self.state(self.runtime.controller.positions())
        data = {
            "kind": KIND,
            "version": VERSION,
            "fit": state,
            "callbacks": pack(self.callbacks.states(), "callback", tensors),
            "generators": generator_states(),
            "left": self.runtime.controller.until_pause,
            "settings": dict(self.described.fixed),
            "free": dict(self.described.free),
            "about": dict(self.checkpoint.about),
        }
        snapshot = self.runtime.snapshot()
        number = max(self._folder.numbers(), default=0) + 1
        try:
            path = self._folder.write(number, snapshot.tensors | tensors, data | {"runtime": snapshot.data})
        except OutputError as error:
            self._warn(error)
        else:
            self.last, self._last_state = path, _lasting(state)
            self.callbacks.call("on_checkpoint", path, self.clock() - began)
        self._due = self.clock() + self._seconds
        if self.runtime.controller.until_pause is None:
            self._arm()

    def _warn(self, error: OutputError) -> None:
        if not self._warned:
            self._warned = True
            kept = f"the last one is {self.last}" if self.last is not None else "there is none yet"
            warnings.warn(
                CheckpointWarning(f"{error}; {kept}. Training goes on, and later checkpoints are tried"), stacklevel=2
            )


def _lasting(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of the loop's state that does not change by itself."""
    return {name: value for name, value in state.items() if name != "seconds"}
