"""What README.md says about speed, made from the results in `bench/results/`.

    python -m bench.readme          write it into README.md again

Between two marks, everything is made here: the sentences that sum up, the table, and what it was measured on. So is the
line that `make train` ends with. A test compares the page with the results; `bench.claims` lists what else the page
claims, and what each claim rests on.

The table has a line for each workload of the paper: our best rate and that of the fastest torch program that was run
beside it, whoever wrote it; torch_geometric's and JAX's where they were run; on one core and on two. Sentences about 16
cores and about a GPU appear as soon as there are results of them.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
README = ROOT / "README.md"
BEGIN, END = "<!-- speed: made by python -m bench.readme -->\n", "<!-- end of speed -->"
CLOSING = re.compile(r"(`make train` ends like this:\n\n```\n).*(\n```)")
WORKLOADS = {
    "sentiment": "Tree-LSTM",
    "qm9": "graph network (QM9)",
    "babi15": "tiny graph network (bAbI)",
    "list-reduction": "RNN",
    "mnist": "MLP",
}
"""Results by file, and what the model is called in the table."""
HEAD = """\
| records/s | AMPNet | torch | PyG | JAX | AMPNet, 2 cores | torch, 2 cores | JAX, 2 cores |
|---|---|---|---|---|---|---|---|
"""
TORCH, JAX = "torch.*", "jax.*"
Lines = list[dict[str, Any]]


def read(name: str) -> dict[str, Any]:
    """A file of results."""
    found: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return found


def fastest(lines: Lines, pattern: str, cores: int | None = None, most: int | None = None) -> float | None:
    """The best rate of the rows of that name, on exactly or at most so many cores; None: not measured."""
    rates = (
        line["best"]
        for line in lines
        if re.fullmatch(pattern, line["row"]) and cores in (None, line["cores"]) and line["cores"] <= (most or 1 << 30)
    )
    return max(rates, default=None)


def made() -> str:
    """Everything between the marks."""
    results = {name: read(f"{name}.json") for name in WORKLOADS}
    table = HEAD + "".join(_row(results[name]["lines"], called) for name, called in WORKLOADS.items())
    parts = (_gain(), _one_core(results), _two_cores(results), _many_cores(), _gpu(), _users_models(), REST)
    return f"{_filled('**How fast?** ' + ' '.join(filter(None, parts)))}\n\n{table}\n{_filled(_legend(results))}\n"


def _filled(text: str) -> str:
    """In lines like those of the page."""
    return textwrap.fill(text, 140, break_long_words=False, break_on_hyphens=False)


def _row(lines: Lines, called: str) -> str:
    ours, torch = fastest(lines, "ours", 1), fastest(lines, TORCH, 1)
    assert ours is not None
    assert torch is not None
    two = [fastest(lines, "ours 2 replicas", 2), *(fastest(lines, pattern, most=2) for pattern in (TORCH, JAX))]
    rates = (torch, fastest(lines, "pyg.*", 1), fastest(lines, JAX, 1), *two)
    return f"| {called} | {ours:,.0f} ({ours / torch:.2f}×) | {' | '.join(f'{r:,.0f}' if r else '' for r in rates)} |\n"


def between(ratios: Iterable[float]) -> str:
    """The range of some ratios, in words."""
    low, high = min(ratios := list(ratios)), max(ratios)
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"


def _ratios(
    results: Iterable[dict[str, Any]], ours: str, than: str, cores: int, most: int | None = None
) -> list[float]:
    """Ours to the fastest of others, of the results that have both."""
    out = []
    for result in results:
        mine = fastest(result["lines"], ours, cores)
        other = fastest(result["lines"], than, None if most else cores, most)
        if mine and other:
            out.append(mine / other)
    return out


def _one_core(results: dict[str, Any]) -> str:
    than, jax = _ratios(results.values(), "ours", TORCH, 1), _ratios(results.values(), "ours", JAX, 1)
    text = (
        f"On one core AMPNet trains the paper's {len(than)} models at {between(than)} times the speed of the fastest "
        f"torch program that is batched by hand; it is ahead in {sum(ratio >= 1 for ratio in than)} of them"
    )
    return text + (f". Beside JAX it is {between(jax)}." if jax else ".")


def _two_cores(results: dict[str, Any]) -> str:
    than, jax = (_ratios(results.values(), "ours 2 replicas", pattern, 2, most=2) for pattern in (TORCH, JAX))
    if not than:
        return ""
    return f"On two cores it is {between(than)} times torch" + (f", {between(jax)} times JAX." if jax else ".")


def _folder(name: str) -> list[dict[str, Any]]:
    """The results of the workloads on another machine, as far as there are any."""
    every = [path for path in sorted((RESULTS / name).glob("*.json")) if path.stem.removesuffix("-cuda") in WORKLOADS]
    return [json.loads(path.read_text()) for path in every]


def _many_cores() -> str:
    ratios = _ratios(_folder("16"), "ours 16 replicas", TORCH, 16, most=16)
    if not ratios:
        return ""
    than = "the fastest torch program with up to 16 threads"
    return f"On 16 cores, 16 replicas are {between(ratios)} times as fast as {than} (`bench/results/16/`)."


def _gpu() -> str:
    found = _folder("h200")
    ratios = _ratios(found, "ours", f"{TORCH}|pyg.*", 1)
    if not ratios:
        return ""
    name = found[0]["machine"].get("gpu", "GPU")
    return f"On one {name}, in one process, it is {between(ratios)} times torch (`bench/results/h200/`)."


def _gain() -> str:
    """Models of the gallery beside one instance at a time, and beside batched torch."""
    lines = [one for one in read("gallery.json")["models"] if one["update"] == 100]
    gains = sorted(one["ours"] / one["eager"] for one in lines)
    return (
        f"{len(lines)} models of the gallery, with 100 instances in an update, train {gains[0]:.0f} to {gains[-1]:.0f} "
        f"times as fast as the same model run on one instance at a time, and at "
        f"{between(one['ratio'] for one in lines)} times the speed of torch that is batched by hand "
        f"(`bench/results/gallery.json`)."
    )


def _users_models() -> str:
    ported = [one["ratio"] for one in read("ported.json")["models"]]
    return (
        f"{len(ported)} further models as users write them run at {between(ported)} times the speed of batched torch, "
        f"{sum(ratio >= 1 for ratio in ported)} of them faster (`bench/results/ported.json`)."
    )


REST = "Where AMPNet is not faster, the gain is the batching code that you do not write."


def _legend(results: dict[str, Any]) -> str:
    machine = results["qm9"]["machine"]
    frameworks = {"torch": "torch", "torch_geometric": "PyG", "dgl": "DGL", "jax": "JAX"}
    versions = ", ".join(f"{called} {machine[key]}" for key, called in frameworks.items() if key in machine)
    return (
        f"Training examples per second, on one core where nothing else is said ({machine['cores']}-core "
        f"{machine['processor']}; {versions}; the same task, model, optimizer and update size in the same run; "
        f"[docs/bench.md](docs/bench.md)). In brackets: AMPNet's speed divided by torch's. \"torch\" is the fastest "
        f"of several programs with batching written by hand, some with a backward pass written by hand; on two cores "
        f"with threads or Hogwild. AMPNet on two cores has two replicas; torch and JAX there are the faster of one "
        f"thread and two. An empty field was not measured."
    )


def written(text: str) -> str:
    """README with today's results in their places."""
    before, found, rest = text.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found or not found_end:
        raise ValueError(f"README.md has no place for the table: {BEGIN!r} ... {END!r}")
    line = read("first-run.json")["line"]
    page, replaced = CLOSING.subn(lambda match: match[1] + line + match[2], f"{before}{BEGIN}{made()}{END}{after}")
    if replaced != 1:
        raise ValueError("README.md has no place for the line that `make train` ends with")
    return page


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
