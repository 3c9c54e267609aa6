"""Tables of the page of results, in Markdown: bounds, Table 1, time on 16 cores, throughput.

A table has a line for every planned run. A dash is a number that there is not: not run, or not reached, or (seconds and
rates) not alone on the machine. A column with the machine's letter is there if the lines are from several machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bench.paper.bounds import checks, epochs_text
from bench.paper.figures import PAPER, Paper, PaperRow
from bench.paper.results import Machine, Measured, Results
from bench.paper.runs import Run

PAPERS_OWN = ("workers", "replicas")
"""Ways beside which the paper's row of the same number in flight stands."""

Tag = Callable[..., list[str]]
"""Maps runs to a cell with the letters of their machines, or to no cell."""


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    """Returns a table; all columns but the first ``left`` are right-aligned."""
    rule = [*["---"] * left, *["---:"] * (len(heads) - left)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *lines))


def letter(machine: Machine, machines: Sequence[Machine]) -> str:
    """Returns the letter of a machine."""
    return chr(ord("A") + machines.index(machine))


def origin(results: Results, runs: Iterable[Measured | None]) -> tuple[list[str], Tag]:
    """Returns the head and the cells of a column with the machine of a line, if the runs are of several; else none."""
    if len({machine for one in runs if one is not None for machine in one.machines}) < 2:
        return [], lambda *runs: []

    def tag(*runs: Measured | None) -> list[str]:
        found = {machine for one in runs if one is not None for machine in one.machines}
        return [", ".join(sorted(letter(machine, results.machines) for machine in found)) or "-"]

    return ["machine"], tag


def seconds_text(seconds: float | None) -> str:
    """Returns seconds with three digits or more, or a dash."""
    return "-" if seconds is None else f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.1f}"


def rate_text(rate: float | None) -> str:
    """Returns a rate with three digits or more, or a dash."""
    return "-" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def stale_text(one: Measured | None) -> str:
    """Returns the mean staleness, or a dash."""
    return "-" if one is None or one.staleness is None else f"{one.staleness:.1f}"


# -- bounds


def bounds_table(results: Results) -> str:
    """Returns what is asked and what was measured."""
    found = checks(results)
    column, tag = origin(results, (one for check in found for one in check.of))
    lines = [[PAPER[c.workload].title, c.what, c.asked, c.measured, *tag(*c.of), c.verdict] for c in found]
    return markdown(["task", "bound", "asked", "measured", *column, "verdict"], lines, left=4)


def bounds_count(results: Results) -> str:
    """Returns ``18 of 20 bounds are met, 1 is missed, 1 was not run.``"""
    found = [check.kept for check in checks(results)]
    met, missed, rest = (found.count(kept) for kept in (True, False, None))
    parts = [f"{met} of {len(found)} bounds are met"]
    parts += [f"{missed} {'is' if missed == 1 else 'are'} missed"] if missed else []
    parts += [f"{rest} {'was' if rest == 1 else 'were'} not run, or only in part"] if rest else []
    return ", ".join(parts) + "."


# -- Table 1


def workload_table(paper: Paper, results: Results) -> str:
    """Returns Table 1 of a task, on two cores."""
    lines = results.lines("table", paper.workload, 2)
    column, tag = origin(results, (one for _, one in lines))
    heads = ["", "in flight", "seeds", "epochs", "seconds", "train/s", "valid/s", "staleness", *column]
    heads += ["paper: epochs", "seconds", "inst/s"]
    cells = [[*line(run, one), *tag(one), *_papers(_row_of(run, paper))] for run, one in lines]
    theirs = paper.tensorflow
    nothing = ["-"] * (len(heads) - 4)
    cells.append(["TensorFlow, in the paper", *nothing, *_cells(theirs.epochs, theirs.seconds, theirs.rate)])
    return markdown(heads, cells)


def line(run: Run, one: Measured | None) -> list[str]:
    """Returns the cells of a run: way, in flight, seeds, epochs, seconds, rates, staleness."""
    flight = "-" if run.max_active_keys is None else str(run.max_active_keys)
    if one is None:
        return [run.label(), flight, *["-"] * 6]
    rates = [seconds_text(one.seconds), rate_text(one.train), rate_text(one.valid)]
    return [run.label(), flight, str(len(one.seeds)), epochs_text(one), *rates, stale_text(one)]


