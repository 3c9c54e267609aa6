"""The report of a training run: one line of text, and one JSON object.

    list-reduction: accuracy 0.9704 (target 0.97 reached) in 8 epochs, 31.2 s; train 31,204 sequences/s; engine: ...
      replicas of cell: 2, load 50 / 50 %, staleness 0.9 / 1.0, drift 0.6 % (max 1.4 %) over 9 synchronisations

If nodes have replicas, a line for each shows their load; many similar nodes share a line.

The file is written under a temporary name and renamed when it is complete, so that a file of that name is always
complete. Numbers that JSON does not know (nan, the mean of nothing) become null.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from ampnet._version import __version__
from ampnet.checkpoint.output import replacing
from ampnet.cli.progress import staleness_text
from ampnet.events.replicas import GroupUse, ReplicaMeter
from ampnet.events.staleness import StalenessMeter
from ampnet.fitting import FitResult
from ampnet.runtime.stats import RunStats

FEW = 3
"""Up to this number similar groups of replicas have a line each; more share one."""
WORTH_A_WORD = 1.0
"""The seconds of preparation from which the closing line mentions them."""
_COUNTS = ("reason", "waves", "instances", "in_flight", "busy", "restarts", "replayed", "workers", "changes")
"""The fields of the engine in the report."""
LISTED = 4
"""Up to this number replicas are listed; for more, the lowest and the highest value."""


def summary(
    workload: str,
    unit: str,
    result: FitResult,
    meter: StalenessMeter,
    engine: RunStats,
    replicas: ReplicaMeter | None = None,
    prepared: float = 0.0,
    bound: str | None = None,
) -> str:
    """Returns the closing line, and lines on replicas, if any. ``prepared``: seconds before the first epoch. ``bound``:
    the bottleneck of the run."""
    if not result.history:
        return f"{workload}: no epoch was finished"
    goal = "" if result.target is None else f" (target {result.target:g} {'' if result.reached else 'not '}reached)"
    rates = f"train {result.train_records_per_second:,.0f} {unit}/s"
    if result.valid_records_per_second is not None:
        rates += f", valid {result.valid_records_per_second:,.0f}/s"
    before = f" after {prepared:.1f} s of preparation" if prepared >= WORTH_A_WORD else ""
    parts = [
        f"{workload}: {result.metric} {result.value:.4f}{goal} in {duration(result)}{before}",
        rates,
    ]
    if result.resumed is not None and result.resumed.finished:
        return "; ".join(parts)  # nothing was computed
    parts.append(staleness_text(meter.overall()))
    if result.skipped:
        parts.append(f"{result.skipped:,} messages skipped, their loss was not finite")
    parts.append(engine.words())
    if bound is not None:
        parts.append(bound)
    groups = [] if replicas is None else list(replicas.groups().values())
    return "\n".join(["; ".join(parts), *(f"  {line}" for line in replica_lines(groups))])


def replica_lines(groups: Sequence[GroupUse]) -> list[str]:
    """Returns the load of replicas: a line for each group, or one for many similar groups."""
    shapes: dict[tuple[int, str, str], list[GroupUse]] = {}
    for group in groups:
        shapes.setdefault((len(group.replicas), group.sync, group.route), []).append(group)
    lines = []
    for alike in shapes.values():
        lines += [_replicas([one]) for one in alike] if len(alike) <= FEW else [_replicas(alike)]
    return lines


def _replicas(groups: Sequence[GroupUse]) -> str:
    first, members = groups[0], [one for group in groups for one in group.replicas]
    count = f"{len(first.replicas)}" if len(groups) == 1 else f"{len(first.replicas)} each"
    parts = [f"replicas of {first.group if len(groups) == 1 else f'{len(groups)} nodes'}: {count}"]
    parts.append(f"load {_numbers([100 * one.share for one in members], '.0f')} %")
    parts.append(f"staleness {_numbers([one.staleness_mean for one in members], '.1f')}")
    rounds = [group.rounds for group in groups]
    times = f"{_span(rounds, ',')} synchronisation{'' if max(rounds) == 1 else 's'}"
    drifts = [group.drift_mean for group in groups if isfinite(group.drift_mean)]
    if drifts:
        most = max(group.drift_max for group in groups if isfinite(group.drift_max))
        times = f"drift {_percent(sum(drifts) / len(drifts))} (max {_percent(most)}) over {times}"
    return ", ".join([*parts, times])


def _numbers(values: Sequence[float], form: str) -> str:
    """Lists the values of a few replicas, and the range of many. A dash for NaN."""
    if len(values) <= LISTED:
        return " / ".join(format(v, form) if isfinite(v) else "-" for v in values)
    return _span([v for v in values if isfinite(v)], form)


def _span(values: Sequence[float], form: str) -> str:
    ends = [format(v, form) for v in (min(values), max(values))] if values else ["-"]
    return "-".join(dict.fromkeys(ends))


def _percent(part: float) -> str:
    return f"{100 * part:.{2 if part < 0.1 else 3}g} %"


def duration(result: FitResult) -> str:
    """Returns ``8 epochs, 31.2 s``: until the target, or until the end."""
    return f"{result.epochs} epoch{'' if result.epochs == 1 else 's'}, {_seconds(result):.1f} s"


def size(count: int) -> str:
    """Returns a number of bytes as text: ``950 bytes``, ``1.4 kB``, ``23.5 MB``."""
    value, units = float(count), ["kB", "MB", "GB"]
    if count < 1000:
        return f"{count} bytes"
    while value >= 1000 * 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value / 1000:.1f} {units[0]}"


def _seconds(result: FitResult) -> float:
    return result.seconds if result.seconds_to_target is None else result.seconds_to_target


def report(
    workload: str,
    result: FitResult,
    meter: StalenessMeter,
    settings: Mapping[str, Any],
    engine: RunStats | None = None,
    *,
    replicas: ReplicaMeter | None = None,
    prepared_seconds: float = 0.0,
    placement: Mapping[str, Any] | None = None,
    bounded: str | None = None,
) -> dict[str, Any]:
    """Returns the report of a run as plain data. ``engine``: the engine that ran, whatever the settings; None: still
    running. ``prepared_seconds``: spent on instances before the first epoch. ``placement``: the choice and its expected
    speed; ``bounded``: the bottleneck."""
    return {
        "workload": workload,
        "metric": result.metric,
        "value": result.value,
        "value_epoch": result.epoch,
        "target": result.target,
        "reached": result.reached,
        "epochs": result.epochs,
        "seconds": _seconds(result),
        "prepared_seconds": prepared_seconds,
        "train_inst_per_s": result.train_records_per_second,
        "valid_inst_per_s": result.valid_records_per_second,
        "skipped": result.skipped,
        "resumed_from": None if result.resumed is None else str(result.resumed.path),
        "resumed_epochs": None if result.resumed is None else result.resumed.epochs,
        "staleness": {
            **_staleness(meter.overall()),
            "per_node": {name: _staleness(of_node) for name, of_node in meter.nodes().items()},
        },
        "engine": None
        if engine is None
        else {"name": engine.engine, **{name: getattr(engine, name) for name in _COUNTS}},
        "placement": placement,
        "bounded": bounded,
        "replicas": [] if replicas is None else [_group(group) for group in replicas.groups().values()],
        "settings": dict(settings),
        "history": [asdict(record) for record in result.history],
        "version": __version__,
        "torch": torch.__version__,
        "machine": {
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
    }


def _staleness(of: Any) -> dict[str, Any]:
    histogram = {str(lag): count for lag, count in sorted(dict(of.histogram).items())}
    return {"mean": of.mean, "max": of.max, "messages": of.messages, "histogram": histogram}


def _group(of: GroupUse) -> dict[str, Any]:
    members = [{name: value for name, value in asdict(one).items() if name != "drifts"} for one in of.replicas]
    return {**asdict(of), "drift_mean": of.drift_mean, "drift_max": of.drift_max, "replicas": members}


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write the object atomically."""
    text = json.dumps(_plain(data), indent=2, allow_nan=False) + "\n"
    with replacing(path) as file:
        file.write(text)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not isfinite(value) else value
