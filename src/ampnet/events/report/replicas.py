"""The section on replicas: the load, the staleness and the drift of each."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ampnet.events.record import RunRecord
from ampnet.events.replicas import GroupUse, ReplicaUse
from ampnet.events.report.charts import MANY, Curve, curves
from ampnet.events.report.collapsed import least_mean_most
from ampnet.events.report.sections import CROWD
from ampnet.events.report.tables import table

DRAWN = 12
"""The number of groups whose drift is drawn: those with the largest drift."""
FEW = 3
"""Up to this number groups are shown; more are folded."""
SYNCS = {
    "epoch": "weights averaged when a stream is over",
    "updates": "weights averaged after a number of updates of each",
    "ring": "weights averaged by a message that runs round them",
    "shared": "parameters shared",
    "gradients": "gradients averaged",
}
"""Descriptions of the synchronisation modes."""
NOTE = (
    "<p>Load: the part of the group's backward messages. Drift: the distance of a replica's weights from the mean of "
    "all, just before they are made equal, as a part of the mean's norm. Where parameters are shared, or gradients "
    "averaged, nothing drifts.</p>"
)


def replicas(run: RunRecord) -> str:
    """Returns a line for each group; its replicas one by one, and its drift by synchronisation.

    With many groups, or many replicas, the second part is folded.
    """
    groups = list(run.totals.replicas.values())
    if not groups:
        return ""
    drifting = sorted((g for g in groups if g.drift_max > 0), key=lambda g: -g.drift_max)
    drawn = {g.group for g in drifting[:DRAWN]}
    left = len(drifting) - len(drawn)
    more = f"<p>The drift of the {DRAWN} groups that drifted most is drawn.</p>" if left else ""
    folded = len(groups) > FEW or any(len(g.replicas) > CROWD for g in groups)
    return NOTE + _overview(groups) + more + "".join(_group(run, g, g.group in drawn, folded) for g in groups)


def _overview(groups: Sequence[GroupUse]) -> str:
    rows = []
    for group in groups:
        members = group.replicas
        rows.append(
            [
                f"<b>{escape(group.group)}</b>",
                str(len(members)),
                least_mean_most((100 * one.share for one in members), ".1f"),
                f"{sum(one.messages for one in members):,}",
                least_mean_most((one.updates for one in members), ",.0f"),
                least_mean_most((one.staleness_mean for one in members), ".2f"),
                str(max((one.staleness_max for one in members), default=0)),
                least_mean_most((100 * one.drift_mean for one in members), ".2f"),
                percent(group.drift_max, 2),
                f"{group.rounds:,}",
            ]
        )
    head = ["node", "replicas", "load, %", "messages", "updates of one", "staleness, mean", "max", "drift, mean %"]
    return "<p>Of the replicas of a node: least / mean / most.</p>" + table(
        [*head, "max", "synchronisations"], rows, words=1
    )


def _group(run: RunRecord, group: GroupUse, drawn: bool, folded: bool) -> str:
    count, rounds = len(group.replicas), group.rounds
    about = [f"{count} replica{'' if count == 1 else 's'}"]
    about += [f"messages shared out by {group.route}"] if group.route else []
    about += [SYNCS.get(group.sync, f"sync {group.sync}")]
    about += [f"{rounds:,} synchronisation{'' if rounds == 1 else 's'}"]
    head = ["replica", "worker", "load", "messages", "updates", "staleness, mean", "max", "drift, mean", "max"]
    rows = [_row(run, one) for one in group.replicas]
    words, drift = escape(", ".join(about)), _drift(group) if drawn else ""
    name = escape(group.group)
    if folded:
        body = f'<div class="beside">{table(head, rows, words=2)}{drift}</div>'
        return f"\n<details><summary><b>{name}</b>: {words}</summary>{body}</details>"
    return f'\n<h3>{name}</h3><p>{words}</p><div class="beside">{table(head, rows, words=2)}{drift}</div>'


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
    if len(group.replicas) > CROWD:
        rounds: dict[int, list[float]] = {}
        for one in group.replicas:
            for number, drift in one.drifts:
                rounds.setdefault(number, []).append(100 * drift)
        three = {number: (min(of), sum(of) / len(of), max(of)) for number, of in sorted(rounds.items())}
        for i, name in enumerate(("least", "mean", "most")):
            points = [(float(number), of[i]) for number, of in three.items()]
            drawn.append(Curve(name, MANY[i], [points], dots=len(points) < 40))
    else:
        for i, one in enumerate(group.replicas):
            points = [(float(number), 100 * drift) for number, drift in one.drifts if drift - drift == 0]
            drawn.append(Curve(one.node, MANY[i % len(MANY)], [points], dots=len(points) < 40))
    return curves("drift, %", drawn, from_zero=True, whole=True, unit="synchronisation")


def percent(part: float, digits: int = 1) -> str:
    """Returns ``1.25 %``; a dash for NaN."""
    return "-" if part != part else f"{100 * part:.{digits}f} %"
