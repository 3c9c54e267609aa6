"""The workloads, by the names that ``ampnet bench`` knows them by."""

from bench.workload import Workload
from bench.workloads.babi15 import BABI15, BABI15_100
from bench.workloads.list_reduction import LIST_REDUCTION
from bench.workloads.mnist import MNIST
from bench.workloads.permuted_layers import PERMUTED_LAYERS
from bench.workloads.qm9 import QM9
from bench.workloads.sentiment import SENTIMENT

WORKLOADS: dict[str, list[Workload]] = {
    "mnist": [MNIST],
    "list-reduction": [LIST_REDUCTION],
    "sentiment": [SENTIMENT],
    "babi15": [BABI15, BABI15_100],
    "qm9": [QM9],
    "permuted-layers": [PERMUTED_LAYERS],
}
"""By name: what is measured, one after the other; mostly one workload, in one update size."""

BY_NAME: dict[str, Workload] = {one.name: one for several in WORKLOADS.values() for one in several}
"""Every single one, by its own name."""

__all__ = ["BY_NAME", "WORKLOADS"]
