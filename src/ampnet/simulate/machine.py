"""Machine: the computers that a run is simulated on, read from a small TOML file.

    name = "two boxes"

    [[hosts]]                  computers of one kind
    count = 2                  how many of them (default 1)
    cores = 16
    workers = 16               worker processes on each (default: one for each core)
    speed = 0.8                of a core, relative to the machine that costs were measured on (default 1)
    flops = "1T"               of a core, for matrix products only; instead of what was measured
    memory = "64GB"            of a computer (default: no limit)
    crowd = 0.05               by how much each further busy worker slows down all of them (default: as measured)

    [links.inside]             between two workers of one computer
    latency = "20us"           until a worker that sleeps is awake
    bandwidth = "3GB/s"        of copying, at each end; bytes, bits are written "10Gb/s"
    hop = "40us"               processor time of a crossing, at each end

    [links.between]            between two computers
    latency = "200us"
    bandwidth = "10Gb/s"       of all that a computer sends

    [losses]                   workers that come and go
    every = "1h"               mean time between two losses of a worker
    restart = "5s"             until all workers go on

Everything has a default; the default machine is this one. An error names the file, the entry and what may be there.
"""

from __future__ import annotations

import math
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ampnet.errors import DataError, nearest
from ampnet.events.typed import shown

MOST = 100_000
"""The maximal number of workers of a machine."""


@dataclass(frozen=True, slots=True)
class Link:
    """A connection between two processes. None: as on the machine that costs were measured on."""

    latency: float
    """Between computers: seconds from the end of sending to the begin of receiving. Within one: until a worker that
    sleeps is awake."""
    bandwidth: float
    """Bytes a second. Between computers: of all that one of them sends. Within one: of the copy that a process makes at
    each end."""
    hop: float | None = None
    """Processor seconds of a slice of rows at each end, beside copying it; None: as measured."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Computers of one kind."""

    cores: int
    count: int = 1
    workers: int | None = None
    """Worker processes on each; None: one for each core."""
    speed: float = 1.0
    """Of a core, relative to the machine that costs were measured on."""
    flops: float | None = None
    """FLOP/s of a core in matrix products; None: measured ones, times `speed`."""
    memory: float = math.inf
    """Bytes of each."""
    crowd: float | None = None
    """By how much each further busy worker slows down all of them; None: as measured."""

    @property
    def places(self) -> int:
        """The number of worker processes on each."""
        return self.cores if self.workers is None else self.workers


INSIDE = Link(20e-6, 3e9)
"""Shared memory: a wake-up, and two copies."""
BETWEEN = Link(200e-6, 1.25e9, 200e-6)
"""A local network of 10 Gbit/s; sockets and encryption take more of the processor."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Computers and the links between them."""

    name: str
    hosts: tuple[Hosts, ...]
    inside: Link = INSIDE
    between: Link = BETWEEN
    loss_every: float = math.inf
    """Mean seconds between two losses of one worker."""
    restart: float = 5.0
    """Seconds from a loss until all workers go on."""

    @property
    def workers(self) -> int:
        """The number of worker processes that it has room for."""
        return sum(one.count * one.places for one in self.hosts)

    @property
    def cores(self) -> int:
        """The number of cores, of all computers."""
        return sum(one.count * one.cores for one in self.hosts)

    def seats(self) -> list[tuple[int, Hosts]]:
        """Returns, for each worker, the number of its computer and the kind of it. Computers are filled one after the
        other."""
        out: list[tuple[int, Hosts]] = []
        number = 0
        for kind in self.hosts:
            for _ in range(kind.count):
                out += [(number, kind)] * kind.places
                number += 1
        return out

    def with_workers(self, workers: int) -> Machine:
        """Returns this machine with room for at least this number of workers: on one computer, its cores are shared."""
        if workers <= self.workers:
            return self
        if len(self.hosts) == 1 and self.hosts[0].count == 1:
            return replace(self, hosts=(replace(self.hosts[0], workers=workers),))
        raise DataError(
            f"machine '{self.name}' has room for {self.workers} workers, and {workers} are asked for; give "
            f"[[hosts]] a larger 'count' or 'workers'"
        )


def this_machine() -> Machine:
    """Returns the machine that this process runs on, as one computer."""
    cores = len(os.sched_getaffinity(0))
    return Machine(f"this machine, {cores} core{'s' * (cores > 1)}", (Hosts(cores),))


def read_machine(path: str | Path) -> Machine:
    """Read a machine from a TOML file. Raises `DataError` that names the file and the entry."""
    path = Path(path)
    try:
        if path.stat().st_size > _LARGEST:
            raise DataError(f"{path}: more than {_LARGEST:,} bytes; a machine is described in a few lines")
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path}: this is not TOML: {error}") from None
    except (UnicodeDecodeError, RecursionError, ValueError):  # of a number, that it has thousands of digits
        raise DataError(f"{path}: this is not TOML in UTF-8 that can be used") from None
    try:
        return _machine(data, path.stem)
    except ValueError as error:
        raise DataError(f"{path}, {error}") from None


_LARGEST = 1_000_000


