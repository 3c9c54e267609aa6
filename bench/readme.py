"""The table of speed in README.md, made from the results in `bench/results/`.

    python -m bench.readme          write it into README.md again

A test compares the two. For each workload of the paper the table has our best rate and that of the fastest torch
program that was run beside it, whoever wrote it, on one core and on two; and torch_geometric's where it was run. A last
line sums up the models of `bench.ported`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
README = ROOT / "README.md"
BEGIN, END = "<!-- speed: made by python -m bench.readme -->\n", "<!-- end of speed -->"
WORKLOADS = {
    "sentiment": "Tree-LSTM",
    "qm9": "graph network (QM9)",
    "babi15": "tiny graph network (bAbI)",
    "list-reduction": "RNN",
    "mnist": "MLP",
}
"""Results by file, and what the model is called in the table."""
HEAD = """\
| records/s | AMPNet | torch | PyG | AMPNet, 2 cores | torch, 2 cores |
|---|---|---|---|---|---|
"""


def table() -> str:
    """The table and the lines under it."""
    rows = "".join(
        _row(json.loads((RESULTS / f"{name}.json").read_text()), called) for name, called in WORKLOADS.items()
    )
    ported = json.loads((RESULTS / "ported.json").read_text())["models"]
    ratios = sorted(one["ratio"] for one in ported)
    better = sum(ratio >= 1 for ratio in ratios)
    return (
        f"{HEAD}{rows}\n{len(ratios)} further models as users write them run at {ratios[0]:.2f} to {ratios[-1]:.2f} of "
        f"the speed of batched torch; {better} of them are faster (`bench/results/ported.json`). {_gallery()}\n"
    )


def _gallery() -> str:
    """What the models of the gallery gain over one instance at a time, and how they stand beside batched torch."""
    lines = [one for one in json.loads((RESULTS / "gallery.json").read_text())["models"] if one["update"] == 100]
    gains = sorted(one["ours"] / one["eager"] for one in lines)
    ratios = sorted(one["ratio"] for one in lines)
    return (
        f"{len(lines)} models of the gallery, with 100 instances in an update, train {gains[0]:.0f} to {gains[-1]:.0f} "
        f"times as fast as the same model run on one instance at a time, and at {ratios[0]:.2f} to {ratios[-1]:.2f} of "
        f"the speed of batched torch (`bench/results/gallery.json`)."
    )


def _row(result: dict[str, Any], called: str) -> str:
    best = {line["row"]: line["best"] for line in result["lines"]}

    def fastest(pattern: str) -> float | None:
        return max((rate for row, rate in best.items() if re.fullmatch(pattern, row)), default=None)

    ours, torch = fastest("ours"), fastest("torch.* 1 thread")
    assert ours is not None
    assert torch is not None
    two = fastest("ours 2 .*"), fastest("torch.*(2 threads|hogwild2)")
    rest = (f"{rate:,.0f}" if rate else "" for rate in (torch, fastest("pyg 1 thread"), *two))
    return f"| {called} | {ours:,.0f} ({ours / torch:.2f}×) | {' | '.join(rest)} |\n"


def written(text: str) -> str:
    """README with the table of today's results in its place."""
    before, found, rest = text.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found or not found_end:
        raise ValueError(f"README.md has no place for the table: {BEGIN!r} ... {END!r}")
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
