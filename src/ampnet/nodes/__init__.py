"""The IR nodes, one per file, with forward and backward together."""

from ampnet.nodes.bcast import Bcast
from ampnet.nodes.collect import Collect
from ampnet.nodes.concat import Concat
from ampnet.nodes.cond import Cond
from ampnet.nodes.dispatch import Dispatch
from ampnet.nodes.dropout import Dropout
from ampnet.nodes.embedding import Embedding
from ampnet.nodes.flatmap import Flatmap
from ampnet.nodes.function import Function
from ampnet.nodes.group import Group
from ampnet.nodes.gru_cell import GruCell
from ampnet.nodes.isu import Isu
from ampnet.nodes.layer_norm import LayerNorm
from ampnet.nodes.linear import Linear
from ampnet.nodes.loop import Loop
from ampnet.nodes.loss import Loss
from ampnet.nodes.lstm_cell import LstmCell
from ampnet.nodes.module import Module
from ampnet.nodes.node import Direction, Node, Report
from ampnet.nodes.phi import Phi
from ampnet.nodes.program import Program, Ref, Step
from ampnet.nodes.reduce import Reduce
from ampnet.nodes.relu import Relu
from ampnet.nodes.result import Result
from ampnet.nodes.rows import Rows
from ampnet.nodes.sigmoid import Sigmoid
from ampnet.nodes.sink import Sink
from ampnet.nodes.split import Split
from ampnet.nodes.tanh import Tanh
from ampnet.nodes.tied import Tied
from ampnet.nodes.transform import Parameterised, Transform
from ampnet.nodes.tree_lstm_branch import TreeBranchCell, TreeLstmBranch
from ampnet.nodes.tree_lstm_leaf import TreeLeafCell, TreeLstmLeaf
from ampnet.nodes.ungroup import Ungroup
from ampnet.nodes.weight import Weight

__all__ = [
    "Bcast",
    "Collect",
    "Concat",
    "Cond",
    "Direction",
    "Dispatch",
    "Dropout",
    "Embedding",
    "Flatmap",
    "Function",
    "Group",
    "GruCell",
    "Isu",
    "LayerNorm",
    "Linear",
    "Loop",
    "Loss",
    "LstmCell",
    "Module",
    "Node",
    "Parameterised",
    "Phi",
    "Program",
    "Reduce",
    "Ref",
    "Relu",
    "Report",
    "Result",
    "Rows",
    "Sigmoid",
    "Sink",
    "Split",
    "Step",
    "Tanh",
    "Tied",
    "Transform",
    "TreeBranchCell",
    "TreeLeafCell",
    "TreeLstmBranch",
    "TreeLstmLeaf",
    "Ungroup",
    "Weight",
]
