"""Data where they are needed: workers read the data set themselves, and the controller names instances by index.

    controller   data ──> instances 0 ... n-1 ──> a fingerprint of each ─┐
    worker       data ──> instances 0 ... n-1 ──> compared with those <──┘   then: "wave 17: instances 5, 3, 9"

A machine without the data, or with other data, is found before training: `DataError` with its name and the first
record that differs. Fingerprints cover states, structures and payloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ampnet.errors import DataError
from ampnet.fingerprint import fingerprint
from ampnet.graph import Graph
from ampnet.instance import Instance
from ampnet.state import Ints


@runtime_checkable
class MakesInstances(Protocol):
    """Anything that makes the same list of instances on every machine."""

    def instances(self, graph: Graph) -> list[Instance]:
        """Returns the instances for a graph."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The samples that a function returns, as instances."""

    load: Callable[[], Iterable[Any]]

    def instances(self, graph: Graph) -> list[Instance]:
        return list(graph.read(self.load()))


def fingerprints(instances: Sequence[Instance]) -> Ints:
    """Returns a number for each instance, which differs if its contents do."""
    return np.array([fingerprint(one) for one in instances], dtype=np.int64)


def check_same(mine: Ints, theirs: Ints, machine: str) -> None:
    """Raise `DataError` if the instances of a machine are not those of the controller (``theirs``)."""
    if len(mine) != len(theirs):
        raise DataError(
            f"machine {machine} has other data: {len(mine):,} instances, and the controller has {len(theirs):,}. "
            f"{_REMEDY}"
        )
    differ = np.flatnonzero(mine != theirs)
    if len(differ):
        raise DataError(
            f"machine {machine} has other data: {len(differ):,} of {len(mine):,} instances differ from the "
            f"controller's, first instance {int(differ[0])}. {_REMEDY}"
        )


_REMEDY = (
    "Remedy: give every machine the same files (a shared folder, or a copy), and make data that are generated or "
    "shuffled depend on a fixed seed only"
)
