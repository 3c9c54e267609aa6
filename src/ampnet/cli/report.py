"""The report of a training run: one line for people, one JSON object for programs.

The file is written under a temporary name and renamed when it is whole, so that whoever finds it can trust it. Numbers
that JSON does not know (nan, the mean of nothing) become null.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from ampnet._version import __version__
from ampnet.cli.progress import staleness_text
from ampnet.events.staleness import StalenessMeter
from ampnet.fit import FitResult


def summary(workload: str, unit: str, result: FitResult, meter: StalenessMeter) -> str:
    """The closing line."""
    if not result.history:
        return f"{workload}: no epoch was finished"
    goal = "" if result.target is None else f" (target {result.target:g} {'' if result.reached else 'not '}reached)"
    rates = f"train {result.train_records_per_second:,.0f} {unit}/s"
    if result.valid_records_per_second is not None:
        rates += f", valid {result.valid_records_per_second:,.0f}/s"
    parts = [
        f"{workload}: {result.metric} {result.value:.4f}{goal} in {duration(result)}",
        rates,
        staleness_text(meter.overall()),
    ]
    if result.skipped:
        parts.append(f"{result.skipped:,} messages skipped, their loss was not finite")
    return "; ".join(parts)


def duration(result: FitResult) -> str:
    """``8 epochs, 31.2 s``: until the target, or until the end."""
    return f"{result.epochs} epoch{'' if result.epochs == 1 else 's'}, {_seconds(result):.1f} s"


def _seconds(result: FitResult) -> float:
    return result.seconds if result.seconds_to_target is None else result.seconds_to_target


def report(
    workload: str, result: FitResult, meter: StalenessMeter, settings: Mapping[str, Any], *, interrupted: bool
) -> dict[str, Any]:
    """All that is known of a run, as plain data."""
    return {
        "workload": workload,
        "metric": result.metric,
        "value": result.value,
        "value_epoch": result.epoch,
        "target": result.target,
        "reached": result.reached,
        "interrupted": interrupted,
        "epochs": result.epochs,
        "seconds": _seconds(result),
        "train_inst_per_s": result.train_records_per_second,
        "valid_inst_per_s": result.valid_records_per_second,
        "skipped": result.skipped,
        "staleness": {
            **_staleness(meter.overall()),
            "per_node": {name: _staleness(of_node) for name, of_node in meter.nodes().items()},
        },
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


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write the object whole or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(json.dumps(_plain(data), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not isfinite(value) else value
