"""PaddedLayout: a layout made from a description (`ampnet.plan.description`), whose arrays are slices of one buffer.

    buffer    [ index of (h, 1) | offsets of (sum, 0) | index of (sum, 0) | ... ]      one copy brings them all in

Kernels compute with it as with any other layout. It serves every wave of its description, so nothing that follows from
the arrays' numbers may be cached in it, and nothing may be read back from the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ampnet.nodes.transform import Parameterised
from ampnet.plan.description import BagSpec, OpSpec, Padded, ReadSpec
from ampnet.plan.layout import Bag, Layout, Operation, Whole
from ampnet.plan.sites import Site, Sites
from ampnet.wave.arena import Arena, Pool, Read


class PaddedLayout(Layout):
    """See the head of this file."""

    padded = True

    def __init__(
        self, sites: Sites, moved: Sequence[bool], padded: Padded, buffer: Tensor, pool: Pool, device: torch.device
    ) -> None:
        """``buffer``: as many numbers as `Padded.flat` has."""
        self.sites, self.pool, self.device, self.fixed = sites, pool, device, False
        self.key, self.told, self.kernels, self.digest, self.numbers = (), {}, {}, 0, ()
        self._held, self.tape, self._sizes_of = None, None, {}
        self.crosses = False
        self.marks: list[Tensor] = []
        """What losses leave behind: of each, the mean loss, then the sum of every metric."""
        self.faults: list[Tensor] = []
        """Truth values on the device: an index or a label is out of range."""
        self._arrays = buffer.split(list(padded.sizes)) if padded.sizes else ()
        self.arenas = [
            Arena(i, rows, pumped, moved[i], pool, sites.sole[i]) for i, (rows, pumped) in enumerate(padded.arenas)
        ]
        self.judged: dict[tuple[int, int], list[Tensor]] = {}
        """Of each operation of a loss: which of its rows and messages are real."""
        self.wholes, self.operations = {}, []
        seen: set[int] = set()
        for spec in padded.operations:
            operation = self._operation_of(spec, seen)
            if spec.members:
                operation.members = [
                    operation if one.site == spec.site else self._operation_of(one, seen) for one in spec.members
                ]
                operation.trained = tuple(member.site for member in operation.members)
                operation.first = True
            self.operations.append(operation)
            for one in operation.members or [operation]:
                self._add_to_whole(one, padded.wholes.get(one.site.number, ()))

    def _operation_of(self, spec: OpSpec, seen: set[int]) -> Operation:
        site = self.sites.sites[spec.site]
        operation = Operation(
            site,
            spec.start,
            spec.stop,
            spec.site not in seen,
            [self._read_of(read) for read in spec.reads],
            [self._bag_from(bag) for bag in spec.bags],
            list(spec.cuts),
            spec.back,
            None if spec.targets is None else self._arrays[spec.targets],
            spec.round,
            spec.stop - spec.start,
        )
        seen.add(spec.site)
        if site.kind == "mixture":
            operation.trained = tuple(site.terms)
        elif isinstance(site.node, Parameterised):
            operation.trained = (site,)
        if spec.judged:
            share, scale, *others = (self._arrays[number] for number in spec.judged)
            self.judged[spec.site, spec.round] = [share.view(torch.float64), scale.view(torch.float64), *others]
        return operation

    def _read_of(self, spec: ReadSpec) -> Read:
        index = None if spec.rows is None else self._arrays[spec.rows]
        return Read(self.arenas[spec.arena], spec.start, spec.stop, index)

    def _bag_from(self, spec: BagSpec) -> Bag:
        index, offsets, owners = (self._arrays[number] for number in (spec.rows, spec.offsets, spec.owners))
        return Bag(self.arenas[spec.arena], index, offsets, owners)

    def _add_to_whole(self, operation: Operation, reads: Sequence[ReadSpec]) -> None:
        site: Site = operation.site
        whole = self.wholes.get(site.number)
        if whole is None:
            whole = Whole(site, operation.start, operation.stop, [self._read_of(read) for read in reads])
            self.wholes[site.number] = whole
        whole.stop = max(whole.stop, operation.stop)
        whole.operations.append(operation)

    def use(self, pool: Pool, again: bool) -> None:
        super().use(pool, again)
        reads = [read for whole in self.wholes.values() for read in whole.reads]
        reads += [read for op in self.operations for member in op.members or [op] for read in member.reads]
        for read in reads:
            read.joined = None  # it was found for the indices of another wave

    @property
    def nbytes(self) -> int:
        return 0
