"""The states of the global random generators of Python, NumPy and torch, as plain data.

Models and loaders of users may draw from them: dropout inside a module that is one node, `DataLoader(shuffle=True)`,
augmentation. (AMPNet itself does not.)
"""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def generator_states() -> dict[str, Any]:
    """Returns the states, as plain data."""
    version, words, gauss = random.getstate()
    kind, keys, at, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    out: dict[str, Any] = {
        "python": [version, _text(np.array(words, dtype=np.uint32)), gauss],
        "numpy": [kind, _text(np.asarray(keys, dtype=np.uint32)), int(at), int(has_gauss), float(cached)],
        "torch": _text(torch.get_rng_state().numpy()),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        out["cuda"] = [_text(state.numpy()) for state in torch.cuda.get_rng_state_all()]
    return out


def set_generators(states: Mapping[str, Any]) -> None:
    """Set the generators to states that `generator_states` returned."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(_array(words, np.uint32).tolist()), gauss))
    kind, keys, at, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, _array(keys, np.uint32), at, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(torch.from_numpy(_array(states["torch"], np.uint8)))
    if "cuda" in states and torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([torch.from_numpy(_array(one, np.uint8)) for one in states["cuda"]])


def _text(array: np.ndarray) -> str:
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def _array(text: str, kind: type[np.generic]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.dtype(kind).newbyteorder("<")).astype(kind)
