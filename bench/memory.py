"""Memory: a model that is too large for one worker's limit trains on several; what each of them takes is measured.

    python -m bench.memory --gigabytes 4 --workers 4 --limit 1.5

    words ──> table 0 ──> layer 0 ──(+ table 1)──> layer 1 ──(+ table 2)──> layer 2 ... ──> loss

The gigabytes are those of parameters, sums of gradients and what Adam keeps, half of them in tables and half in layers.
The limit is one of resident memory (RSS), of all that a worker process takes: Python and torch too. The process that
makes the workers has the weights in memory that it shares with them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ampnet import AmpnetError, Model, Processes, Update, compile
from ampnet.lang import Compiled, loss
from ampnet.placement.memory import memory_of, shown

TENSORS = 4
"""For each parameter: itself, the sum of its gradients, two that Adam keeps."""
STAGES = 8
"""Tables and layers, of each."""
CLASSES = 10


class Large(Model):
    """Tables and layers in a chain."""

    def __init__(self, words: int, width: int, stages: int = STAGES) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(words, width) for _ in range(stages))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(stages))
        self.classify = nn.Linear(width, CLASSES)

    def forward(self, words: Tensor, label: Tensor) -> None:
        h = self.tables[0](words)
        for i, layer in enumerate(self.layers):
            h = torch.tanh(layer(h if i == 0 else h + self.tables[i](words)))
        loss(self.classify(h), label, "cross_entropy")


def large(size: float, stages: int = STAGES) -> Compiled:
    """A model whose training takes so many bytes."""
    numbers = size / TENSORS / 4 / (2 * stages)
    width = max(8, int(numbers**0.5))
    model = Large(max(1, round(numbers / width)), width, stages)
    return compile(model, torch.tensor(0), torch.tensor(0))


def records(count: int, words: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Random words and labels."""
    numbers = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(most, (count,), generator=numbers) for most in (words, CLASSES)]
    return zip(*drawn, strict=True)


def resident(pid: int | str = "self") -> int:
    """Bytes of a process that are in the machine's memory, those that it shares with others included."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))


def main(argv: list[str] | None = None) -> int:
    """Train a few waves; 0 if every worker has stayed under its limit."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of parameters, sums and optimizer (default 4)")
    parser.add_argument("--workers", type=int, default=4, help="(default 4)")
    parser.add_argument("--limit", type=float, default=1.5, help="gigabytes of a worker (default 1.5)")
    parser.add_argument("--instances", type=int, default=64, help="to be trained on, three times (default 64)")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    limit = int(1e9 * args.limit)
    bare = resident()
    graph = large(1e9 * args.gigabytes)
    update = Update(partial(torch.optim.Adam, lr=1e-4), 16, "instances")
    words = graph.model.tables[0].num_embeddings
    data = [graph.instance(*record) for record in records(args.instances, words)]
    most = [0] * args.workers
    try:
        with Processes(
            graph, workers=args.workers, memory_per_worker=limit, update=update, max_active_keys=32
        ) as runtime:
            print(f"the model takes {shown(sum(memory_of(graph).values()))}, a process without it {shown(bare)}")
            for epoch in range(3):
                stats = runtime.train(data)
                now = [resident(pid) for pid in runtime.pids]
                most = [max(pair) for pair in zip(most, now, strict=True)]
                print(f"epoch {epoch}: loss {stats.loss:.3f}; RSS {', '.join(map(shown, now))}", flush=True)
            placed, needs = runtime.hosts, memory_of(graph)
    except AmpnetError as error:
        parser.exit(2, f"{error}\n")
    print(f"maker: {shown(resident(os.getpid()))}")
    for worker, size in enumerate(most):
        nodes = sum(need for name, need in needs.items() if placed[name] == worker)
        held = "held" if size <= limit else "NOT HELD"
        print(f"worker{worker}: {shown(size)} at most, {shown(nodes)} of it nodes; limit {shown(limit)}: {held}")
    return int(max(most) > limit)


if __name__ == "__main__":
    raise SystemExit(main())
