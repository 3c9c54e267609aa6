"""Checkpoints on the command line: ``--checkpoint-dir``, ``--checkpoint-every``, ``--checkpoint-keep``,
``--checkpoint-at`` and ``--resume``.

    settings of the checkpoint ──> those that are not given again
    settings given again ──┬── that decide the model or its training: must be the same, else a usage error
                           └── others (`FREE`): hold from now on

Files to write (``--json``, ``--log``, ``--save`` ...), ``--live`` and ``--quiet`` are those of the new command.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampnet.interval import Interval

if TYPE_CHECKING:
    from ampnet.checkpoint import Checkpoints
    from ampnet.experiments.settings import Training
    from ampnet.experiments.workload import Workload
    from ampnet.fitting import Checkpoint

FREE = frozenset(
    (
        "epochs",
        "target",
        "workers",
        "max_active_keys",
        "wave_size",
        "schedule",
        "keep",
        "threads",
        "affinity",
        "memory_per_worker",
        "pin",
        "barrier",
        "waves",
        "max_batch",
        "enough_rows",
        "device",
        "max_restarts",
        "cluster",
    )
)
"""The settings that a resumed run may have different."""
KEPT: dict[str, Any] = {
    "patience": int | None,
    "data_dir": str | None,
    "checkpoint_every": str,
    "checkpoint_keep": int,
    "checkpoint_at": str,
}
"""Other options that hold for a resumed run unless they are given again, with the types of their values."""


def add_options(parser: Any) -> None:
    """Add the options of checkpoints."""
    group = parser.add_argument_group("checkpoints")
    folder = "write checkpoints of the run to DIR, from which --resume continues it (default: none)"
    group.add_argument("--checkpoint-dir", type=_folder, metavar="DIR", help=folder)
    every = (
        "time between two checkpoints, like 30s, 5m or 1epoch; a number counts training instances (of a workload with "
        "--bucket: buckets)"
    )
    group.add_argument(
        "--checkpoint-every", type=_interval, default="1epoch", metavar="TIME|N", help=f"{every} (default: 1epoch)"
    )
    keep = "number of checkpoints that stay: the last ones (default: 3)"
    group.add_argument("--checkpoint-keep", type=_whole, default=3, metavar="K", help=keep)
    at = (
        "drained: instances in flight complete before a checkpoint is written, and with one process a resumed run "
        "equals one that was never interrupted; flying: write it without waiting, and pump those instances again after "
        "a resume (default: drained)"
    )
    group.add_argument("--checkpoint-at", choices=("drained", "flying"), default="drained", help=at)
    resume = (
        "continue the run in --checkpoint-dir, with its settings, from its last checkpoint; auto: or start it, if "
        "there is none (default: off)"
    )
    group.add_argument("--resume", nargs="?", const=True, type=_auto, choices=("auto",), metavar="auto", help=resume)


def _auto(text: str) -> str:
    if text != "auto":
        raise argparse.ArgumentTypeError(
            f"{text!r}: write --resume or --resume auto; the folder is given as --checkpoint-dir {text}"
        )
    return text


def _interval(text: str) -> str:
    try:
        Interval.of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _whole(text: str) -> int:
    from ampnet.cli.options import whole

    return whole(1)(text)


def _folder(text: str) -> Path:
    path = Path(text)
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"{there} is not a folder; give another one")
    if not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"{there} cannot be written; give a folder of yours")
    return path


def merge(args: argparse.Namespace, workload: Workload[Any]) -> None:
    """With ``--resume``: set the options that were not given to the settings of the checkpoint.

    Raises `UsageError` for options that contradict it.
    """
    if args.resume is None:
        given = [f"--{n.replace('_', '-')}" for n in sorted(args.given) if n.startswith("checkpoint_")]
        if args.checkpoint_dir is None and given:
            args.parser.error(f"{given[0]}: there are no checkpoints without --checkpoint-dir")
        if args.checkpoint_dir is not None and _checkpoints(args.checkpoint_dir).numbers():
            args.parser.error(
                f"--checkpoint-dir: {args.checkpoint_dir} has checkpoints of another run; continue it with --resume, "
                f"or give another folder"
            )
        return
    if args.checkpoint_dir is None:
        args.parser.error("--resume: give the folder of the checkpoints, --checkpoint-dir")
    about = _latest(args.checkpoint_dir)
    if about is None:
        if args.resume != "auto":
            args.parser.error(
                f"--resume: there is no checkpoint in {args.checkpoint_dir}; with --resume auto the run starts then"
            )
        return
    if about.get("workload") != workload.name:
        args.parser.error(
            f"--resume: the run in {args.checkpoint_dir} is of {about.get('workload')}, not of {workload.name}"
        )
    stored = _checked(args, workload, about)
    for item in fields(workload.settings):
        name = item.name
        if name not in stored:
            continue
        now, then = getattr(args, name), stored[name]
        if name in ("update_after", "rate_of"):
            now = {**getattr(workload.settings(), name), **now}
        if name not in args.given:
            setattr(args, name, then)
        elif name not in FREE and _plain(now) != _plain(then):
            args.parser.error(
                f"--{name.replace('_', '-')}: the run in {args.checkpoint_dir} has {_shown(then)}, and {_shown(now)} "
                f"was given; leave it out, or train in another folder"
            )
    for name in KEPT:
        if name not in args.given and about.get(name) is not None:
            setattr(args, name, Path(about[name]) if name == "data_dir" else about[name])


def _checked(args: argparse.Namespace, workload: Workload[Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings in the checkpoint. Raises `UsageError` if any does not have its type."""
    from ampnet.experiments.checked import checked, converted

    try:
        for name, hint in KEPT.items():
            converted(hint, about.get(name))
        found = checked(workload.settings, about.get("training"))
    except ValueError as error:
        args.parser.error(f"--resume: the checkpoint in {args.checkpoint_dir} cannot be continued: {error}")
    return {name: getattr(found, name) for name in about["training"]}


