"""Instances kept from epoch to epoch: the same run, the same objects, no more of them than allowed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from ampnet.cli import main
from ampnet.cli import train as command
from ampnet.cli.interrupt import Stopping
from ampnet.experiments.catalog import WORKLOADS
from ampnet.experiments.kept import Kept
from ampnet.experiments.running import make_graph, make_runtime
from ampnet.instance import Instance
from ampnet.runtime.processes import Processes
from tests.data.conftest import root

__all__ = ["root"]

SMALL: dict[str, dict[str, Any]] = {
    "mnist": {"bucket": 5},
    "list-reduction": {"train_size": 60, "valid_size": 40, "hidden": 8},
    "sentiment": {"hidden": 8, "vectors": "random"},
    "babi15": {"train_size": 6, "valid_size": 20, "size": 12},
    "qm9": {"hidden": 16, "steps": 2},
    "permuted-layers": {"train_size": 30, "valid_size": 20},
    "adaptive-depth": {"train_size": 30, "valid_size": 20, "hidden": 8},
}
AGAIN = ("sentiment", "qm9", "permuted-layers", "adaptive-depth")
"""Those whose training records are instances that come again in every epoch."""
linux = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
Make = Callable[..., Kept]


@pytest.fixture
def make(root: Path) -> Make:
    def kept(name: str, **settings: Any) -> Kept:
        workload = WORKLOADS[name]
        complete = workload.settings(**{**SMALL[name], **settings}).complete()
        data = workload.load(complete, root)
        facts = workload.facts(complete, data)
        return Kept(workload, complete, data, facts, make_graph(workload, complete, facts))

    return kept


def test_which_come_again(make: Make) -> None:
    assert set(SMALL) == set(WORKLOADS)
    assert {name for name in SMALL if make(name).repeats("train")} == set(AGAIN)
    assert {name for name in SMALL if make(name).repeats(_measured(make(name)))} == {*AGAIN, "babi15"}


@pytest.mark.parametrize("name", SMALL)
def test_they_are_those_of_the_workload(name: str, make: Make) -> None:
    kept = make(name)
    for split, epoch in (("train", 1), ("train", 2), (_measured(kept), None), (_measured(kept), None)):
        wanted = kept.workload.instances(kept.graph, kept.settings, kept.facts, kept.data, split, epoch)
        for one, other in zip(kept.instances(split, epoch), wanted, strict=True):
            assert one.digest() == other.digest()
            assert (one.records, one.results, set(one.feeds)) == (other.records, other.results, set(other.feeds))
            for place, given in one.feeds.items():
                payload = other.feeds[place].payload
                assert given.payload is not None
                assert payload is not None
                assert given.payload.equal(payload)


@pytest.mark.parametrize("name", SMALL)
def test_the_second_epoch_has_the_same_objects(name: str, make: Make) -> None:
    kept = make(name)
    first, second = (list(kept.instances("train", epoch)) for epoch in (1, 2))
    same = {id(one) for one in first} == {id(one) for one in second}
    assert same == (name in AGAIN)
    assert len(kept) == (len(first) if name in AGAIN else 0)


def test_no_more_than_allowed(make: Make) -> None:
    kept = make("adaptive-depth", keep=12)
    assert not kept.holds("train")  # they are 30
    first, second = (list(kept.instances("train", epoch)) for epoch in (1, 2))
    assert len(first) == len(second) == 30
    assert len({id(one) for one in first} & {id(one) for one in second}) == len(kept) == 12
    assert kept.room == 0
    assert not kept.holds("valid")
    assert len(list(kept.instances("valid"))) == 20
    assert len(kept) == 12


def test_all_of_a_split(make: Make) -> None:
    kept = make("adaptive-depth", keep=30)
    assert kept.holds("train")
    made = list(kept.instances("train"))
    assert len(made) == len(kept) == 30
    assert {id(one) for one in kept.instances("train", 1)} == {id(one) for one in made} == set(map(id, made))
    assert kept.holds("train")
    assert list(kept.instances("train")) == made
    drawn = make("babi15")
    assert not drawn.holds("train")
    assert drawn.holds("valid")


def _measured(kept: Kept) -> str:
    return "valid" if "valid" in kept.data.splits else "test"


# The command


@pytest.mark.parametrize("name", AGAIN)
def test_a_run_that_keeps_them_is_the_same_run(name: str, root: Path, tmp_path: Path) -> None:
    def history(*more: str) -> list[dict[str, Any]]:
        report = _run(name, root, tmp_path, *more)
        if more != ("--keep", "5"):  # which holds all of some of the data sets
            assert (report["prepared_seconds"] > 0) == (not more)
        return [
            {key: value for key, value in record.items() if "loss" in key or "metrics" in key}
            for record in report["history"]
        ]

    assert history() == history("--keep", "0") == history("--keep", "5")


def _run(name: str, root: Path, folder: Path, *more: str) -> dict[str, Any]:
    options = [part for key, value in SMALL[name].items() for part in (f"--{key.replace('_', '-')}", str(value))]
    where = ["--data-dir", str(root)] if WORKLOADS[name].files else []
    file = folder / "run.json"
    assert main(["train", name, *options, *where, "--epochs", "3", "--json", str(file), *more]) == 0
    report: dict[str, Any] = json.loads(file.read_text())
    return report


@linux
@pytest.mark.parametrize("keep", [0, 29, 30, 200])
def test_workers_have_them_from_the_start(
    keep: int, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a split that is not kept as a whole nothing is made ahead. 30 are trained on, 20 measured."""
    told: list[int] = []
    rehearse = Processes.rehearse

    def telling(self: Processes, instances: Iterable[Instance]) -> None:
        some = list(instances)
        told.append(len(some))
        rehearse(self, some)

    monkeypatch.setattr(Processes, "rehearse", telling)
    report = _run("adaptive-depth", root, tmp_path, "--replicas", "2", "--keep", str(keep))
    assert told == {0: [], 29: [20], 30: [30], 200: [30, 20]}[keep]
    said = f"preparing instances ... {' + '.join(map(str, told))} in "
    assert capsys.readouterr().out.startswith(said) == bool(told)
    assert (report["prepared_seconds"] > 0) == bool(told)
    assert len(report["history"]) == 3
    for record in report["history"]:
        assert record["valid_metrics"]["absolute_error"] > 0