def _machine(data: Mapping[str, Any], name: str) -> Machine:
    _known(data, ("name", "hosts", "links", "losses"), "")
    kinds = data.get("hosts", [])
    if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, dict) for kind in kinds):
        raise ValueError("entry hosts: write at least one [[hosts]], with its number of cores")
    hosts = tuple(_hosts(kind, f"hosts[{i}]" if len(kinds) > 1 else "hosts") for i, kind in enumerate(kinds))
    links = _table(data, "links", "")
    _known(links, ("inside", "between"), "links.")
    losses = _table(data, "losses", "")
    _known(losses, ("every", "restart"), "losses.")
    machine = Machine(
        _read(data, "name", "", _text, name),
        hosts,
        _link(_table(links, "inside", "links."), INSIDE, "links.inside."),
        _link(_table(links, "between", "links."), BETWEEN, "links.between."),
        _read(losses, "every", "losses.", _time_apart, math.inf),
        _read(losses, "restart", "losses.", seconds, 5.0),
    )
    if machine.workers > MOST:
        raise ValueError(f"entry hosts: room for {machine.workers:,} workers; at most {MOST:,} are simulated")
    return machine


def _hosts(data: Mapping[str, Any], where: str) -> Hosts:
    names = ("count", "cores", "workers", "speed", "flops", "memory", "crowd")
    _known(data, names, f"{where}.")
    if "cores" not in data:
        raise ValueError(f"entry {where}: it has no 'cores'")
    at = f"{where}."
    return Hosts(
        _read(data, "cores", at, _whole, 1),
        _read(data, "count", at, _whole, 1),
        _read(data, "workers", at, _whole, None),
        _read(data, "speed", at, _positive, 1.0),
        _read(data, "flops", at, flops, None),
        _read(data, "memory", at, size, math.inf),
        _read(data, "crowd", at, _share, None),
    )


def _link(data: Mapping[str, Any], default: Link, at: str) -> Link:
    _known(data, ("latency", "bandwidth", "hop"), at)
    return Link(
        _read(data, "latency", at, seconds, default.latency),
        _read(data, "bandwidth", at, bandwidth, default.bandwidth),
        _read(data, "hop", at, seconds, default.hop),
    )


def _table(data: Mapping[str, Any], name: str, at: str) -> Mapping[str, Any]:
    found = data.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"entry {at}{name}: {shown(found)} is no table; write [{at}{name}] and its entries below")
    return found


def _known(data: Mapping[str, Any], names: tuple[str, ...], at: str) -> None:
    for name in data:
        if name not in names:
            raise ValueError(f"entry {at}{name}: there is no such entry; {nearest(name, names)}")


def _read(data: Mapping[str, Any], name: str, at: str, parse: Callable[[Any], Any], default: Any) -> Any:
    if name not in data:
        return default
    try:
        found = parse(data[name])
        if found == math.inf:
            raise ValueError("is too large")
    except ValueError as error:
        raise ValueError(f"entry {at}{name}: {shown(data[name])} {error}") from None
    return found


# -- values with units


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise ValueError(what)
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise ValueError(f"is no whole number from 1 to {MOST:,}")
    return value


def _positive(value: Any) -> float:
    found = _number(value, "is no number above 0")
    if not found:
        raise ValueError("is no number above 0")
    return found


def _share(value: Any) -> float:
    return _number(value, "is no number from 0 up; 0.05: each further busy worker slows down all of them by 5 %")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("is no text of one line")
    return value


def _quantity(value: Any, pattern: str, what: str) -> tuple[float, str]:
    found = (
        re.fullmatch(rf"\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*({pattern})\s*", value) if isinstance(value, str) else None
    )
    if found is None:
        raise ValueError(what)
    number = float(found[1])
    if not 0 <= number < math.inf:
        raise ValueError(what)
    return number, found[2]


_TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BINARY = {"": 1.0, "k": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "P": 2.0**50}
_POWERS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def seconds(value: Any) -> float:
    """Parses a time: ``"50ms"``, or a number of seconds."""
    if not isinstance(value, str):
        return _number(value, 'is no time; write it like "50ms", "20us" or "1h"')
    number, unit = _quantity(value, "|".join(_TIMES), 'is no time; write it like "50ms", "20us" or "1h"')
    return number * _TIMES[unit]


def _time_apart(value: Any) -> float:
    found = seconds(value)
    if not found:
        raise ValueError("is no time above 0")
    return found


def size(value: Any) -> float:
    """Parses a number of bytes: ``"64GB"``, ``"64GiB"``."""
    number, unit = _quantity(value, "[kMGTP]?B|[kMGTP]iB", 'is no size; write it like "64GB"')
    powers = _BINARY if "i" in unit else _POWERS
    return number * powers[unit[0] if unit[0] in "kMGTP" else ""]


def flops(value: Any) -> float:
    """Parses FLOP/s: ``"1T"``, ``"200GFLOP/s"``."""
    number, unit = _quantity(value, "[kMGTP]?(?:FLOPS|FLOP/s)?", 'is no speed; write FLOP/s like "1T" or "200G"')
    if not number:
        raise ValueError("is no number above 0")
    return number * _POWERS[unit[:1] if unit[:1] in _POWERS else ""]


def bandwidth(value: Any) -> float:
    """Parses bytes a second: ``"3GB/s"``; bits are ``"100Mb/s"``."""
    number, unit = _quantity(value, "[kMGTP]?(?:B|b|bit)/s", 'is no bandwidth; write bytes "3GB/s" or bits "100Mb/s"')
    if not number:
        raise ValueError("is no number above 0")
    factor = _POWERS[unit[0] if unit[0] in "kMGTP" else ""]
    return number * factor * (1.0 if "B" in unit else 0.125)
