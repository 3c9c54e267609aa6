"""Passage: one wave on its way through the nodes of a worker. All that belongs to the wave is here.

    payloads    what was pumped for it
    layout      the positions of its rows: it has arenas, and memory, to itself until it ends
    kernels     how its sites compute, with what they keep for the backward
    pins        the version of each node's weights that it goes on to see, where it must not see later ones
    inbox       rows and gradients that came from other workers and were not used yet
    at          which operations it has played: forward from the first to the last, then backward

So any number of passages can be in flight, their operations interleaved in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import PlanError
from ampnet.native import calls
from ampnet.nodes.node import Report
from ampnet.nodes.products import Products
from ampnet.nodes.transform import Parameterised
from ampnet.plan.layout import Layout, Operation
from ampnet.plan.lot import Lot
from ampnet.plan.planner import Planner
from ampnet.plan.sites import Site
from ampnet.update.sums import Sums
from ampnet.update.updater import Updater
from ampnet.wave.kernels import kernel_of
from ampnet.wave.kernels.kernel import Kernel
from ampnet.wave.slice import Slice
from ampnet.wave.tape import Tape


class Passage:
    """See the head of this file."""

    def __init__(
        self, number: int, lot: Lot, planner: Planner, layout: Layout, products: Products, *, skips: bool, alone: bool
    ) -> None:
        """``skips``: skip instances whose gradients are not finite. ``alone``: no other passage runs meanwhile."""
        self.number, self.lot, self.planner, self.layout, self.products = number, lot, planner, layout, products
        calls.begin_wave()
        self.numbers = np.array(lot.numbers)
        self.train, self.skips, self.alone = lot.train, skips, alone
        self.at, self.backward, self.played_at = 0, False, 0
        self.pins: dict[str, int] = {}
        self.saw: dict[str, int] = {}
        """Of nodes whose weights are derived: the version when the passage reached them."""
        self.held: dict[Updater, list[Tensor]] = {}
        """Of nodes whose forward weights last until the backward: those weights."""
        self.reports: list[Report] = []
        self.skipped: set[int] = set()
        """Skipped instances: a payload, a loss, or a gradient was not finite."""
        self.told: set[int] = set()
        """The skipped instances that a loss has reported."""
        self.seen: dict[str, int] = {}
        """For each node, if passages run one by one: its version when the passage reached it."""
        self.now: dict[str, int] = {}
        """For each node, if passages run one by one: its updates since then, when its gradients arrived."""
        self.idle: dict[int, list[Operation]] = {}
        """For each site with parameters: operations that had no gradient at their backward."""
        self.lags: dict[str, dict[int, int]] = {}
        """Of each node: messages by staleness."""
        self.later: list[Callable[[], None]] = []
        """Products to be added to weights once all gradients are known to be finite."""
        self.done: set[str] = set()
        """Nodes whose last gradients are collected: they need the pinned version no more."""
        self.brought: set[str] = set()
        """Nodes that got gradients."""
        self._sums: dict[str, Sums] = {}
        self.payloads: dict[int, Tensor] = {}
        self.inbox: dict[tuple[int, int, int], Slice] = {}
        """By crossing, round and direction."""
        self.carry: Callable[[int, Slice], None] | None = None
        """Sends a slice to a worker, by number."""
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
        self.tape = self._find_tape()
        """The calls of its layout, where they can be played again."""
        self.left = dict(layout.trains)
        """Of each node with parameters: sites whose gradients have not been collected yet."""

    def _find_tape(self) -> Tape | None:
        """The tape of the layout, for weights that lie where these do. Copies that last for the wave are made now."""
        layout = self.layout
        if not layout.fixed or not self.alone or self.skips:
            return None
        own = [site.node for op in layout.operations if op.first for site in op.trained]
        views = [node.updater.view for node in own if isinstance(node, Parameterised)]
        if any(view is not None and not (view.lasts and self.train) for view in views):
            return None
        where: list[int] = []
        for node in own if any(views) else ():
            assert isinstance(node, Parameterised)
            self.seen.setdefault(node.name, node.updater.seen_version())
            where += [weight.data_ptr() for weight in self.weights(node)]
        if layout.tape is None:
            layout.tape = Tape(layout, where)
        assert isinstance(layout.tape, Tape)
        if layout.tape.weights != where:
            return None
        layout.tape.begin(self.train)
        return layout.tape

    def load(self, payloads: Iterable[tuple[int, Tensor]]) -> None:
        """Copy the payloads into the arenas."""
        device = self.layout.device
        for site, payload in payloads:
            self.payloads[site] = payload if payload.device == device else payload.to(device, non_blocking=True)

    def end(self) -> None:
        """Drop its tensors at once. Passage, kernels and spans refer to each other, so without this their rows and
        copies of weights would stay until the cycle collector runs, gigabytes later."""
        for kernel in self.kernels.values():
            kernel.end()
        self.kernels = {}
        if self.tape is not None:
            self.tape.end()
            self.tape = None
        self.payloads.clear()
        self.inbox.clear()
        self.later.clear()
        for updater, weights in self.held.items():
            if updater.view is not None:
                updater.view.release(weights)
        self.held.clear()
        self._sums.clear()
        self.layout.done()

    # -- what comes from other workers, and goes to them

    def ready(self) -> bool:
        """Whether its next operation can run now."""
        if not 0 <= self.at < len(self.layout.operations):
            return True
        op = self.layout.operations[self.at]
        return not op.crosses or self.has(op)

    def has(self, op: Operation) -> bool:
        """Whether the slice that a receiving operation needs has arrived."""
        site = op.site
        if site.here is self.backward or (self.backward and site.still):  # it sends, or nothing comes
            return True
        return (site.number, op.round, int(self.backward)) in self.inbox

    def waits_for(self) -> Site | None:
        """The crossing whose slice its next operation waits for."""
        return None if self.ready() else self.layout.operations[self.at].site

    def send(self, op: Operation, rows: Tensor | None) -> None:
        """Send the rows of a crossing, or their gradients."""
        site, direction = op.site, int(self.backward)
        assert site.source is not None
        assert self.carry is not None
        to = site.source.worker if self.backward else site.worker
        left_out = tuple(sorted(self.skipped))
        self.carry(to, Slice(self.number, site.number, op.round, direction, self.layout.digest, rows, left_out))

    def taken(self, op: Operation, rows: int) -> Tensor | None:
        """The received rows of a crossing, or their gradients (None: there are none). There must be ``rows`` of them.

        Raises `PlanError` if the sender has another layout of the wave.
        """
        site = op.site
        assert site.source is not None
        given = self.inbox.pop((site.number, op.round, int(self.backward)))
        came = rows if given.rows is None else len(given.rows)
        if given.digest != self.layout.digest or came != rows:
            sender = site.worker if self.backward else site.source.worker
            raise PlanError(
                f"wave {self.number} (instances {self.lot.numbers[0]} to {self.lot.numbers[-1]}): worker {sender} has "
                f"another layout of it than this one: {came} rows of node '{site.name}', round {op.round}, digest "
                f"{given.digest:016x}; here {rows} rows, digest {self.layout.digest:016x}. Usual cause: a function of "
                f"states that depends on more than the state (a clock, a random number, a set's order)"
            )
        self.skipped.update(given.left_out)
        self.told.update(given.left_out)
        return given.rows

    @property
    def progress(self) -> float:
        """Its progress, from 0 to 2."""
        done = self.at / len(self.layout.operations)
        return 2 - done if self.backward else done

    # -- called by kernels

    def weights(self, node: Parameterised) -> list[Tensor]:
        """The weights that a node computes with: current ones, the first version that this passage used, or weights
        derived from both (`ampnet.update.remedies`)."""
        updater = node.updater
        if self.alone and updater.view is None:
            return updater.weights
        if self.train and updater.view is not None:
            saw = self.saw.setdefault(node.name, updater.seen_version())
            if updater.view.lasts:
                whole = updater.whole  # all faces of a node compute with one copy: the tape knows where it is
                if whole not in self.held:
                    self.held[whole] = whole.forward_weights()
                return updater.own(self.held[whole])
            return updater.weights_of(saw) if self.backward else updater.forward_weights()
        if (self.train and not updater.stashes) or updater.of_all is not None:
            return updater.weights
        pin = self.pins.setdefault(node.name, updater.version)
        return updater.hold(pin) if self.train and node.keeps_weights else updater.pinned(pin)

    def sums(self, node: Parameterised) -> Sums:
        """The gradient sums of a node's parameters."""
        if not self.skips:
            return node.updater.adding
        if node.name not in self._sums:
            self._sums[node.name] = Sums(torch.zeros_like(total) for total in list.__iter__(node.updater.all_sums))
        return node.updater.picked(self._sums[node.name])

    def own_sums(self, node: Parameterised) -> Sums | None:
        """Sums of this passage alone, which have yet to be added to the node's; taken away."""
        return self._sums.pop(node.name, None)

    def report(self, report: Report) -> None:
        """Add the report of a loss."""
        self.reports.append(report)

    def skip(self, instances: Iterable[int]) -> None:
        """Skip these instances: their gradients are not counted."""
        self.skipped.update(instances)
