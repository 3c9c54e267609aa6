"""Bounds of `bench.paper`: met, missed, not run, or run only in part."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.paper import bounds
from bench.paper.bounds import Check, checks
from bench.paper.figures import BOUNDS, Better, Bound, Epochs, Faster, Slowdown, Throughput
from bench.paper.results import read
from bench.paper.table import bounds_count, bounds_table

from tests.bench.papers import store


def check(folder: Path, bound: Bound) -> Check:
    (found,) = checks(read(folder), (bound,))
    return found


def seeds(folder: Path, name: str, *epochs: int, **more: float) -> None:
    """Store a seed for each number of epochs: the last reaches any accuracy, the others none."""
    for seed, number in enumerate(epochs):
        store(folder, name, [0.5] * (number - 1) + [1.0], seed=seed, **more)


def test_epochs_are_medians_of_enough_seeds_on_workers(tmp_path: Path) -> None:
    bound = Epochs("mnist", 4, 4)
    assert (check(tmp_path, bound).measured, check(tmp_path, bound).verdict) == ("-", "not run")
    seeds(tmp_path, "mnist-waves-4", 2, 2, 2)  # synchronous: not asked
    assert check(tmp_path, bound).verdict == "not run"
    seeds(tmp_path, "mnist-workers2-4", 3, 9)
    found = check(tmp_path, bound)
    assert (found.measured, found.verdict) == ("6; 2 of 3 seeds run", "partly run")
    seeds(tmp_path, "mnist-workers2-4", 3, 9, 4)
    found = check(tmp_path, bound)
    assert found.what == "epochs: 2 workers, 4 in flight, 2 cores"
    assert (found.measured, found.verdict) == ("4", "met")
    seeds(tmp_path, "mnist-workers2-4", 5, 9, 4)
    assert check(tmp_path, bound).verdict == "**MISSED**"


def test_every_seed_may_be_asked(tmp_path: Path) -> None:
    bound = Epochs("babi15", 16, 6, seeds=5, every=True)
    seeds(tmp_path, "babi15-workers2-16", 3, 3, 3, 3, 7)
    found = check(tmp_path, bound)
    assert (found.asked, found.measured, found.kept) == ("at most 6, every seed", "3; slowest seed 7", False)
    seeds(tmp_path, "babi15-workers2-16", 3, 3, 3, 3, 6)
    assert check(tmp_path, bound).kept
    store(tmp_path, "babi15-workers2-16", [0.5] * 6, seed=4)
    assert check(tmp_path, bound).kept is False


def test_replicas_may_be_of_any_machine(tmp_path: Path) -> None:
    bound = Epochs("list-reduction", 4, 9, replicas=2)
    seeds(tmp_path, "list-reduction-replicas2-4", 7, 7, 7)
    seeds(tmp_path, "c16-list-reduction-replicas2-4", 10, 10, 10)
    found = checks(read(tmp_path), (bound,))
    assert [(one.what[-8:].strip(" ,"), one.kept) for one in found] == [("2 cores", True), ("16 cores", False)]


def test_a_slowdown_is_against_the_quickest_synchronous_run(tmp_path: Path) -> None:
    bound = Slowdown("sentiment", 16)
    seeds(tmp_path, "sentiment-waves-16", 3, 3, 3)
    assert check(tmp_path, bound).verdict == "not run"
    seeds(tmp_path, "sentiment-workers2-16", 3, 3, 3)
    found = check(tmp_path, bound)
    assert (found.what, found.kept) == ("epochs: 2 workers, 16 in flight, against synchronous, 16 in flight", True)
    seeds(tmp_path, "sentiment-waves-1", 2, 2, 2)
    found = check(tmp_path, bound)
    assert (found.measured, found.kept) == ("1.50 x (3 against 2)", False)
    store(tmp_path, "sentiment-workers2-16", [0.5], seed=0)
    store(tmp_path, "sentiment-workers2-16", [0.5], seed=1)
    found = check(tmp_path, bound)
    assert (found.measured, found.kept) == ("- (1 of 3 seeds; best 100.0 %) against 2", False)


def test_a_slowdown_may_be_asked_only_beyond_a_number(tmp_path: Path) -> None:
    bound = Slowdown("babi15", 16, beyond=6, seeds=1)
    seeds(tmp_path, "babi15-waves-1", 3)
    for epochs, kept in ((6, True), (7, False)):
        seeds(tmp_path, "babi15-workers2-16", epochs)
        assert check(tmp_path, bound).kept is kept
    assert check(tmp_path, Slowdown("babi15", 16, seeds=2)).kept is None


def test_throughput_is_of_ours_alone_on_two_cores(tmp_path: Path) -> None:
    bound = Throughput("mnist", 5_750)
    store(tmp_path, "mnist-torch-1", train=1e6)
    store(tmp_path, "c16-mnist-replicas4-8", train=1e6)
    store(tmp_path, "mnist-waves-1", train=1e6, alone=False)
    assert check(tmp_path, bound).kept is None
    store(tmp_path, "mnist-replicas2-8", train=5_751)
    found = check(tmp_path, bound)
    assert (found.measured, found.kept) == ("5,751 (2 replicas, 8 in flight)", True)


def test_faster_needs_torch_at_every_number_of_threads(tmp_path: Path) -> None:
    bound = Faster("list-reduction", 3.0)
    seeds(tmp_path, "c16-list-reduction-both8x2-32", 2, 2, 2, epoch_seconds=1)
    assert (check(tmp_path, bound).measured, check(tmp_path, bound).verdict) == ("-", "partly run")
    for threads in (1, 2, 4, 8):
        seeds(tmp_path, f"c16-list-reduction-torch-{threads}", 2, 2, 2, epoch_seconds=6 - threads / 4)
    found = check(tmp_path, bound)
    ratio = "4.00 x (torch, 8 threads: 8.0; 8 replicas of 2 parts, 32 in flight: 2.0)"
    assert (found.measured, found.verdict) == (ratio, "partly run")
    seeds(tmp_path, "c16-list-reduction-torch-16", 2, 2, 2, epoch_seconds=2)
    found = check(tmp_path, bound)
    assert (found.measured[:6], found.kept) == ("2.00 x", False)
    seeds(tmp_path, "c16-list-reduction-torch-16", 2, 2, 2, epoch_seconds=5)
    assert check(tmp_path, bound).kept


def test_the_best_error_counts_if_its_settings_were_chosen_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = Better("qm9", 3.8)
    store(tmp_path, "c16-qm9-best", [4.5, 3.7, 3.9])
    monkeypatch.setattr(bounds, "CHOSEN_ON", bounds.REPORTED_ON)
    found = check(tmp_path, bound)
    assert (found.measured, found.verdict) == ("3.700 (epoch 2); settings chosen on the same split", "partly run")
    monkeypatch.setattr(bounds, "CHOSEN_ON", bounds.REPORTED_ON + 1)
    found = check(tmp_path, bound)
    assert (found.measured, found.verdict) == ("3.700 (epoch 2)", "met")


def test_the_table_has_a_line_for_each(tmp_path: Path) -> None:
    assert bounds_table(read(tmp_path)).count("| not run |") == len(BOUNDS)
    seeds(tmp_path, "mnist-workers2-4", 3, 3, 3)
    seeds(tmp_path, "mnist-waves-4", 2, 2, 2)
    assert bounds_count(read(tmp_path)) == (
        f"1 of {len(BOUNDS)} bounds are met, 2 are missed, {len(BOUNDS) - 3} were not run, or only in part."
    )
    assert bounds_table(read(tmp_path)).count("**MISSED**") == 2
