"""Bounds: what we ask of ourselves, held against what was measured. Nothing here is typed in; see `figures.BOUNDS`.

A bound on epochs is asked of every way that has run with so many in flight in one process, by waves and by messages; a
bound of replicas, of replicas. Throughput is that of the fastest run of ours, on as many cores as there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.paper.figures import BOUNDS, PAPER, Better, Bound, Epochs, Slowdown, Throughput
from bench.paper.results import Measured, Results

ONE_PROCESS = ("waves", "messages")


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
    ran = False
    for way in ONE_PROCESS:
        one, more = (results.one(bound.workload, way, number) for number in (1, many))
        if one is None or more is None:
            continue
        ran, what = True, f"epochs: {way}, {many} in flight against 1"
        if one.epochs is None or more.epochs is None:
            # Where one in flight does not get there either, there is nothing to compare with.
            yield Check(
                bound.workload, what, asked, f"{epochs_text(more)} against {epochs_text(one)}", False, (one, more)
            )
        else:
            ratio = more.epochs / one.epochs
            yield Check(bound.workload, what, asked, f"{ratio:.2f} x", ratio <= bound.at_most, (one, more))
    if not ran:
        yield Check(bound.workload, f"epochs: {many} in flight against 1", asked, "-")


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
    after = one.middle().report["epochs"]
    return Check(bound.workload, what, asked, f"{one.best:.3f} (epoch {after})", one.best < bound.below, (one,))


def epochs_text(one: Measured) -> str:
    """``9``, ``9 (4 of 5 seeds)``, or a dash and the best value where the median did not reach the target."""
    some = f"{one.reached} of {len(one.seeds)} seeds"
    if one.epochs is None:
        return f"- ({f'{some}; ' if one.reached else ''}best {one.paper.shown(one.best)})"
    return f"{one.epochs:g}" if one.reached == len(one.seeds) else f"{one.epochs:g} ({some})"
