"""Tables of results, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.result import Line, Result

HEADS = ("best", "median", "spread", "ratio", "GFLOP/s", "% peak", "valid/s", "updates", "MiB")
WIDTH = 108
"""Columns that the table needs. On a narrower terminal lines are broken, but no figure is cut."""


def make_console(to_stderr: bool) -> Console:
    """Where tables are shown."""
    console = Console(stderr=to_stderr)
    console.width = max(console.width, WIDTH)
    return console


def show(result: Result, console: Console) -> None:
    """The table of a workload, and what there is to say about it."""
    data = ", ".join(sorted({line.data for line in result.lines if line.data is not None}))
    _title(f"{result.workload}: {result.about}; {result.unit}/s, {data or 'no'} data", console)
    table = _table(HEADS)
    for line in result.lines:
        table.add_row(*_cells(line), style="bold" if line.kind == "ours" else "")
    console.print(table)
    compared = any(line.ratio is not None for line in result.lines)
    notes = [f"ratio to '{result.base}'" if compared else f"no ratios: '{result.base}' was not run"]
    device = result.settings["device"]
    where = {n: f"with {n} thread{'s' * (n != '1')}" if device == "cpu" else f"on {device}" for n in result.peak}
    peaks = [f"{rate:,.0f} GFLOP/s {where[n]}" for n, rate in result.peak.items()]
    if peaks:
        notes.append(f"fastest matrix product: {', '.join(peaks)}")
    console.print("; ".join(notes), style="dim", highlight=False)
    for why, rows in _reasons(result.skipped).items():
        console.print(f"skipped: {', '.join(rows)} ({why})", style="dim", highlight=False)
    for row, why in result.failed.items():
        console.print(f"failed: {row}: {why}", style="red", highlight=False, markup=False)
    for one in result.standing:
        console.print(f"{one.name}: '{one.ours}' {one.ratio:.2f} x '{one.than}'", highlight=False)
    for check in result.checks:
        console.print(f"{'ok  ' if check.kept else 'MISS'}  {check.text}", highlight=False)


def _reasons(skipped: Mapping[str, str]) -> dict[str, list[str]]:
    """Rows by why they were skipped: each reason is said once."""
    out: dict[str, list[str]] = {}
    for row, why in skipped.items():
        out.setdefault(why, []).append(row)
    return out


def _title(text: str, console: Console) -> None:
    console.print(text, style="bold", highlight=False, soft_wrap=True)


def _table(heads: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def _cells(line: Line) -> list[str]:
    return [
        line.row,
        _number(line.best, ",.0f"),
        _number(line.median, ",.0f"),
        _number(100 * line.spread, ".0f", " %"),
        _number(line.ratio, ".2f"),
        _number(line.gflops, ".1f"),
        _number(None if line.of_peak is None else 100 * line.of_peak, ".0f"),
        _number(line.valid, ",.0f"),
        _number(line.updates, ".2f"),
        _number(line.mib, ",.0f"),
    ]


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else format(value, form) + unit


def show_races(title: str, races: Mapping[str, Sequence[Mapping[str, Any]]], console: Console) -> None:
    """Seconds and epochs to the target, the fastest of the repeats."""
    _title(title, console)
    table = _table(("seconds, best", "epochs", "reached", "value"))
    for row, found in races.items():
        best = min(found, key=lambda one: (not one["reached"], one["seconds"]))
        times = f"{sum(one['reached'] for one in found)} of {len(found)}"
        table.add_row(row, f"{best['seconds']:.1f}", str(best["epochs"]), times, f"{best['value']:.4g}")
    console.print(table)
