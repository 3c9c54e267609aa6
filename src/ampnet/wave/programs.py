"""Program: the training step of all waves of one description, on memory of its own; on a GPU, captured as a graph.

    load     [ indices | payloads ] of a wave, into the buffers of the program
    play     forward, backward and the sums of gradients; what losses report; whether all of it is finite

The first wave of a description is played call by call. From its second on, a GPU repeats the calls as one captured
graph (`torch.cuda.CUDAGraph`): the host launches once, whatever the number of operations. Programs of one player share
the memory of their arenas, because no two of them run at once, and what a graph needs besides is in one pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ampnet.nodes.products import Products
from ampnet.nodes.transform import Parameterised
from ampnet.plan.description import Padded
from ampnet.plan.lot import Lot
from ampnet.plan.padded import PaddedLayout
from ampnet.plan.planner import Planner
from ampnet.plan.sites import Site
from ampnet.update.recorded import capture
from ampnet.update.sums import Sums
from ampnet.wave.arena import Pool
from ampnet.wave.kernels.kernel import Kernel
from ampnet.wave.ledger import Ledger
from ampnet.wave.passage import Passage


class Program:
    """See the head of this file."""

    def __init__(
        self,
        padded: Padded,
        payloads: Mapping[int, list[Tensor]],
        lot: Lot,
        planner: Planner,
        products: Products,
        pool: Pool,
        ledger: Ledger,
        graphs: Any,
    ) -> None:
        """``payloads``: those of a wave, by input site, for their shapes. ``graphs``: handle of the graphs' memory."""
        device = ledger.device
        self._lot, self._planner, self._products, self._pool = lot, planner, products, pool
        self._ledger, self._graphs = ledger, graphs
        self._index = torch.zeros(sum(padded.sizes), dtype=torch.int64, device=device)
        self.layout = PaddedLayout(planner.sites, planner._moved, padded, self._index, pool, device)
        rooms = {op.site.number: op.stop for op in self.layout.operations if op.site.kind == "input"}
        self._inputs = {
            site: torch.zeros(rooms[site], *pieces[0].shape[1:], dtype=pieces[0].dtype, device=device)
            for site, pieces in payloads.items()
        }
        self.values: Tensor | None = None
        """The sums that losses left behind, one after the other."""
        self.parts: list[int] = []
        """How many of them each operation of a loss left."""
        self.collected: list[Sequence[Site]] = []
        """The sites whose weights got gradients, in order."""
        self.played = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.refused: str | None = None
        """Why it cannot be captured."""
        self._side: torch.cuda.Stream | None = None
        """While it is captured: where the gradients of weights are summed, which no other gradient waits for."""
        self._loaded = False
        self._held: object = None
        self._marks: list[tuple[bool, ...]] = []
        """Which sums count as zero after it was played."""

    def load(self, index: Tensor, payloads: Mapping[int, list[Tensor]], inputs: Mapping[int, int]) -> None:
        """Bring a wave in: its arrays, and of each input the payloads of its instances and the number of their rows.
        Rows of padding keep what an earlier wave left there, which is as good as any."""
        self._index.copy_(index, non_blocking=True)
        for site, pieces in payloads.items():
            into, rows = self._inputs[site], inputs[site]
            target = into[:rows]
            if pieces[0].device == into.device:
                torch.cat(pieces, out=target)
            else:  # from pinned memory, which torch keeps until the copy is done: a loader may reuse its buffers
                staged = torch.empty(target.shape, dtype=target.dtype, pin_memory=True)
                target.copy_(torch.cat(pieces, out=staged), non_blocking=True)
            if not self._loaded and rows < len(into):
                first = target[:1]
                into[rows:].copy_(first.expand(len(into) - rows, *first.shape[1:]))
        self._loaded = True

    def forget(self) -> None:
        """What it was loaded with may not be finite: let nothing of it remain."""
        self._loaded = False

    def play(self, sums: Sequence[Sums]) -> Tensor:
        """Compute what was brought in. Returns the sums that losses left, in memory that the next wave overwrites."""
        self.played += 1
        if self.graph is not None:
            self.graph.replay()
            for one, marks in zip(sums, self._marks, strict=True):
                one.old = marks
        else:
            self._play()
        assert self.values is not None
        return self.values

    def capture(self, sums: Sequence[Sums]) -> None:
        """Record the calls of `play`, without making them. ``sums``: those whose marks they read and change."""
        before = [one.old for one in sums]
        held = self.values, self.collected, self.parts, self._held
        self._side = torch.cuda.Stream()
        try:
            self.graph = capture(self._play, self._graphs)
            self._marks = [one.old for one in sums]
            self._held = (self._held, self._pool.stores())
        except Exception as error:
            said = str(error).splitlines()
            self.refused = f"{type(error).__name__}: {said[0] if said else ''}"
            self.values, self.collected, self.parts, self._held = held
        self._side = None
        for one, marks in zip(sums, before, strict=True):
            one.old = marks

    def _play(self) -> None:
        layout = self.layout
        layout.use(self._pool, False)
        layout.marks, layout.faults, self.collected = [], [], []
        passage = Passage(0, self._lot, self._planner, layout, self._products, skips=False, alone=True)
        passage.payloads.update(self._inputs)
        kernels, operations = passage.kernels, layout.operations
        for op in operations:
            kernels[op.site.number].forward(op)
        idle: dict[int, list[Any]] = {}
        for op in reversed(operations):
            if op.site.still:
                continue
            kernel = kernels[op.site.number]
            if kernel.out.touched or kernel.answers:
                kernel.backward(op)
            elif op.trained:
                idle.setdefault(op.site.number, []).append(op)
            if op.first and op.trained:
                if kernel.out.touched:
                    for one in idle.pop(op.site.number, ()):  # with a gradient of zero
                        kernel.backward(one)
                    self._collect(kernel)
                self.collected.append(op.trained)
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
        self.parts = [len(mark) for mark in layout.marks]
        self.values = torch.cat(layout.marks) if len(layout.marks) > 1 else layout.marks[0]
        self._ledger.enter([self.values, *self._evidence()], layout.faults)
        self._held = passage

    def _collect(self, kernel: Kernel) -> None:
        """Products of a hoisted part are needed by the gradients of other rows; all others are not."""
        if self._side is None or getattr(kernel, "hoisted", None):
            kernel.collect()
            return
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            kernel.collect()

    def _evidence(self) -> list[Tensor]:
        """Numbers that are finite if all payloads and all gradients are."""
        totals: list[Tensor] = [one for one in self._inputs.values() if one.is_floating_point()]
        for node in dict.fromkeys(site.node for sites in self.collected for site in sites):
            assert isinstance(node, Parameterised)
            mine = list(list.__iter__(node.updater.adding))
            totals += [total for total in mine if total.dim() > 1] or mine
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for total in totals:
            kinds.setdefault(total.dtype, []).append(total)
        return [torch.stack(torch._foreach_norm(some, float("inf"))) for some in kinds.values()]
