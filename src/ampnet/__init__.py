"""AMPNet: asynchronous model-parallel training of dynamic neural networks, on PyTorch.

A model is a static graph of IR nodes; training is messages running through it, forward and backward, from many
instances at once. See README.md for a first model and docs/design.md for how it works.
"""

from ampnet._version import __version__
from ampnet.errors import (
    AmpnetError,
    DataError,
    GraphError,
    LossError,
    ModelError,
    NodeError,
    PairingError,
    PayloadError,
    StallError,
    StateError,
    WorkerDied,
)
from ampnet.graph import Graph
from ampnet.instance import Instance, Stream, StreamStats, feed
from ampnet.lang import Edges, Model, Seq, Tree, compile
from ampnet.message import Messages
from ampnet.replicas.replicate import Replicate, replicate
from ampnet.replicas.sync import Sync
from ampnet.runtime.inline import Inline
from ampnet.runtime.processes import Processes
from ampnet.state import States
from ampnet.structure import Structure
from ampnet.tile import tile
from ampnet.update.policy import Update

__all__ = [
    "AmpnetError",
    "DataError",
    "Edges",
    "Graph",
    "GraphError",
    "Inline",
    "Instance",
    "LossError",
    "Messages",
    "Model",
    "ModelError",
    "NodeError",
    "PairingError",
    "PayloadError",
    "Processes",
    "Replicate",
    "Seq",
    "StallError",
    "StateError",
    "States",
    "Stream",
    "StreamStats",
    "Structure",
    "Sync",
    "Tree",
    "Update",
    "WorkerDied",
    "__version__",
    "compile",
    "feed",
    "replicate",
    "tile",
]
