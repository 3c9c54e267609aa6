"""Waves: whole instances in one go, where one worker does all of them.

    [1] stage       instances wait until the last of their messages has come in
    [2] rehearse    those whose score is not known are sent through the graph on their states alone
    [3] lay out     the scores of a wave are put together: arenas, operations, what each of them reads
    [4] play        every operation forward, then backward, then the parameters' gradients
    [5] answer      losses are reported, instances retire, nodes update themselves

It is the same computation as message by message: the same nodes, parameters, losses, counts of gradients and updates.
What is different is only who looks things up: no key is packed, no message waits, and a weight's gradient is one
product. A wave has at most ``max_active_keys`` instances, and in training, where updates are counted in instances, no
more than the next update waits for.

Whatever goes wrong in the forward of a wave (a row of the wrong width, a label out of range, a loss that is not finite)
goes wrong before anything has been told or updated, and the same instances are then run message by message, to say at
which node and state, or to leave out what is to be left out.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import torch

from ampnet.errors import AmpnetError
from ampnet.graph import End, Graph, Wiring
from ampnet.instance import Instance
from ampnet.nodes.embedding import Embedding
from ampnet.nodes.gru_cell import GruCell
from ampnet.nodes.linear import Linear
from ampnet.nodes.node import Node, Report
from ampnet.nodes.transform import Parameterised
from ampnet.nodes.tree_lstm_branch import TreeLstmBranch
from ampnet.nodes.tree_lstm_leaf import TreeLstmLeaf
from ampnet.structure import Shelf
from ampnet.wave.arena import Pool
from ampnet.wave.kernels.embedding import EmbeddingKernel
from ampnet.wave.kernels.gru import GruKernel
from ampnet.wave.kernels.kernel import Kernel
from ampnet.wave.kernels.linear import LinearKernel
from ampnet.wave.kernels.loss import LossKernel
from ampnet.wave.kernels.products import Precision, Products
from ampnet.wave.kernels.rows import BY_NODE, ByItself, Pumped
from ampnet.wave.kernels.sums import BagKernel, MixtureKernel, SegmentsKernel
from ampnet.wave.kernels.tree_lstm import BranchKernel, LeafKernel
from ampnet.wave.layout import Layout
from ampnet.wave.lot import Lot, OfInstances
from ampnet.wave.rehearse import Rehearsal
from ampnet.wave.score import Score, relinked, scores
from ampnet.wave.sites import Site, Sites, Unplayable

_KEPT = 2**30
"""Bytes of scores that are kept."""
_LAYOUTS = 64
"""Layouts that are kept, where instances have few different scores."""
_AHEAD = 256
"""Instances that are rehearsed together ahead of time."""
_NUMBERS = 16
"""Numbers under which an instance is tried, to see whether they matter."""


class PlayedHalf(AmpnetError):
    """A backward failed, when gradients had been added up already. ``cause`` says why."""

    def __init__(self, node: str, cause: Exception) -> None:
        super().__init__(f"the backward of a wave failed at node '{node}': {cause}")
        self.node, self.cause = node, cause


class Waves:
    """Plays instances on the nodes of one worker. Raises `Unplayable` where they have to be run by messages."""

    def __init__(
        self, graph: Graph, wiring: Wiring, nodes: Mapping[str, Node], precision: Precision = "float32"
    ) -> None:
        self.sites = Sites(graph, wiring, nodes)
        self.pool, products = Pool(), Products(narrow=precision == "bfloat16")
        alone = [sum(s.arena == a for s in self.sites.sites) == 1 for a in range(self.sites.arenas)]
        self.kernels: dict[int, Kernel] = {
            site.number: _kernel(site, alone, self.sites)(site, self.pool, products)
            for site in self.sites.sites
            if site.kind not in ("view", "absorbed", "pairs")
        }
        self._moved = _moved(self.sites)
        self._numbers: dict[str, list[int]] = {}
        for site in self.sites.sites:
            if site.kind != "pairs":
                self._numbers.setdefault(site.name, []).append(site.number)
        self._scores: OrderedDict[bytes, Score] = OrderedDict()
        self._bytes = 0
        self._layouts: OrderedDict[tuple[bytes, ...], Layout] = OrderedDict()
        self._weights = _weights(self.sites)
        self._staged: deque[Lot] = deque()
        self.operations = self.rehearsed = self.played = self.failed = 0
        """Operations computed, instances rehearsed and played; waves that had to be run message by message."""
        self.beat: Callable[[], None] = lambda: None
        """Called between operations: a sign of life."""
        self.numbers_matter: bool | None = None
        """Whether nodes look at the number of an instance, so that none can be played; None: not known yet."""

    # -- [1]

    def stage(self, lot: Lot) -> None:
        """These instances are complete."""
        self._staged.append(lot)

    @property
    def training(self) -> bool:
        """Whether the next instances are trained on."""
        return bool(self._staged) and self._staged[0].train

    def waiting(self) -> int:
        """How many instances are staged."""
        return sum(len(lot.numbers) for lot in self._staged)

    def next(self, most: int) -> Lot | None:
        """The next instances, at most so many, all of them in training or none; None where none is staged."""
        if not self._staged:
            return None
        lots: list[Lot] = []
        room, first = most, self._staged[0]
        while self._staged and room and _alike(self._staged[0], first):
            lot = self._staged.popleft()
            if len(lot.numbers) > room:
                lot, rest = lot.split(room)
                self._staged.appendleft(rest)
            lots.append(lot)
            room -= len(lot.numbers)
        return lots[0] if len(lots) == 1 else lots[0].merge(lots)

    def forget(self) -> None:
        """Drop what is staged."""
        self._staged.clear()

    # -- [2] to [4]

    def play(self, lot: Lot, shelf: Shelf) -> tuple[list[Report], Layout]:
        """Compute a lot of instances. Reports of its losses, and what was computed."""
        try:
            return self._play(lot, shelf)
        except Exception:
            self._layouts.clear()  # their memory may be half written, and of the wrong shape
            raise

    def _play(self, lot: Lot, shelf: Shelf) -> tuple[list[Report], Layout]:
        train = lot.train
        layout = self._layout(lot, shelf)
        layout.numbers = lot.numbers
        for arena in layout.arenas:
            arena.clear()
        for input_, payload in lot.payloads():
            kernel = self.kernels[input_]
            assert isinstance(kernel, Pumped)
            here = payload.device == layout.device
            kernel.payload = payload if here else payload.to(layout.device, non_blocking=True)
        kernels, operations = self.kernels, layout.operations
        for number, whole in layout.wholes.items():
            if not layout.fixed:
                whole.state = None  # it is about memory that may be elsewhere by now
            kernels[number].begin(layout, whole, train)
        for op in operations:
            self.beat()
            kernels[op.site.number].run_forward(op)
        found = [kernels[number] for number in layout.wholes]
        reports = [report for k in found if isinstance(k, LossKernel) for report in k.reports]
        if train:
            if layout.device.type != "cpu":
                _check_finite(reports)
            self._backward(layout)
        self.played += len(lot.numbers)
        self.operations += len(operations) * (1 + train)
        return reports, layout

    def _backward(self, layout: Layout) -> None:
        kernels, name = self.kernels, "?"
        try:
            for op in reversed(layout.operations):
                self.beat()
                if not op.site.still:
                    name = op.site.name
                    kernels[op.site.number].run_backward(op)
            for op in reversed(layout.operations):
                self.beat()
                if op.first:
                    name = op.site.name
                    kernels[op.site.number].finish()
        except Exception as error:
            raise PlayedHalf(name, error) from error

    def count(self, layout: Layout, node: str) -> int:
        """How many messages came to a node."""
        known = layout.counts.get(node)
        if known is None:
            known = layout.counts[node] = int(layout.messages[self._numbers[node]].sum())
        return known

    def _layout(self, lot: Lot, shelf: Shelf) -> Layout:
        names = lot.names(shelf)
        known = {name: self._scores[name] for name in names if name in self._scores}
        missing = {name: i for i, name in enumerate(names) if name not in known}
        if missing:
            known |= self._rehearse_with_those_behind(lot, missing, shelf)
        self._check_weights()
        if len(names) > 4:  # so many are hardly ever the same again
            return Layout(self.sites, self._moved, self._linked(names, known), self.pool, self._device())
        key = tuple(names)
        layout = self._layouts.get(key)
        if layout is None:
            layout = Layout(self.sites, self._moved, self._linked(names, known), self.pool, self._device())
            self._layouts[key] = layout
            if len(self._layouts) > _LAYOUTS:
                self._layouts.popitem(last=False)
        elif not layout.fixed:
            layout.fix()
        self._layouts.move_to_end(key)
        return layout

    def _check_weights(self) -> None:
        """What was noted of layouts does not hold any more once parameters were moved or cast."""
        if any(node.updater.weights is not weights for node, weights in self._weights):
            self._layouts.clear()
            self._weights = _weights(self.sites)

    def _device(self) -> torch.device:
        """Where the parameters are."""
        for node in self.sites.nodes.values():
            if isinstance(node, Parameterised) and node.updater.weights:
                return node.updater.weights[0].device
        return torch.device("cpu")

    def _linked(self, names: Sequence[bytes], known: Mapping[bytes, Score]) -> list[Score]:
        """Scores by name, all of them with links for the same slots."""
        ways, out = len(self.sites.linked), []
        for name in names:
            score = known[name]
            if score.ways != ways:
                score = relinked(score, self.sites)
                if name in self._scores:
                    self._bytes += score.nbytes - self._scores[name].nbytes
                    self._scores[name] = score
            out.append(score)
        return out

    def rehearse(self, instances: Iterable[Instance], ends: Mapping[str, End], shelf: Shelf) -> None:
        """[2] ahead of time, at rest. ``ends``: where each input leads."""
        for some in _batched(instances, _AHEAD):
            new = {i.name(): i for i in some if i.complete and i.name() not in self._scores}
            if new:
                lot = OfInstances(self.sites, ends, dict(enumerate(new.values())), True, None)
                self._rehearse(lot, {name: i for i, name in enumerate(new)}, shelf)

    def take_over(self, other: Waves) -> None:
        """Use the scores of a replica of the same nodes."""
        if self.sites.signature() == other.sites.signature():
            self._scores, self._bytes = other._scores.copy(), other._bytes
            self.sites.linked |= other.sites.linked
            self.numbers_matter = other.numbers_matter

    def _rehearse_with_those_behind(self, lot: Lot, missing: Mapping[bytes, int], shelf: Shelf) -> dict[bytes, Score]:
        """[2] for the instances at these places, and for others that are staged: many together take hardly longer."""
        behind = list(itertools.takewhile(lambda other: _alike(other, lot), self._staged))
        if behind:
            with suppress(AmpnetError):  # one of those behind may be at fault, and will be met in its own wave
                more = lot.merge([lot, *behind])
                new = {name: i for i, name in enumerate(more.names(shelf)) if name not in self._scores}
                some = itertools.islice(new.items(), max(_AHEAD, len(missing)))  # those of the lot come first
                found = self._rehearse(more, dict(some), shelf)
                return {name: found[name] for name in missing}
        return self._rehearse(lot, missing, shelf)

    def _rehearse(self, lot: Lot, missing: Mapping[bytes, int], shelf: Shelf) -> dict[bytes, Score]:
        """[2] for the instances at these places."""
        some = lot.at(list(missing.values()))
        if self.numbers_matter is None:
            self.numbers_matter = self._by_number(some, shelf)
        if self.numbers_matter:
            raise Unplayable("where an instance goes depends on its number")
        found = dict(zip(missing, self._scores_of(some, shelf), strict=True))
        self.rehearsed += len(some.numbers)
        self._scores.update(found)
        self._bytes += sum(score.nbytes for score in found.values())
        while self._bytes > _KEPT and self._scores:
            _, gone = self._scores.popitem(last=False)
            self._bytes -= gone.nbytes
        return found

    def _scores_of(self, lot: Lot, shelf: Shelf) -> list[Score]:
        rehearsal = Rehearsal(self.sites, self.beat)
        with lot.shelved(shelf):
            try:
                rehearsal.run(lot.messages())
                self._check_over(lot)
            except Exception:
                for node in self.sites.nodes.values():
                    node.forget_instances(np.array(lot.numbers))
                raise
        return scores(self.sites, rehearsal, lot.numbers)

    def _by_number(self, lot: Lot, shelf: Shelf) -> bool:
        """Whether one and the same instance goes other ways under other numbers, of which scores know nothing."""
        if not isinstance(lot, OfInstances):
            return False  # which worker it came to was chosen by its number, and nothing else is
        low, one = max(lot.numbers) + 1, lot.instances[lot.numbers[0]]
        many = OfInstances(lot.sites, lot.ends, {low + i: one for i in range(_NUMBERS)}, lot.train, lot.stream)
        first, *others = self._scores_of(many, shelf)
        return not all(first.equals(other) for other in others)

    def _check_over(self, lot: Lot) -> None:
        """Nobody may wait for anything after a rehearsal."""
        for name, node in self.sites.nodes.items():
            if node.waits():
                raise Unplayable(f"messages wait at node '{name}' when all that can run has run")


def _weights(sites: Sites) -> list[tuple[Parameterised, list[torch.Tensor]]]:
    return [(node, node.updater.weights) for node in sites.nodes.values() if isinstance(node, Parameterised)]


def _batched(instances: Iterable[Instance], most: int) -> Iterator[list[Instance]]:
    source = iter(instances)
    while some := list(itertools.islice(source, most)):
        yield some


def _check_finite(reports: Sequence[Report]) -> None:
    """On a device one looks at losses once all of the forward is under way, and before anything is updated."""
    if not all(math.isfinite(float(report.loss)) for report in reports):
        raise Unplayable("a loss is not finite: such instances are left out one by one")


def _alike(a: Lot, b: Lot) -> bool:
    return type(a) is type(b) and a.train == b.train and a.stream is b.stream


def _kernel(site: Site, alone: Sequence[bool], sites: Sites) -> type[Kernel]:
    """How a site computes."""
    node = site.node
    once = len(sites.order[site.component]) == 1 if site.node is not None else True
    """Whether it is in no loop, and so computes all its rows at once."""
    by_kind = {"input": Pumped, "bag": BagKernel, "mixture": MixtureKernel, "segments": SegmentsKernel}
    by_kind["loss"] = LossKernel
    if site.kind in by_kind:
        return by_kind[site.kind]
    if type(node) in BY_NODE:
        return BY_NODE[type(node)]
    if isinstance(node, Linear):
        return LinearKernel
    if isinstance(node, Embedding) and alone[site.arena] and once:
        return EmbeddingKernel
    if isinstance(node, GruCell) and len(site.parts) == 2:
        return GruKernel
    if isinstance(node, TreeLstmBranch) and len(site.parts) == 2:
        return BranchKernel
    if isinstance(node, TreeLstmLeaf) and once:
        return LeafKernel
    return ByItself


def _moved(sites: Sites) -> list[bool]:
    """Of each arena: whether the gradients of its rows are wanted."""
    solid = [site for site in sites.sites if site.kind not in ("view", "absorbed")]
    return [any(not site.still for site in solid if site.arena == arena) for arena in range(sites.arenas)]
