"""Two Ray nodes beside one: ``python -m bench.nodes``. Does training on two converge as on one?

    one    a raylet with two processors       ┐  the same `ampnet train ... --cluster ADDRESS --workers 2`,
    two    two raylets with one processor each ┘  the same seeds; each training is a program of its own

* **list reduction**: the model parted over both workers, trained to 97 %: epochs to the target.
* **qm9**: two replicas of the whole model, whose weights are averaged: error after the last epoch, 0.1 Debye.

Training is asynchronous: two runs with one seed differ. Two nodes are as good as one if their results overlap, or
theirs are better.
"""

from __future__ import annotations

import argparse
import json
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
    "qm9": ("--replicas", "2", "--limit", "4000", "--epochs", "6", "--barrier"),
}
SHOWN = {"list-reduction": "epochs", "qm9": "error"}


def train(workload: str, nodes: str, seed: int, options: Sequence[str]) -> dict[str, Any]:
    """Train on a Ray cluster of raylets that is started for this run. Returns the results."""
    from ray.cluster_utils import Cluster

    from ampnet.cli import main as ampnet

    head, *others = NODES[nodes]
    raylets = Cluster(initialize_head=True, head_node_args={"num_cpus": head, "include_dashboard": False})
    try:
        for processors in others:
            raylets.add_node(num_cpus=processors)
        with TemporaryDirectory() as folder:
            file = Path(folder, "run.json")
            how = (*TRAININGS[workload], "--cluster", raylets.address, "--workers", "2", "--seed", str(seed))
            if ampnet(["train", workload, *how, *options, "--quiet", "--json", str(file)]) != 0:
                raise SystemExit(f"{workload} on {nodes} failed")
            return _results(json.loads(file.read_text()), nodes)
    finally:
        raylets.shutdown()


def _results(data: dict[str, Any], nodes: str) -> dict[str, Any]:
    return data


def compare(workload: str, seeds: Sequence[int], options: Sequence[str]) -> dict[str, Any]:
    """Returns the results by nodes and seed. The kinds alternate."""
    found: dict[str, Any] = {nodes: {} for nodes in NODES}
    for seed in seeds:
        for nodes in NODES:
            command = [sys.executable, "-m", "bench.nodes", "--run", workload, nodes, str(seed), *options]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[nodes][str(seed)] = one = json.loads(done.stdout.splitlines()[-1])
            print(f"{workload:16} seed {seed}  {nodes}  {one}", flush=True)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        _, _, workload, nodes, seed, *options = sys.argv
        print(json.dumps(train(workload, nodes, int(seed), options)))
        return


if __name__ == "__main__":
    main()
