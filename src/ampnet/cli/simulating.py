"""The work of ``ampnet simulate``: a study, a simulation for each machine, a table, files."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ampnet.cli.placing import affinity_of
from ampnet.cli.report import write_json
from ampnet.cli.studies import study_of
from ampnet.errors import GraphError
from ampnet.events.gantt import gantt
from ampnet.events.log import Listener
from ampnet.events.perfetto import PerfettoWriter
from ampnet.events.record import Recorder
from ampnet.simulate.machine import Machine, read_machine, this_machine
from ampnet.simulate.picture import compare
from ampnet.simulate.recorder import Recording
from ampnet.simulate.result import Result, table
from ampnet.simulate.simulation import WARM_UP
from ampnet.simulate.study import Study

SHOWN = 5.0
"""The longest recorded interval, in simulated seconds."""
LOSSES = 10
"""The number of lost workers from which a simulation says what losses cost."""


def run(args: argparse.Namespace) -> int:
    """Simulate, and print what was found."""
    machines = [read_machine(path) for path in args.machine] or [this_machine()]
    study = study_of(args)
    results = [_simulated(args, study, machine, first=not i) for i, machine in enumerate(machines)]
    for result in results:
        print(result.text(study.unit, study.records))
    if len(results) > 1:
        print()
        print(table(results, study.unit, study.records))
    for note in dict.fromkeys(note for result in results for note in (*result.notes, *_lost(result))):
        print(f"note: {note}")
    if args.json is not None:
        write_json(args.json, {"unit": study.unit, "records": study.records, "results": [r.to_json() for r in results]})
    if args.picture is not None:
        compare(results, args.picture, study.unit, study.records)
    return 0


def _lost(result: Result) -> Iterator[str]:
    """A note where too few workers were lost in the simulated time to say what losses cost."""
    machine = result.machine
    expected = result.setting.workers * result.seconds / machine.loss_every
    if 0 < expected < LOSSES:
        share = math.exp(-result.setting.workers * machine.restart / machine.loss_every)
        yield (
            f"{machine.name}: {expected:.1f} workers are expected to be lost in {result.seconds:g} seconds, too few to "
            f"measure what that costs; by formula {share:.0%} of the throughput without losses is left, or give "
            f"--seconds"
        ).replace("%", " %")


def _simulated(args: argparse.Namespace, study: Study, machine: Machine, *, first: bool) -> Result:
    workers = args.workers or args.replicas
    affinity: Mapping[str, int] | None = None
    if args.affinity is not None:
        try:
            graph, _ = study.changed(args.replicate, args.tile)
        except GraphError as error:
            args.parser.error(error.faults[0])
        found = affinity_of(args.parser, graph, max(1, workers // args.replicas), args.affinity)
        affinity = None if found == "auto" else found
    recorder, listeners = Recorder(), list[Listener]()
    if first and args.gantt is not None:
        listeners.append(recorder)
    writer = PerfettoWriter(args.trace) if first and args.trace is not None else None
    if writer is not None:
        listeners.append(writer)
    recording = None
    if listeners:
        begin = WARM_UP * args.seconds
        settings = {"workload": f"simulated: {args.source} on {machine.name}", "engine": "waves"}
        recording = Recording(listeners, begin, min(args.seconds, begin + SHOWN), settings)
    try:
        result = study.simulate(machine, recorder=recording, **_options(args, workers, affinity))
    except GraphError as error:
        args.parser.error(error.faults[0])
    if recording is not None:
        recording.close()
    if writer is not None:
        writer.close()
    if first and args.gantt is not None:
        gantt(recorder.record(), args.gantt, title=f"simulated: {args.source} on {machine.name}")
    return result


def _options(args: argparse.Namespace, workers: int, affinity: Mapping[str, int] | None) -> dict[str, Any]:
    names = ("replicas", "max_active_keys", "wave_size", "schedule", "replicate", "tile", "seconds", "seed")
    return {"workers": workers, "affinity": affinity, **{name: getattr(args, name) for name in names}}
