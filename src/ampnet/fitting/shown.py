"""Shown: the display of ``ampnet train``, for `fit(..., progress=True)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampnet.controller import Progress
from ampnet.fitting.callback import Callback, Run
from ampnet.fitting.metrics import split_name
from ampnet.fitting.records import EpochRecord

if TYPE_CHECKING:
    from ampnet.cli.progress import Display


class Shown(Callback):
    """A live view on a terminal, elsewhere a line for each epoch."""

    def __init__(self) -> None:
        self._display: Display | None = None

    def on_begin(self, run: Run) -> None:
        from ampnet.cli.progress import Facts, Plain, make_display

        known = {name: total for name, total in run.totals.items() if total is not None}
        facts = Facts(run.epochs, known, split_name(run.metric)[1], None)
        self._display = make_display(facts) if len(known) == len(run.totals) else Plain(facts)
        self._display.__enter__()
        if run.begins is not None:
            self._display.say(run.begins)

    def on_turn(self, progress: Progress) -> None:
        assert self._display is not None
        self._display.turn(progress)

    def on_epoch_end(self, record: EpochRecord) -> None:
        assert self._display is not None
        self._display.epoch(record)

    def close(self) -> None:
        if self._display is not None:
            self._display.__exit__(None, None, None)
            self._display = None
