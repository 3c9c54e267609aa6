"""The work of ``ampnet plan``: a study, a search, an affinity file and the command line to use."""

from __future__ import annotations

import argparse
import json
import sys

from ampnet.checkpoint.output import replacing
from ampnet.cli.report import write_json
from ampnet.cli.studies import study_of
from ampnet.errors import GraphError
from ampnet.experiments.described import DESCRIBED
from ampnet.simulate.machine import read_machine, this_machine
from ampnet.simulate.plan import Plan, Planner, text


def run(args: argparse.Namespace) -> int:
    """Search, and print the plan."""
    machine = this_machine() if args.machine is None else read_machine(args.machine)
    study = study_of(args)
    planner = Planner(
        study,
        machine,
        staleness=args.max_staleness,
        memory_per_worker=args.memory_per_worker,
        tell=lambda line: print(f"  {line}", file=sys.stderr, flush=True),
    )
    try:
        plan = planner.run()
    except GraphError as error:
        args.parser.error(error.faults[0])
    print(text(plan, study.unit, study.records))
    for note in plan.best.result.notes:
        print(f"note: {note}")
    affinity = ""
    if args.output is not None:
        with replacing(args.output) as file:
            file.write(json.dumps(hosts_of(plan), indent=1) + "\n")
        print(f"wrote {args.output}: the worker of each node")
        affinity = f" --affinity {args.output}" if plan.best.workers > plan.best.replicas else ""
    name = study.workload or (args.source if args.source in DESCRIBED else None)
    command = "options:" if name is None else f"ampnet train {name}"
    print(f"{command} {plan.best.words()}{affinity}{_elsewhere(args, plan)}")
    if args.json is not None:
        write_json(args.json, _plain(plan))
    return 0


def _elsewhere(args: argparse.Namespace, plan: Plan) -> str:
    """The options of the command line that the simulation took as given, beside those of the plan."""
    found = "" if args.min_update_frequency is None else f" --min-update-frequency {args.min_update_frequency}"
    if len({one.computer for one in plan.best.result.workers}) > 1:
        found += " --cluster ADDRESS"
        if plan.best.replicas > 1:
            found += " --sync epoch"
    return found


def hosts_of(plan: Plan) -> dict[str, int]:
    """Returns the worker of each node, of all copies of the model."""
    replicas = plan.best.replicas
    if replicas == 1:
        return dict(plan.hosts)
    parts = plan.best.workers // replicas
    return {f"{name}#{i + 1}": i * parts + host for i in range(replicas) for name, host in plan.hosts.items()}


def _plain(plan: Plan) -> dict[str, object]:
    return {
        "options": plan.best.words(),
        "speedup": plan.speedup,
        "result": plan.best.result.to_json(),
        "one process": plan.one.to_json(),
        "others": [{"options": other.words(), **other.result.to_json()} for other in plan.others],
        "left_out": list(plan.left_out),
        "simulated": plan.simulated,
    }
