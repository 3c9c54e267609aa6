"""``--workers auto``, ``--replicas auto``: what is chosen, what is said of it, and what a run is found to wait for."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ampnet.cli import choosing, main
from ampnet.cli import train as command
from ampnet.cli.choosing import Choice, bounded, choose
from ampnet.cli.train import Job
from ampnet.data import Dataset
from ampnet.errors import AmpnetError
from ampnet.experiments.list_reduction import WORKLOAD, Settings
from ampnet.lang import Compiled
from ampnet.placement import Costs
from ampnet.placement.costs import BYTES
from ampnet.placement.memory import PROCESS
from ampnet.placement.ways import Way, Ways, best
from tests.cli.test_train import TINY, lines
from tests.placement.test_ways import costs, graph
from tests.runtime.conftest import children

linux = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """What would have been trained, on four cores, if nodes cost what `tests.placement.test_ways.costs` says."""
    asked: list[Job] = []

    class Told:
        def __init__(self, *args: Any, **settings: Any) -> None: ...

        def run(self, instances: Sequence[Any]) -> Costs:
            return costs(size=5e-4 * BYTES)

    monkeypatch.setattr(command, "train", lambda job, **k: asked.append(job) or 0)  # type: ignore[func-returns-value]
    monkeypatch.setattr(choosing, "Trial", Told)
    monkeypatch.setattr(choosing, "simulated", by_costs)
    monkeypatch.setattr(choosing, "time", SimpleNamespace(perf_counter=lambda: 0.0))  # making instances costs nothing
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    return asked


def by_costs(*given: Any) -> Choice:
    """A simulation that finds what the costs of a wave let expect."""
    graph, _, costs, _, settings, asked = given
    way = best(asked)
    assert way is not None
    others = choosing._others(Ways(graph, costs, 4, settings.memory_per_worker), settings, way)
    return Choice(way, tuple(others))


def test_a_plain_cut_says_what_else_would_be_faster(jobs: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--workers", "2"]) == 0
    (line,) = lines(capsys)
    assert re.fullmatch(
        r"placement: 2 workers, 1\.\d x one core expected, bounded by worker \d: node 'cell' has 9\d % of its time; "
        r"--workers 2 --replicate cell=4: 1\.\d x; --replicas 2: 1\.\d x",
        line,
    )
    (job,) = jobs
    assert (job.settings.workers, job.settings.replicate, job.settings.tile) == (2, None, {})
    assert job.hosts is not None
    assert set(job.hosts) == set(job.graph.nodes)
    assert job.settings.max_active_keys == 4  # two waves, of one bucket each, for each worker


def test_workers_auto_copies_what_is_too_large(jobs: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--workers", "auto"]) == 0
    (line,) = lines(capsys)
    assert re.match(r"placement: 4 workers with 8 copies of cell, [23]\.\d x one core expected, bounded by ", line)
    assert "; --replicas 4: 3." in line
    (job,) = jobs
    assert (job.settings.workers, job.settings.replicate, job.settings.route) == (4, {"cell": 8}, "instance")
    assert job.hosts is not None
    assert len({job.hosts[f"cell#{i}"] for i in range(1, 9)}) == 4
    assert {"cat#4", "cell#4"} < set(job.graph.nodes)


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ("--replicas auto", {"workers": 4, "replicas": 4, "replicate": None}),
        ("--replicas auto --workers auto", {"workers": 4, "replicas": 4, "replicate": None}),
        ("--replicas auto --workers 4", {"workers": 4, "replicas": 4}),
        ("--replicas 2 --workers auto", {"workers": 2, "replicas": 2}),  # parted, it would be no faster
        ("--replicas 2 --workers 4", {"workers": 4, "replicas": 2}),
        ("--replicas auto --replicate cell", {"workers": 4, "replicas": 4, "replicate": ("cell",)}),
        ("--replicate cell=3 --workers auto", {"workers": 4, "replicate": {"cell": 3}}),
        ("--replicate cell=3", {"workers": 3, "replicas": 1, "replicate": {"cell": 3}}),
        ("--tile cell=2 --workers 2", {"workers": 2, "tile": {"cell": 2}}),
        ("--replicas auto --sync epoch", {"replicas": 4, "sync": "epoch"}),
    ],
)
def test_what_is_chosen(
    options: str, want: dict[str, Any], jobs: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, *options.split()]) == 0
    (line,) = lines(capsys)
    assert line.startswith("placement: ")
    assert {name: getattr(jobs[0].settings, name) for name in want} == want
    assert jobs[0].choice is not None
    assert f"{jobs[0].choice.way.speedup:.1f} x one core expected" in line


def test_where_nothing_is_open_nothing_is_tried(jobs: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    for options in ("", "--replicas 2", "--workers 1 --replicas 2", "--workers 3 --replicas 2"):
        assert main([*TINY, *options.split()]) == 0
    assert lines(capsys) == []
    assert all(job.choice is None and job.hosts is None for job in jobs)


def test_quiet_chooses_as_well(jobs: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--replicas", "auto", "--quiet"]) == 0
    assert lines(capsys) == []
    assert jobs[0].settings.replicas == 4


def test_one_core_is_one_process(
    jobs: list[Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert main([*TINY, "--workers", "auto", "--replicas", "auto"]) == 0
    assert lines(capsys) == ["placement: one process"]
    assert (jobs[0].settings.workers, jobs[0].settings.replicas) == (1, 1)


def test_a_limit_of_memory(jobs: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    limit = str(PROCESS + 1010)  # cell needs 1000, all of them 1110
    assert main([*TINY, "--workers", "auto", "--replicas", "auto", "--memory-per-worker", limit]) == 0
    assert jobs[0].settings.workers == 4
    assert lines(capsys)[0].startswith("placement: 2 replicas of 2 workers each, ")
    assert main([*TINY, "--workers", "4", "--memory-per-worker", str(PROCESS + 500)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ampnet train list-reduction: --memory-per-worker: node 'cell' needs 1.0 kB for parameters")
    assert said.count("\n") == 1
    assert main([*TINY, "--workers", "auto", "--memory-per-worker", str(PROCESS + 500)]) == 2


def test_in_flight_by_hand_is_what_waves_are_made_of(jobs: list[Job]) -> None:
    assert choosing._wave(Settings(), Settings(workers=1).complete(), 4) == (4, None)
    settings = Settings(max_active_keys=8, workers=2)
    assert choosing._wave(settings, Settings(max_active_keys=8, workers=1).complete(), 4) == (4, 2)
    found = choose(WORKLOAD, Settings(max_active_keys=1, workers=2), data(), {})
    assert found is not None
    assert found.way.expected.bound == "in flight"
    assert found.way.speedup < 1


def data() -> Dataset[Any]:
    return WORKLOAD.load(Settings(train_size=200, valid_size=100))


@linux
def test_the_line_and_the_report_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "run.json"
    assert main([*TINY, "--workers", "2", "--replicate", "cell=2", "--json", str(report)]) == 0
    first, *_, last, embedding, replicas = lines(capsys)  # a small table is copied with its reader
    assert embedding.startswith("  replicas of embedding: 2, ")
    assert first.startswith("placement: 2 workers with 2 copies of cell, ")
    assert "; bounded by " in last
    assert replicas.startswith("  replicas of cell: 2, ")
    found = json.loads(report.read_text())
    placement = found["placement"]
    assert placement["options"] == "--workers 2 --replicate cell=2"
    assert placement["expected"]["speedup"] > 0
    assert placement["guessed"] is None
    assert {"cat#1", "cell#2", "tokens_loop"} < set(placement["hosts"])
    assert [other["options"] for other in placement["others"]] == ["--replicas 2"]
    assert last.endswith(found["bounded"])
    assert len(found["engine"]["busy"]) == 2
    assert not children()


@linux
@pytest.mark.parametrize("options", ["--workers auto", "--replicas auto", "--workers auto --replicas auto"])
def test_auto_on_the_cores_there_are(options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "run.json"
    assert main([*TINY, "--epochs", "1", *options.split(), "--json", str(report)]) == 0
    first, *rest = lines(capsys)
    assert first.startswith("placement: ")
    assert "not simulated" not in first
    assert any(line.startswith("list-reduction: ") for line in rest)
    found = json.loads(report.read_text())["placement"]
    assert found["simulated"] is (len(os.sched_getaffinity(0)) > 1)
    if found["max_active_keys"] is not None:
        assert found["max_active_keys"] in (4, 8, 16)  # the default of one process or of two workers, or twice that
    assert not children()


def test_a_simulation_that_fails_is_said(
    jobs: list[Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any) -> Choice:
        raise AmpnetError("a reason\nand more of it")

    monkeypatch.setattr(choosing, "simulated", fails)
    assert main([*TINY, "--workers", "auto"]) == 0
    (line,) = lines(capsys)
    assert line.startswith("placement: 4 workers with 8 copies of cell, ")
    assert line.endswith("; not simulated: a reason")


def test_what_was_simulated_is_what_runs(
    jobs: list[Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way, the number in flight and the placement."""

    def found(graph: Compiled, tried: Any, costs: Costs, making: float, settings: Any, asked: Sequence[Way]) -> Choice:
        way = next(way for way in asked if way.workers == 2 and not way.changes)
        return Choice(way, (), {name: int(name == "cell") for name in graph.nodes}, 12)

    monkeypatch.setattr(choosing, "simulated", found)
    assert main([*TINY, "--workers", "auto"]) == 0
    (line,) = lines(capsys)
    assert line.startswith("placement: 2 workers, 12 in flight, ")
    (job,) = jobs
    assert (job.settings.workers, job.settings.max_active_keys) == (2, 12)
    assert job.hosts is not None
    assert {name for name, worker in job.hosts.items() if worker} == {"cell"}


def test_what_a_run_waited_for() -> None:
    ways = Ways(graph(), costs(), 4)
    hosts = {"embedding": 0, "cat": 1, "cell": 1, "classify": 0, "loss": 0}
    cut = Choice(ways.of_workers(2), ())
    whole = Choice(ways.of_workers(2, 2), ())
    assert bounded((0.3, 0.9), 0.2, cut, hosts) == "bounded by worker 1: node 'cell' has 99 % of its time"
    assert bounded((0.3, 0.9), 0.95, cut, hosts) == "bounded by the controller"
    assert bounded((0.3, 0.4), 0.2, cut, hosts).startswith("bounded by waiting for crossings: more and smaller waves")
    assert bounded((0.9, 0.4), 0.2, whole, {}) == bounded((0.9, 0.4), 0.2, None, {})
    assert bounded((0.9, 0.4), 0.2, None, {}) == "bounded by the work of the replicas"
    parts = Choice(ways.of_workers(4, 2), ())
    copies = {f"{name}#{i + 1}": worker + 2 * i for name, worker in hosts.items() for i in range(2)}
    assert bounded((0.3, 0.6, 0.3, 0.9), 0.2, parts, copies).startswith("bounded by worker 3: node 'cell' has 99 %")
