"""The paper's own figures, and the bounds that we hold ourselves to.

    Table 1    seconds and epochs to a target, instances a second     `PaperRow`, `TensorFlow`
    Table 2    instances a second in training and in validation       the same rows, ``train`` and ``valid``

The paper had 16 cores for each run. Its figures are medians of 20 runs and more.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A row of the paper's runtime."""

    max_active_keys: int
    seconds: float
    epochs: int
    rate: float
    """Instances a second, of Table 1."""
    train: float
    """Likewise, of Table 2: it is rounded otherwise."""
    valid: float
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class TensorFlow:
    """What the paper compares with."""

    seconds: float
    epochs: int
    rate: float
    train: float
    valid: float


@dataclass(frozen=True, slots=True)
class Paper:
    """All that the paper tells of a workload."""

    workload: str
    title: str
    about: str
    unit: str
    target: float
    train: int
    """Training instances."""
    valid: int
    rows: tuple[PaperRow, ...]
    tensorflow: TensorFlow
    higher_is_better: bool = True

    def row(self, max_active_keys: int, replicas: int = 1) -> PaperRow | None:
        """The row with so many in flight, if the paper has it."""
        found = (r for r in self.rows if (r.max_active_keys, r.replicas) == (max_active_keys, replicas))
        return next(found, None)

    def shown(self, value: float | None, digits: int = 1) -> str:
        """A value of the metric: an accuracy in percent, or an error."""
        if value is None:
            return "-"
        return f"{100 * value:.{digits}f} %" if self.higher_is_better else f"{value:.{digits + 1}f}"


PAPER = {
    paper.workload: paper
    for paper in (
        Paper(
            "mnist",
            "MNIST",
            "perceptron of four layers, 784 wide",
            "images",
            0.97,
            60_000,
            10_000,
            (PaperRow(1, 130, 4, 1949, 1948, 6106), PaperRow(4, 44, 4, 5750, 5750, 19_113)),
            TensorFlow(34.5, 3, 5880, 5880, 8037),
        ),
        Paper(
            "list-reduction",
            "List reduction",
            "vanilla RNN, 128 wide",
            "sequences",
            0.97,
            100_000,
            10_000,
            (
                PaperRow(1, 82.9, 9, 12_000, 12_000, 41_000),
                PaperRow(4, 69.7, 9, 14_000, 14_000, 53_000),
                PaperRow(16, 64.9, 9, 14_000, 14_000, 53_000),
                PaperRow(4, 33.7, 10, 32_000, 32_000, 99_000, replicas=2),
                PaperRow(8, 23.9, 14, 66_000, 66_000, 181_000, replicas=4),
            ),
            TensorFlow(46, 7, 18_000, 18_000, 43_000),
        ),
        Paper(
            "sentiment",
            "Sentiment",
            "binary Tree-LSTM, 300 wide",
            "trees",
            0.82,
            8_511,
            1_101,
            (
                PaperRow(1, 305, 3, 88, 88, 326),
                PaperRow(4, 230, 3, 117, 117, 568),
                PaperRow(16, 201, 3, 133, 133, 589),
            ),
            TensorFlow(208, 5, 265, 265, 1583),
        ),
        Paper(
            "babi15",
            "bAbI 15",
            "gated graph network, 5 wide, two steps, graphs of 54 nodes",
            "graphs",
            1.0,
            100,
            1_000,
            (PaperRow(1, 12.2, 7, 319, 319, 733), PaperRow(16, 5.8, 6, 662, 662, 1428)),
            TensorFlow(6.3, 5, 350, 350, 1093),
        ),
        Paper(
            "qm9",
            "QM9",
            "gated graph network, 100 wide, four steps",
            "molecules",
            4.6,
            117_000,
            13_000,
            (PaperRow(4, 29_000, 93, 400, 400, 970), PaperRow(16, 14_000, 69, 640, 640, 1406)),
            TensorFlow(129_000, 59, 58, 57.5, 104),
            higher_is_better=False,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Epochs:
    """The target is reached in at most this number of epochs: by one model parted over workers, or by replicas."""

    workload: str
    max_active_keys: int
    at_most: int
    replicas: int = 1
    seeds: int = 3
    """Seeds that have to be run; the bound is on their median."""
    every: bool = False
    """Whether it is on every single seed instead."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The epochs of one model parted over workers are at most this multiple of those with one wave in flight."""

    workload: str
    max_active_keys: int
    at_most: float = 1.3
    beyond: int = 0
    """It is asked only where more epochs than this are needed."""
    seeds: int = 3


@dataclass(frozen=True, slots=True)
class Throughput:
    """Some run of ours trains more instances per second than this, the paper's best, on two cores."""

    workload: str
    above: float


@dataclass(frozen=True, slots=True)
class Faster:
    """On 16 cores, our fastest way reaches the target this many times as fast as the fastest torch."""

    workload: str
    at_least: float
    seeds: int = 3


@dataclass(frozen=True, slots=True)
class Better:
    """The run of the best settings gets below this error."""

    workload: str
    below: float


Bound = Epochs | Slowdown | Throughput | Faster | Better

BOUNDS: tuple[Bound, ...] = (
    Epochs("mnist", 4, 4),
    Slowdown("mnist", 4),
    Epochs("list-reduction", 16, 9),
    Epochs("list-reduction", 4, 9, replicas=2),
    Epochs("list-reduction", 8, 10, replicas=4),
    Epochs("list-reduction", 16, 12, replicas=8),
    Epochs("list-reduction", 32, 14, replicas=16),
    Slowdown("list-reduction", 16),
    Epochs("sentiment", 16, 4),
    Slowdown("sentiment", 16),
    Epochs("babi15", 16, 6, seeds=5, every=True),
    Slowdown("babi15", 16, beyond=6, seeds=5),
    Epochs("qm9", 16, 14, seeds=1),
    Slowdown("qm9", 16, seeds=1),
    Better("qm9", 3.8),
    Faster("mnist", 1.5),
    Faster("list-reduction", 3.0),
    Faster("sentiment", 3.0),
    Faster("qm9", 3.0, seeds=1),
    Throughput("mnist", 5_750),
    Throughput("list-reduction", 66_000),
    Throughput("sentiment", 133),
    Throughput("babi15", 662),
    Throughput("qm9", 640),
)
