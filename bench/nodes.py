"""Two Ray nodes beside one: does training converge alike? ``python -m bench.nodes``.

    one    a raylet with two processors        ┐  the same ``ampnet train ... --cluster ADDRESS --workers 2``, the same
    two    two raylets with one processor each ┘  seeds, in turns; a worker needs a processor, so each raylet has one

* **list reduction**: the model parted over both workers, trained to 97 %: epochs to the target.
* **qm9**: two replicas of the whole model, whose weights are averaged: least error in eight epochs, in 0.1 Debye.

Training is asynchronous: the same command with the same seed gives other results each time. Two nodes count as good as
one if their mean over the seeds is not worse than every result of one node. Raylets of one machine say nothing about
networks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.machine import describe

NODES = {"one": (2,), "two": (1, 1)}
"""The processors of each raylet."""
TRAININGS: dict[str, tuple[str, ...]] = {
    "list-reduction": ("--target", "0.97", "--epochs", "30", "--barrier"),
    "qm9": ("--replicas", "2", "--limit", "4000", "--epochs", "8", "--barrier"),
}
COMPARED = {"list-reduction": "epochs", "qm9": "value"}
_MISSED = 3
"""The exit status of a training that has not reached its target."""


def train(workload: str, nodes: str, seed: int, options: Sequence[str]) -> dict[str, Any]:
    """Train on raylets that are started for it, in this process. Returns the results."""
    from ray.cluster_utils import Cluster

    from ampnet.cli import main as ampnet

    head, *others = NODES[nodes]
    raylets = Cluster(initialize_head=True, head_node_args={"num_cpus": head, "include_dashboard": False})
    try:
        for processors in others:
            raylets.add_node(num_cpus=processors)
        with TemporaryDirectory() as folder:
            file = Path(folder, "run.json")
            where = ("--cluster", raylets.address, "--workers", "2", "--seed", str(seed), "--json", str(file))
            code = ampnet(["train", workload, *TRAININGS[workload], *where, *options])
            if code not in (0, _MISSED):
                raise SystemExit(f"{workload}, {nodes}, seed {seed}: ampnet train ended with {code}")
            data = json.loads(file.read_text())
    finally:
        raylets.shutdown()
    found = {name: data[name] for name in ("state", "metric", "value", "target", "reached", "epochs", "seconds")}
    staleness = {name: data["staleness"][name] for name in ("mean", "max", "histogram")}
    return found | {"staleness": staleness, "engine": data["engine"], "history": data["history"]}


def compare(workload: str, seeds: Sequence[int], options: Sequence[str]) -> dict[str, Any]:
    """Returns the results by nodes and seed, and what is compared."""
    found: dict[str, Any] = {nodes: {} for nodes in NODES}
    environment = {**os.environ, "RAY_memory_monitor_refresh_ms": "0"}  # others of this machine may use its memory
    for seed in seeds:
        for nodes in NODES:
            command = [sys.executable, "-m", "bench.nodes", "--once", workload, nodes, str(seed), *options]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            found[nodes][str(seed)] = one = json.loads(done.stdout.splitlines()[-1])
            print(f"{workload:16} seed {seed}  {nodes}: {one['epochs']:2} epochs, {one['metric']} {one['value']:.4f}")
    means = {nodes: statistics.mean(one[COMPARED[workload]] for one in found[nodes].values()) for nodes in NODES}
    return {"options": TRAININGS[workload], "compared": COMPARED[workload], "means": means, **found}


def main() -> None:
    if sys.argv[1:2] == ["--once"]:  # a program of its own: a process can join one Ray cluster only
        _, _, workload, nodes, seed, *options = sys.argv
        print(json.dumps(train(workload, nodes, int(seed), options)))
        return
    parser = argparse.ArgumentParser(prog="python -m bench.nodes", description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(TRAININGS)} (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="one training of each kind each")
    parser.add_argument("--data-dir", type=Path, metavar="FOLDER", help="as of ampnet train")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    given = parser.parse_args()
    options = () if given.data_dir is None else ("--data-dir", str(given.data_dir))
    out: dict[str, Any] = {"machine": describe()}
    for workload in given.workloads or TRAININGS:
        out[workload] = found = compare(workload, given.seeds, options)
        one, two = (found["means"][nodes] for nodes in NODES)
        worst = max(run[found["compared"]] for run in found["one"].values())
        good = all(run["reached"] or run["target"] is None for nodes in NODES for run in found[nodes].values())
        good = good and two <= worst
        print(f"{'ok  ' if good else 'MISS'} {workload}, {found['compared']}: one node {one:.4g}, two {two:.4g}")
        if given.json:
            given.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
