"""Bounds: what we ask of ourselves, held against what was measured. Nothing here is typed in; see `figures.BOUNDS`.

A bound on epochs is asked of every way that has run with so many in flight in one process, by waves and by messages; a
bound of replicas, of replicas. What it costs to have many in flight is asked of the ways in which that makes another
training, against waves of one, which has to have been run: gradients may be stale, or, where updates are counted in
messages, a wave larger than an update. Throughput is that of the fastest run of ours, on as many cores as there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.paper.figures import BOUNDS, PAPER, Better, Bound, Epochs, Slowdown, Throughput
from bench.paper.results import Measured, Results

ONE_PROCESS = ("waves", "messages")
STALE = ("messages", "workers", "replicas")
"""Ways in which gradients may be for weights that are no more."""


@dataclass(frozen=True, slots=True)
class Check:
    """A bound and what came of it."""

    workload: str
    what: str
    asked: str
    measured: str
    kept: bool | None = None
    """None: not run."""
    of: tuple[Measured, ...] = ()
    """What was measured."""

    @property
    def verdict(self) -> str:
        return {True: "met", False: "**MISSED**", None: "not run"}[self.kept]


def checks(results: Results, bounds: Sequence[Bound] = BOUNDS) -> list[Check]:
    """All bounds, in their order."""
    return [check for bound in bounds for check in _check(bound, results)]


def _check(bound: Bound, results: Results) -> Iterable[Check]:
    match bound:
        case Epochs():
            yield from _epochs(bound, results)
        case Slowdown():
            yield from _slowdown(bound, results)
        case Throughput():
            yield _throughput(bound, results)
        case Better():
            yield _better(bound, results)


def _epochs(bound: Epochs, results: Results) -> Iterable[Check]:
    ways = ONE_PROCESS if bound.replicas == 1 else ("replicas",)
    found = [results.one(bound.workload, way, bound.max_active_keys, bound.replicas) for way in ways]
    asked, ran = f"at most {bound.at_most}", [one for one in found if one is not None]
    for one in ran:
        kept = one.epochs is not None and one.epochs <= bound.at_most
        yield Check(bound.workload, f"epochs: {one.run.title()}", asked, epochs_text(one), kept, (one,))
    if not ran:
        copies = "" if bound.replicas == 1 else f"{bound.replicas} replicas, "
        yield Check(bound.workload, f"epochs: {copies}{bound.max_active_keys} in flight", asked, "-")


def _slowdown(bound: Slowdown, results: Results) -> Iterable[Check]:
    many, asked = bound.max_active_keys, f"at most {bound.at_most:g} x"
    one = results.one(bound.workload, "waves", 1)
    stale = [m for m in results.of("table", bound.workload) if _differs(m) and _flight(m) >= many]
    if one is None or not stale:
        yield Check(bound.workload, f"epochs: {many} in flight against 1", asked, "-")
        return
    for more in stale:
        what = f"epochs: {more.run.title()}, against {one.run.title()}"
        if one.epochs is None or more.epochs is None:
            # Where training without asynchrony does not get there either, there is nothing to compare with.
            told = f"{epochs_text(more)} against {epochs_text(one)}"
            yield Check(bound.workload, what, asked, told, False, (one, more))
        else:
            ratio = more.epochs / one.epochs
            told = f"{ratio:.2f} x ({more.epochs:g} against {one.epochs:g})"
            yield Check(bound.workload, what, asked, told, ratio <= bound.at_most, (one, more))


def _differs(one: Measured) -> bool:
    """Whether the number in flight makes it another training."""
    by_messages = one.middle().report["settings"].get("count") == "messages"
    return one.run.way in STALE or (one.run.way == "waves" and by_messages)


def _flight(one: Measured) -> int:
    return one.run.max_active_keys or 0


def _throughput(bound: Throughput, results: Results) -> Check:
    unit = PAPER[bound.workload].unit
    what, asked = f"{unit}/s in training", f"above {bound.above:,.0f}"
    ours = [m for m in results.of("table", bound.workload) if m.run.way != "torch" and m.train is not None]
    if not ours:
        return Check(bound.workload, what, asked, "-")
    best = max(ours, key=lambda one: one.train or 0.0)
    assert best.train is not None
    measured = f"{best.train:,.0f} ({best.run.title()})"
    return Check(bound.workload, what, asked, measured, best.train > bound.above, (best,))


def _better(bound: Better, results: Results) -> Check:
    what, asked = "error, best settings", f"below {bound.below:g}"
    one = next(iter(results.of("best", bound.workload)), None)
    if one is None or one.best is None:
        return Check(bound.workload, what, asked, "-")
    after = next(epoch for seed in one.seeds for epoch, _, value in seed.curve() if value == one.best)
    return Check(bound.workload, what, asked, f"{one.best:.3f} (epoch {after})", one.best < bound.below, (one,))


def epochs_text(one: Measured) -> str:
    """``9``, ``9 (4 of 5 seeds)``, or a dash and the best value where the median did not reach the target."""
    some = f"{one.reached} of {len(one.seeds)} seeds"
    if one.epochs is None:
        return f"- ({f'{some}; ' if one.reached else ''}best {one.paper.shown(one.best)})"
    return f"{one.epochs:g}" if one.reached == len(one.seeds) else f"{one.epochs:g} ({some})"
