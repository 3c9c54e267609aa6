"""The command: ours beside torch on the models that users bring along, one process, one thread.

python -m bench.ported                              all models
python -m bench.ported gin decoder --turns 5        some of them
python -m bench.ported gin --profile                the nodes of the graph, and where an epoch of ours spends its time
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from bench.machine import describe
from bench.ported import ALL, PORTED, Ported
from bench.ported.race import OursRow, Result, race

HEAD = f"{'model':16} {'ours/s':>9} {'torch/s':>9} {'ratio':>6} {'bound':>6} {'waves':>7}"
LINES = 25
"""Of a profile."""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m bench.ported", description="Ours beside torch on users' models.")
    out.add_argument("models", nargs="*", metavar="NAME", help=f"all by default: {', '.join(PORTED)}")
    out.add_argument("--seconds", type=float, default=2.0, help="of a turn (default: %(default)s)")
    out.add_argument("--turns", type=int, default=3, help="of each side; the best counts (default: %(default)s)")
    out.add_argument("--batches", type=int, default=20, help="of an epoch (default: %(default)s)")
    out.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    out.add_argument("--profile", action="store_true", help="print the graph's nodes and a profile of an epoch of ours")
    return out


def line(result: Result) -> str:
    waves = "-" if result.waves is None else f"{result.waves:,}"
    missed = "" if result.ratio >= result.bound else "  missed"
    return (
        f"{result.model:16} {result.ours:9,.0f} {result.torch:9,.0f} {result.ratio:6.2f} {result.bound:6.2f} "
        f"{waves:>7}{missed}"
    )


def profile(one: Ported, batches: int) -> None:
    """Print the nodes of the compiled graph, and the functions that take longest in an epoch after the first."""
    ours = OursRow(one, one.batches(batches))
    print(f"\n{one.name}: {one.about}; {len(ours.graph.nodes)} nodes")
    for name, node in ours.graph.nodes.items():
        print(f"  {name:28} {type(node).__name__:14} {node.describe()}")
    with ours.runtime:
        ours.epoch()
        profiler = cProfile.Profile()
        profiler.runcall(ours.epoch)
    pstats.Stats(profiler, stream=sys.stdout).sort_stats("tottime").print_stats(LINES)


def main(arguments: Sequence[str] | None = None) -> None:
    parse = parser()
    given = parse.parse_args(arguments)
    unknown = [name for name in given.models if name not in PORTED]
    if unknown:
        parse.error(f"no model {', '.join(unknown)}; there are: {', '.join(PORTED)}")
    chosen = [PORTED[name] for name in given.models] or list(ALL)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        print(HEAD, flush=True)
        results = []
        for one in chosen:
            results.append(race(one, given.seconds, given.turns, given.batches))
            print(line(results[-1]), flush=True)
        if given.profile:
            for one in chosen:
                profile(one, given.batches)
    finally:
        torch.set_num_threads(threads)
    if given.json is not None:
        settings = {
            "seconds": given.seconds,
            "turns": given.turns,
            "batches": given.batches,
            "torch": torch.__version__,
        }
        models = [asdict(result) for result in results]
        given.json.write_text(
            json.dumps({"settings": settings, "machine": describe(), "models": models}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
