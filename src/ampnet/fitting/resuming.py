"""Resuming: find the checkpoint to continue from, and refuse one that is of another run.

    settings ──┬── fixed   model, lengths and samples of data, seeds, optimizers, what the caller adds: must be equal
               └── free    runtime, workers, places, waves, barrier, versions: may differ, and a warning says so

`epochs`, `target` and the callbacks may differ without a word.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ampnet._version import __version__
from ampnet.checkpoint import Checkpoints, Loaded
from ampnet.checkpoint.plain import dumps, loads
from ampnet.errors import AmpnetError, CheckpointError, CheckpointWarning
from ampnet.fingerprint import fingerprint
from ampnet.fitting.checkpointing import Checkpoint
from ampnet.fitting.sources import length_of

KIND, VERSION = "fit", 1
FINGERPRINT = "fingerprint"
SHOWN = 4
"""The number of differences in an error."""


@dataclass(frozen=True, slots=True)
class Described:
    """The settings of a run, as plain data."""

    fixed: Mapping[str, Any]
    free: Mapping[str, Any]


def describe(runtime: Any, data: Mapping[str, Any], checkpoint: Checkpoint | None, **given: Any) -> Described:
    """Returns the settings of a run: those of the runtime, of the data by name, and ``given``."""
    told = runtime.settings
    extra = {} if checkpoint is None else {f"settings.{k}": v for k, v in checkpoint.settings.items()}
    fixed = {
        **given,
        **{f"number of {name} examples": length_of(one) for name, one in data.items()},
        **{f"{FINGERPRINT} of {name} examples": _sampled(one, runtime) for name, one in data.items()},
        "seed of the runtime": told["seed"],
        **_policies(runtime),
        **extra,
    }
    names = ("runtime", "workers", "max_active_keys", "wave_size", "schedule", "engine", "max_batch")
    free = {name: told[name] for name in names if name in told}
    free |= {"ampnet": __version__, "torch": str(torch.__version__)}
    return Described(_plain(fixed), _plain(free))


def _sampled(data: Any, runtime: Any) -> list[int] | None:
    """Returns fingerprints of the first, middle and last example of a list. Other data may differ when read again."""
    if not isinstance(data, list | tuple) or not data:
        return None
    with suppress(AmpnetError):  # it is raised, with its place, when the data are used
        some = [data[i] for i in (0, len(data) // 2, -1)]
        return [fingerprint(one) for one in runtime.graph.read(some)]
    return None


def _policies(runtime: Any) -> dict[str, Any]:
    """Returns each setting of the policy of each node."""
    out: dict[str, Any] = {}
    for name, node in runtime.graph.parameterised().items():
        policy, called = node.updater.policy, runtime.graph.called(name)
        for item in () if policy is None else fields(policy):
            value = getattr(policy, item.name)
            if isinstance(value, tuple):
                value = [repr(remedy) for remedy in value]
            out[f"{item.name} of node '{called}'"] = _made_by(value) if callable(value) else value
    return out


def _made_by(make: Any) -> str:
    """Returns a factory as text: ``Adam(lr=0.001)``; of a function only its name."""
    if not isinstance(make, partial):
        return str(getattr(make, "__qualname__", type(make).__qualname__))
    arguments = [*map(repr, make.args), *(f"{name}={value!r}" for name, value in sorted(make.keywords.items()))]
    return f"{_made_by(make.func)}({', '.join(arguments)})"


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the data as they come back from a file: tuples as lists."""
    found: dict[str, Any] = loads(dumps(data, "settings"), Path("settings"))
    return found


def find(checkpoint: Checkpoint | None, resume: bool | str | Path) -> Loaded | None:
    """Returns the checkpoint to continue from; None: start afresh."""
    if isinstance(checkpoint, str | Path):
        raise TypeError(
            f"checkpoint={str(checkpoint)!r} is a path; write checkpoint=ampnet.Checkpoint({str(checkpoint)!r})"
        )
    if resume is False or resume is None:
        if checkpoint is not None and (numbers := Checkpoints(Path(checkpoint.folder)).numbers()):
            raise CheckpointError(
                f"{checkpoint.folder} has checkpoints of another run (the last is number {numbers[-1]}): continue it "
                f"with resume=True, or give another folder"
            )
        return None
    if resume is not True and resume != "auto":
        path = Path(resume)
        return _of_fit(Checkpoints(path.parent).read(path))
    if checkpoint is None:
        raise ValueError("resume=True and 'auto' need checkpoint=Checkpoint(folder); or give the path of a checkpoint")
    found = Checkpoints(Path(checkpoint.folder)).latest()
    if found is None and resume is True:
        raise CheckpointError(
            f"there is no checkpoint to resume from in {checkpoint.folder}; resume='auto' starts afresh then"
        )
    return None if found is None else _of_fit(found)


def _of_fit(found: Loaded) -> Loaded:
    if found.data.get("kind") != KIND:
        raise CheckpointError(f"{found.path}: not a checkpoint of a training run")
    if found.data.get("version") != VERSION:
        raise CheckpointError(
            f"{found.path}: its version is {found.data.get('version')}, written by ampnet {found.versions['ampnet']}; "
            f"this is ampnet {__version__}, which reads version {VERSION}"
        )
    return found


def check(found: Loaded, now: Described) -> None:
    """Raise `CheckpointError` if a fixed setting differs; warn of free ones that do."""
    then = found.data["settings"]
    faults = [
        f"{name} differs (its first, middle or last one)"
        if name.startswith(FINGERPRINT)
        else f"{name} is {_shown(now.fixed.get(name))}, and was {_shown(then.get(name))}"
        for name in dict.fromkeys([*then, *now.fixed])
        if then.get(name) != now.fixed.get(name)
    ]
    if faults:
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise CheckpointError(
            f"{found.path} is of a run with other settings: {'; '.join(faults[:SHOWN])}{more}. Give the same ones, or "
            f"train in another folder"
        )
    free = found.data["free"]
    other = [
        f"{name} {_shown(now.free.get(name))} (was {_shown(free.get(name))})"
        for name in dict.fromkeys([*free, *now.free])
        if free.get(name) != now.free.get(name)
    ]
    if other:
        text = f"resumed with other settings than the run began with: {', '.join(other)}"
        warnings.warn(CheckpointWarning(text), stacklevel=3)


@contextmanager
def reading(found: Loaded) -> Iterator[None]:
    """A context in which a checkpoint is used: every fault of its data is a `CheckpointError` that names it."""
    try:
        yield
    except CheckpointError as error:
        raise error if str(error).startswith(str(found.path)) else CheckpointError(f"{found.path}: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, AmpnetError):
            raise
        raise CheckpointError(
            f"{found.path}: its data are not those of a training run ({type(error).__name__}: {error})"
        ) from error


def left_of(found: Loaded) -> int | None:
    """Returns the number of training instances until the next checkpoint, if that is how they are counted."""
    left = found.data["left"]
    if left is not None and (type(left) is not int or left < 1):
        raise ValueError(f"left is {left!r}")
    return left


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
