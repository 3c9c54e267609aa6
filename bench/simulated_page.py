"""What simulations and plans were worth, in docs/simulate.md: ``python -m bench.simulated_page``.

The part of the page between two marks is made from bench/results/simulate.json and bench/results/plan.json, which
`python -m bench.simulate` and `python -m bench.plan` write.
"""

from __future__ import annotations

import statistics
from typing import Any

from bench.readme import read
from bench.rows import CHECKOUT

PAGE = CHECKOUT / "docs" / "simulate.md"
BEGIN, END = "<!-- accuracy: made by python -m bench.simulated_page -->\n", "<!-- end of accuracy -->"


def accuracy(found: dict[str, Any]) -> str:
    """Simulated beside measured throughput, as text and a table."""
    rows, errors = found["rows"], [abs(row["error"]) for row in found["rows"]]
    stale = [abs(row["simulated_staleness"] - row["staleness"]) for row in rows]
    table = "\n".join(
        f"| {row['workload']} | {row['way']} | {row['measured']:,.0f} | {row['simulated']:,.0f} "
        f"| {100 * row['error']:+.0f} % | {row['staleness']:.2f} | {row['simulated_staleness']:.2f} |"
        for row in rows
    )
    return (
        f"{len(rows)} ways to run 5 models, measured on {found['machine']['cores']} cores "
        f"(`bench/results/simulate.json`): the median error of throughput is {100 * statistics.median(errors):.0f} %, "
        f"the largest {100 * max(errors):.0f} %; the mean staleness is off by {statistics.median(stale):.2f} updates "
        f"in the median, by {max(stale):.2f} at most.\n\n"
        "| model | way | instances/s, measured | simulated | error | staleness, measured | simulated |\n"
        f"|---|---|---|---|---|---|---|\n{table}\n"
    )


def plans(found: dict[str, Any]) -> str:
    """What the planner found, beside other placements, as text and a table."""
    rows = []
    for name, one in found["models"].items():
        rates = one["rates"]
        hand = max((rate for way, rate in rates.items() if way not in ("one", "plan", "default")), default=None)
        rest = [rates["plan"], rates["one"], rates["default"], hand]
        rows.append(f"| {name} | `{one['plan']}` | {' | '.join('' if r is None else f'{r:,.0f}' for r in rest)} |")
    return (
        "What `ampnet plan` found for the same machine, in instances a second (`bench/results/plan.json`):\n\n"
        "| model | plan | measured | one process | two workers, default placement | best placement by hand |\n"
        "|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def written(text: str) -> str:
    """The page with this part made anew."""
    before, found, rest = text.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found or not found_end:
        raise ValueError(f"{PAGE.name} has no place for it: {BEGIN!r} ... {END!r}")
    return f"{before}{BEGIN}{accuracy(read('simulate.json'))}\n{plans(read('plan.json'))}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"written to {PAGE.relative_to(CHECKOUT)}")
