"""Models that users bring along: each as an AMPNet model, and beside it the batched torch module it is held against.

python -m bench.ported                 all of them, ours and torch in turns
"""

from bench.ported.attention import ATTENTION
from bench.ported.child_sum_tree import CHILD_SUM_TREE
from bench.ported.decoder import DECODER
from bench.ported.entry import Ported
from bench.ported.experts import ROUTED_EXPERTS
from bench.ported.gin import GIN
from bench.ported.gru_tree import GRU_TREE
from bench.ported.sequence_graph import SEQUENCE_GRAPH

ALL = (CHILD_SUM_TREE, GRU_TREE, GIN, ROUTED_EXPERTS, ATTENTION, SEQUENCE_GRAPH, DECODER)

PORTED: dict[str, Ported] = {one.name: one for one in ALL}
"""The models, by name."""

__all__ = ["ALL", "PORTED", "Ported"]
