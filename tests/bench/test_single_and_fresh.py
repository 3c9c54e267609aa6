"""`bench.single`, `bench.fresh` and `bench.learning` run, with few records; their speeds are not asserted."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from bench.workloads import BY_NAME

from bench import fresh, learning, single


@pytest.mark.parametrize("name", single.NAMES)
def test_ours_and_eager_programs_take_one_instance_after_the_other(name: str) -> None:
    found = single.measure(name, 0.02, 1, records=4)
    assert set(found["best"]) >= {"ours", found["than"]}
    assert found["than"].startswith("torch")
    assert found["best"][found["than"]] == max(rate for row, rate in found["best"].items() if row != "ours")
    assert found["ratio"] == pytest.approx(found["best"]["ours"] / found["best"][found["than"]])


def test_every_instance_is_an_update_and_all_learn_alike() -> None:
    rows = single.contenders(single.alone(BY_NAME["qm9"]), 3)
    losses = {row: contender.train([0, 1, 2]).loss for row, contender in rows.items()}
    assert {contender.updates() for contender in rows.values()} == {3}
    assert losses["torch sparse"] == pytest.approx(losses["ours"], rel=1e-3)
    rows["ours"].close()


def test_structures_that_are_fresh_never_came_before() -> None:
    for source, _ in fresh.SOURCES.values():
        shapes = [fresh.shape_of(record) for record in itertools.islice(fresh.unseen(source()), 150)]
        assert len(set(shapes)) == 150
    record = next(fresh.molecules())
    assert len(list(fresh.unseen(iter([record, record])))) == 1


@pytest.mark.parametrize("name", fresh.SOURCES)
def test_known_and_fresh_take_turns(name: str) -> None:
    found = fresh.measure(name, 0.02, 1, known=20)
    assert set(found["best"]) == {"known", "fresh"}
    assert min(found["best"].values()) > 0


def test_results_name_settings_and_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "measure", lambda *a: {"workload": "qm9", "best": {}, "than": "torch", "ratio": 0.7})
    monkeypatch.setattr(fresh, "measure", lambda *a: {"workload": "qm9", "best": {}, "ratio": 0.8})
    threads = torch.get_num_threads()
    assert single.main(["qm9", "--json", str(tmp_path / "single.json")]) == 1  # the bound was missed
    assert fresh.main(["qm9", "--json", str(tmp_path / "fresh.json")]) == 0
    assert torch.get_num_threads() == threads
    for name, bound in (("single", 0.8), ("fresh", 0.7)):
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert found["settings"]["bound"] == bound
        assert found["machine"]["commit"]
    with pytest.raises(SystemExit, match="2"):
        single.main(["chess"])


def test_losses_by_epoch_of_one_and_of_many() -> None:
    found = learning.compare("qm9", 1, epochs=2, seeds=1, most=2)
    assert [len(losses) for losses in found["loss"].values()] == [2, 2]


@pytest.mark.parametrize(("last", "kept"), [(1.25, True), (1.35, False)])
def test_losses_agree_within_the_spread_of_seeds(last: float, kept: bool) -> None:
    one = [[{"train": 3.0}, {"train": 1.0}], [{"train": 2.0}, {"train": 1.1}], [{"train": 2.5}, {"train": 1.2}]]
    found = learning.verdict(one, [[{"train": 4.0}, {"train": last}]])
    assert found["noise"] == pytest.approx(0.2)
    assert found["loss"]["one"] == pytest.approx([2.5, 1.1])
    assert found["kept"] is kept
