"""What the examples share: two options, a line an epoch, and what a guess would get."""

import argparse
from collections import Counter
from collections.abc import Callable, Iterable

import torch

from ampnet import StreamStats


def run(main: Callable[..., object]) -> None:
    """Call an example with the options of the command line; its own defaults are those of its function."""
    epochs, instances = main.__defaults__  # type: ignore[attr-defined]
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=int, default=epochs, help="times through the data")
    parser.add_argument("--instances", type=int, default=instances, help="instances in an epoch")
    torch.set_num_threads(1)
    main(**vars(parser.parse_args()))


def report(epoch: int, trained: StreamStats, things: str) -> None:
    """A line about an epoch."""
    metrics = "".join(f", {name.replace('_', ' ')} {value:.3f}" for name, value in trained.metrics.items())
    print(f"epoch {epoch}: loss {trained.loss:.3f}{metrics}; {trained.records_per_second:,.0f} {things}/s")


def guess(labels: Iterable[object]) -> float:
    """The share that always the commonest answer would get right."""
    counts = Counter(int(label) for label in labels)  # type: ignore[call-overload]
    return max(counts.values()) / sum(counts.values())
