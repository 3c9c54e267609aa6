"""The options of ``ampnet train WORKLOAD``: one for each setting of the workload, in groups, the ten that matter first.

    Training.learning_rate ── Option (text, group, range) ──┐
      its annotation       ── type, choices                 ├──> --learning-rate RATE
      its default          ── shown in the help           ──┘

The help texts are in `ampnet.experiments.settings`; this file reads the annotations. A workload has the options of its
own settings only: ``--dropout`` exists only for models with dropout.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ampnet.cli import placing, resume
from ampnet.cli.data import HELP, folder
from ampnet.cli.options import (
    Parser,
    add_debug,
    file_to_write,
    fraction,
    later,
    pairs,
    port,
    positive,
    processes,
    share,
    whole,
)
from ampnet.experiments.described import DESCRIBED, Description
from ampnet.experiments.settings import GROUPS, Option, Training, option_of

MAIN = (
    "epochs",
    "target",
    "learning_rate",
    "limit",
    "max_active_keys",
    "min_update_frequency",
    "workers",
    "replicas",
)
"""The settings that matter most, in the order of the help. With ``--save`` and ``--json`` they are ten options."""
PAPER = " The defaults are the settings of the experiment in the paper."
FLOATS: dict[str, Callable[[str], float]] = {"positive": positive, "fraction": fraction, "share": share}
READERS: dict[str, Callable[[str], Any]] = {
    "seed": whole(0, 2**63 - 1),
    "workers": placing.workers,
    "replicas": placing.workers,
    "threads": processes,
    "max_restarts": whole(0, 10**6),
    "affinity": placing.file,
    "memory_per_worker": placing.size,
    "replicate": placing.copies,
    "cluster": placing.cluster,
}
"""Settings with a special parser."""


def add_parser(commands: Any, common: Parser) -> None:
    """Add ``train``, and under it one parser for each workload."""
    text = "Train a model of the paper, or one of ours. 'ampnet train WORKLOAD --help' lists the options of a workload."
    parser = commands.add_parser("train", help="train a workload", description=text)
    parser.set_defaults(parser=parser)
    workloads = parser.add_subparsers(title="workloads", dest="workload", metavar="WORKLOAD")
    for workload in DESCRIBED.values():
        one = workloads.add_parser(
            workload.name,
            help=workload.about,
            description=f"Train {workload.about}." + (PAPER if workload.paper_target is not None else ""),
            usage="%(prog)s [OPTION ...]",
            add_help=False,
        )
        one.set_defaults(parser=one, run=later("ampnet.cli.train"), of=workload.name, data_dir=None)
        add_options(one, workload)


def add_options(parser: Parser, workload: Description[Any]) -> None:
    """Add an option for each setting of the workload, and those for files and output."""
    settings = workload.settings
    main = parser.add_argument_group("most important options")
    groups = {name: parser.add_argument_group(title) for name, title in GROUPS.items()}
    resume.add_options(parser)
    output = parser.add_argument_group("output and help")
    hints = get_type_hints(settings)
    for name in MAIN:
        _add(main, name, hints[name], workload)
    for item in fields(settings):
        if item.name not in MAIN:
            _add(groups[option_of(settings, item.name).group], item.name, hints[item.name], workload)
    if workload.files:
        groups["model"].add_argument("--data-dir", type=folder, metavar="DIR", help=HELP)
    patience = "stop after N epochs in a row without a better validation (default: never)"
    groups["optimizer"].add_argument("--patience", type=whole(1), metavar="N", help=patience)
    file: dict[str, Any] = {"type": file_to_write, "metavar": "FILE"}
    save = (
        "write the model of the best epoch to FILE, for 'ampnet evaluate' and 'ampnet predict'; implies --barrier "
        "(default: none)"
    )
    main.add_argument("--save", help=save, **file)
    json = "write settings and results to FILE, again after every epoch (default: none)"
    main.add_argument("--json", help=json, **file)
    log = "write every event of the run to FILE, one JSON object per line, for 'ampnet check' (default: none)"
    output.add_argument("--log", help=log, **file)
    csv = "write losses, metrics and speeds of every epoch to FILE as CSV, while the run goes on (default: none)"
    output.add_argument("--csv", help=csv, **file)
    board = "write the same for TensorBoard to files in DIR; needs the extra tensorboard (default: none)"
    output.add_argument("--tensorboard", type=Path, help=board, metavar="DIR")
    trace = "write a trace to FILE, for ui.perfetto.dev, 'ampnet gantt' and 'ampnet report' (default: none)"
    output.add_argument("--trace", help=trace, **file)
    live = "serve a page about the run on this machine while it goes on, at PORT or at any that is free (default: off)"
    output.add_argument("--live", type=port, nargs="?", const=0, metavar="PORT", help=live)
    serve = (
        "serve predictions over HTTP on this machine while training goes on, at PORT or at any that is free; needs the "
        "extra serve (default: off)"
    )
    output.add_argument("--serve", type=port, nargs="?", const=0, metavar="PORT", help=serve)
    output.add_argument("--quiet", action="store_true", help="print the summary at the end only (default: off)")
    add_debug(output)
    output.add_argument("-h", "--help", action="help", help="show this help and exit")


def _add(group: Any, name: str, hint: Any, workload: Description[Any]) -> None:
    option, value = option_of(workload.settings, name), getattr(workload.settings(), name)
    words = _words(workload)
    shown = option.shown.format_map(words) or _shown(value, option)
    text = f"{option.text.format_map(words)} (default: {shown})".replace("%", "%%")
    flag = option.flag or f"--{name.replace('_', '-')}"
    how = _how(name, hint, option, workload)
    group.add_argument(flag, *option.also, dest=name, default=value, help=text, **how)


def _how(name: str, hint: Any, option: Option, workload: Description[Any]) -> dict[str, Any]:
    """Returns the arguments of ``add_argument``, from the annotation of a setting."""
    if hint is bool:
        return {"action": "store_false" if option.flag.startswith("--no-") else "store_true"}
    kinds = list(get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,))
    choices = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    kinds = [kind for kind in kinds if kind is not NoneType and get_origin(kind) is not Literal]
    if not kinds:
        return {"choices": tuple(choices)}
    if name == "target":
        accuracy = workload.metric == "accuracy"
        return {"type": fraction, "metavar": "FRACTION"} if accuracy else {"type": positive, "metavar": "ERROR"}
    words: dict[str, Any] = {word: word for word in choices} | ({option.none: None} if option.none else {})
    metavar = option.metavar or "|".join(["N", *words])
    return {"type": READERS.get(name) or _reader(kinds[0], option, words), "metavar": metavar}


def _reader(kind: Any, option: Option, words: Mapping[str, Any]) -> Callable[[str], Any]:
    """Returns a parser of this type, or of one of the words."""
    number: Callable[[str], Any] = FLOATS[option.within] if float in (kind, *get_args(kind)) else whole(option.least)
    read = pairs(number) if get_origin(kind) is not None else number
    return lambda text: words[text] if text in words else read(text)


def _shown(value: Any, option: Option) -> str:
    """Returns a default as text."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={one:g}" for name, one in value.items()) or "none"
    if isinstance(value, bool):
        return "off"
    return option.none if value is None else str(value)


