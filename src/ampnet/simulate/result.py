"""Result: what a simulation found, and tables of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampnet.placement.memory import PROCESS, shown
from ampnet.simulate.machine import Machine
from ampnet.simulate.setting import Setting

FEW = 8
"""Workers, nodes and links that a table lists."""


@dataclass(frozen=True, slots=True)
class WorkerTime:
    """How a worker spent its time."""

    computer: int
    """The number of its computer."""
    busy: float
    """The share of the time in which it computed."""
    crossing: float
    """The share in which it waited for rows or gradients of other workers, with waves in flight: bubbles."""
    sent: float
    """Bytes a second that it sent to other workers."""
    memory: float
    """Bytes of its nodes and of the waves in flight, at most; without the process itself."""

    @property
    def idle(self) -> float:
        """The share in which there was no wave in flight."""
        return max(0.0, 1.0 - self.busy - self.crossing)


@dataclass(frozen=True, slots=True)
class NodeStaleness:
    """The staleness of the gradients of a node."""

    mean: float
    """Updates of the node between a message's forward and its backward."""
    most: int
    """The largest."""
    updates: float
    """Updates a second."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a simulation found."""

    machine: Machine
    setting: Setting
    seconds: float
    """Simulated seconds of the measurement."""
    throughput: float
    """Instances a second."""
    workers: tuple[WorkerTime, ...]
    controller: float
    """The share of the time in which the controller computed."""
    staleness: Mapping[str, NodeStaleness]
    """By node."""
    links: Mapping[tuple[int, int], float]
    """Bytes a second between computers, by their numbers."""
    losses: int
    """Workers lost."""
    round: float
    """Seconds in which copies of the model are averaged, once, while they go on; 0: they share weights, or there is
    one."""
    events: int
    """Events of the simulation."""
    notes: tuple[str, ...]
    """What could not be measured, and the assumption made instead."""

    @property
    def busy(self) -> float:
        """The mean busy share of the workers."""
        return sum(one.busy for one in self.workers) / len(self.workers)

    @property
    def bubbles(self) -> float:
        """The mean share in which workers waited for rows of others."""
        return sum(one.crossing for one in self.workers) / len(self.workers)

    @property
    def memory(self) -> float:
        """Bytes of the worker that needs most, with its process."""
        return PROCESS + max(one.memory for one in self.workers)

    @property
    def stale(self) -> float:
        """The mean staleness, of the node that has the largest."""
        return max((one.mean for one in self.staleness.values()), default=0.0)

    @property
    def fits(self) -> bool:
        """Whether all workers have the memory that they need."""
        used: dict[int, float] = {}
        for one in self.workers:
            used[one.computer] = used.get(one.computer, 0.0) + PROCESS + one.memory
        kinds = dict(self.machine.seats())
        return all(size <= kinds[number].memory for number, size in used.items())

    @property
    def bound(self) -> str:
        """What bounds the throughput, as text."""
        busiest = max(range(len(self.workers)), key=lambda i: self.workers[i].busy)
        share = self.workers[busiest].busy
        if self.controller > max(0.9, share):
            return "the controller"
        if share > 0.9:
            mean = self.busy
            number = self.setting.seat(*divmod(busiest, self.setting.parts))
            return "computing" if mean > 0.85 else f"worker {number}, the busiest"
        if self.bubbles > 0.1:
            return "waiting for rows of other workers"
        return "few instances in flight"

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return {
            "machine": self.machine.name,
            "workers": self.setting.workers,
            "replicas": self.setting.replicas,
            "max_active_keys": self.setting.max_active_keys,
            "wave_size": self.setting.wave_size,
            "hosts": self.setting.placed,
            "seconds": self.seconds,
            "throughput": self.throughput,
            "busy": [one.busy for one in self.workers],
            "crossing": [one.crossing for one in self.workers],
            "controller": self.controller,
            "bound": self.bound,
            "staleness": {
                name: {"mean": one.mean, "most": one.most, "updates_per_second": one.updates}
                for name, one in self.staleness.items()
            },
            "bytes_per_second": {
                "workers": [one.sent for one in self.workers],
                "links": [{"from": a, "to": b, "bytes_per_second": size} for (a, b), size in self.links.items()],
            },
            "peak_memory": self.memory,
            "fits": self.fits,
            "losses": self.losses,
            "synchronisation": self.round,
            "notes": list(self.notes),
        }

    def text(self, unit: str = "instances", records: float = 1.0) -> str:
        """Returns it as lines of text. ``records``: examples in an instance."""
        setting = self.setting
        wave = "" if setting.wave_size is None else f", waves of {setting.wave_size}"
        lines = [
            f"{self.machine.name}: {ways(setting)}, {setting.max_active_keys} in flight{wave}",
            f"  throughput      {self.throughput * records:,.0f} {unit}/s, bound by {self.bound}",
            f"  workers busy    {_shares([one.busy for one in self.workers])}"
            f"   waiting for rows {_shares([one.crossing for one in self.workers])}",
            f"  controller      {self.controller:.0%} busy",
            f"  peak memory     {shown(self.memory)} of the largest worker{'' if self.fits else ': DOES NOT FIT'}",
        ]
        if any(one.sent for one in self.workers):
            sent = max(one.sent for one in self.workers)
            lines.append(f"  rows sent       {shown(sent)}/s by the busiest sender")
        for (a, b), rate in sorted(self.links.items(), key=lambda item: -item[1])[:FEW]:
            capacity = self.machine.between.bandwidth
            lines.append(f"  link {a} > {b}      {shown(rate)}/s, {rate / capacity:.0%} of it")
        nodes = sorted(self.staleness.items(), key=lambda item: -item[1].mean)[:FEW]
        if nodes:
            told = ", ".join(f"{name} {one.mean:.2f} (at most {one.most})" for name, one in nodes)
            lines.append(f"  staleness       {told}")
        if self.round:
            lines.append(f"  averaging       all copies in {self.round:,.2f} s, at the end of an epoch")
        if self.losses:
            lines.append(f"  workers lost    {self.losses}")
        return "\n".join(line.replace("%", " %") for line in lines)


