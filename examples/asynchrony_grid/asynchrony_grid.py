"""The paper's figure on asynchrony: 8 replicas of the list-reduction RNN, trained to 96 % under many settings.

How much asynchrony there is, is decided by two numbers: how many instances are in flight (``max_active_keys``) and how
many gradients make an update of a replica (``min_update_frequency``). The first buys speed, both cost instances:

    python examples/asynchrony_grid/asynchrony_grid.py            8 cores or more; a few minutes

    picture    a point for every pair of settings: instances that it took to 96 %, and instances per second
               gray lines: the same time in all. The best point is the one on the lowest line

An instance is a bucket of 100 sequences here; the axes count sequences. Weights are shared (Hogwild); ``--sync epoch``
averages them at the end of each epoch, as the paper does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import textwrap
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ampnet import Processes, Sync, Update, replicate
from ampnet.data.list_reduction import Sequences, generate
from ampnet.fitting import fit
from ampnet.models import list_reduction


@dataclass(frozen=True, slots=True)
class Point:
    """What came of one pair of settings."""

    max_active_keys: int
    """Instances in flight at most, of all replicas together."""
    min_update_frequency: int
    """Instances that make an update of a replica."""
    reached: bool
    """Whether the target was reached."""
    best: float
    """The best accuracy of a validation."""
    sequences: int
    """Sequences trained on, until the target was reached or the last epoch was over."""
    seconds: float
    """The same in seconds, validation included."""
    speed: float
    """Training sequences per second."""


def measure(keys: int, frequency: int, train: Sequences, valid: Sequences, options: argparse.Namespace) -> Point:
    """Train under one pair of settings."""
    graph = list_reduction.build(options.hidden, options.seed)
    replicate(graph, None, options.replicas, route="shortest", sync=Sync(options.sync))
    # An epoch of this script is a part of a usual one, so that the moment of reaching the target is known better.
    decay = options.decay ** (len(train) / 100_000)
    update = Update(
        partial(torch.optim.Adam, lr=options.learning_rate, betas=(0.9, 0.99), fused=True),
        frequency,
        "instances",
        clip_norm=options.clip_norm,
        schedule=partial(torch.optim.lr_scheduler.ExponentialLR, gamma=decay),
    )
    with Processes(graph, workers=options.replicas, update=update, max_active_keys=keys, seed=options.seed) as runtime:
        result = fit(
            runtime,
            train=lambda epoch: list_reduction.instances(
                graph, train, rng=np.random.default_rng((options.seed, epoch))
            ),
            valid=lambda epoch: list_reduction.instances(graph, valid),
            epochs=options.epochs,
            metric="accuracy",
            target=options.target,
        )
    best = max(record.valid_metrics["accuracy"] for record in result.history)
    seconds = result.seconds if result.seconds_to_target is None else result.seconds_to_target
    return Point(
        keys,
        frequency,
        result.reached,
        best,
        result.epochs * len(train),
        seconds,
        result.train_records_per_second,
    )


def draw(points: list[Point], path: Path, target: float, replicas: int) -> None:
    """The picture; see the head of this file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5.4), layout="constrained")
    shown = [p for p in points if p.reached]
    if shown:
        widest, fastest = 1.12 * max(p.sequences for p in shown), 1.12 * max(p.speed for p in shown)
        axes.set_xlim(0, widest)
        axes.set_ylim(0, fastest)
        for seconds in (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120):
            end = min(widest, fastest * seconds)
            if end / seconds > 0.12 * fastest and end > 0.12 * widest:
                axes.plot([0, end], [0, end / seconds], color="0.85", linewidth=1, zorder=0)
                place = (0.97 * end, 0.97 * end / seconds)
                axes.annotate(f"{seconds} s", place, color="0.5", fontsize=8, ha="right", va="center").set_bbox(
                    {"facecolor": "white", "edgecolor": "none", "pad": 1}
                )
    for number, frequency in enumerate(sorted({p.min_update_frequency for p in shown})):
        line = sorted((p for p in shown if p.min_update_frequency == frequency), key=lambda p: p.max_active_keys)
        colour, label = f"C{number}", f"min_update_frequency {frequency}"
        axes.plot([p.sequences for p in line], [p.speed for p in line], color=colour, marker="o", label=label)
        for p in line:
            place = (p.sequences, p.speed)
            axes.annotate(f"{p.max_active_keys}", place, xytext=(6, -10), textcoords="offset points", fontsize=8)
    axes.set_xlabel(f"sequences to {target:.0%} (thousands)")
    axes.set_ylabel("sequences per second (thousands)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value / 1000:g}")
    title = f"{replicas} replicas of the list-reduction RNN. Numbers at points: max_active_keys. Gray: the same time"
    axes.set_title(title, fontsize=9)
    if shown:
        axes.legend(fontsize=8, loc="lower right")
    missed = [p for p in points if not p.reached]
    if missed:
        names = ", ".join(f"{p.max_active_keys} / {p.min_update_frequency} ({p.best:.1%})" for p in missed)
        text = f"not reached (max_active_keys / min_update_frequency, best): {names}"
        figure.supxlabel("\n".join(textwrap.wrap(text, 120)), fontsize=7, x=0.02, ha="left")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> list[Point]:
    """Measure the grid, print a table, write picture and numbers."""
    options = _options(arguments)
    torch.set_num_threads(1)
    train, valid = generate(options.train_size, 2 * options.seed), generate(options.valid_size, 2 * options.seed + 1)
    points = []
    print("keys   muf  sequences   seconds  sequences/s  accuracy")
    for frequency in options.frequencies:
        for keys in options.keys:
            p = measure(keys, frequency, train, valid, options)
            points.append(p)
            took = f"{p.sequences:10,} {p.seconds:9.1f}" if p.reached else f"{'-':>10} {'-':>9}"
            print(f"{keys:4d} {frequency:5d} {took} {p.speed:12,.0f} {p.best:9.4f}", flush=True)
    draw(points, options.out, options.target, options.replicas)
    numbers: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__},
        "settings": vars(options) | {"out": options.out.name},
        "points": [asdict(p) for p in points],
    }
    options.out.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    print(f"written to {options.out} and {options.out.with_suffix('.json')}")
    return points


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    many = partial(_whole_numbers, parser)
    parser.add_argument("--replicas", type=int, default=8, help="replicas, each on a worker (default: 8)")
    parser.add_argument("--keys", type=many, default=[8, 16, 32, 64], help="max_active_keys (default: 8,16,32,64)")
    parser.add_argument(
        "--frequencies", type=many, default=[1, 2, 4, 8], help="min_update_frequency (default: 1,2,4,8)"
    )
    parser.add_argument("--sync", default="shared", help="how replicas are kept together (default: shared)")
    parser.add_argument("--target", type=float, default=0.96, help="accuracy to reach (default: 0.96)")
    parser.add_argument("--epochs", type=int, default=40, help="parts of training at most (default: 40)")
    parser.add_argument("--train-size", type=int, default=50_000, help="sequences of a part (default: 50000)")
    parser.add_argument("--valid-size", type=int, default=5_000, help="validation sequences (default: 5000)")
    parser.add_argument("--hidden", type=int, default=list_reduction.HIDDEN, help="width of the state (default: 128)")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="of Adam, at the start (default: 0.002)")
    parser.add_argument("--decay", type=float, default=0.85, help="of the rate, for 100,000 sequences (default: 0.85)")
    parser.add_argument("--clip-norm", type=float, default=1.0, help="of a node's gradient (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of data, weights and order (default: 0)")
    out = Path("asynchrony_grid.png")
    parser.add_argument("--out", type=Path, default=out, help=f"the picture; numbers go beside it (default: {out})")
    return parser.parse_args(sys.argv[1:] if arguments is None else arguments)


def _whole_numbers(parser: argparse.ArgumentParser, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        parser.error(f"{text!r}: give whole numbers parted by commas, like 8,16,32")


if __name__ == "__main__":
    main()
