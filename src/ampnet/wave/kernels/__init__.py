"""Kernels: how sites compute. See `ampnet.wave.kernels.kernel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampnet.nodes.embedding import Embedding
from ampnet.nodes.module import Module
from ampnet.nodes.rows import Rows
from ampnet.nodes.split import Split
from ampnet.nodes.transform import Parameterised, Transform
from ampnet.plan.sites import Site
from ampnet.wave.kernels.choice import ChoiceKernel
from ampnet.wave.kernels.crossing import Receiving, Sending
from ampnet.wave.kernels.embedding import EmbeddingKernel
from ampnet.wave.kernels.kernel import Kernel
from ampnet.wave.kernels.loss import LossKernel
from ampnet.wave.kernels.module import ModuleKernel
from ampnet.wave.kernels.padded import PaddedEmbedding, PaddedLoss, PaddedSegments
from ampnet.wave.kernels.result import ResultKernel
from ampnet.wave.kernels.rows import ByItself, ByProgram, Columns, Pumped, SideBySide
from ampnet.wave.kernels.sums import BagKernel, MixtureKernel, SegmentsKernel
from ampnet.wave.kernels.trained import TrainedKernel

if TYPE_CHECKING:
    from ampnet.wave.passage import Passage

_BY_KIND: dict[str, type[Kernel]] = {
    "input": Pumped,
    "bag": BagKernel,
    "mixture": MixtureKernel,
    "segments": SegmentsKernel,
    "loss": LossKernel,
    "result": ResultKernel,
}
_PADDED: dict[str, type[Kernel]] = {"loss": PaddedLoss, "segments": PaddedSegments}
"""In place of those above, in a padded wave."""


def kernel_of(site: Site, passage: Passage) -> Kernel:
    """The kernel of a site for a passage."""
    kind = _PADDED.get(site.kind) if passage.layout.padded else None
    kind = kind or _BY_KIND.get(site.kind)
    if site.source is not None:
        kind = Receiving if site.here else Sending
    elif passage.layout.wholes[site.number].operations[0].members:
        kind = ChoiceKernel
    elif kind is None:
        kind = _of_rows(site, passage)
    return kind(site, passage)


def _of_rows(site: Site, passage: Passage) -> type[Kernel]:
    node, sites = site.face or site.node, passage.layout.sites
    if isinstance(node, Module):
        return ModuleKernel
    if isinstance(node, Embedding) and passage.layout.padded:
        return PaddedEmbedding
    if isinstance(node, Embedding):
        alone = sites.arena_sites[site.arena] == 1 and len(sites.order[site.component]) == 1
        return EmbeddingKernel if alone else TrainedKernel
    if isinstance(node, Parameterised):
        return TrainedKernel
    if isinstance(node, Rows):
        return ByProgram
    if isinstance(node, Split):
        return Columns
    return ByItself if isinstance(node, Transform) and node.view(0) is None else SideBySide
