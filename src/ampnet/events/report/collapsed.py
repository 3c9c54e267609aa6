"""Replicas as one line: the sums over the replicas of a node, and their ranges.

    cell        16 replicas on 16 workers    12.1 %, of one 0.6 to 0.9 s    3,200 batches    mean staleness 0.8 to 1.3
    readout     worker0                       4.0 %                         1,600 batches

A report of 16 copies of a model of 30 nodes would have 480 lines. It has 30.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ampnet.events.record import RunRecord
from ampnet.events.staleness import Staleness, summary_of
from ampnet.events.totals import NodeTotal
from ampnet.events.utilisation import NodeUse, UpdateUse


@dataclass(frozen=True, slots=True)
class Line:
    """A node, or all replicas of one."""

    name: str
    """The name of the node, or of the original of replicas."""
    members: dict[str, NodeTotal]
    """By name: the node itself, or its replicas."""
    total: NodeTotal
    """The sums over them."""

    @property
    def count(self) -> int:
        """The number of replicas; 1 for a node without."""
        return len(self.members)


def lines_of(run: RunRecord) -> list[Line]:
    """Returns a line for every node of a run, replicas together, in the order of their first batches."""
    bases = {one.node: group.group for group in run.totals.replicas.values() for one in group.replicas}
    parts: dict[str, dict[str, NodeTotal]] = {}
    for name, total in run.totals.nodes.items():
        parts.setdefault(bases.get(name, name), {})[name] = total
    return [Line(name, members, _sum(list(members.values()))) for name, members in parts.items()]


def _sum(totals: Sequence[NodeTotal]) -> NodeTotal:
    if len(totals) == 1:
        return totals[0]
    workers = list(dict.fromkeys(total.worker for total in totals))
    return NodeTotal(
        workers[0] if len(workers) == 1 else f"{len(workers)} workers",
        _batches([t.forward for t in totals if t.forward is not None]),
        _batches([t.backward for t in totals if t.backward is not None]),
        _updates([t.updates for t in totals if t.updates is not None]),
        _staleness([t.staleness for t in totals if t.staleness is not None]),
    )


def _batches(uses: Sequence[NodeUse]) -> NodeUse | None:
    if not uses:
        return None
    sizes: Counter[int] = Counter()
    for use in uses:
        sizes.update(use.histogram)
    batches = sum(use.invocations for use in uses)
    messages, rows = sum(use.messages for use in uses), sum(use.rows for use in uses)
    nan = float("nan")
    return NodeUse(
        batches,
        messages,
        rows,
        sum(use.seconds for use in uses),
        messages / batches if batches else nan,
        rows / batches if batches else nan,
        sum(use.share for use in uses),
        dict(sorted(sizes.items())),
    )


def _updates(uses: Sequence[UpdateUse]) -> UpdateUse | None:
    if not uses:
        return None
    return UpdateUse(
        sum(use.updates for use in uses),
        sum(use.gradients for use in uses),
        sum(use.flushes for use in uses),
        sum(use.seconds for use in uses),
        sum(use.share for use in uses),
    )


def _staleness(parts: Sequence[Staleness]) -> Staleness | None:
    if not parts:
        return None
    counts: Counter[int] = Counter()
    for part in parts:
        counts.update(part.histogram)
    return summary_of(counts)


def span(values: Iterable[float], form: str) -> str:
    """Returns ``0.6 to 0.9``; one number if they are equal; a dash without any."""
    known = [value for value in values if value - value == 0]
    if not known:
        return "-"
    ends = [format(value, form) for value in (min(known), max(known))]
    return " to ".join(dict.fromkeys(ends))


def least_mean_most(values: Iterable[float], form: str) -> str:
    """Returns ``0.6 / 0.7 / 0.9``; one number if they are equal; a dash without any."""
    known = [value for value in values if value - value == 0]
    if not known:
        return "-"
    three = [format(value, form) for value in (min(known), sum(known) / len(known), max(known))]
    return three[0] if len(set(three)) == 1 else " / ".join(three)
