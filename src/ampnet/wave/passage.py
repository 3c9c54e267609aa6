"""Passage: one wave on its way through the nodes of a worker. All that belongs to the wave is here.

    payloads    what was pumped for it
    layout      where its rows lie: it has arenas, and memory, to itself until it is over
    kernels     how its sites compute, with what they keep for the backward
    pins        the version of each node's weights that it goes on to see, where it must not see later ones
    at          which operations it has played: forward from the first to the last, then backward

So any number of passages can be in flight, their operations interleaved in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from ampnet.nodes.node import Report
from ampnet.nodes.products import Products
from ampnet.nodes.transform import Parameterised
from ampnet.plan.layout import Layout, Operation
from ampnet.plan.lot import Lot
from ampnet.update.sums import Sums
from ampnet.wave.kernels import kernel_of
from ampnet.wave.kernels.kernel import Kernel


class Passage:
    """See the head of this file."""

    def __init__(self, number: int, lot: Lot, layout: Layout, products: Products, *, skips: bool, alone: bool) -> None:
        """``skips``: instances whose gradients are not finite are left out. ``alone``: nothing else is played before it
        is over."""
        self.number, self.lot, self.layout, self.products = number, lot, layout, products
        self.numbers = np.array(lot.numbers)
        self.train, self.skips, self.alone = lot.train, skips, alone
        self.at, self.backward, self.played_at = 0, False, 0
        self.pins: dict[str, int] = {}
        self.reports: list[Report] = []
        self.skipped: set[int] = set()
        """Instances that are left out: a payload, a loss, or a gradient was not finite."""
        self.told: set[int] = set()
        """Those of them that a loss has reported."""
        self.seen: dict[str, int] = {}
        """Of each node, where nothing else is played in between: its updates when the passage came to it."""
        self.now: dict[str, int] = {}
        """Likewise, its updates since then, when its gradients came in."""
        self.idle: dict[int, list[Operation]] = {}
        """Of each site with parameters: operations to whose rows no gradient had come when it was their turn."""
        self.lags: dict[str, Counter[int]] = {}
        """Of each node: messages by staleness."""
        self.later: list[Callable[[], None]] = []
        """What is to be added to weights, once all gradients are known to be finite."""
        self.brought: set[str] = set()
        """Nodes that got gradients."""
        self._sums: dict[str, Sums] = {}
        self.payloads: dict[int, Tensor] = {}
        for arena in layout.arenas:
            arena.clear()
        if not layout.kernels:
            made = {op.site.number: kernel_of(op.site, self) for op in layout.operations if op.first}
            self.kernels: dict[int, Kernel] = made
            if layout.fixed:
                layout.kernels = dict(made)
        else:
            self.kernels = layout.kernels  # type: ignore[assignment]
            for kernel in self.kernels.values():
                kernel.renew(self)
        self.left: Counter[str] = Counter(site.name for op in layout.operations if op.first for site in op.trained)
        """Of each node with parameters: sites whose gradients have not been collected yet."""

    def load(self, payloads: Iterable[tuple[int, Tensor]]) -> None:
        """Bring what was pumped to where it is computed with."""
        device = self.layout.device
        for site, payload in payloads:
            self.payloads[site] = payload if payload.device == device else payload.to(device, non_blocking=True)

    @property
    def operation(self) -> Operation:
        """The next one to play."""
        return self.layout.operations[self.at]

    @property
    def progress(self) -> float:
        """How much of it is played, from 0 to 2."""
        done = self.at / len(self.layout.operations)
        return 2 - done if self.backward else done

    # -- what kernels ask for

    def weights(self, node: Parameterised) -> list[Tensor]:
        """The weights that a node computes with: those of now, or those that this passage saw first."""
        updater = node.updater
        if self.alone or not (updater.stashes or not self.train) or updater.of_all is not None:
            return updater.weights
        pin = self.pins.setdefault(node.name, updater.version)
        return updater.weights if pin == updater.version else updater.weights_of(pin)

    def sums(self, node: Parameterised) -> Sums:
        """Where the gradients of a node's parameters are added up."""
        if not self.skips:
            return node.updater.adding
        if node.name not in self._sums:
            self._sums[node.name] = Sums(torch.zeros_like(total) for total in list.__iter__(node.updater.adding))
        return self._sums[node.name]

    def own_sums(self, node: Parameterised) -> Sums | None:
        """Sums of this passage alone, which have yet to be added to the node's; taken away."""
        return self._sums.pop(node.name, None)

    def report(self, report: Report) -> None:
        """A loss has judged."""
        self.reports.append(report)

    def skip(self, instances: Iterable[int]) -> None:
        """Leave these instances out of the count of gradients."""
        self.skipped.update(instances)
