"""AMPNet: asynchronous model-parallel training of dynamic neural networks, on PyTorch.

A model is a static graph of IR nodes; training sends messages through the graph, forward and backward, from many
instances at once. See README.md for a first model and docs/design.md for how it works.

``import ampnet`` imports nothing else: a public name or a submodule is imported at its first use (PEP 562), so that
``ampnet --help`` does not wait for torch. A new public name has one line in ``_HOME`` and one under ``TYPE_CHECKING``;
a test compares the two.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ampnet._version import __version__

if TYPE_CHECKING:
    from ampnet import lang as lang
    from ampnet import testing as testing
    from ampnet.errors import AmpnetError as AmpnetError
    from ampnet.errors import CallbackError as CallbackError
    from ampnet.errors import CheckpointError as CheckpointError
    from ampnet.errors import DataError as DataError
    from ampnet.errors import GraphError as GraphError
    from ampnet.errors import LossError as LossError
    from ampnet.errors import ModelError as ModelError
    from ampnet.errors import NodeError as NodeError
    from ampnet.errors import PairingError as PairingError
    from ampnet.errors import PayloadError as PayloadError
    from ampnet.errors import StallError as StallError
    from ampnet.errors import StateError as StateError
    from ampnet.errors import WorkerDied as WorkerDied
    from ampnet.fitting import BestWeights as BestWeights
    from ampnet.fitting import Callback as Callback
    from ampnet.fitting import Checkpoint as Checkpoint
    from ampnet.fitting import CSVLogger as CSVLogger
    from ampnet.fitting import EarlyStopping as EarlyStopping
    from ampnet.fitting import FitInterrupted as FitInterrupted
    from ampnet.fitting import FitResult as FitResult
    from ampnet.fitting import LearningRate as LearningRate
    from ampnet.fitting import TensorBoardLogger as TensorBoardLogger
    from ampnet.fitting import fit as fit
    from ampnet.graph import Graph as Graph
    from ampnet.instance import Instance as Instance
    from ampnet.instance import Stream as Stream
    from ampnet.instance import StreamStats as StreamStats
    from ampnet.instance import feed as feed
    from ampnet.lang import Edges as Edges
    from ampnet.lang import Model as Model
    from ampnet.lang import Seq as Seq
    from ampnet.lang import Tree as Tree
    from ampnet.lang import compile as compile
    from ampnet.lang import from_pyg as from_pyg
    from ampnet.message import Messages as Messages
    from ampnet.replicas.replicate import Replicate as Replicate
    from ampnet.replicas.replicate import replicate as replicate
    from ampnet.replicas.sync import Sync as Sync
    from ampnet.runtime.cluster.runtime import Cluster as Cluster
    from ampnet.runtime.inline import Inline as Inline
    from ampnet.runtime.processes import Processes as Processes
    from ampnet.serve import serve as serve
    from ampnet.state import States as States
    from ampnet.structure import Structure as Structure
    from ampnet.tile import tile as tile
    from ampnet.update.policy import Update as Update

_HOME = {
    "AmpnetError": "errors",
    "BestWeights": "fitting",
    "CSVLogger": "fitting",
    "Callback": "fitting",
    "CallbackError": "errors",
    "Cluster": "runtime.cluster.runtime",
    "Checkpoint": "fitting",
    "CheckpointError": "errors",
    "DataError": "errors",
    "EarlyStopping": "fitting",
    "Edges": "lang",
    "FitInterrupted": "fitting",
    "FitResult": "fitting",
    "Graph": "graph",
    "GraphError": "errors",
    "Inline": "runtime.inline",
    "Instance": "instance",
    "LearningRate": "fitting",
    "LossError": "errors",
    "Messages": "message",
    "Model": "lang",
    "ModelError": "errors",
    "NodeError": "errors",
    "PairingError": "errors",
    "PayloadError": "errors",
    "Processes": "runtime.processes",
    "Replicate": "replicas.replicate",
    "Seq": "lang",
    "StallError": "errors",
    "StateError": "errors",
    "States": "state",
    "Stream": "instance",
    "StreamStats": "instance",
    "Structure": "structure",
    "Sync": "replicas.sync",
    "TensorBoardLogger": "fitting",
    "Tree": "lang",
    "Update": "update.policy",
    "WorkerDied": "errors",
    "compile": "lang",
    "feed": "instance",
    "fit": "fitting",
    "from_pyg": "lang",
    "replicate": "replicas.replicate",
    "serve": "serve",
    "tile": "tile",
}
"""The module, within this package, that each public name is imported from."""

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name or a submodule at its first use."""
    if name in _HOME:
        value = getattr(importlib.import_module(f"ampnet.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and importlib.util.find_spec(f"ampnet.{name}") is not None:
        return importlib.import_module(f"ampnet.{name}")
    raise AttributeError(f"module 'ampnet' has no attribute '{name}'", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """A public function with the name of its module (``tile``) stays the function when the module is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOME and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """A class or function that refers to this module can be sent to another process."""
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package
