"""Seconds to the target on 16 cores: a panel for each task, a bar for each way of ours and each number of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.paper.draw.style import COLOURS, SMALL, dress
from bench.paper.figures import PAPER
from bench.paper.results import Line, Results
from bench.paper.table import seconds_text
from bench.picture import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def sixteen(results: Results) -> Figure:
    """Returns the picture."""
    from matplotlib.figure import Figure

    tasks = [name for name in PAPER if results.of("table", name, 16)]
    rows = -(-len(tasks) // 2)
    most = max(len(results.lines("table", name, 16)) for name in tasks)
    figure = Figure(figsize=(11.5 if len(tasks) > 1 else 6, rows * (0.9 + 0.2 * most)), layout="constrained")
    grid = figure.subplots(rows, min(2, len(tasks)), squeeze=False).ravel()
    for axes, name in zip(grid, tasks, strict=False):
        _panel(axes, name, results)
    for axes in grid[len(tasks) :]:
        axes.set_visible(False)
    return figure


def _panel(axes: Axes, name: str, results: Results) -> None:
    from matplotlib.ticker import MaxNLocator

    paper, lines = PAPER[name], results.lines("table", name, 16)
    best = {one.run.name for torch in (False, True) if (one := results.fastest(name, torch=torch)) is not None}
    seconds = [0.0 if one is None else one.seconds or 0.0 for _, one in lines]
    most = max(seconds) or 1.0
    for place, ((run, one), value) in enumerate(zip(lines, seconds, strict=True)):
        bold = run.name in best
        axes.barh(place, value, height=0.7, color=COLOURS[run.way], alpha=1.0 if bold else 0.45)
        text = _ends((run, one))
        look: dict[str, Any] = {"color": INK if value else FAINT, "fontweight": "bold" if bold else "normal"}
        axes.text(value + 0.012 * most, place, text, va="center", fontsize=SMALL, **look)
    axes.set_yticks(range(len(lines)), [run.title() for run, _ in lines])
    axes.invert_yaxis()
    ours, theirs = (results.fastest(name, torch=torch) for torch in (False, True))
    ratio = ""
    if ours is not None and theirs is not None and ours.seconds and theirs.seconds:
        ratio = f": ours {theirs.seconds / ours.seconds:.2f} x as fast as torch"
    goal = paper.shown(paper.target, 0) if paper.higher_is_better else f"{paper.target:g}"
    dress(axes, f"{paper.title} to {goal}{ratio}", f"seconds to {goal}")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0, colors=INK)
    axes.set_xlim(0, 1.15 * most)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def _ends(line: Line) -> str:
    run, one = line
    if one is None:
        return "not run"
    if run.target is None:
        return "one epoch only"
    return seconds_text(one.seconds) if one.seconds is not None else "not reached" if one.alone else "not timed"
