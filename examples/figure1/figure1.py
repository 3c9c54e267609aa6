"""The paper's Figure 1, measured: three ways to train one multi-layer perceptron on a pipeline of workers.

    (a) synchronous, one update for each filled pipeline     workers wait for the pipeline to fill and to drain
    (b) synchronous, infrequent updates                      they wait less often; the weights learn less often
    (c) AMP                                                  nobody waits: every layer updates itself as gradients come

In (a) and (b) no instance is pumped before all of its group have come back and the layers have updated themselves, as
in minibatch training: gradients are never stale. In (c) they are. Each worker is a process and holds one layer.

    python examples/figure1/figure1.py -o figure1.png

A machine with fewer cores than workers cannot show this: workers then wait for a core, not for each other. There, each
layer waits for a few milliseconds as if it had a device of its own (``--wait``), and is small.
"""

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import ampnet
from ampnet.data.generated import images
from ampnet.events.boxes import Box, boxes_of
from ampnet.events.gantt import Chart, chart
from ampnet.events.log import EventLog
from ampnet.events.staleness import staleness_of
from ampnet.events.utilisation import UtilisationMeter
from ampnet.lang import Compiled
from ampnet.models import Mlp


@dataclass(frozen=True)
class Way:
    """A way to train."""

    title: str
    group: int | None
    """Instances in an update, with a barrier after it; None: AMP, an update for each."""


@dataclass(frozen=True)
class Measured:
    """What came of it."""

    way: Way
    images: float
    """A second."""
    busy: list[float]
    """The share of the time that each worker worked."""
    updates: int
    """Of the layer that has most of them."""
    staleness: float
    """Mean over all messages."""
    loss: float
    """Over the whole run."""
    boxes: list[Box]


class Waiting(nn.Linear):
    """A layer that is in no hurry."""

    seconds = 0.0

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return super().forward(x)


def model(width: int, layers: int, wait: float) -> Mlp:
    made = Mlp(width, layers)
    if wait:
        made.hidden = nn.ModuleList(Waiting(width, width) for _ in made.hidden)
        for layer in made.hidden:
            layer.seconds = wait  # type: ignore[assignment]
    return made


def measure(way: Way, count: int, workers: int, width: int, bucket: int, wait: float) -> Measured:
    """Train ``count`` buckets of images one way."""
    torch.manual_seed(0)
    graph = ampnet.compile(model(width, workers + 1, wait), *next(images(1, 0, width)))
    keys = 2 * workers
    update = ampnet.Update(partial(torch.optim.SGD, lr=0.02), way.group or 1, "instances" if way.group else "messages")
    log, meter = EventLog(), UtilisationMeter()
    with ampnet.Processes(
        graph,
        workers=workers,
        affinity={f"hidden_{i}": i for i in range(workers)} | {"classify": workers - 1, "loss": workers - 1},
        max_active_keys=keys,
        wave_size=1,
        update=update,
        listeners=[log, meter],
    ) as runtime:
        made = list(buckets(graph, count, width, bucket))
        runtime.infer(made[:keys])  # the workers are there, and warm
        log.events.clear()
        size = way.group or count
        streams = [ampnet.Stream(made[i : i + size], name=f"group {i // size}") for i in range(0, count, size)]
        stats = runtime.run(streams, barrier=way.group is not None)
    events = list(log)
    boxes = boxes_of(events)
    first, last = min(b.start for b in boxes), max(b.stop for b in boxes)
    names = [f"worker{i}" for i in range(workers)]
    busy = [sum(b.seconds for b in boxes if b.worker == name) / (last - first) for name in names]
    stale = staleness_of(events).values()
    return Measured(
        way,
        sum(s.records for s in stats) / (last - first),
        busy,
        max(use.updates for use in meter.updates().values()),
        sum(s.mean * s.messages for s in stale) / max(1, sum(s.messages for s in stale)),
        sum(s.loss * s.instances for s in stats) / sum(s.instances for s in stats),
        boxes,
    )


def buckets(graph: Compiled, count: int, width: int, size: int) -> Iterator[ampnet.Instance]:
    pairs = images(count * size, 0, width)
    for _ in range(count):
        some = [next(pairs) for _ in range(size)]
        yield graph.bucket(size, torch.stack([x for x, _ in some]), torch.stack([y for _, y in some]))


def panels(found: Sequence[Measured]) -> list[Chart]:
    """A stretch of each run, equally long: as long as three groups of (a), around an update."""
    boxes = found[0].boxes
    whole = max(b.stop for b in boxes) - min(b.start for b in boxes)
    groups = len({b.version for b in boxes if b.kind == "update"})
    seconds = min(3.0, groups) * whole / groups
    drawn = []
    for one in found:
        last = max(b.stop for b in one.boxes)
        updates = [b.start for b in one.boxes if b.kind == "update"] or [last / 2]
        middle = min(updates, key=lambda at: abs(at - last / 2))
        start = max(0.0, min(middle, last) - seconds / 2)
        drawn.append(
            chart(one.boxes, start=start, stop=start + seconds, title=f"{one.way.title}: {one.images:,.0f} images/s")
        )
    return drawn


def draw(drawn: Sequence[Chart], path: Path) -> None:
    """One picture, a panel for each chart."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.image import imsave

    from ampnet.events.gantt_picture import DPI, paint

    pictures = []
    for one in drawn:
        figure = paint(one)
        figure.set_dpi(DPI)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        pictures.append(np.asarray(canvas.buffer_rgba()))
    imsave(path, np.concatenate(pictures))


def main(
    out: Path, count: int = 240, workers: int = 3, width: int = 784, bucket: int = 100, wait: float | None = None
) -> list[Measured]:
    keys = 2 * workers
    if wait is None:
        wait = 0.0 if len(os.sched_getaffinity(0)) > workers else 4e-3
    if wait:
        width, bucket = min(width, 128), min(bucket, 20)
        print(f"layers of {width} that wait {1e3 * wait:g} ms each, as if on devices of their own")
    ways = [
        Way("(a) synchronous pipeline, an update for each filling", keys),
        Way(f"(b) synchronous pipeline, an update for {8 * keys} instances", 8 * keys),
        Way("(c) AMP", None),
    ]
    found = [measure(way, count, workers, width, bucket, wait) for way in ways]
    print(f"{'':56}{'images/s':>10}  {'busy':20}{'updates':>8}{'staleness':>11}{'loss':>8}")
    for one in found:
        busy = " ".join(f"{100 * share:.0f} %" for share in one.busy)
        print(f"{one.way.title:56}{one.images:10,.0f}  {busy:20}{one.updates:8}{one.staleness:11.1f}{one.loss:8.3f}")
    draw(panels(found), out)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=Path("figure1.png"), help="the picture")
    parser.add_argument("--count", type=int, default=240, help="instances, of 100 images each (20 with --wait)")
    parser.add_argument("--workers", type=int, default=3, help="workers, and layers")
    parser.add_argument("--wait", type=float, help="seconds that a layer waits (0.004 if cores are few, else 0)")
    torch.set_num_threads(1)
    main(**vars(parser.parse_args()))
