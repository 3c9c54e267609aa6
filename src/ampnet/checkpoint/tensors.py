"""Named tensors to bytes and back, in the safetensors format: a JSON header (names, types, shapes, places), then bytes.

    encode(tensors, metadata) ──> bytes ──> decode ──> tensors, metadata

Every tensor comes back with its values to the bit, type and shape, on the CPU, contiguous and with memory of its own:
tensors that shared memory share it no more. Decoding allocates no more than the bytes it is given, runs no code, and
raises `CheckpointError` for anything that is not such a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampnet.checkpoint.plain import loads
from ampnet.errors import CheckpointError, a

if TYPE_CHECKING:
    from torch import Tensor

METADATA = "__metadata__"
"""The entry of the header that is no tensor."""
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


def encode(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Returns the file's bytes. The tensors may be on any device, share memory, and need not be contiguous."""
    import torch
    from safetensors.torch import save

    ready: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        if not isinstance(name, str) or name == METADATA:
            raise CheckpointError(f"a tensor cannot be called {name!r}; give a text other than '{METADATA}'")
        if not isinstance(tensor, torch.Tensor):
            raise CheckpointError(f"'{name}' is {a(type(tensor).__name__)} and no tensor")
        if dtype(tensor) not in DTYPES or tensor.layout != torch.strided or tensor.is_meta:
            kind = "meta" if tensor.is_meta else f"{dtype(tensor)} {str(tensor.layout).removeprefix('torch.')}"
            raise CheckpointError(f"'{name}' is a {kind} tensor; written are dense ones of {', '.join(DTYPES)}")
        plain = tensor.detach().cpu().resolve_neg().contiguous()
        if plain.untyped_storage().data_ptr() in memory:
            plain = plain.clone()
        memory.add(plain.untyped_storage().data_ptr())
        ready[name] = plain
    return save(ready, dict(metadata) if metadata is not None else None)


def decode(data: bytes, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns tensors and metadata. ``path`` is named in errors."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(data)
    except (SafetensorError, LookupError, ValueError, TypeError, RuntimeError, OverflowError, MemoryError) as error:
        what = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{path}: not a whole safetensors file ({what[:200]})") from error
    for name, tensor in tensors.items():
        if dtype(tensor) not in DTYPES:
            raise CheckpointError(f"{path}: tensor '{name}' is of type {dtype(tensor)}; read are {', '.join(DTYPES)}")
        if tensor.dtype is torch.bool and (tensor.view(torch.uint8) > 1).any():
            raise CheckpointError(f"{path}: tensor '{name}' is of type bool and has other bytes than 0 and 1")
    length = int.from_bytes(data[:8], "little")
    metadata = loads(data[8 : 8 + length], path).get(METADATA) or {}
    return tensors, metadata


def digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Returns the SHA-256 of names, types, shapes and bytes of tensors and of the metadata, in the order of names."""
    import torch

    sha = hashlib.sha256()

    def add(*texts: str) -> None:
        for text in texts:
            data = text.encode("utf-8", "surrogatepass")
            sha.update(len(data).to_bytes(8, "little") + data)

    add("metadata", str(len(metadata)))
    for key in sorted(metadata):
        add(key, metadata[key])
    for name in sorted(tensors):
        plain = tensors[name].detach().cpu().resolve_neg().contiguous()
        add(name, dtype(plain), str(tuple(plain.shape)))
        content: Any = plain.reshape(-1).view(torch.uint8).numpy()
        sha.update(content)
    return sha.hexdigest()


def dtype(tensor: Tensor) -> str:
    """Returns the name of the element type: ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")
