r"""The display of a run in progress: a live view on a terminal, otherwise one plain line per epoch.

    terminal      epoch 3/12 train ━━━━━━━━━━━━━╸━━━━━━ 67,300/100,000  31,120/s
                  loss 0.231  accuracy 0.9260  4 in flight  staleness 2.1 (max 7)
                  elapsed 0:09  left: epoch 0:01, run 0:31 at most
    elsewhere     epoch  3  loss 0.214  accuracy 0.9312  train 31,204/s  valid 92,110/s  staleness 2.1 (max 7)  0:10, \
                  0:31 left

Loss and metric of an epoch are its validation's; the staleness is that of the whole run so far. Plain lines are flushed
one by one, so that a reader of a pipe gets each at once. Without rich, a terminal gets plain lines too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ampnet.controller import Progress
from ampnet.eta import Eta, clock_text
from ampnet.fitting import EpochRecord
from ampnet.tally import by_loss

if TYPE_CHECKING:
    from rich.console import RenderableType


class Staleness(Protocol):
    """The staleness values of a display."""

    @property
    def mean(self) -> float:
        """Mean over messages."""

    @property
    def max(self) -> int:
        """The largest."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a run that a display needs beforehand."""

    epochs: int
    """The maximal number of epochs."""
    totals: Mapping[str, int]
    """Examples in a stream, by "train" and "valid"."""
    metric: str
    """The metric to show."""
    staleness: Callable[[], Staleness] | None
    """The staleness so far; None: not measured."""


class Display:
    """Base class: shows only the lines passed to `say`."""

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def turn(self, progress: Progress) -> None:
        """Called about ten times a second with the progress."""

    def epoch(self, record: EpochRecord) -> None:
        """Called at the end of an epoch."""

    def say(self, line: str) -> None:
        """Show a line that stays."""
        print(line, flush=True)


class Plain(Display):
    """A line per epoch."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.eta = facts, Eta(facts.epochs, facts.totals)

    def epoch(self, record: EpochRecord) -> None:
        self.eta.epoch(record)
        self.say(epoch_line(record, self.facts))


class LiveView(Plain):
    """A line per epoch, and a live view below. Used only if rich can be imported."""

    def __init__(self, facts: Facts) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        super().__init__(facts)
        self.console = Console(highlight=False)
        # Refreshed by `turn` alone: a separate thread would take the interpreter lock from the run.
        self._live = RichLive(console=self.console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def turn(self, progress: Progress) -> None:
        self._live.update(self._view(progress), refresh=True)

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, soft_wrap=True)

    def _view(self, progress: Progress) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        phase, _, number = progress.stream.partition(" ")
        total = self.facts.totals[phase]
        first, second = progress_lines(progress, total, self.facts)
        line = Table.grid(padding=(0, 1))
        line.add_row(
            Text(f"epoch {number}/{self.facts.epochs} {phase}", style="bold", no_wrap=True),
            ProgressBar(total=total, completed=progress.records, width=20),
            Text(first, no_wrap=True),
        )
        third = self.eta.text(progress)
        return Group(line, *(Text(one, no_wrap=True, overflow="ellipsis") for one in (second, third)))


def make_display(facts: Facts, *, quiet: bool = False) -> Display:
    """Returns the display for stdout: live on a terminal, else plain lines."""
    if quiet:
        return Display()
    if sys.stdout.isatty():
        try:
            live = LiveView(facts)
        except ImportError:
            return Plain(facts)
        if not live.console.is_dumb_terminal:
            return live
    return Plain(facts)


def epoch_line(record: EpochRecord, facts: Facts) -> str:
    """Returns an epoch as one line."""
    validated = record.valid_loss is not None
    loss = record.valid_loss if record.valid_loss is not None else record.train_loss
    metrics = record.valid_metrics if validated else record.train_metrics
    value = metrics.get(facts.metric, float("nan"))
    parts = [f"epoch {record.epoch:2d}", loss_text(loss, metrics), *_metric_text(facts, value)]
    parts.append(f"train {record.train_records_per_second:,.0f}/s")
    if record.valid_records_per_second is not None:
        parts.append(f"valid {record.valid_records_per_second:,.0f}/s")
    left = (facts.epochs - record.epoch) * record.seconds / record.epoch
    times = [clock_text(record.seconds), *([f"{clock_text(left)} left"] if left else [])]
    return "  ".join([*parts, *_staleness_text(facts), ", ".join(times)])


def progress_lines(progress: Progress, total: int, facts: Facts) -> tuple[str, str]:
    """Returns the live numbers, in two lines of less than 80 characters. Values not measured yet are omitted."""
    first, second = [f"{progress.records:,}/{total:,}"], [f"{progress.in_flight} in flight"]
    if progress.records and progress.seconds > 0:
        first.append(f"{progress.records / progress.seconds:,.0f}/s")
        value = progress.metrics.get(facts.metric, float("nan"))
        second = [loss_text(progress.loss, progress.metrics), *_metric_text(facts, value), *second]
    return "  ".join(first), "  ".join([*second, *_staleness_text(facts)])


def _metric_text(facts: Facts, value: float) -> list[str]:
    return [] if facts.metric == "loss" else [f"{facts.metric} {value:.4f}"]


def _staleness_text(facts: Facts) -> list[str]:
    return [] if facts.staleness is None else [staleness_text(facts.staleness())]


def loss_text(loss: float, metrics: Mapping[str, float]) -> str:
    """Returns ``loss 0.231``; for several losses ``loss 0.231 (mood 0.150, length 0.081)``."""
    several = ", ".join(f"{name} {_loss(value)}" for name, value in by_loss(metrics).items())
    return f"loss {_loss(loss)}" + (f" ({several})" if several else "")


def _loss(value: float) -> str:
    """Returns ``0.231``; ``2.3e-05`` where three digits after the point would say little."""
    return f"{value:.1e}" if 0 < value < 0.001 else f"{value:.3f}"


def staleness_text(staleness: Staleness) -> str:
    """Returns ``staleness 2.1 (max 7)``; a dash before the first backward."""
    return "staleness -" if isnan(staleness.mean) else f"staleness {staleness.mean:.1f} (max {staleness.max})"
