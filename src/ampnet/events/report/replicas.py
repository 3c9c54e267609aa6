"""The section on replicas: how the load was shared out, how stale each of them was, and how far they drifted apart."""

from __future__ import annotations

from html import escape

from ampnet.events.record import RunRecord
from ampnet.events.replicas import GroupUse, ReplicaUse
from ampnet.events.report.charts import MANY, Curve, curves
from ampnet.events.report.sections import table

DRAWN = 12
"""Groups of which the drift is drawn: those that drifted most."""
SYNCS = {
    "epoch": "weights averaged when a stream is over",
    "updates": "weights averaged after so many updates of each",
    "ring": "weights averaged by a message that runs round them",
    "shared": "parameters shared",
    "gradients": "gradients averaged",
}
"""How replicas are kept together, in words."""
NOTE = (
    "<p>Load: the part of the group's backward messages. Drift: the distance of a replica's weights from the mean of "
    "all, just before they are made equal, as a part of the mean's norm. Where parameters are shared, or gradients "
    "averaged, nothing drifts.</p>"
)


def replicas(run: RunRecord) -> str:
    """A table for each group, and its drift by synchronisation."""
    groups = list(run.totals.replicas.values())
    if not groups:
        return ""
    drifting = sorted((g for g in groups if g.drift_max > 0), key=lambda g: -g.drift_max)
    drawn = {g.group for g in drifting[:DRAWN]}
    left = len(drifting) - len(drawn)
    more = f"<p>The drift of the {DRAWN} groups that drifted most is drawn.</p>" if left else ""
    return NOTE + more + "".join(_group(run, group, group.group in drawn) for group in groups)


def _group(run: RunRecord, group: GroupUse, drawn: bool) -> str:
    count, rounds = len(group.replicas), group.rounds
    about = [f"{count} replica{'' if count == 1 else 's'}"]
    about += [f"messages shared out by {group.route}"] if group.route else []
    about += [SYNCS.get(group.sync, f"sync {group.sync}")]
    about += [f"{rounds:,} synchronisation{'' if rounds == 1 else 's'}"]
    head = ["replica", "worker", "load", "messages", "updates", "staleness, mean", "max", "drift, mean", "max"]
    rows = [_row(run, one) for one in group.replicas]
    body = table(head, rows, words=2) + (_drift(group) if drawn else "")
    return f'\n<h3>{escape(group.group)}</h3><p>{escape(", ".join(about))}</p><div class="beside">{body}</div>'


def _row(run: RunRecord, one: ReplicaUse) -> list[str]:
    total = run.totals.nodes.get(one.node)
    stale = ["-", "-"] if one.staleness_mean != one.staleness_mean else [f"{one.staleness_mean:.2f}"]
    stale += [str(one.staleness_max)] if len(stale) == 1 else []
    return [
        f"<b>{escape(one.node)}</b>",
        escape(total.worker) if total is not None else "-",
        percent(one.share),
        f"{one.messages:,}",
        f"{one.updates:,}",
        *stale,
        percent(one.drift_mean, 2),
        percent(one.drift_max, 2),
    ]


def _drift(group: GroupUse) -> str:
    drawn = []
    for i, one in enumerate(group.replicas):
        points = [(float(number), 100 * drift) for number, drift in one.drifts if drift - drift == 0]
        drawn.append(Curve(one.node, MANY[i % len(MANY)], [points], dots=len(points) < 40))
    return curves("drift, %", drawn, from_zero=True, whole=True, unit="synchronisation")


def percent(part: float, digits: int = 1) -> str:
    """``1.25 %``; a dash for what was never measured."""
    return "-" if part != part else f"{100 * part:.{digits}f} %"