@linux
def test_workers_count_them_right(make: Make) -> None:
    kept = make("permuted-layers", replicas=2)
    with make_runtime(kept.graph, kept.settings) as runtime:
        assert isinstance(runtime, Processes)
        assert runtime.may_play
        for split in ("train", "valid"):
            runtime.rehearse(kept.instances(split))
        for epoch in (1, 2):
            assert runtime.train(kept.instances("train", epoch)).records == 30
            assert runtime.infer(kept.instances("valid")).records == 20


@linux
@pytest.mark.parametrize(
    ("settings", "plays"),
    [
        ({}, True),
        ({"waves": False}, False),
        ({"replicas": 2}, True),
        ({"replicas": 2, "workers": 1, "waves": False}, False),
        ({"workers": 2}, True),
    ],
)
def test_where_nothing_is_played_nothing_is_prepared(
    settings: dict[str, Any], plays: bool, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = make("adaptive-depth", **settings)
    with make_runtime(kept.graph, kept.settings) as runtime:
        assert runtime.may_play == plays
        assert (command._prepare(runtime, kept, ("train",), quiet=True) > 0) == plays
    assert capsys.readouterr().out == ""


def test_ctrl_c_while_instances_are_prepared_is_heard(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run ends before its first epoch, with a report."""

    class Asked(Stopping):
        def __enter__(self) -> Stopping:
            self.asked = True
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(command, "Stopping", Asked)
    file = tmp_path / "run.json"
    assert main(["train", "adaptive-depth", "--train-size", "30", "--valid-size", "20", "--json", str(file)]) == 130
    report = json.loads(file.read_text())
    assert report["state"] == "interrupted"
    assert report["history"] == []
    assert "preparing instances ... 0 + 0 in 0.0 s\n" in capsys.readouterr().out
