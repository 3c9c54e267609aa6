"""The front end: write the model for ONE instance, get graph, states and keys."""

from ampnet.lang import ops as _ops  # gives values their arithmetic
from ampnet.lang.attend import attention, softmax
from ampnet.lang.combinators import choose, each, fold, fold_tree, loss, messages, reduce, repeat, scan
from ampnet.lang.compiled import Compiled, compile
from ampnet.lang.edges import Edges
from ampnet.lang.model import Model
from ampnet.lang.pyg import from_pyg
from ampnet.lang.spaces import Seq
from ampnet.lang.tree import Tree
from ampnet.lang.whole import self_attention, whole
from ampnet.nodes.metrics import Ratio

__all__ = [
    "Compiled",
    "Edges",
    "Model",
    "Ratio",
    "Seq",
    "Tree",
    "attention",
    "choose",
    "compile",
    "each",
    "fold",
    "fold_tree",
    "from_pyg",
    "loss",
    "messages",
    "reduce",
    "repeat",
    "scan",
    "self_attention",
    "softmax",
    "whole",
]

del _ops
