"""The model of ``ampnet simulate`` and ``ampnet plan``: a run, a workload, or a function of the user's.

run.json                 a trace or a log: its costs are those of the run
qm9                      a model that ships with the package, on generated data: a trial measures its costs
model.py:make            a function that returns (graph, instances), or (graph, instances, update): likewise
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ampnet.cli.options import Parser, file_to_read, positive, whole
from ampnet.errors import DataError, nearest
from ampnet.experiments.described import DESCRIBED

if TYPE_CHECKING:
    from ampnet.simulate.study import Study

WAVE = 16
"""Instances of a wave, of a model of the user's whose updates do not say it."""
BUCKET = 100
"""Examples of an instance, of models whose instances are buckets."""


def add_source(parser: Parser, add: Callable[..., None]) -> None:
    """Add the argument RUN, and the options of a trial."""
    parser.add_argument(
        "source",
        metavar="RUN",
        help="trace or log of a training ('ampnet train ... --trace FILE'); or a model, which is measured for some "
        f"seconds: one of {', '.join(DESCRIBED)}, or FILE.py:FUNCTION, a function that returns the graph and its "
        "instances",
    )
    add("--data-dir", "folder of the run's data set", "as for train", type=Path, metavar="DIR")
    add("--trial", "duration of each measurement of a trial", "0.5", type=positive, default=0.5, metavar="S")
    add(
        "--min-update-frequency",
        "instances after which a layer makes an update",
        "the run's, or the workload's",
        type=whole(1),
        metavar="N",
    )


def study_of(args: argparse.Namespace) -> Study:
    """Returns the study of the given model."""
    source: str = args.source
    if source in DESCRIBED:
        return _of_workload(args, source)
    path, colon, name = source.rpartition(":")
    if colon and path.endswith(".py"):
        return _of_function(args, Path(path), name)
    if not Path(source).exists():
        args.parser.error(f"RUN: '{source}' is no file and no workload; {nearest(source, DESCRIBED)}")
    try:
        where = file_to_read(source)
    except argparse.ArgumentTypeError as error:
        args.parser.error(f"RUN: {error}")
    if where.suffix == ".py":
        args.parser.error(f"RUN: {where} holds Python: say which function makes the model, like {where}:make")
    from ampnet.simulate import traced

    return _with_frequency(traced.study_of(where, args.data_dir), args)


def _with_frequency(study: Study, args: argparse.Namespace) -> Study:
    if args.min_update_frequency is not None:
        every = args.min_update_frequency
        study.update = None if study.update is None else study.update.but(min_update_frequency=every)
        study.updates = {
            name: None if one is None else one.but(min_update_frequency=every) for name, one in study.updates.items()
        }
    return study


def _of_workload(args: argparse.Namespace, name: str) -> Study:
    import torch

    from ampnet.cli.profile import BUCKETS
    from ampnet.cli.profiling import WORKLOADS
    from ampnet.models import registry
    from ampnet.update.policy import Update

    profiled, graph = WORKLOADS[name], registry.build(name)
    bucket = BUCKET if name in BUCKETS else 1
    instances = list(islice(profiled.instances(graph, bucket), _tried()))
    adam = partial(torch.optim.Adam, lr=1e-4, fused=True)
    update = Update(adam, args.min_update_frequency or profiled.frequency, "instances")
    print(f"{name}: generated data; Adam, an update after {update.min_update_frequency} instances", flush=True)
    return _trial(args, graph, instances, update, profiled.alone, DESCRIBED[name].unit)


def _of_function(args: argparse.Namespace, path: Path, name: str) -> Study:
    """A user's model. Its file is run, as Python runs a script: only files that are trusted should be given."""
    import torch

    from ampnet.graph import Graph
    from ampnet.update.policy import Update

    if not path.is_file():
        args.parser.error(f"RUN: there is no file {path}")
    module = _module(path)
    make = getattr(module, name, None)
    if not callable(make):
        names = [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__]
        args.parser.error(f"RUN: {path} has no function '{name}'; {nearest(name, names)}")
    made = make()  # type: ignore[misc]
    graph, given, update = (*made, None, None, None)[:3] if isinstance(made, tuple) else (made, None, None)
    if not isinstance(graph, Graph) or not isinstance(given, Iterable) or not isinstance(update, Update | None):
        found = f"({', '.join(type(one).__name__ for one in made)})" if isinstance(made, tuple) else type(made).__name__
        raise DataError(
            f"{path}: {name}() returned {found}; return (graph, instances) or (graph, instances, update): a Graph, "
            f"instances of it, and an Update"
        )
    if update is None:
        every = args.min_update_frequency or WAVE
        update = Update(partial(torch.optim.Adam, lr=1e-4, fused=True), every, "instances")
        print(f"{path}: {name}() returned no Update: Adam, an update after {every} instances", flush=True)
    elif args.min_update_frequency is not None:
        update = update.but(min_update_frequency=args.min_update_frequency)
    wave = update.min_update_frequency if update.count == "instances" else WAVE
    return _trial(args, graph, list(islice(given, _tried())), update, wave, "instances")


def _module(path: Path) -> ModuleType:
    """Run a file of Python. It may import its neighbours."""
    name = f"simulated:{path.stem}"  # a name that no other module has
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _tried() -> int:
    from ampnet.simulate.study import TRIED

    return TRIED


def _trial(args: argparse.Namespace, graph: Any, instances: Sequence[Any], update: Any, wave: int, unit: str) -> Study:
    from ampnet.simulate.study import Study

    size = getattr(args, "wave_size", None) or wave
    return Study.trial(graph, instances, update=update, max_active_keys=size, seconds=args.trial, unit=unit)
