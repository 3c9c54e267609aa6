"""What the command line says of replicas: a line for a group, a line for many, and plain data."""

from __future__ import annotations

import json
import re
from math import nan
from pathlib import Path

import pytest

from ampnet.cli.report import replica_lines, report, summary, write_json
from ampnet.events.replicas import GroupUse, ReplicaMeter, ReplicaUse
from ampnet.events.staleness import StalenessMeter
from ampnet.fitting import EpochRecord, FitResult
from ampnet.runtime.stats import RunStats
from tests.events.replicated import replicated

EPOCH = EpochRecord(1, 0.3, {"accuracy": 0.9}, None, {}, 100.0, None, 13.0)
ENGINE = RunStats("waves", None, 120, 480, 3)
RESULT = FitResult("accuracy", 0.9, 1, None, False, 1, 13.0, None, 100.0, None, 0, (EPOCH,))


def use(node: str, share: float = 0.5, stale: float = 1.0, drift: float = 0.005, most: float = 0.014) -> ReplicaUse:
    return ReplicaUse(node, 100, share, 10, stale, 3, drift, drift, most, 0.1, ((1, drift),))


def group(node: str, *replicas: ReplicaUse, sync: str = "epoch", rounds: int = 9) -> GroupUse:
    return GroupUse(node, sync, "instance", rounds, replicas)


def measured(sync: str = "updates") -> ReplicaMeter:
    meter = ReplicaMeter()
    for event in replicated(sync=sync):
        meter(event)
    return meter


def test_a_group_of_few_has_a_line_that_names_each() -> None:
    cell = group("cell", use("cell#1", 0.5, 0.91, 0.005), use("cell#2", 0.5, 1.04, 0.007, 0.0123))
    assert replica_lines([cell]) == [
        "replicas of cell: 2, load 50 / 50 %, staleness 0.9 / 1.0, drift 0.6 % (max 1.4 %) over 9 synchronisations"
    ]
    assert replica_lines([]) == []


def test_of_many_members_the_range_is_told() -> None:
    cell = group("cell", *(use(f"cell#{i}", 0.2 + 0.01 * i, 3.0 + i) for i in range(-2, 3)), rounds=1)
    assert replica_lines([cell]) == [
        "replicas of cell: 5, load 18-22 %, staleness 1.0-5.0, drift 0.5 % (max 1.4 %) over 1 synchronisation"
    ]


def test_many_groups_that_are_alike_share_a_line() -> None:
    model = [group(f"layer{i}", use("a", 0.5, 0.1 * i), use("b", 0.5, 2.0), rounds=8 + i % 2) for i in range(12)]
    other = [group("head", *(use("c", 1 / 3) for _ in range(3)), sync="gradients")]
    assert replica_lines([*model, *other]) == [
        "replicas of 12 nodes: 2 each, load 50 %, staleness 0.0-2.0, drift 0.5 % (max 1.4 %) over 8-9 synchronisations",
        "replicas of head: 3, load 33 / 33 / 33 %, staleness 1.0 / 1.0 / 1.0, drift 0.5 % (max 1.4 %) over 9 "
        "synchronisations",
    ]
    assert len(replica_lines(model[:3])) == 3


def test_what_was_not_measured_is_a_dash() -> None:
    idle = group("cell", *(use("a", nan, nan, nan, nan) for _ in range(2)), rounds=0)
    assert replica_lines([idle]) == ["replicas of cell: 2, load - / - %, staleness - / -, 0 synchronisations"]
    many = group("cell", *(use("a", nan, nan, nan, nan) for _ in range(5)), rounds=0)
    assert replica_lines([many]) == ["replicas of cell: 5, load - %, staleness -, 0 synchronisations"]


@pytest.mark.parametrize(("drift", "said"), [(0.00003, "0.003 %"), (0.1234, "12.3 %"), (1.5, "150 %")])
def test_drifts_of_any_size(drift: float, said: str) -> None:
    (line,) = replica_lines([group("cell", use("cell#1", 1.0, 0.0, drift, drift))])
    assert f"drift {said} (max {said})" in line


def test_the_closing_line_is_followed_by_those_on_replicas() -> None:
    plain = summary("list-reduction", "sequences", RESULT, StalenessMeter(), ENGINE)
    assert "\n" not in plain
    assert plain.endswith("; engine: waves, 120 played, at most 3 in flight")
    assert summary("list-reduction", "sequences", RESULT, StalenessMeter(), ENGINE, ReplicaMeter()) == plain
    first, second = summary("list-reduction", "sequences", RESULT, StalenessMeter(), ENGINE, measured()).split("\n")
    assert first == plain
    assert re.fullmatch(
        r"  replicas of cell: 2, load 50 / 50 %, staleness 0\.\d / 0\.\d, drift [\d.]+ % \(max 1 %\) over 4 "
        r"synchronisations",
        second,
    )
    shared = summary("list-reduction", "sequences", RESULT, StalenessMeter(), ENGINE, measured("shared"))
    assert shared.endswith("0.0 / 0.5, 4 synchronisations")


def test_the_report_has_every_group_as_plain_data(tmp_path: Path) -> None:
    assert report("x", RESULT, StalenessMeter(), {}, ENGINE)["replicas"] == []
    data = report("x", RESULT, StalenessMeter(), {}, ENGINE, replicas=measured("shared"))
    write_json(tmp_path / "run.json", data)
    (found,) = json.loads((tmp_path / "run.json").read_text())["replicas"]
    assert (found["group"], found["sync"], found["rounds"], found["drift_mean"]) == ("cell", "shared", 4, None)
    assert [one["node"] for one in found["replicas"]] == ["cell#1", "cell#2"]
    assert found["replicas"][0]["share"] == 0.5
    assert "drifts" not in found["replicas"][0]
    counts = {"waves": 120, "instances": 480, "in_flight": 3, "busy": ()}
    counts |= {"restarts": 0, "replayed": 0, "workers": 0, "changes": ()}
    assert data["engine"] == {"name": "waves", "reason": None, **counts}
    assert (data["placement"], data["bounded"]) == (None, None)
