"""A trained model in a file: weights, and everything needed to rebuild the model and to predict with it.

    save(path, workload, settings, facts, state, reached)             what `ampnet train ... --save` does
    saved = read(path); graph = saved.graph()                         and `ampnet evaluate`, `ampnet predict`

One safetensors file. Its tensors are the model's ``state_dict``; its metadata:

    kind, format, ampnet, torch       "ampnet model", the number of this format, the versions that wrote it
    workload                          its name
    settings, facts, reached          as JSON
    digest                            SHA-256 of all tensors and of the metadata above

It is replaced whole or not at all (`ampnet.checkpoint.output`). Reading runs no code of its author and trusts nothing:
the digest first, then type and range of every setting and fact, then name, type and shape of every weight, before
memory is allocated for the model. Every fault is a `CheckpointError` that names the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ampnet._version import __version__
from ampnet.checkpoint.contents import contents
from ampnet.checkpoint.output import replacing
from ampnet.checkpoint.plain import dumps, loads
from ampnet.checkpoint.tensors import decode, digest, dtype, encode
from ampnet.errors import CheckpointError, a
from ampnet.experiments.catalog import WORKLOADS
from ampnet.experiments.checked import checked, converted, shown
from ampnet.experiments.settings import Training
from ampnet.experiments.workload import Workload
from ampnet.lang import Compiled

KIND, FORMAT = "ampnet model", 2
"""Format 1 was a pickle, by `torch.save`."""
PICKLE = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04")
"""How files of `torch.save` begin."""
REACHED = {"metric": str, "value": float, "epoch": int}
NO_MODEL = "not a model that 'ampnet train ... --save' wrote"


@dataclass(frozen=True)
class Saved:
    """The contents of a model file."""

    path: Path
    workload: Workload[Any]
    settings: Training
    """The settings of the training, complete."""
    facts: Mapping[str, Any]
    """Facts about the data that the model depends on."""
    reached: Mapping[str, Any]
    """Its result: metric, value, epoch."""
    state: Mapping[str, Tensor]
    """The model's ``state_dict``."""

    def on(self, device: Literal["cpu", "cuda"]) -> Training:
        """The settings for another device."""
        return replace(self.settings, device=device)

    def graph(self, device: str = "cpu") -> Compiled:
        """The model, compiled, with the weights of the file."""
        try:
            with torch.device("meta"):  # shapes without memory
                expected = self.workload.model(self.settings, self.facts).state_dict()
            self._compare(expected)
            graph = self.workload.build(self.settings, self.facts)
            graph.model.load_state_dict(self.state)
        except CheckpointError:
            raise
        except Exception as error:  # settings that are well typed and make no model
            what = " ".join(str(error).split())
            raise CheckpointError(
                f"{self.path}: no {self.workload.name} model can be made of its settings and weights ({what[:300]})"
            ) from error
        return graph.to(device) if device != "cpu" else graph

    def _compare(self, expected: Mapping[str, Tensor]) -> None:
        for name in sorted({*expected, *self.state}):
            theirs, ours = (_described(one.get(name)) for one in (self.state, expected))
            if theirs != ours:
                raise CheckpointError(
                    f"{self.path}: its weights are not those of the {self.workload.name} model: '{name}' is {theirs}, "
                    f"and {ours} in the model"
                )


def save(
    path: Path,
    workload: Workload[Any],
    settings: Training,
    facts: Mapping[str, Any],
    state: Mapping[str, Tensor],
    reached: Mapping[str, Any],
) -> None:
    """Write a model atomically."""
    metadata = {
        "kind": KIND,
        "format": str(FORMAT),
        "ampnet": __version__,
        "torch": str(torch.__version__),
        "workload": workload.name,
        "settings": dumps(asdict(settings), "settings").decode(),
        "facts": dumps(facts, "facts").decode(),
        "reached": dumps(reached, "reached").decode(),
    }
    data = encode(state, {**metadata, "digest": digest(state, metadata)})
    with replacing(path, "wb") as file:
        file.write(data)


def read(path: Path) -> Saved:
    """Read a model. A file that holds none, or a damaged one, is a `CheckpointError`."""
    state, metadata = _tensors(path)
    if metadata.get("kind") != KIND:
        raise CheckpointError(f"{path}: {NO_MODEL}")
    if metadata.get("format") != str(FORMAT):
        raise CheckpointError(
            f"{path}: a model in format {shown(metadata.get('format'))}, written by ampnet "
            f"{shown(metadata.get('ampnet'))}; this is ampnet {__version__}, which reads format {FORMAT}"
        )
    if metadata.pop("digest", None) != digest(state, metadata):
        raise CheckpointError(f"{path}: damaged: its contents do not have the digest they were written with")
    plain = {}
    for name in ("workload", "ampnet", "settings", "facts", "reached"):
        if name not in metadata:
            raise CheckpointError(f"{path}: its metadata have no '{name}'")
        if name not in ("workload", "ampnet"):
            plain[name] = loads(metadata[name].encode("utf-8", "surrogatepass"), path)
    name = metadata["workload"]
    if name not in WORKLOADS:
        raise CheckpointError(f"{path}: a model of {shown(name)}, which is not known; there are {', '.join(WORKLOADS)}")
    workload = WORKLOADS[name]
    try:
        settings = checked(workload.settings, plain["settings"])
        facts = _typed("facts", workload.fact_types, plain["facts"])
        reached = _typed("reached", REACHED, plain["reached"])
    except ValueError as error:
        raise CheckpointError(
            f"{path}: {error} ({a(name)} model, written by ampnet {shown(metadata['ampnet'])}; this is {__version__})"
        ) from error
    return Saved(path, workload, settings, facts, reached, state)


def _tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    data = contents(path)
    try:
        tensors, metadata = decode(data, path)
    except CheckpointError as error:
        if data.startswith(PICKLE):
            raise CheckpointError(
                f"{path}: a pickle, as torch.save and earlier versions of ampnet wrote them. Opening one can run "
                f"code of its author, so it is not read; train again, with --save model.safetensors"
            ) from error
        raise CheckpointError(f"{path}: {NO_MODEL}, or damaged ({str(error).removeprefix(f'{path}: ')})") from error
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: {NO_MODEL}, or damaged: its metadata are no texts")
    return tensors, metadata


def _typed(what: str, types: Mapping[str, Any], data: Any) -> dict[str, Any]:
    """Returns exactly these names, with values of these types."""
    if not isinstance(data, dict) or set(data) != set(types):
        raise ValueError(f"{what} are {shown(data)}, and not: {', '.join(types) or 'none'}")
    found = {}
    for name, hint in types.items():
        try:
            found[name] = converted(hint, data[name])
        except ValueError as error:
            raise ValueError(f"{what}: '{name}' is {error}") from None
    return found


def _described(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{dtype(tensor)} {list(tensor.shape)}"