def _row_of(run: Run, paper: Paper) -> PaperRow | None:
    if run.max_active_keys is None or run.way not in PAPERS_OWN:
        return None
    return paper.row(run.max_active_keys, run.replicas)


def _papers(row: PaperRow | None) -> list[str]:
    return ["-"] * 3 if row is None else _cells(row.epochs, row.seconds, row.rate)


def _cells(epochs: int, seconds: float, rate: float) -> list[str]:
    return [str(epochs), seconds_text(seconds), rate_text(rate)]


# -- 16 cores


def time_table(results: Results) -> str:
    """Returns the time to the target on 16 cores: ours and torch, and how many times faster the best of ours is."""
    lines = results.lines("table", cores=16)
    column, tag = origin(results, (one for _, one in lines))
    heads = ["task", "", "in flight", "seeds", "epochs", "seconds", "train/s", "valid/s", "staleness", *column]
    heads.append("against the fastest torch")
    cells, before = [], ""
    for run, one in lines:
        title = PAPER[run.workload].title
        ratio = _against(one, results.fastest(run.workload, torch=True))
        cells.append([title if title != before else "", *line(run, one), *tag(one), ratio])
        before = title
    return markdown(heads, cells, left=2)


def _against(one: Measured | None, other: Measured | None) -> str:
    if one is None or one.seconds is None or other is None or other.seconds is None or one.run.way == "torch":
        return "-"
    return f"{other.seconds / one.seconds:.2f} x"


# -- throughput


def throughput_table(results: Results) -> str:
    """Returns Table 2, a line for each row of the paper: training and validation, instances per second."""
    heads = ["train / valid, instances/s", "instances, in the paper", "in flight", "workers or replicas", "synchronous"]
    heads += ["torch", "AMPNet, in the paper", "TensorFlow, in the paper"]
    lines = []
    for paper in PAPER.values():
        for row in paper.rows:
            last = row is paper.rows[-1]
            name = paper.title if row.replicas == 1 else f"{paper.title}, {row.replicas} replicas"
            ways = ("workers", "sync") if row.replicas == 1 else ("replicas", "")
            ours = [_one(results, paper.workload, way, row) for way in ways]
            lines.append(
                [
                    name,
                    f"{paper.train:,} / {paper.valid:,}" if last else "",
                    str(row.max_active_keys),
                    *(both(one) for one in ours),
                    both(_fastest_torch(paper, results)) if last else "",
                    f"{rate_text(row.train)} / {rate_text(row.valid)}",
                    f"{rate_text(paper.tensorflow.train)} / {rate_text(paper.tensorflow.valid)}" if last else "",
                ]
            )
    return markdown(heads, lines)


def _one(results: Results, workload: str, way: str, row: PaperRow) -> Measured | None:
    """Returns our run beside a row of the paper: on two cores, or else on 16."""
    wanted = (way, row.max_active_keys, row.replicas)
    runs = sorted(results.of("table", workload), key=lambda one: one.run.cores)
    return next((m for m in runs if (m.run.way, m.run.max_active_keys, m.run.replicas) == wanted), None)


def _fastest_torch(paper: Paper, results: Results) -> Measured | None:
    ran = [m for m in results.of("table", paper.workload, 2) if m.run.way == "torch" and m.train is not None]
    return max(ran, key=lambda one: one.train or 0.0, default=None)


def both(one: Measured | None) -> str:
    """Returns ``400 / 1,000``, with threads and cores where they are not the usual ones."""
    if one is None or one.train is None:
        return "-"
    told = [f"{one.run.workers} thread{'s' * (one.run.workers > 1)}"] if one.run.way == "torch" else []
    told += [f"{one.run.cores} cores"] if one.run.cores != 2 else []
    return " ".join([f"{rate_text(one.train)} / {rate_text(one.valid)}", *(f"({where})" for where in told)])
