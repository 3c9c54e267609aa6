"""Results: the runs of a file, compared with one another, and what is asked for.

equal tokens     the held-out loss when all have trained on the same tokens: after the last update
equal seconds    the held-out loss when the first of the contenders has ended; of the others by interpolation
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FASTER, NEAR = 1.2, 0.02
"""Asked for: tokens a second against 1F1B, and the relative difference of losses at equal tokens."""


@dataclass(frozen=True, slots=True)
class Line:
    """A run in comparison with those of as many microbatches."""

    contender: str
    microbatches: int
    tokens_per_second: float
    ratio: float | None
    """Against 1F1B; None if that was not run."""
    bubble: float
    ideal_bubble: float
    """Of equally long stages without any cost of communication: 0 where the pipeline is not flushed."""
    staleness: float
    loss: float
    """At equal tokens."""
    loss_ratio: float | None
    """Against 1F1B."""
    loss_at_seconds: float
    """At equal seconds."""
    seconds: float
    """When the first contender had ended, after the warm-up."""


def lines_of(runs: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Compares the runs of a file of results."""
    lines = []
    for count in sorted({run["setting"]["microbatches"] for run in runs}):
        some = [run for run in runs if run["setting"]["microbatches"] == count]
        base = next((run["turn"] for run in some if run["setting"]["contender"] == "1f1b"), None)
        ended = min(run["turn"]["curve"][-1]["seconds"] for run in some)
        lines += [_line(run["setting"], run["turn"], base, ended) for run in some]
    return lines


def _line(setting: Mapping[str, Any], turn: Mapping[str, Any], base: Mapping[str, Any] | None, ended: float) -> Line:
    speed, loss = turn["tokens_per_second"], turn["curve"][-1]["loss"]
    waits = setting["stages"] - 1
    return Line(
        setting["contender"],
        setting["microbatches"],
        speed,
        None if base is None else speed / base["tokens_per_second"],
        turn["bubble"],
        0.0 if setting["contender"].startswith("ours") else waits / (setting["microbatches"] + waits),
        turn["staleness"],
        loss,
        None if base is None else loss / base["curve"][-1]["loss"],
        loss_at(turn["curve"], ended),
        ended,
    )


def loss_at(curve: Sequence[Mapping[str, float]], seconds: float) -> float:
    """Returns the loss of a curve at a time, by linear interpolation."""
    return float(np.interp(seconds, [point["seconds"] for point in curve], [point["loss"] for point in curve]))


def checks_of(lines: Sequence[Line]) -> list[tuple[str, bool]]:
    """Returns what is asked for, in words, and whether it was reached."""
    out = []
    for line in lines:
        if line.contender.startswith("ours") and line.ratio is not None and line.loss_ratio is not None:
            where = f"{line.contender}, {line.microbatches} microbatches"
            out.append((f"{where}: at least {FASTER} x the tokens/s of 1F1B: {line.ratio:.2f}", line.ratio >= FASTER))
            text = f"{where}: loss at equal tokens at most {NEAR:.0%} above 1F1B's: {line.loss_ratio - 1:+.1%}"
            out.append((text, line.loss_ratio <= 1 + NEAR))
    return out


def table(lines: Sequence[Line]) -> str:
    """Returns the lines as text."""
    head = (
        f"{'microbatches':>12}  {'contender':13} {'tokens/s':>9} {'x 1F1B':>7} {'bubble':>7} {'ideal':>6} {'stale':>6}"
    )
    rows = [f"{head} {'loss':>7} {'at equal seconds':>17}"]
    for line in lines:
        ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
        rows.append(
            f"{line.microbatches:12}  {line.contender:13} {line.tokens_per_second:9,.0f} {ratio:>7} {line.bubble:7.0%} "
            f"{line.ideal_bubble:6.0%} {line.staleness:6.2f} {line.loss:7.3f} {line.loss_at_seconds:17.3f}"
        )
    return "\n".join(rows)
