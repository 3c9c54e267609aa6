"""Packed: nested data with tensors <──> named tensors and plain data, for the two files of a checkpoint.

    {"epoch": 3, "weights": {"a": tensor}}   <──>   {"weights/a": tensor}
                                                    {"epoch": 3, "weights": {"a": {"tensor": "weights/a"}}}

A dict whose keys are not all texts (milestones of a schedule, by epoch) is kept as a list of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ampnet.errors import CheckpointError, a

TENSOR, PAIRS = "tensor", "pairs"


def pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Returns a value as plain data. Its tensors are copied into ``tensors``, under names that begin with ``name``."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor():
            while name in tensors:  # the keys "a/b" and "a", "b"
                name += "'"
            tensors[name] = value.detach().to("cpu", copy=True)
            return {TENSOR: name}
        case Mapping():
            if all(isinstance(key, str) for key in value) and set(value) not in ({TENSOR}, {PAIRS}):
                return {key: pack(one, f"{name}/{key}", tensors) for key, one in value.items()}
            pairs = enumerate(value.items())
            return {PAIRS: [[pack(k, name, tensors), pack(v, f"{name}/{i}", tensors)] for i, (k, v) in pairs]}
        case list() | tuple():
            return [pack(one, f"{name}/{i}", tensors) for i, one in enumerate(value)]
        case _:
            raise CheckpointError(
                f"{name} has {a(type(value).__name__)}, which a checkpoint cannot keep: give tensors, numbers, texts, "
                f"and lists and dicts of them"
            )


def unpack(data: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Returns the value that was packed; tuples come back as lists."""
    match data:
        case {"tensor": str(name), **rest} if not rest:
            if name not in tensors:
                raise CheckpointError(f"the checkpoint has no tensor '{name}'")
            return tensors[name]
        case {"pairs": list(pairs), **rest} if not rest:
            return {unpack(key, tensors): unpack(value, tensors) for key, value in pairs}
        case dict():
            return {key: unpack(one, tensors) for key, one in data.items()}
        case list():
            return [unpack(one, tensors) for one in data]
        case _:
            return data
