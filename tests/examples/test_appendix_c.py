"""examples/appendix_c: the paper's sum comes out of the formula, and simulations agree with it where they should."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import script


@pytest.fixture(scope="module")
def example() -> Any:
    return script("appendix_c")


@pytest.fixture(scope="module")
def pipeline(example: Any) -> Any:
    return example.Pipeline(instances=12)


def test_the_numbers_of_the_paper_come_out_of_the_formula(example: Any) -> None:
    assert example.PAPER.throughput == pytest.approx(6.5e3, rel=0.01)
    assert example.PAPER.network == pytest.approx(1.2e9, rel=0.05)
    assert example.PAPER.memory == pytest.approx(1.2e6, rel=0.07)
    assert example.PAPER.operations == 64 * 30 * 200**2


def test_each_device_hosts_one_linear_and_has_its_operations(example: Any, pipeline: Any) -> None:
    """The planned wave has the formula's operations: 8 or 7 bonds on each of four devices, 30 atoms on three."""
    parts = pipeline.waves.wave(1).parts
    products = [sum(map(sum, part.flops)) for part in parts]
    gate = example.OURS.operations
    bond = gate / (2 * 30)
    assert products == pytest.approx([8 * bond, 8 * bond, 7 * bond, 7 * bond, gate, gate, gate])
    assert example.matrices(pipeline.waves.wave(1)) == pytest.approx(23, abs=0.1)


@pytest.mark.parametrize("backward", [4, 6])
def test_an_ideal_machine_reaches_the_bound_of_the_busiest_device(example: Any, backward: int) -> None:
    given = replace(example.PAPER, backward=backward, reached=1.0)
    found = example.Pipeline(given, instances=12).run(graphs=200)
    assert found.throughput == pytest.approx(given.throughput, rel=0.1)
    assert all(one.busy > 0.9 for one in found.workers[4:])
    assert all(one.busy < 0.2 for one in found.workers[:4])


def test_fewer_graphs_in_flight_leave_the_pipeline_empty(pipeline: Any) -> None:
    rates = [pipeline.run(flight, graphs=150).throughput for flight in (1, 2, 8)]
    assert rates == sorted(rates)
    assert rates[0] < 0.6 * rates[2]
    assert pipeline.run(1, graphs=50).stale == 0.0


def test_latency_takes_the_throughput_of_a_graph_alone(example: Any, pipeline: Any) -> None:
    slow = pipeline.run(1, example.latency(50), graphs=40).throughput
    assert slow == pytest.approx(1 / (example.IN_TURN * 50e-6), rel=0.15)
    assert pipeline.run(16, example.latency(50), graphs=150).throughput > 8 * slow


def test_a_slow_link_bounds_the_throughput_at_its_bandwidth(example: Any, pipeline: Any) -> None:
    given = example.link(10, 0)
    found = pipeline.run(32, given, graphs=250)
    sent = example.matrices(pipeline.waves.wave(1)) * example.MATRIX
    assert found.throughput == pytest.approx(given.bandwidth / sent, rel=0.1)
    assert max(one.sent for one in found.workers) == pytest.approx(given.bandwidth, rel=0.1)


def test_passes_over_memory_take_more_than_the_papers_half(example: Any, pipeline: Any) -> None:
    dense = example.Pipeline(memory=example.MEMORY, instances=12).run(graphs=150).throughput
    assert dense < 0.5 * pipeline.run(graphs=150).throughput


def test_the_script_prints_both_tables_and_draws(
    example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from matplotlib.image import imread

    rows = example.main(tmp_path / "appendix_c.png", graphs=25)
    printed = capsys.readouterr().out
    assert "0.5 x 1e12 / (64 N H^2) = 6,510 graphs/s" in printed
    assert "1.25 Gb/s" in printed
    for row in rows:
        assert row.title in printed
    height, width = imread(tmp_path / "appendix_c.png").shape[:2]
    assert width > height > 300
