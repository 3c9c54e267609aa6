"""The options of ``ampnet train WORKLOAD``: one for each setting of the workload, which shows its default.

    OPTIONS     what is said of a setting, how its value is read, and how its default is shown where it is no number

A workload has the options of its own settings only, so ``--dropout`` is there where there is something to drop.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ampnet.cli import placing
from ampnet.cli.data import HELP, folder
from ampnet.cli.options import Parser, file_to_write, fraction, pairs, positive, processes, share, whole
from ampnet.experiments.sentiment import VECTORS
from ampnet.experiments.settings import Training
from ampnet.experiments.workload import Workload
from ampnet.replicas.replicate import ROUTES
from ampnet.replicas.sync import KINDS
from ampnet.wave.schedule import WAVE_SCHEDULES

Shown = str | Callable[[Workload[Any], Any], str]


@dataclass(frozen=True, slots=True)
class Option:
    """How a setting is given on the command line."""

    text: str | Callable[[Workload[Any]], str]
    """What it is."""
    how: Mapping[str, Any] = field(default_factory=dict)
    """For ``add_argument``."""
    shown: Shown | None = None
    """The default, for people; None: as it is. A function is given the workload and its settings."""
    also: tuple[str, ...] = ()
    """Other names."""
    called: str = ""
    """The option, where it is not called as the setting is."""


def _number(**more: Any) -> dict[str, Any]:
    return {"type": whole(1), "metavar": "N", **more}


def _in_flight(workload: Workload[Any], settings: Training) -> str:
    single = f"; for single {workload.unit} 100 x as many" if hasattr(settings, "bucket") else ""
    return f"{settings.in_flight()} for each replica{single}; parted over workers, two waves for each of them"


def _frequency(workload: Workload[Any], settings: Training) -> str:
    return f"as many as hold 100 {workload.unit}" if hasattr(settings, "bucket") else str(settings.frequency())


def _pairs(values: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value:g}" for name, value in values.items()) or "none"


def _target(workload: Workload[Any]) -> str:
    if workload.metric == "accuracy":
        return "stop once this share of the validation is right: 0.97 for 97 %%"
    unit = " (0.1 Debye is 1)" if workload.name == "qm9" else ""
    return f"stop once the mean absolute error{unit} of a validation is at most this"


def _no_target(workload: Workload[Any], settings: Training) -> str:
    return "none" if workload.paper_target is None else f"none; the paper's is {workload.paper_target:g}"


OPTIONS: dict[str, Option] = {
    "max_active_keys": Option(
        "instances in flight at most; auto: try several numbers before the training and take the fastest",
        {"type": placing.number, "metavar": "N|auto"},
        _in_flight,
    ),
    "min_update_frequency": Option("gradients that make an update of a node", _number(), _frequency),
    "update_after": Option(
        "the same for single nodes, by name or pattern",
        {"type": pairs(whole(1)), "metavar": "NODE=N,..."},
        lambda _, s: _pairs(s.update_after),
    ),
    "count": Option("what counts as one gradient", {"choices": ("messages", "instances")}),
    "epochs": Option("epochs at most", _number()),
    "target": Option(_target, {}, _no_target),
    "seed": Option("of generated data, weights, order and the random schedule", {"type": whole(0), "metavar": "N"}),
    "limit": Option("use the first N training records only, to try something out", _number(), "all"),
    "keep": Option(
        "instances kept from epoch to epoch, at most, where the same come again; 0: each is made anew",
        {"type": whole(0), "metavar": "N"},
    ),
    "wave_size": Option(
        "instances that are computed together, as one wave; auto: all that are in flight (a quarter of them where "
        "waves interleave), but no more than the next update waits for",
        {"type": lambda text: None if text == "auto" else whole(1)(text), "metavar": "N|auto"},
        "auto",
    ),
    "schedule": Option(
        "which wave computes its next operation: backward-first plays the oldest wave to its end, so that no gradient "
        "is stale; fifo: the wave that has waited longest; sweep: the wave that is least advanced; random: any wave, "
        "drawn from the seed. The last three interleave the waves in flight",
        {"choices": tuple(WAVE_SCHEDULES)},
        "backward-first; sweep where messages are passed",
    ),
    "waves": Option(
        "pass messages from node to node, as the paper does, instead of computing waves; slower, and nodes update "
        "while other instances are in flight",
        {"action": "store_false"},
        "off",
        called="--no-waves",
    ),
    "max_batch": Option(
        "of message passing: messages handed to a node at once, at most; turns waves off", _number(), "no limit"
    ),
    "enough_rows": Option(
        "of message passing: rows beyond which a larger batch is not waited for; none: any number",
        {"type": lambda text: None if text == "none" else whole(1)(text), "metavar": "N|none"},
        lambda _, s: "none" if s.enough_rows is None else str(s.enough_rows),
    ),
    "bucket": Option(
        lambda w: (
            f"{w.unit} {'of one length ' if w.name == 'list-reduction' else ''}in an instance; 1: single {w.unit}"
        ),
        _number(),
    ),
    "train_size": Option(lambda w: f"training {w.unit}, generated", _number()),
    "valid_size": Option(lambda w: f"validation {w.unit}, generated", _number()),
    "size": Option("nodes in a graph", {"type": whole(5), "metavar": "N"}),
    "hidden": Option("width of the hidden state", _number()),
    "steps": Option("steps of propagation", _number()),
    "loss": Option(
        "the error that is made small; it is measured by the absolute one", {"choices": ("squared", "absolute")}
    ),
    "layers": Option("layers", _number()),
    "width": Option("width of the layers", _number()),
    "vectors": Option("what the embedding begins with", {"choices": tuple(VECTORS)}),
    "dropout": Option("share of a state that is dropped in training", {"type": share, "metavar": "P"}),
    "learning_rate": Option("learning rate of the first epoch", {"type": positive, "metavar": "RATE"}, also=("--lr",)),
    "rate_of": Option(
        "the same for single nodes, by name or pattern",
        {"type": pairs(positive), "metavar": "NODE=RATE,..."},
        lambda _, s: _pairs(s.rate_of),
    ),
    "decay": Option("factor of the learning rate after every epoch", {"type": fraction, "metavar": "FACTOR"}),
    "optimizer": Option("of every node; momentum is SGD with 0.9", {"choices": ("adam", "sgd", "momentum", "adagrad")}),
    "beta2": Option("Adam's beta2", {"type": share, "metavar": "B"}),
    "weight_decay": Option(
        "weight decay; with Adam decoupled from the gradient, as in AdamW",
        {"type": share, "metavar": "W"},
    ),
    "clip_norm": Option(
        "scale a node's gradient down to this norm; none: no clipping",
        {"type": lambda text: None if text == "none" else positive(text), "metavar": "NORM|none"},
        lambda _, s: "no clipping" if s.clip_norm is None else f"{s.clip_norm:g}",
    ),
    "weights": Option(
        "weights used in the backward pass: the current ones, or those of the forward pass (stash)",
        {"choices": ("current", "stash")},
    ),
    "barrier": Option(
        "wait for the last instance of an epoch before its validation begins, and the other way round",
        {"action": "store_true"},
        "off",
    ),
    "device": Option("where the work is done", {"choices": ("cpu", "cuda")}),
    "precision": Option(
        "of the factors of matrix products; all else stays float32", {"choices": ("float32", "bfloat16")}
    ),
    "workers": Option(
        "worker processes; 1: all in this one; auto: as many as a trial expects to pay, with copies and tiles of "
        "single nodes where they pay",
        {"type": placing.workers, "metavar": "N|auto"},
        "one for each replica",
    ),
    "replicas": Option(
        "copies of the model, on workers of their own; auto: as many as a trial expects to pay; with auto for workers "
        "too, the better of both",
        {"type": placing.workers, "metavar": "N|auto"},
    ),
    "replicate": Option(
        lambda w: (
            f"make copies of these nodes only, by name or pattern, like {w.nodes}; or of single nodes and what is "
            f"computed with them, with a number each, like {w.nodes.split(',')[0]}=2"
        ),
        {"type": placing.copies, "metavar": "NAMES|NODE=N,..."},
        "the whole model",
    ),
    "tile": Option(
        "split Linears into tiles, which several workers compute; each has a part of the weights",
        {"type": pairs(whole(2)), "metavar": "NODE=N,..."},
        lambda _, s: _pairs(s.tile),
    ),
    "route": Option(
        "how instances (of single nodes: messages) are shared out among replicas",
        {"choices": ROUTES},
        "shortest; of NODE=N instance",
    ),
    "sync": Option(
        "how replicas are kept together: shared weights, means of weights now and then, or of all gradients",
        {"choices": KINDS},
    ),
    "sync_every": Option("updates between two means, where sync is updates or ring", _number()),
    "sync_optimizer": Option(
        "average the replicas' optimizer state when they are synchronised, or keep it separate",
        {"choices": ("average", "keep")},
    ),
    "affinity": Option(
        'the worker of nodes: a JSON file like {"embedding": 0, "cell*": 1}; auto: by what they cost',
        {"type": placing.file, "metavar": "FILE|auto"},
    ),
    "memory_per_worker": Option(
        "bytes that a worker may take, like 800M or 1.5GB: nodes are placed so that parameters, sums of gradients and "
        "optimizers fit",
        {"type": placing.size, "metavar": "SIZE"},
        "no limit",
    ),
    "pin": Option("keep each worker on a core of its own", {"action": "store_true"}, "off"),
    "threads": Option("torch threads of each worker", {"type": processes, "metavar": "N"}),
    "on_nan": Option("when a loss is not finite: stop, or skip its gradient", {"choices": ("stop", "skip")}),
}
"""By the name of the setting, in the order in which help lists them."""


def add_options(parser: Parser, workload: Workload[Any]) -> None:
    """An option for each setting of the workload, then the files."""
    defaults = workload.settings()
    own = {item.name for item in fields(workload.settings)}
    for name, option in OPTIONS.items():
        if name not in own:
            continue
        value, shown = getattr(defaults, name), option.shown
        default = str(value) if shown is None else shown if isinstance(shown, str) else shown(workload, defaults)
        text = option.text if isinstance(option.text, str) else option.text(workload)
        how = dict(option.how)
        if name == "target":
            how |= (
                {"type": fraction, "metavar": "FRACTION"}
                if workload.metric == "accuracy"
                else {"type": positive, "metavar": "ERROR"}
            )
        called = option.called or f"--{name.replace('_', '-')}"
        parser.add_argument(called, *option.also, dest=name, default=value, help=f"{text} (default: {default})", **how)
    if workload.files:
        parser.add_argument("--data-dir", type=folder, metavar="DIR", help=HELP)
    file: dict[str, Any] = {"type": file_to_write, "metavar": "FILE"}
    save = (
        "write the best epoch's model to FILE, for 'ampnet evaluate' and 'ampnet predict'; each stream then ends "
        "before the next begins, so that what is saved is what was measured (default: none)"
    )
    parser.add_argument("--save", help=save, **file)
    parser.add_argument("--json", help="write a report to FILE (default: none)", **file)
    log = "write every event of the run to FILE, for 'ampnet check' (default: none)"
    parser.add_argument("--log", help=log, **file)
    trace = "write a trace to FILE, for ui.perfetto.dev, 'ampnet gantt' and 'ampnet report' (default: none)"
    parser.add_argument("--trace", help=trace, **file)
    parser.add_argument("--quiet", action="store_true", help="print the closing line only (default: off)")


def settings_of(args: argparse.Namespace, workload: Workload[Any]) -> Training:
    """The settings that the command line asks for. Nodes that are not named keep the workload's own numbers."""
    given = {item.name: getattr(args, item.name) for item in fields(workload.settings)}
    defaults = workload.settings()
    for name in ("update_after", "rate_of"):
        given[name] = {**getattr(defaults, name), **given[name]}
    settings: Training = workload.settings(**given)
    return settings
