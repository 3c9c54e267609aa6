"""Tables of the page of results, in Markdown: ours, the baseline, and the paper's figures beside them.

    workload      a line for each way and number in flight: medians over the seeds; then what the paper has for it
    bounds        what was asked, what was measured, met or missed
    throughput    the appendix's Table 2
    studies       how often nodes update; staleness

A dash is a figure that there is not. Runs that were not made have no line, and are listed under the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bench.paper.bounds import checks, epochs_text
from bench.paper.figures import PAPER, Paper, PaperRow
from bench.paper.results import Machine, Measured, Results
from bench.paper.runs import BATCH

PAPERS_OWN = ("waves", "messages", "workers", "replicas")
"""Ways beside which the paper's row of the same number in flight stands."""

Tag = Callable[..., list[str]]
"""Of some runs: the letters of their machines, as a cell; no cell where there is one machine only."""


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table; all columns but the first to the right."""
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *lines))


def letter(machine: Machine, machines: Sequence[Machine]) -> str:
    """What a machine is called where there are several."""
    return chr(ord("A") + machines.index(machine))


def origin(results: Results) -> tuple[list[str], Tag]:
    """A column that says which machine a line is from, if there are several; else none."""
    if len(results.machines) < 2:
        return [], lambda *runs: []

    def tag(*runs: Measured) -> list[str]:
        return [", ".join(sorted({letter(machine, results.machines) for one in runs for machine in one.machines}))]

    return ["machine"], tag


def workload_table(paper: Paper, results: Results) -> str:
    """Table 1 of a workload."""
    column, tag = origin(results)
    heads = ["", "in flight", "seeds", "epochs", "seconds", "train/s", "valid/s", "staleness", *column]
    heads += ["paper: epochs", "seconds", "inst/s"]
    lines = []
    for one in results.of("table", paper.workload):
        lines.append([*line(one), *tag(one), *_papers(_row_of(one, paper))])
    theirs = paper.tensorflow
    nothing = ["-"] * (len(heads) - 4)
    lines.append(["TensorFlow, in the paper", *nothing, *_cells(theirs.epochs, theirs.seconds, theirs.rate)])
    return markdown(heads, lines)


def line(one: Measured) -> list[str]:
    """The cells of a run that are ours."""
    return [
        one.run.label(),
        "-" if one.run.max_active_keys is None else str(one.run.max_active_keys),
        str(len(one.seeds)),
        epochs_text(one),
        seconds_text(one.seconds),
        rate_text(one.train),
        rate_text(one.valid),
        "-" if one.staleness is None else f"{one.staleness:.1f}",
    ]


def _row_of(one: Measured, paper: Paper) -> PaperRow | None:
    if one.run.max_active_keys is None or one.run.way not in PAPERS_OWN:
        return None
    return paper.row(one.run.max_active_keys, one.run.replicas)


def _papers(row: PaperRow | None) -> list[str]:
    return ["-"] * 3 if row is None else _cells(row.epochs, row.seconds, row.rate)


def _cells(epochs: int, seconds: float, rate: float) -> list[str]:
    return [str(epochs), seconds_text(seconds), rate_text(rate)]


def seconds_text(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.1f}"


def rate_text(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def bounds_table(results: Results) -> str:
    """What we ask of ourselves."""
    column, tag = origin(results)
    lines = [[PAPER[c.workload].title, c.what, c.asked, c.measured, *tag(*c.of), c.verdict] for c in checks(results)]
    return markdown(["", "", "asked", "measured", *column, ""], lines)


def bounds_count(results: Results) -> str:
    """``18 of 20 bounds are met, 1 is missed, 1 was not run.``"""
    found = [check.kept for check in checks(results)]
    met, missed, rest = (found.count(kept) for kept in (True, False, None))
    parts = [f"{met} of {len(found)} bounds are met"]
    parts += [f"{missed} {'is' if missed == 1 else 'are'} missed"] if missed else []
    parts += [f"{rest} {'was' if rest == 1 else 'were'} not run"] if rest else []
    return ", ".join(parts) + "."


def throughput_table(results: Results) -> str:
    """Table 2, a line for each row of the paper: training and validation, instances a second."""
    _, tag = origin(results)
    heads = ["train / valid, instances/s", "instances, in the paper", "in flight", "by waves", "by messages", "torch"]
    heads += ["AMPNet, in the paper", "TensorFlow, in the paper"]
    lines = []
    for paper in PAPER.values():
        for row in paper.rows:
            last = row is paper.rows[-1]
            name = paper.title if row.replicas == 1 else f"{paper.title}, {row.replicas} replicas"
            ways = ("waves", "messages") if row.replicas == 1 else ("replicas", "")
            ours = [results.one(paper.workload, way, row.max_active_keys, row.replicas) for way in ways]
            lines.append(
                [
                    name,
                    f"{paper.train:,} / {paper.valid:,}" if last else "",
                    str(row.max_active_keys),
                    *(_both(one, tag) for one in ours),
                    _both(_fastest_torch(paper, results), tag) if last else "",
                    f"{rate_text(row.train)} / {rate_text(row.valid)}",
                    f"{rate_text(paper.tensorflow.train)} / {rate_text(paper.tensorflow.valid)}" if last else "",
                ]
            )
    return markdown(heads, lines)


def _fastest_torch(paper: Paper, results: Results) -> Measured | None:
    ran = [m for m in results.of("table", paper.workload) if m.run.way == "torch" and m.train is not None]
    return max(ran, key=lambda one: one.train or 0.0, default=None)


def _both(one: Measured | None, tag: Tag) -> str:
    if one is None:
        return "-"
    told = [*([f"{one.run.workers} thread{'s' * (one.run.workers > 1)}"] if one.run.way == "torch" else []), *tag(one)]
    return " ".join([f"{rate_text(one.train)} / {rate_text(one.valid)}", *(f"({where})" for where in told)])


def frequency_table(results: Results) -> str:
    """Accuracy after every epoch, by the number of gradients in an update."""
    runs, beside = results.of("frequency"), reference(results)
    runs += [] if beside is None else [beside]
    column, tag = origin(results)
    most = max(len(one.middle().curve()) for one in runs)
    heads = ["gradients in an update", *(f"epoch {n}" for n in range(1, most + 1)), "train/s", "staleness", *column]
    lines = []
    for one in runs:
        values = [one.paper.shown(value) for _, _, value in one.middle().curve()]
        values += ["-"] * (most - len(values))
        name = batch_of(one) if one.run.way == "torch" else f"{frequency_of(one):,}"
        lines.append([name, *values, rate_text(one.train), line(one)[-1], *tag(one)])
    return markdown(heads, lines)


def reference(results: Results) -> Measured | None:
    """What the study of update sizes is seen beside: the baseline, which stops at its target."""
    return next((one for one in results.of("table", "sentiment") if one.run.way == "torch"), None)


def batch_of(one: Measured) -> str:
    """``torch, batches of 25``"""
    return f"torch, batches of {BATCH[one.run.workload]}"


def frequency_of(one: Measured) -> int:
    """Gradients that made an update, as the run was told."""
    args = one.run.args
    return int(args[args.index("--min-update-frequency") + 1])


def staleness_table(workload: str, results: Results) -> str:
    """Staleness and accuracy, by the number in flight."""
    column, tag = origin(results)
    heads = ["in flight", "staleness", "after the last epoch", "best epoch", "train/s", *column]
    lines = [
        [
            str(one.run.max_active_keys),
            line(one)[-1],
            one.paper.shown(one.last),
            one.paper.shown(one.best),
            rate_text(one.train),
            *tag(one),
        ]
        for one in results.of("staleness", workload)
    ]
    return markdown(heads, lines)


def best_table(results: Results) -> str:
    """The run that is to be as good as can be."""
    column, tag = origin(results)
    heads = ["", "target", "epochs", "seconds", "best", "train/s", "valid/s", *column]
    lines = []
    for one in results.of("best"):
        cells = [one.paper.title, one.paper.shown(one.run.target), epochs_text(one), seconds_text(one.seconds)]
        lines.append([*cells, one.paper.shown(one.best, 2), rate_text(one.train), rate_text(one.valid), *tag(one)])
    return markdown(heads, lines)
