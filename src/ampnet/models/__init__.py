"""The models that ship with the package, each written for one instance. `by_hand` wires one of them node by node."""

from ampnet.models.adaptive_depth import AdaptiveDepth
from ampnet.models.ggsnn import Babi15, Qm9
from ampnet.models.list_reduction import ListReduction
from ampnet.models.mlp import Mlp
from ampnet.models.permuted_layers import PermutedLayers
from ampnet.models.tree_lstm import TreeLstm

__all__ = ["AdaptiveDepth", "Babi15", "ListReduction", "Mlp", "PermutedLayers", "Qm9", "TreeLstm"]
