"""Contents of checkpoints for tests, and whether two are equal to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ampnet.checkpoint import Checkpoints, Loaded


def tensors(seed: int) -> dict[str, Tensor]:
    """Tensors of every kind that training has, small."""
    draw = torch.Generator().manual_seed(seed)
    table = torch.randn(4, 3, generator=draw)
    return {
        "weight/cell.weight": table,
        "weight/tied": table,
        "weight/turned": table.t(),
        "weight/row": table[1],
        "optimizer/cell/0/step": torch.tensor(float(seed)),
        "optimizer/cell/0/exp_avg": torch.randn(2, 2, generator=draw, dtype=torch.float64),
        "sum/half": torch.randn(3, generator=draw).bfloat16(),
        "count": torch.tensor([seed, 2**62 - 1]),
        "mask": torch.tensor([True, False, True]),
        "none": torch.zeros(0, 5),
        "not finite": torch.tensor([float("nan"), float("inf"), -0.0]),
    }


def data(seed: int) -> dict[str, Any]:
    """Plain data of every kind."""
    return {
        "seed": seed,
        "rate": 0.1 + 0.2,
        "big": 2**127 - seed,
        "random": [1, 2, [3, None]],
        "text": "ä\u2028",
        "on": True,
    }


def bits(tensor: Tensor) -> tuple[str, tuple[int, ...], bytes]:
    plain = tensor.contiguous().reshape(-1).view(torch.uint8)
    return str(tensor.dtype), tuple(tensor.shape), bytes(plain.numpy())


def same(loaded: Loaded, seed: int) -> bool:
    """Whether the checkpoint is the sample with this seed."""
    mine = tensors(seed)
    return (
        loaded.data == data(seed)
        and loaded.tensors.keys() == mine.keys()
        and all(bits(loaded.tensors[name]) == bits(tensor) for name, tensor in mine.items())
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def put(where: Path, *numbers: int, keep: int = 3) -> Checkpoints:
    """Writes the samples of these numbers."""
    checkpoints = Checkpoints(where, keep)
    for number in numbers:
        checkpoints.write(number, tensors(number), data(number))
    return checkpoints


def latest(checkpoints: Checkpoints) -> Loaded:
    loaded = checkpoints.latest()
    assert loaded is not None
    return loaded
