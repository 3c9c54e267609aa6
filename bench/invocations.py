"""What an invocation costs: a pass-through node with one message, and how the cost grows with the batch.

The bounds: under 30 microseconds for an invocation of a pass-through node (taken from the lane, handled, delivered to
the next lane), and a batch of 1,000 messages less than 6 times one of 10.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ampnet.graph import End, Graph
from ampnet.message import Messages
from ampnet.nodes import Concat, Cond, Direction, Isu, Loss, Node, Phi
from ampnet.reference.schedule import Sweep
from ampnet.reference.worker import Worker
from ampnet.state import States

WIDTH = 8
NODES: dict[str, Callable[[], Node]] = {
    "Cond": lambda: Cond(lambda s: s.t % 2, ("even", "odd")),
    "Phi": lambda: Phi(("start", "loop")),
    "Isu": lambda: Isu(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1)),
    "Concat": lambda: Concat(("x", "h")),
}


def _states(count: int, first: int) -> States:
    number = np.arange(first, first + count)
    return States.of(instance=number, t=number % 9, length=9)


def host(node: Node) -> Worker:
    """A worker that hosts this node alone; what it sends goes nowhere."""
    graph = Graph()
    graph.add("node", node)
    for name in node.inputs:
        graph.input(name, f"node.{name}", ("t", "length"))
    for name in node.outputs:
        graph.add(f"loss {name}", Loss("squared_error", key=("instance",)))
        graph.connect(f"node.{name}", f"loss {name}.prediction")
        graph.input(f"label {name}", f"loss {name}.label")
    return Worker("bench", graph, graph.validate(), Sweep(), hosts=["node"], send=lambda *a: None, tell=lambda r: None)


def per_batch(make: Callable[[], Node], count: int, batches: int) -> float:
    """Microseconds of the invocations that ``count`` messages take at a node, forward and backward, one batch each.

    What comes back does so in another order, except where the node does not look at it.
    """
    node = make()
    worker = host(node)
    rows = torch.randn(count, WIDTH)
    width = WIDTH * len(node.inputs) if isinstance(node, Concat) else WIDTH
    g = torch.randn(count, width)
    order = np.random.default_rng(0).permutation(count)
    ports = range(len(node.inputs) if isinstance(node, Concat) else 1)
    sent, returned = [], []
    for i in range(batches):
        states = _states(count, i * count)
        sent.append([Messages(rows, states) for _ in ports])
        after = states.replace(t=states.t + 1) if isinstance(node, Isu) else states
        returned.append(Messages(g, after.take(order)))
    began = time.perf_counter()
    for forward, back in zip(sent, returned, strict=True):
        for port in ports:
            worker.deliver(End("node", port), Direction.FORWARD, forward[port])
            worker.step()
        worker.deliver(End("node", 0), Direction.BACKWARD, back)
        worker.step()
    return 1e6 * (time.perf_counter() - began) / batches


def pass_through(turns: int) -> float:
    """Microseconds of a worker's turn at an Isu with one message: schedule, lane, node, delivery."""
    worker = host(NODES["Isu"]())
    batches = [Messages(torch.ones(1, WIDTH), _states(1, i)) for i in range(turns)]
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for batch in batches:
            worker.deliver(End("node", 0), Direction.FORWARD, batch)
            worker.step()
        best = min(best, 1e6 * (time.perf_counter() - began) / turns)
    return best


def run(seconds: float, repeats: int) -> tuple[dict[str, Any], list[tuple[str, bool]]]:
    turn = pass_through(2000)
    print(f"a pass-through invocation: {turn:.1f} us (bound: 30)")
    out: dict[str, Any] = {"pass_through_us": turn, "nodes": {}}
    checks = [(f"a pass-through invocation under 30 us: {turn:.1f}", turn < 30)]
    print(f"{'node':10} {'10 messages':>14} {'1000 messages':>15} {'ratio':>7}   (forward and backward, us; bound: 6)")
    for name, make in NODES.items():
        ten = min(per_batch(make, 10, 300) for _ in range(5 * repeats))
        thousand = min(per_batch(make, 1000, 40) for _ in range(5 * repeats))
        ratio = thousand / ten
        print(f"{name:10} {ten:14.1f} {thousand:15.1f} {ratio:7.1f}")
        out["nodes"][name] = {"us_10": ten, "us_1000": thousand, "ratio": ratio}
        checks.append((f"{name}: 1000 messages under 6 times 10: {ratio:.1f}", ratio < 6))
    return out, checks
