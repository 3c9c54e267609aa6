"""Workers that Ray started beside forked ones, alternating, in one run: ``python -m bench.cluster``.

* **mlp**: four layers, 784 wide, buckets of 100 images, an update for each; in two parts, as placement cuts it.
* **qm9**: GGSNN, hidden 100, an update for 20 molecules; in two parts, and as two replicas whose weights are averaged.

Both have two workers on this machine and the same placement. Forked workers exchange rows through shared memory, those
of Ray over TCP with CURVE encryption. Asked for: at least 0.85 of the speed. Instances are made beforehand.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, takewhile
from pathlib import Path
from typing import Any

import torch

from ampnet import Cluster, Instance, Processes, Sync, Update, replicate
from ampnet.data import generated
from ampnet.lang import Compiled, compile
from ampnet.models import Mlp, Qm9
from bench.alternate import compare
from bench.machine import describe

Made = tuple[Compiled, list[Instance]]
ENOUGH = 0.85


def images() -> Made:
    torch.manual_seed(0)
    graph = compile(Mlp(784, 4, 10), torch.zeros(784), torch.tensor(0))
    rows, labels = torch.randn(60, 100, 784), torch.randint(10, (60, 100))
    return graph, [graph.bucket(100, x, y) for x, y in zip(rows, labels, strict=True)]


def molecules() -> Made:
    torch.manual_seed(0)
    data = list(generated.molecules(1000, 0, most_atoms=27))
    graph = compile(Qm9(10, 100), *data[0])
    return graph, [graph.instance(*d) for d in data]


ROWS: dict[str, tuple[Callable[[], Made], int, int, int]] = {
    "mlp, two parts": (images, 1, 8, 1),
    "qm9, two parts": (molecules, 20, 80, 1),
    "qm9, two replicas": (molecules, 20, 128, 2),
}
"""Instances, instances in an update, in flight, replicas."""


def row(name: str, kind: Callable[..., Any], hosts: dict[str, int]) -> Callable[[float], float]:
    """Returns a function that trains for some seconds and returns the records a second. ``hosts``: the placement, which
    the first runtime of a name fills in."""
    make, frequency, in_flight, replicas = ROWS[name]
    graph, instances = make()
    if replicas > 1:
        replicate(graph, None, replicas, route="shortest", sync=Sync("updates"))
    update = Update(partial(torch.optim.SGD, lr=1e-3), frequency, "instances")
    runtime = kind(graph, workers=2, update=update, max_active_keys=in_flight, affinity=hosts or "auto")
    runtime.train(instances)
    hosts |= runtime.hosts

    def run(seconds: float) -> float:
        began = time.perf_counter()
        some = takewhile(lambda _: time.perf_counter() - began < seconds, cycle(instances))
        return runtime.train(some).records / (time.perf_counter() - began)  # type: ignore[no-any-return]

    run.runtime = runtime  # type: ignore[attr-defined]
    return run


def run(names: Sequence[str], seconds: float, repeats: int) -> tuple[dict[str, Any], list[tuple[str, bool]]]:
    """Returns the results by row, and whether each was fast enough."""
    out: dict[str, Any] = {}
    checks: list[tuple[str, bool]] = []
    for name in names:
        hosts: dict[str, int] = {}
        rows = {"forked": row(name, Processes, hosts), "ray": row(name, partial(Cluster, address="local"), hosts)}
        out[name] = found = compare(name, rows, "forked", seconds, repeats)
        ratio = found["ray"]["ratio"]
        checks.append((f"{name}: at least {ENOUGH} x forked workers: {ratio:.2f}", ratio >= ENOUGH))
    return out, checks


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__.splitlines()[0])
    rows = ", ".join(f"'{name}'" for name in ROWS)
    parser.add_argument("names", nargs="*", metavar="ROW", default=tuple(ROWS), help=f"of {rows} (default: all)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn (default: 3)")
    parser.add_argument("--turns", type=int, default=4, help="of each row; the best counts (default: 4)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found, checks = run(given.names, given.seconds, given.turns)
    for text, enough in checks:
        print(f"{'ok  ' if enough else 'MISS'} {text}")
    if given.json:
        given.json.write_text(json.dumps({"machine": describe(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
