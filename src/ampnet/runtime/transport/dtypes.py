"""The dtypes that can be sent, each with its number in the wire format.

NumPy does not know all dtypes of torch (bfloat16, the float8s). Their bytes are sent as integers of the same size: the
*carrier*. Numbers never change: new dtypes are appended.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampnet.errors import TransportError


class Coded(NamedTuple):
    """A dtype that can be sent."""

    code: int
    dtype: torch.dtype
    carrier: torch.dtype
    """The integer dtype that its bytes are sent as."""
    array: np.dtype[Any]
    """The carrier's NumPy dtype."""

    @property
    def native(self) -> bool:
        """Whether NumPy knows it too."""
        return self.carrier is self.dtype


_NATIVE = ["bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"]
_NATIVE += ["float16", "float32", "float64", "complex64", "complex128"]
_CARRIED = {
    "bfloat16": "int16",
    "complex32": "int32",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
}
_PAIRS = [(name, name) for name in _NATIVE] + list(_CARRIED.items())
CODED = {
    code: Coded(code, getattr(torch, name), getattr(torch, carrier), np.dtype(carrier))
    for code, (name, carrier) in enumerate(_PAIRS, start=1)
}
"""By number. 0 is none of them."""
BY_DTYPE = {coded.dtype: coded for coded in CODED.values()}
BY_ARRAY = {coded.array: coded for coded in CODED.values() if coded.native}


def raw(tensor: Tensor) -> tuple[Coded, NDArray[Any]]:
    """Returns a tensor's memory as an array of its carrier; a copy only if its plain values are not in CPU memory."""
    coded = BY_DTYPE.get(tensor.dtype)
    if coded is None:
        raise TransportError(f"a tensor of {tensor.dtype} cannot be sent; it has no number on the wire")
    native = coded.carrier is coded.dtype
    try:
        array: NDArray[Any] = tensor.numpy() if native else tensor.view(coded.carrier).numpy()
    except (RuntimeError, TypeError):  # it requires a gradient, lies on a GPU, or is a lazy conjugate or negative
        try:
            tensor = tensor.detach().resolve_conj().resolve_neg().cpu()
            array = tensor.view(coded.carrier).numpy()
        except (RuntimeError, TypeError) as error:
            kind = f"{tensor.layout}, on device '{tensor.device}'"
            raise TransportError(f"a tensor of {kind}, has no plain memory that could be sent: {error}") from error
    return coded, array
