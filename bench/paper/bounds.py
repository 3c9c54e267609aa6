"""Bounds: what is asked of the results (`figures.BOUNDS`), and whether the files meet it.

    Epochs       one model parted over workers, on two cores; or replicas, on any machine
    Slowdown     the same workers against the synchronous run of the fewest epochs: one wave in flight, of any size
    Throughput   the fastest run of ours on two cores
    Faster       seconds on 16 cores: our fastest way against torch with its fastest number of threads
    Better       the lowest error of the run with the best settings, which were chosen on another split

A bound is judged when all that it needs was run: the number of seeds that it asks for, every number of torch threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from bench.paper.figures import BOUNDS, PAPER, Better, Bound, Epochs, Faster, Slowdown, Throughput
from bench.paper.plan import CHOSEN_ON, REPORTED_ON
from bench.paper.results import Measured, Results


@dataclass(frozen=True, slots=True)
class Check:
    """A bound and what was measured."""

    workload: str
    what: str
    asked: str
    measured: str
    kept: bool | None = None
    """None: not run, or not all of it."""
    of: tuple[Measured, ...] = ()
    """The runs it was measured by."""

    @property
    def verdict(self) -> str:
        """Returns ``met``, ``MISSED``, ``not run`` or ``partly run``."""
        if self.kept is None:
            return "partly run" if self.of else "not run"
        return "met" if self.kept else "**MISSED**"


def checks(results: Results, bounds: Sequence[Bound] = BOUNDS) -> list[Check]:
    """Returns all bounds, in their order."""
    return [check for bound in bounds for check in _check(bound, results)]


def _check(bound: Bound, results: Results) -> Iterable[Check]:
    match bound:
        case Epochs():
            yield from _epochs(bound, results)
        case Slowdown():
            yield _slowdown(bound, results)
        case Throughput():
            yield _throughput(bound, results)
        case Faster():
            yield _faster(bound, results)
        case Better():
            yield _better(bound, results)


def _epochs(bound: Epochs, results: Results) -> Iterable[Check]:
    way = "workers" if bound.replicas == 1 else "replicas"
    wanted, cores = (way, bound.max_active_keys, bound.replicas), 2 if way == "workers" else None
    ran = [one for one in results.of("table", bound.workload, cores) if _key(one) == wanted]
    asked = f"at most {bound.at_most}" + (", every seed" if bound.every else "")
    for one in ran:
        epochs = one.slowest if bound.every else one.epochs
        kept = epochs is not None and epochs <= bound.at_most
        enough = len(one.seeds) >= bound.seeds
        yield Check(
            bound.workload, f"epochs: {_place(one)}", asked, _told(bound, one), kept if enough else None, (one,)
        )
    if not ran:
        copies = "workers" if bound.replicas == 1 else f"{bound.replicas} replicas"
        yield Check(bound.workload, f"epochs: {copies}, {bound.max_active_keys} in flight", asked, "-")


def _key(one: Measured) -> tuple[str, int | None, int]:
    return one.run.way, one.run.max_active_keys, one.run.replicas


def _told(bound: Epochs, one: Measured) -> str:
    told = epochs_text(one)
    if bound.every and one.slowest is not None:
        told += f"; slowest seed {one.slowest:g}"
    return told if len(one.seeds) >= bound.seeds else f"{told}; {len(one.seeds)} of {bound.seeds} seeds run"


def _place(one: Measured) -> str:
    return f"{one.run.title()}, {one.run.cores} cores"


def _slowdown(bound: Slowdown, results: Results) -> Check:
    asked = f"at most {bound.at_most:g} x" + (f" where above {bound.beyond}" if bound.beyond else "")
    same = results.of("table", bound.workload, 2)
    more = next((m for m in same if _key(m) == ("workers", bound.max_active_keys, 1)), None)
    synchronous = [m for m in same if m.run.way == "sync"]
    what = f"epochs: {bound.max_active_keys} in flight on workers, against one wave in flight"
    if more is None or not synchronous:
        return Check(bound.workload, what, asked, "-")
    one = min(synchronous, key=lambda m: inf if m.epochs is None else m.epochs)
    what = f"epochs: {more.run.title()}, against {one.run.title()}"
    told = f"{epochs_text(more)} against {epochs_text(one)}"
    kept: bool | None = False
    if one.epochs is not None and more.epochs is not None:
        ratio = more.epochs / one.epochs
        told = f"{ratio:.2f} x ({more.epochs:g} against {one.epochs:g})"
        kept = ratio <= bound.at_most or more.epochs <= bound.beyond
    if min(len(more.seeds), len(one.seeds)) < bound.seeds:
        kept = None
    return Check(bound.workload, what, asked, told, kept, (one, more))


def _throughput(bound: Throughput, results: Results) -> Check:
    unit = PAPER[bound.workload].unit
    what, asked = f"{unit}/s in training, 2 cores", f"above {bound.above:,.0f}"
    ours = [m for m in results.of("table", bound.workload, 2) if m.run.way != "torch" and m.train is not None]
    if not ours:
        return Check(bound.workload, what, asked, "-")
    best = max(ours, key=lambda one: one.train or 0.0)
    assert best.train is not None
    measured = f"{best.train:,.0f} ({best.run.title()})"
    return Check(bound.workload, what, asked, measured, best.train > bound.above, (best,))


def _faster(bound: Faster, results: Results) -> Check:
    what, asked = "seconds to the target, 16 cores: torch's against ours", f"at least {bound.at_least:g} x"
    lines = results.lines("table", bound.workload, 16)
    ours, theirs = (results.fastest(bound.workload, torch=torch) for torch in (False, True))
    if ours is None or theirs is None:
        return Check(bound.workload, what, asked, "-", None, tuple(results.of("table", bound.workload, 16)))
    assert ours.seconds is not None
    assert theirs.seconds is not None
    ratio = theirs.seconds / ours.seconds
    told = f"{ratio:.2f} x ({theirs.run.label()}: {theirs.seconds:.1f}; {ours.run.title()}: {ours.seconds:.1f})"
    whole = all(one is not None for run, one in lines if run.way == "torch")
    enough = min(len(ours.seeds), len(theirs.seeds)) >= bound.seeds
    return Check(
        bound.workload, what, asked, told, ratio >= bound.at_least if whole and enough else None, (ours, theirs)
    )


def _better(bound: Better, results: Results) -> Check:
    what, asked = "error, best settings", f"below {bound.below:g}"
    one = next(iter(results.of("best", bound.workload)), None)
    if one is None or one.best is None:
        return Check(bound.workload, what, asked, "-")
    after = next(epoch for seed in one.seeds for epoch, _, value in seed.curve() if value == one.best)
    told, kept = f"{one.best:.3f} (epoch {after})", one.best < bound.below
    if CHOSEN_ON == REPORTED_ON:
        return Check(bound.workload, what, asked, f"{told}; settings chosen on the same split", None, (one,))
    return Check(bound.workload, what, asked, told, kept, (one,))


def epochs_text(one: Measured) -> str:
    """Returns ``9``, ``9 (4 of 5 seeds)``, or a dash with the best value if the median did not reach the target."""
    if one.run.target is None:
        return "-"
    some = f"{one.reached} of {len(one.seeds)} seeds"
    if one.epochs is None:
        found = [some] if one.reached else []
        found += [f"{one.diverged} diverged"] if one.diverged else []
        found += [f"best {one.paper.shown(one.best)}"] if one.best is not None else []
        return f"- ({'; '.join(found)})"
    return f"{one.epochs:g}" if one.reached == len(one.seeds) else f"{one.epochs:g} ({some})"
