"""Saver: writes the checkpoints of a `fit`, when they are due.

    every "30 s"             looked at ten times a second
    every "500 instances"    the controller counts training instances, and pauses after exactly so many
    every "1 epoch"          when the epoch's validation has ended and callbacks were called
    always                   at the end, so that a finished run is known as one; at the first Ctrl-C; when a worker is
                             lost once too often, with the instances in flight listed

What `fit` itself keeps is collected before the runtime's snapshot: while worker processes answer, instances retire and
streams end. So an instance that has retired in a checkpoint is wholly in its weights, and one in flight partly.

A checkpoint that cannot be written (full disk) is a warning, one for several in a row, and again for the last one of
the run; training goes on, and the last good one stays. A folder that cannot be written, or that another run writes,
is an error at the start.
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
from ampnet.checkpoint.lock import FolderLock
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
    _then: Callable[[], None] | None = None
    """Called after the next checkpoint within a run."""
    _lock: FolderLock | None = None

    def __post_init__(self) -> None:
        self._folder = Checkpoints(Path(self.checkpoint.folder).absolute(), self.checkpoint.keep)
        self._due = self.clock() + self._seconds
        self._arm(self.left)
        self.runtime.on_last_loss = self._last_one

    def _last_one(self) -> None:
        """Write what survives the loss of workers; not while replicas are synchronised: positions are unknown then."""
        if not self.runtime.controller.holding:
            self.write(final=True)

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
            self.runtime.controller.pause_after(min(left or count, count), self._paused, drain=self._drain)

    def _pause(self) -> None:
        self.runtime.controller.pause(self._paused, drain=self._drain or self._then is not None)

    def _paused(self) -> None:
        then, self._then = self._then, None
        self.write(final=then is not None)
        if then is not None:
            then()

    def begin(self) -> None:
        """Take the folder. Raises `OutputError` or `CheckpointError` if no checkpoint could be written there."""
        self._folder.prepare()
        self._lock = FolderLock(self._folder.folder)

    def turn(self) -> None:
        """Called ten times a second within a run."""
        if self.clock() >= self._due:
            self._due = float("inf")
            self._pause()
        elif self._then is not None and not self.runtime.controller.pausing:  # a signal came while another pause ended
            self._pause()

    def epoch_ended(self, epoch: int, *, running: bool) -> None:
        """Called at the end of an epoch, within a run or (not ``running``) between two."""
        interval = self.checkpoint.interval
        if interval.unit == "epochs" and epoch % int(interval.count) == 0:
            if running:
                self._pause()
            else:
                self.write()

    def over(self) -> None:
        """Called after the last run: write the final state, if it is not written yet."""
        if self._last_state != _lasting(self.state({})):
            self.write(final=True)

    def write_and(self, then: Callable[[], None]) -> None:
        """Write a checkpoint when nothing is in flight, in this run or the next one, and call a function."""
        self._then = then
        self._pause()

    def close(self) -> None:
        """Cancel the next checkpoint, and leave the folder to others."""
        self.runtime.on_last_loss = None
        self.runtime.controller.no_pause()
        if self._lock is not None:
            self._lock.release()

    def write(self, *, final: bool = False) -> None:
        """Write a checkpoint now. ``final``: none comes after it."""
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
            self._warn(error, final)
        else:
            self.last, self._last_state, self._warned = path, _lasting(state), False
            self.callbacks.call("on_checkpoint", path, self.clock() - began)
        self._due = self.clock() + self._seconds
        if self.runtime.controller.until_pause is None:
            self._arm()

    def _warn(self, error: OutputError, final: bool) -> None:
        if not self._warned or final:
            self._warned = True
            kept = f"the last one is {self.last}" if self.last is not None else "there is none yet"
            goes_on = "" if final else ". Training goes on, and later checkpoints are tried"
            warnings.warn(CheckpointWarning(f"{error}; {kept}{goes_on}"), stacklevel=2)


def _lasting(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of the loop's state that does not change by itself."""
    return {name: value for name, value in state.items() if name != "seconds"}
