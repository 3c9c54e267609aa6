"""A trained model in a file: weights, and everything needed to rebuild the model and to predict with it.

    save(path, workload, settings, facts, state, reached)             what `ampnet train ... --save` does
    saved = read(path); graph = saved.graph()                         and `ampnet evaluate`, `ampnet predict`

The file is a `torch.save` of plain data, loaded with ``weights_only=True``: opening one runs no code of its author. It
is written under another name and renamed when it is whole.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ampnet._version import __version__
from ampnet.errors import DataError
from ampnet.experiments.catalog import WORKLOADS
from ampnet.experiments.settings import Training
from ampnet.experiments.workload import Workload
from ampnet.lang import Compiled

KIND, FORMAT = "ampnet model", 1


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
            graph = self.workload.build(self.settings, self.facts)
            graph.model.load_state_dict(self.state)
        except (RuntimeError, KeyError, TypeError) as error:
            what = " ".join(str(error).split())
            raise DataError(
                f"{self.path}: its weights are not those of the {self.workload.name} model ({what})"
            ) from error
        return graph.to(device) if device != "cpu" else graph


def save(
    path: Path,
    workload: Workload[Any],
    settings: Training,
    facts: Mapping[str, Any],
    state: Mapping[str, Tensor],
    reached: Mapping[str, Any],
) -> None:
    """Write a model atomically."""
    plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in asdict(settings).items()}
    data = {
        "kind": KIND,
        "format": FORMAT,
        "ampnet": __version__,
        "workload": workload.name,
        "settings": plain,
        "facts": dict(facts),
        "reached": dict(reached),
        "state": dict(state),
    }
    part = path.with_name(path.name + ".part")
    try:
        torch.save(data, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read(path: Path) -> Saved:
    """Read a model. A file that holds none is a `DataError`."""
    data = _loaded(path)
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise DataError(f"{path}: not a model that 'ampnet train ... --save' wrote")
    if data.get("format") != FORMAT:
        raise DataError(
            f"{path}: a model in format {data.get('format')}, written by ampnet {data.get('ampnet')}; this is "
            f"ampnet {__version__}, which reads format {FORMAT}"
        )
    name = data["workload"]
    if name not in WORKLOADS:
        raise DataError(f"{path}: a model of '{name}', which is not known here; there are {', '.join(WORKLOADS)}")
    workload = WORKLOADS[name]
    known = {item.name for item in fields(workload.settings)}
    if strange := sorted(set(data["settings"]) - known):
        raise DataError(
            f"{path}: its settings have '{strange[0]}', which {name} does not know; it was written by ampnet "
            f"{data['ampnet']}, and this is {__version__}"
        )
    settings = workload.settings(**data["settings"])
    return Saved(path, workload, settings, data["facts"], data["reached"], data["state"])


def _loaded(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError, AttributeError, IndexError) as error:
        raise DataError(f"{path}: not a model that 'ampnet train ... --save' wrote, or damaged") from error