def ways(setting: Setting) -> str:
    """Returns how a model is run, as text."""
    if setting.workers == 1:
        return "one worker" if setting.processes else "one process"
    unused = f" ({setting.asked - setting.parts} without nodes)" if setting.asked > setting.parts else ""
    if setting.replicas == 1:
        return f"{setting.asked or setting.parts} workers{unused}"
    parts = setting.asked or setting.parts
    return f"{setting.replicas} replicas" + (f" of {parts} workers{unused}" if parts > 1 else "")


def _shares(shares: Sequence[float]) -> str:
    if len(shares) > FEW:
        return f"{min(shares):.0%} to {max(shares):.0%}"
    return ", ".join(f"{share:.0%}" for share in shares)


def table(results: Sequence[Result], unit: str = "instances", records: float = 1.0) -> str:
    """Returns several results as a table, one row each."""
    head = ("machine", "way", f"{unit}/s", "ratio", "busy", "waiting", "stale", "sent", "memory", "bound by")
    first = results[0].throughput or 1.0
    rows = [head]
    for one in results:
        sent = sum(worker.sent for worker in one.workers)
        rows.append(
            (
                one.machine.name,
                ways(one.setting),
                f"{one.throughput * records:,.0f}",
                f"{one.throughput / first:.2f}",
                f"{one.busy:.0%}".replace("%", " %"),
                f"{one.bubbles:.0%}".replace("%", " %"),
                f"{one.stale:.1f}",
                f"{shown(sent)}/s" if sent else "-",
                shown(one.memory) + ("" if one.fits else " !"),
                one.bound,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    left = {0, 1, len(head) - 1}
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