def _words(workload: Description[Any]) -> dict[str, str]:
    """Returns the texts that help texts may refer to."""
    settings = workload.settings()
    in_flight, frequency = str(settings.in_flight()), str(settings.frequency())
    if hasattr(settings, "bucket"):
        single = replace(settings, bucket=1)
        in_flight += f"; {single.in_flight()} with --bucket 1"
        frequency += f"; {single.frequency()} with --bucket 1"
    paper = "none" if workload.paper_target is None else f"none; the paper trains to {workload.paper_target:g}"
    accuracy = workload.metric == "accuracy"
    return {
        "unit": workload.unit,
        "nodes": workload.nodes,
        "node": workload.nodes.partition(",")[0],
        "metric": "accuracy" if accuracy else "mean absolute error",
        "beyond": "at least" if workload.higher_is_better else "at most",
        "no_target": paper,
        "in_flight": in_flight,
        "frequency": frequency,
    }


def settings_of(args: argparse.Namespace, workload: Description[Any]) -> Training:
    """Returns the settings of the command line. Nodes that are not named keep the workload's own numbers."""
    given = {item.name: getattr(args, item.name) for item in fields(workload.settings)}
    defaults = workload.settings()
    for name in ("update_after", "rate_of"):
        given[name] = {**getattr(defaults, name), **given[name]}
    settings: Training = workload.settings(**given)
    return settings
