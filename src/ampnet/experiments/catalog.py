"""The workloads by name, each as its own module describes it."""

from __future__ import annotations

from typing import Any

from ampnet.experiments import adaptive_depth, babi15, list_reduction, mnist, permuted_layers, qm9, sentiment
from ampnet.experiments.workload import Workload

WORKLOADS: dict[str, Workload[Any]] = {
    module.WORKLOAD.name: module.WORKLOAD
    for module in (mnist, list_reduction, sentiment, babi15, qm9, permuted_layers, adaptive_depth)
}
