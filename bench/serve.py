"""What serving gives and costs: ``python -m bench.serve``. List reduction, hidden 128, instances of one sequence.

    batches    seconds of one batch of predictions, in the controller's process and on two workers: why predictions
               beside a run are played in the controller's process
    rest       requests a second and latency of a runtime that does nothing else, with 1 and 32 clients
    training   the same beside training, inline and on two workers; and training's speed with nobody asking, with a
               server that nobody asks, and with 1 and 32 clients, each as a part of the first

Clients are threads of another process, on keep-alive connections, each with one request of one instance at a time. All
speeds are of wall time and of one machine that may do other things too: the rows of a table take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from ampnet import Inline, Processes, Seq, Stream, Update
from ampnet.experiments.catalog import WORKLOADS
from ampnet.lang import Compiled
from ampnet.runtime.runtime import Runtime
from ampnet.serve import serve

CLIENTS = (1, 32)


def graph_of() -> Compiled:
    """The model, with weights from a seed."""
    workload = WORKLOADS["list-reduction"]
    return workload.build(workload.settings(), {})


def samples(count: int) -> list[Any]:
    """Random sequences of up to ten tokens, with labels."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 11, (count,), generator=draw).tolist()
    return [(Seq(torch.randint(0, 10, (n,), generator=draw)), torch.tensor(i % 10)) for i, n in enumerate(lengths)]


def runtime_of(workers: int) -> Runtime:
    """A runtime that trains with Adam, 64 in flight, updates of 32."""
    update = Update(lambda parameters: torch.optim.Adam(parameters, lr=1e-3), min_update_frequency=32)
    if workers == 1:
        return Inline(graph_of(), update=update, max_active_keys=64)
    return Processes(graph_of(), workers=workers, update=update, max_active_keys=64)


def asking(port: int, clients: int, seconds: float) -> dict[str, float]:
    """Requests a second and latencies of clients in another process."""
    words = [sys.executable, str(Path(__file__).with_name("serve_client.py")), str(port), str(clients), str(seconds)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def batches(repeats: int) -> dict[str, float]:
    """Milliseconds of a batch of predictions."""
    out: dict[str, float] = {}
    for workers in (1, 2):
        with runtime_of(workers) as runtime:
            for size in (1, 32):
                given = [(one, None) for one, _ in samples(size)]
                runtime.predict(given)
                took = []
                for _ in range(repeats):
                    began = time.perf_counter()
                    runtime.predict(given)
                    took.append(time.perf_counter() - began)
                out[f"{'controller' if workers == 1 else 'two workers'}, {size}"] = 1e3 * statistics.median(took)
    return out


def at_rest(seconds: float) -> dict[str, Any]:
    """Requests to a runtime that does nothing else."""
    with runtime_of(1) as runtime, serve(runtime, rate=None) as server:
        assert server.server is not None
        return {str(clients): asking(server.server.port, clients, seconds) for clients in CLIENTS}


def training(workers: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Training's speed, and that of requests beside it, by the number of clients; None: no server."""
    speeds: dict[int | None, list[float]] = {None: [], 0: [], **{clients: [] for clients in CLIENTS}}
    found: dict[str, Any] = {}
    with runtime_of(workers) as runtime:
        data = list(runtime.graph.read(samples(2_000)))
        runtime.rehearse(data)
        runtime.train(data)
        for _ in range(repeats):
            speeds[None].append(speed(runtime, data, lambda: time.sleep(seconds)))
            with serve(runtime, rate=None) as server:
                assert server.server is not None
                port = server.server.port
                speeds[0].append(speed(runtime, data, lambda: time.sleep(seconds)))
                for clients in CLIENTS:

                    def ask(clients: int = clients, port: int = port) -> None:
                        found[str(clients)] = asking(port, clients, seconds)

                    speeds[clients].append(speed(runtime, data, ask))
    best = max(speeds[None])
    found["training"] = {str(clients): max(some) / best for clients, some in speeds.items()}
    found["instances_per_second"] = best
    return found


def speed(runtime: Runtime, data: list[Any], while_: Callable[[], None]) -> float:
    """Training instances a second, while something else is done."""
    over, count = threading.Event(), 0

    def until() -> None:
        while_()
        over.set()

    def instances() -> Iterator[Any]:
        nonlocal count
        for one in cycle(data):
            if over.is_set():
                return
            count += 1
            yield one

    thread = threading.Thread(target=until)
    began = time.perf_counter()
    thread.start()
    runtime.run([Stream(instances(), True, "train")])
    thread.join()
    return count / (time.perf_counter() - began)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement (default: 4)")
    parser.add_argument("--repeats", type=int, default=2, help="turns of each row of training (default: 2)")
    parser.add_argument("--json", type=Path, help="write the results to a file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    out: dict[str, Any] = {"batches_ms": batches(100), "rest": at_rest(args.seconds)}
    for workers in (1, 2):
        out[f"training, {workers} process{'es' * (workers > 1)}"] = training(workers, args.seconds, args.repeats)
    text = json.dumps(out, indent=1)
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
