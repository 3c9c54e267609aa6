"""``ampnet evaluate FILE``: loss and metrics of a saved model, on the data of its workload.

Generated data use the seed of the training, so that the results of its validation are reproduced.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from ampnet.cli.data import HELP, folder
from ampnet.cli.options import Parser, file_to_read, file_to_write, processes, whole


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "evaluate",
        parents=[common],
        help="compute loss and metrics of a saved model",
        description="Print loss and metrics of a model that 'ampnet train ... --save FILE' wrote, on one split.",
    )
    parser.add_argument("file", type=file_to_read, metavar="FILE", help="saved model")
    split = "split of the data; if there is no validation split, valid means test (default: valid)"
    parser.add_argument("--split", choices=("valid", "test", "train"), default="valid", help=split)
    limit = "use only the first N records of the split (default: all)"
    parser.add_argument("--limit", type=whole(1), metavar="N", help=limit)
    parser.add_argument("--data-dir", type=folder, metavar="DIR", help=HELP)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device (default: cpu)")
    parser.add_argument("--threads", default=1, help="torch threads (default: 1)", type=processes, metavar="N")
    parser.add_argument(
        "--json", type=file_to_write, metavar="FILE", help="also write the results to FILE (default: none)"
    )
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Print one line."""
    import torch

    from ampnet.cli.report import write_json
    from ampnet.experiments.running import make_judge, on_device
    from ampnet.experiments.saved import read
    from ampnet.experiments.workload import measured

    if args.device == "cuda" and not torch.cuda.is_available():
        args.parser.error("--device: torch finds no CUDA device here; use cpu")
    torch.set_num_threads(args.threads)
    saved = read(args.file)
    workload, settings = saved.workload, replace(saved.on(args.device), limit=args.limit)
    data = workload.load(settings, args.data_dir)
    workload.check(data, saved.facts)
    split = measured(data) if args.split == "valid" else args.split
    if split not in data.splits:
        args.parser.error(f"--split: {workload.name} has no {split} records; there are {', '.join(data.splits)}")
    graph = saved.graph(args.device)
    instances = workload.instances(graph, settings, saved.facts, data, split)
    with make_judge(graph, settings) as runtime:
        stats = runtime.infer(on_device(instances, settings), name=split)
    metrics = "".join(f", {name} {value:.4f}" for name, value in stats.metrics.items())
    rate = f"{stats.records_per_second:,.0f} {workload.unit}/s"
    print(f"{workload.name}, {split}: loss {stats.loss:.4f}{metrics} over {stats.records:,} {workload.unit}; {rate}")
    if args.json is not None:
        told = {
            "workload": workload.name,
            "file": str(saved.path),
            "split": split,
            "records": stats.records,
            "loss": stats.loss,
            "metrics": stats.metrics,
            "records_per_second": stats.records_per_second,
            "trained": dict(saved.reached),
        }
        write_json(args.json, told)
    return 0
