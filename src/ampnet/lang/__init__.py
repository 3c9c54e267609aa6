"""The front end: write the model for ONE instance, get graph, states and keys."""

from ampnet.lang import ops as _ops  # gives values their arithmetic
from ampnet.lang.combinators import choose, each, fold, fold_tree, loss, messages, reduce, repeat, scan
from ampnet.lang.compiled import Compiled, compile
from ampnet.lang.model import Model
from ampnet.lang.spaces import Edges, Seq, Tree

__all__ = [
    "Compiled",
    "Edges",
    "Model",
    "Seq",
    "Tree",
    "choose",
    "compile",
    "each",
    "fold",
    "fold_tree",
    "loss",
    "messages",
    "reduce",
    "repeat",
    "scan",
]

del _ops
