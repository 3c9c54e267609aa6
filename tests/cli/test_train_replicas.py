"""``ampnet train --replicas``: what it prints and writes, and what is said before any work starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ampnet.cli import main
from ampnet.cli import train as command
from ampnet.events.check import assert_kept
from ampnet.events.log import Begin, Synced, read_log
from ampnet.experiments.list_reduction import WORKLOAD, Settings
from ampnet.experiments.running import make_graph, make_runtime
from ampnet.runtime.inline import Inline
from ampnet.runtime.processes import Processes
from tests.cli.test_train import SUMMARY, TINY, lines
from tests.runtime.conftest import children

linux = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


@linux
@pytest.mark.parametrize(
    ("options", "group"),
    [
        ("--replicas 2", {"route": "shortest", "sync": "shared", "optimizer": "average", "by_instance": True}),
        ("--replicas 2 --route instance --sync updates --sync-every 2", {"sync": "updates", "every": 2}),
        ("--replicas 2 --replicate cell --route position --sync ring --sync-every 1", {"sync": "ring", "every": 1}),
        ("--replicas 2 --replicate cell,embedding --route round-robin --sync gradients", {"by_instance": False}),
        ("--replicas 3 --sync epoch --sync-optimizer keep --workers 1", {"sync": "epoch", "optimizer": "keep"}),
    ],
)
def test_a_run_with_replicas(
    options: str, group: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, report = tmp_path / "run.log", tmp_path / "run.json"
    assert main([*TINY, *options.split(), "--log", str(log), "--json", str(report)]) == 0
    out = lines(capsys)
    summary = next(i for i, line in enumerate(out) if line.startswith("list-reduction: "))
    assert SUMMARY.fullmatch(out[summary].replace("staleness -", "staleness 0.0 (max 0)"))
    parts = options.partition("--replicate ")[2].split(" ")[0]
    assert out[0].startswith("placement: 2 workers with 2 copies of ") == bool(parts)
    *rest, last = out[summary + 1 :]
    assert last.startswith(f"log: {log}, ")
    assert all(line.startswith("  replicas of ") for line in rest)
    events = list(read_log(log))
    assert_kept(events)
    begin = next(e for e in events if isinstance(e, Begin))
    found = {one["node"]: one for one in begin.settings["replicas"]}
    assert set(found) == (set(parts.split(",")) if parts else {"embedding", "cell", "classify"})
    assert all(one[key] == value for one in found.values() for key, value in group.items())
    assert len(rest) == len(found)
    data = json.loads(report.read_text())
    assert {one["group"] for one in data["replicas"]} == set(found)
    count = int(options.split()[1])
    assert data["settings"]["replicas"] == count
    assert data["settings"]["workers"] == (1 if "--workers" in options else count)
    assert data["engine"]["name"] == begin.settings["engine"] == "waves"
    assert data["engine"]["instances"] > 0
    assert (data["placement"] is None) == (not parts)
    assert any(isinstance(e, Synced) for e in events)
    assert not children()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--replicas 0", "--replicas: 0 is too small; give 1 or more"),
        ("--replicas many", "--replicas: 'many' is not a whole number"),
        ("--replicas 2 --route longest", "--route: invalid choice: 'longest'; there are: "),
        ("--replicas 2 --sync never", "--sync: invalid choice: 'never'; there are: epoch, "),
        ("--replicas 2 --sync-every 0", "--sync-every: 0 is too small; give 1 or more"),
        ("--replicas 2 --sync-optimizer forget", "--sync-optimizer: invalid choice: 'forget'; there are: "),
        ("--replicas 2 --replicate ,", "--replicate: no name in it; write nodes like cell,embedding, or cell=2"),
        ("--replicate cell=1", "--replicate: 1 is too small; give 2 or more"),
        ("--replicate cel=2", "--replicate: replicate names 'cel', but no node is called that; did you mean 'cell'?"),
        ("--replicas 2 --replicate cell=2", "--replicate: NODE=N has a number of its own; leave out --replicas"),
        ("--workers 2 --tile cell=x", "--tile: 'x' is not a whole number; give 2 or more"),
        ("--workers 2 --tile cel=2", "--tile: no node is called 'cel', so it cannot be tiled; did you mean 'cell'?"),
        ("--workers 2 --tile cell=99", "--tile: 'cell' has 16 outputs: it can be made 2 to 16 tiles, got 99"),
        ("--memory-per-worker 1G", "--memory-per-worker: there are no worker processes; give --workers 2 or more"),
        (
            "--workers 2 --memory-per-worker lots",
            "--memory-per-worker: 'lots' is no size; write bytes like 800M or 1.5GB",
        ),
        ("--workers 2 --no-waves", "--no-waves: worker processes play waves, and pass no messages; give --workers 1"),
        ("--replicas 2 --max-batch 3", "--max-batch: worker processes play waves"),
        (
            "--replicas 2 --replicate cel",
            "--replicate: replicate names 'cel', but no node is called that; did you mean 'cell'?",
        ),
        ("--replicas 2 --replicate cell,x*", "--replicate: replicate names 'x*', but no node is called that"),
        ("--replicas 2 --route position", "--route: route='position' would send messages of one instance to different"),
        ("--replicas 2 --replicate loss --route position", "--route: route='position' would send messages"),
        ("--replicate cell", "--replicate: there is one replica; give --replicas 2 or more, or auto"),
        ("--route instance", "--route: there is one replica; give --replicas 2 or more, or auto"),
        ("--sync ring", "--sync: there is one replica; give --replicas 2 or more, or auto"),
        ("--sync-every 7", "--sync-every: there is one replica; give --replicas 2 or more, or auto"),
        ("--sync-optimizer keep", "--sync-optimizer: there is one replica; give --replicas 2 or more, or auto"),
        ("--replicas 2 --workers 1 --pin", "--pin: there are no worker processes; give --workers 2 or more"),
    ],
)
def test_a_bad_value_is_one_line_before_any_work(
    given: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "train", lambda *a, **k: pytest.fail("work was started"))
    assert main([*TINY, *given.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ampnet train list-reduction: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


def test_settings_reach_the_graph_and_the_runtime() -> None:
    settings = Settings(hidden=8, replicas=3, route="instance", sync="updates", sync_every=7, sync_optimizer="keep")
    graph = make_graph(WORKLOAD, settings, {})
    group = graph.replicas["cell"]
    assert (len(group.members), group.route, group.balanced) == (3, "instance", False)
    assert (group.sync.when, group.sync.every, group.sync.optimizer) == ("updates", 7, "keep")
    assert settings.complete().workers == 3
    assert settings.complete().max_active_keys == 12
    assert isinstance(make_runtime(graph, settings), Processes)
    assert isinstance(make_runtime(graph, Settings(hidden=8, replicas=3, workers=1)), Inline)


@linux
def test_affinity_by_the_name_of_a_replica(tmp_path: Path) -> None:
    where, log = tmp_path / "where.json", tmp_path / "run.log"
    where.write_text('{"embedding": 0, "cell#2": 0, "*": 1}')
    assert main([*TINY, "--replicas", "2", "--affinity", str(where), "--log", str(log)]) == 0
    events = list(read_log(log))
    placed = next(e for e in events if isinstance(e, Begin)).settings["affinity"]
    assert (placed["embedding#1"], placed["embedding#2"]) == (0, 0)
    assert (placed["cell#1"], placed["cell#2"]) == (1, 0)
    assert_kept(events)
