"""Events of a made-up run: a pipeline of layers, one on each worker, with several instances in flight.

worker 0   [0>][1>][2>]      [0<<][3>][1<<]...      > forward, 1 ms    << backward, 2 ms, goes first    u update, 0.4 ms
worker 1       [0>][1>][0<<][2>][1<<][u]...
"""

from __future__ import annotations

from typing import Any

from ampnet.events.log import Backward, Begin, Epoch, Event, Forward, Pump, Rest, Retire, Updated
from ampnet.state import States
from tests.events.worked import told

TIMES = {"forward": 1e-3, "backward": 2e-3, "update": 0.4e-3}


def pipeline(
    workers: int = 4,
    instances: int = 80,
    keys: int = 6,
    frequency: int = 4,
    *,
    since: float = 1000.0,
    settings: dict[str, Any] | None = None,
    worker: str = "worker {}",
    node: str = "layer{}",
) -> list[Event]:
    """One epoch of training. Updates happen after every ``frequency`` gradients; times begin at ``since``."""
    names = [(worker.format(w), node.format(w)) for w in range(workers)]
    free, versions, got = [since] * workers, [0] * workers, [0] * workers
    seen: dict[tuple[int, int], int] = {}
    ready = [(since, 1, i, 0) for i in range(keys)]
    events: list[Event] = [
        Begin(since, settings or {}),
        Pump(since, "train", True, tuple(range(keys)), (), keys, True),
    ]
    coming, retired = keys, 0
    while ready:
        waiting, forward, number, w = min(ready, key=lambda r: (max(r[0], free[r[3]]), r[1], r[2]))
        ready.remove((waiting, forward, number, w))
        begin = max(waiting, free[w])
        states = States.of(instance=number, t=[0, 1])
        if forward:
            end = begin + TIMES["forward"]
            seen[w, number] = versions[w]
            events.append(
                Forward(begin, TIMES["forward"], *names[w], 0, True, states, ((0, states),), (), 32, versions[w])
            )
            ready.append((end, 1, number, w + 1) if w + 1 < workers else (end, 0, number, w))
        else:
            end = begin + TIMES["backward"]
            lags = ((versions[w] - seen.pop((w, number)), 2),)
            sent = ((0, states),)
            events.append(Backward(begin, TIMES["backward"], *names[w], 0, states, sent, 32, versions[w], 2, lags))
            got[w] += 1
            if got[w] % frequency == 0:
                versions[w] += 1
                full = (versions[w], frequency, "full", "instances", frequency)
                events.append(Updated(end, TIMES["update"], *names[w], *full))
                end += TIMES["update"]
            if w:
                ready.append((end, 0, number, w - 1))
            else:
                retired += 1
                left = coming - retired
                events.append(Retire(end, "train", True, (number,), left, coming < instances))
                if coming < instances:
                    ready.append((end, 1, coming, 0))
                    coming += 1
                    events.append(Pump(end, "train", True, (coming - 1,), (), left + 1, coming < instances))
        free[w] = end
    over = max(free)
    return told([*events, Epoch(over, "train", True, 0.5, {"accuracy": 0.75}), Rest(over, {})])
