"""docs/simulate.md says of its errors what the results say."""

from __future__ import annotations

import pytest
from bench.simulated_page import PAGE, accuracy, plans, written


def test_the_page_follows_from_the_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert written(text) == text, "run python -m bench.simulated_page"
    with pytest.raises(ValueError, match="has no place"):
        written("nothing")


def test_errors_and_plans_are_told() -> None:
    row = {"workload": "a", "way": "one", "measured": 100.0, "simulated": 90.0, "error": -0.1}
    rows = [row | {"staleness": 1.0, "simulated_staleness": 1.5}, row | {"staleness": 0.0, "simulated_staleness": 0.0}]
    text = accuracy({"rows": rows, "machine": {"cores": 2}})
    assert "the median error of throughput is 10 %, the largest 10 %" in text
    assert "| a | one | 100 | 90 | -10 % | 1.00 | 1.50 |" in text
    rates = {"one": 1.0, "plan": 2000.0, "default": 3.0, "left": 4.0, "right": 5.0}
    assert "| m | `--workers 2` | 2,000 | 1 | 3 | 5 |" in plans(
        {"models": {"m": {"plan": "--workers 2", "rates": rates}}}
    )
