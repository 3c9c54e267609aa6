"""Costs: lines through measurements, and their division into products and the rest."""

from __future__ import annotations

import numpy as np
import pytest

from ampnet.simulate.costs import ANY, CALL, Affine, Line, Operations, Samples, fitted, flops_of
from tests.replicas.small import chain


def samples(*found: tuple[str, int, float]) -> Samples:
    out = Samples()
    for name, rows, seconds in found:
        out.add((name, 0, 0), rows, seconds)
    return out


def test_a_line_through_measurements() -> None:
    found = samples(*(("a", rows, 2.0 + 0.5 * rows) for rows in (1, 4, 9)))
    assert len(found) == 3
    assert found.slopes()["a", 0, 0] == pytest.approx((2.0, 0.5))


@pytest.mark.parametrize(
    ("points", "want"),
    [
        ([(4, 1.0)], (CALL, (1.0 - CALL) / 4)),  # one number of rows: the call is assumed
        ([(0, 1.0)], (1.0, 0.0)),
        ([(0, 0.0)], (0.0, 0.0)),
        ([(1, 3.0), (2, 1.0)], (2.0, 0.0)),  # no slope below zero
        ([(1, 0.0), (2, 2.0)], (0.0, 0.8)),  # and no fixed cost
        ([(2, 1.0)] * 5 + [(2, 50.0)], (CALL, (1.0 - CALL) / 2)),  # another process had the core
    ],
)
def test_odd_measurements(points: list[tuple[int, float]], want: tuple[float, float]) -> None:
    found = samples(*(("a", rows, seconds) for rows, seconds in points)).slopes()["a", 0, 0]
    assert found == pytest.approx(want)


def test_products_are_what_the_fastest_node_does_a_row_with() -> None:
    """fast: 100 FLOP a row in 1 s; slow: 100 in 4 s, of which 3 are no products; plain has none."""
    found = samples(*((n, r, s * r) for n, s in (("fast", 1.0), ("slow", 4.0), ("plain", 2.0)) for r in (1, 2)))
    made = fitted(found, {"fast": 100.0, "slow": 100.0})
    assert made.rate == pytest.approx(100.0)
    lines = {name: made.line(name, 0, 0) for name in ("fast", "slow", "plain")}
    for name, want in (("fast", (0.0, 100.0)), ("slow", (3.0, 100.0)), ("plain", (2.0, 0.0))):
        line = lines[name]
        assert line is not None
        assert (line.row, line.flops) == pytest.approx(want, abs=1e-6)
        assert line.seconds(3, made.rate) == pytest.approx({"fast": 3, "slow": 12, "plain": 6}[name])
    half = made.scaled(0.5).line("slow", 0, 0)
    assert half is not None
    assert half.seconds(3, made.scaled(0.5).rate) == pytest.approx(6)
    assert made.line("none", 0, 0) is None


def test_a_line_of_a_port_goes_before_that_of_the_node() -> None:
    made = Operations({("a", ANY, 0): Line(1.0), ("a", 1, 0): Line(2.0)}, 1.0)
    assert [made.line("a", port, 0) for port in (0, 1)] == [Line(1.0), Line(2.0)]


def test_products_of_a_graph() -> None:
    assert flops_of(chain("linear", "tanh")) == {"linear1": 18.0}


def test_seconds_by_a_count() -> None:
    line = Affine.through([(1, 3.0), (3, 7.0)])
    assert (line.fixed, line.each) == pytest.approx((1.0, 2.0))
    assert line(10) == pytest.approx(21.0)
    assert line.scaled(2.0)(10) == pytest.approx(42.0)
    assert Affine.through([(2, 5.0)]) == Affine(5.0, 0.0)
    assert Affine.through([(1, 5.0), (2, 4.0)]) == Affine(4.5, 0.0)
    assert Affine.through([(1, 0.0), (3, 4.0)]) == Affine(0.0, 1.0)
    assert np.isfinite(Affine()(3))
