"""Traced: a study from the file of a run, a trace or a log, instead of a trial.

    boxes of the run          ──> a line for each operation, layouts, updates, and what is between boxes
    settings in the file      ──> the workload: its model, its data, its update rules ──> waves
    a short trial, here       ──> the width of rows, which node reads whose; the costs that placement goes by

The machine of the measurements is the one that the run was on. What a run does not show is assumed, and said in the
notes: a run on one worker does not show crossings, one on several does not show a whole model alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ampnet.errors import DataError
from ampnet.events.boxes import LAYOUT, Box
from ampnet.events.log import BACKWARD, COLLECT, FORWARD
from ampnet.events.record import RunRecord
from ampnet.events.run_file import read_run
from ampnet.experiments.catalog import WORKLOADS
from ampnet.experiments.checked import checked
from ampnet.experiments.kept import Kept
from ampnet.experiments.running import policies
from ampnet.experiments.settings import Training
from ampnet.graph import Graph
from ampnet.instance import Instance
from ampnet.placement.costs import HOP
from ampnet.placement.trial import Trial, peek
from ampnet.simulate.costs import ANY, Affine, Measured, Samples, fitted, flops_of
from ampnet.simulate.study import TRIED, Study
from ampnet.simulate.trial import CONTROLLER, CROWD, widths_of

DIRECTIONS = {"forward": FORWARD, "backward": BACKWARD, "collect": COLLECT}
SETTINGS = "training"
"""The entry of a run's settings with those of the command line."""


def study_of(path: Path, data_dir: Path | None = None) -> Study:
    """Returns the study of a run. Raises `DataError` for a file that does not say what was run."""
    record = read_run(path)
    name, plain = record.settings.get("workload"), record.settings.get(SETTINGS)
    if name not in WORKLOADS or plain is None:
        raise DataError(
            f"{path}: it does not say what was trained; record it with 'ampnet train WORKLOAD --trace FILE' of this "
            f"version, or give a model: 'ampnet simulate FILE.py:FUNCTION'"
        )
    workload = WORKLOADS[str(name)]
    try:
        settings = checked(workload.settings, plain).complete()
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    data = workload.load(settings, data_dir)
    facts = workload.facts(settings, data)
    graph = workload.build(settings, facts)
    some, _ = peek(Kept(workload, settings, data, facts, graph).instances("train", 1), TRIED)
    study = studied(record, graph, some, settings, workload.unit, str(path))
    study.workload = str(name)
    return study


def studied(
    record: RunRecord, graph: Graph, instances: Sequence[Instance], settings: Training, unit: str, where: str
) -> Study:
    """Returns the study of a run of this graph."""
    boxes = [box for box in record.boxes if box.train]
    if not any(box.kind in DIRECTIONS and box.wave is not None for box in boxes):
        raise DataError(f"{where}: it holds no wave of a training; only waves are simulated")
    if settings.tile:
        raise DataError(f"{where}: it is of a run with tiles, which cannot be simulated; record one without --tile")
    update, updates = policies(settings, graph)
    assert isinstance(settings.max_active_keys, int)
    common: dict[str, Any] = {"update": update, "updates": updates, "precision": settings.precision}
    costs = _costs(boxes, graph, settings, widths_of(graph, instances[:64], common))
    placing = Trial(graph, max_active_keys=settings.max_active_keys, **common).run(list(instances[:128]))
    workers = max(count for count in (settings.workers, settings.replicas, 1) if isinstance(count, int))
    wave = settings.wave_size or -(-settings.max_active_keys // workers)
    return Study(graph, list(instances), costs, placing, max(1, wave), update, updates, unit)


def _costs(boxes: Sequence[Box], graph: Graph, settings: Training, widths: dict[tuple[str, int], int]) -> Measured:
    samples = Samples()
    layouts: list[tuple[float, float]] = []
    updates: defaultdict[str, list[float]] = defaultdict(list)
    rows: defaultdict[tuple[str, int | None, str], int] = defaultdict(int)
    for box in boxes:
        name = graph.called(box.node.partition("#")[0])
        if box.kind == "update":
            updates[name].append(box.seconds)
        elif box.node == LAYOUT:
            layouts.append((len(box.instances) + box.more, box.seconds))
        elif box.kind in DIRECTIONS:
            place = box.worker, box.wave, box.node
            if box.kind == "forward":
                rows[place] += box.rows
            found = rows[place] if box.kind == "collect" and rows[place] else box.rows
            samples.add((name, ANY, DIRECTIONS[box.kind]), found, box.seconds)
    busy = len({box.worker for box in boxes if box.kind in DIRECTIONS})
    alone = 1.0 / (1.0 + CROWD * (busy - 1))  # its workers slowed each other down
    operations = fitted(samples, flops_of(graph)).scaled(alone)
    layout = Affine.through(layouts) if layouts else Affine()
    apart = settings.workers not in (1, None) and settings.replicas == 1
    rest = Affine(0.0) if apart else Affine(_between(boxes))
    notes = ["times of the controller, of crossings and of busy neighbours are assumed: no run's file shows them"]
    notes.append(
        "operations of whole models are assumed to take what those of parts took"
        if apart
        else "operations of parts are assumed to take what those of the whole model took"
    )
    mean = {name: sum(found) / len(found) for name, found in updates.items()}
    return Measured(
        operations, operations, layout, layout, rest, rest, Affine(), HOP, CONTROLLER, CROWD, mean, widths, tuple(notes)
    )


def _between(boxes: Sequence[Box]) -> float:
    """The median time between the end of a wave's last box and the begin of the next wave, on one worker."""
    ends: dict[tuple[str, int], tuple[float, float]] = {}
    for box in boxes:
        if box.wave is not None:
            begin, end = ends.get((box.worker, box.wave), (box.start, box.stop))
            ends[box.worker, box.wave] = min(begin, box.start), max(end, box.stop)
    gaps = []
    for worker in {worker for worker, _ in ends}:
        spans = sorted(span for (other, _), span in ends.items() if other == worker)
        gaps += [max(0.0, after[0] - before[1]) for before, after in pairwise(spans)]
    return sorted(gaps)[len(gaps) // 2] if gaps else 0.0
