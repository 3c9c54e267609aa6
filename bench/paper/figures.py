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
    """To the target in at most so many epochs."""

    workload: str
    max_active_keys: int
    at_most: int
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Slowdown:
    """With many in flight, at most so many times the epochs that one in flight takes."""

    workload: str
    max_active_keys: int
    at_most: float = 1.3


@dataclass(frozen=True, slots=True)
class Throughput:
    """Some run of ours trains more instances a second than this: the paper's best."""

    workload: str
    above: float


@dataclass(frozen=True, slots=True)
class Better:
    """The best settings that we know come below this error."""

    workload: str
    below: float


Bound = Epochs | Slowdown | Throughput | Better

BOUNDS: tuple[Bound, ...] = (
    Epochs("mnist", 1, 4),
    Epochs("mnist", 4, 4),
    Slowdown("mnist", 4),
    Throughput("mnist", 5_750),
    Epochs("list-reduction", 1, 9),
    Epochs("list-reduction", 4, 9),
    Epochs("list-reduction", 16, 9),
    Epochs("list-reduction", 4, 10, replicas=2),
    Epochs("list-reduction", 8, 14, replicas=4),
    Slowdown("list-reduction", 16),
    Throughput("list-reduction", 66_000),
    Epochs("sentiment", 16, 5),
    Slowdown("sentiment", 16),
    Throughput("sentiment", 133),
    Epochs("babi15", 16, 10),
    Slowdown("babi15", 16),
    Throughput("babi15", 662),
    Epochs("qm9", 16, 60),
    Slowdown("qm9", 16),
    Throughput("qm9", 640),
    Better("qm9", 4.0),
)