def _latest(folder: Path) -> Mapping[str, Any] | None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are given when it is read to be used
        found = _checkpoints(folder).latest()
    about = None if found is None else found.data.get("about", {})
    return about if about is None or isinstance(about, dict) else {}


def _checkpoints(folder: Path) -> Checkpoints:
    from ampnet.checkpoint import Checkpoints

    return Checkpoints(folder)


def checkpoint_of(
    args: argparse.Namespace, given: Training, final: Training, records: Mapping[str, int], facts: Mapping[str, Any]
) -> Checkpoint | None:
    """Returns the settings of the checkpoints. ``given``: of the command line; ``final``: with everything chosen.
    ``facts``: of the data, for 'ampnet serve'."""
    from ampnet.fitting import Checkpoint

    if args.checkpoint_dir is None:
        return None
    training = {name: value for name, value in asdict(given).items() if name != "affinity"}
    for name in [name for name, value in training.items() if value == "auto"]:
        training[name] = getattr(final, name)
    if "auto" in (given.workers, given.replicas):
        training |= {name: getattr(final, name) for name in ("replicate", "tile")}
    kept = {name: getattr(args, name) for name in KEPT}
    kept["data_dir"] = None if args.data_dir is None else str(args.data_dir)
    about = {"workload": args.of, "training": training, "facts": dict(facts), **kept}
    fixed = {name: value for name, value in asdict(final).items() if name not in FREE}
    settings = {"workload": args.of, **fixed, **{f"{name} records": count for name, count in records.items()}}
    return Checkpoint(
        args.checkpoint_dir,
        args.checkpoint_every,
        args.checkpoint_keep,
        args.checkpoint_at,
        settings=_plain(settings),
        about=_plain(about),
    )


def resume_of(args: argparse.Namespace) -> bool | str:
    """Returns ``resume`` of `ampnet.fit`."""
    return "auto" if args.resume == "auto" else args.resume is not None


def _plain(value: Any) -> Any:
    """Returns a setting as it comes back from a file."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{name}={one:g}" for name, one in value.items()) or "none"
    return "none" if value is None else str(value)
