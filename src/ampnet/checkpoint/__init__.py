"""Durable files: checkpoints of a run, and files that the user names.

    Checkpoints(folder)         `folder`: whole checkpoints in a folder, the last K of them
        manifest                what a checkpoint consists of: sizes, hashes, versions
        tensors                 named tensors <──> safetensors
        plain                   data <──> JSON
    replacing(path)             `output`: a file that is replaced whole or not at all

Nothing is pickled. Nothing here knows runtimes, and importing it does not import torch.
"""

from ampnet.checkpoint.folder import Checkpoints, Loaded
from ampnet.checkpoint.output import Replacement, check_output, replacing

__all__ = ["Checkpoints", "Loaded", "Replacement", "check_output", "replacing"]
