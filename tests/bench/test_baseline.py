"""The baseline trains what ``ampnet train`` trains. One instance at a time, ours is synchronous too: then both must go
the same way, epoch by epoch, whatever the workload."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.paper import baseline
from bench.paper.baseline import BASELINES, Job, Learner, Run, Stopwatch, Total, main, make_job, optimizers
from bench.peers.tree_lstm import Level, Recursive

from ampnet.cli import main as ampnet
from ampnet.experiments.catalog import WORKLOADS
from ampnet.experiments.running import make_runtime
from ampnet.experiments.workload import measured
from ampnet.fitting import FitResult, fit
from ampnet.testing.oracle import assert_close
from tests.data.conftest import root

__all__ = ["root"]

SMALL: dict[str, dict[str, Any]] = {
    "mnist": {},
    "list-reduction": {"train_size": 60, "valid_size": 40, "hidden": 8},
    "sentiment": {"hidden": 8},
    "babi15": {"train_size": 8, "valid_size": 20, "size": 12},
    "qm9": {"hidden": 16, "steps": 2},
}
"""What makes each of them a matter of a moment."""
SYNCHRONOUS: dict[str, dict[str, Any]] = {
    "mnist": {"bucket": 5},
    "list-reduction": {"bucket": 5},
    "sentiment": {"count": "instances", "update_after": {}, "dropout": 0.0},
    "qm9": {"clip_norm": None},
}
"""What makes our updates those of minibatches."""
Make = Callable[..., Job]


@pytest.fixture
def make(root: Path) -> Make:
    """Makes a small job."""

    def job(name: str, batch: int, **settings: Any) -> Job:
        return make_job(WORKLOADS[name], WORKLOADS[name].settings(**{**SMALL[name], **settings}), batch, root)

    return job


def ran(job: Job) -> tuple[Run, FitResult]:
    run = Run(job)
    run.go()
    return run, run.result()


def ours(job: Job) -> FitResult:
    """The same with our runtime, one instance in flight and an update after each."""
    workload, settings = job.workload, replace(job.settings, max_active_keys=1, min_update_frequency=1)

    def instances(split: str, epoch: int | None = None) -> Any:
        return workload.instances(job.graph, settings, job.facts, job.data, split, epoch)

    with make_runtime(job.graph, settings) as runtime:
        return fit(
            runtime,
            train=lambda epoch: instances("train", epoch),
            valid=lambda epoch: instances(measured(job.data)),
            epochs=settings.epochs,
            metric=workload.metric,
            higher_is_better=workload.higher_is_better,
            barrier=True,
        )


def test_every_experiment_of_the_paper_has_one() -> None:
    assert set(BASELINES) == set(SMALL) == {name for name, one in WORKLOADS.items() if one.paper_target is not None}
    assert {name: baseline.usual_batch(name) for name in BASELINES} == {
        "mnist": 100,
        "list-reduction": 100,
        "sentiment": 25,
        "babi15": 2,
        "qm9": 32,
    }


@pytest.mark.parametrize(("name", "more"), [*((name, {}) for name in SMALL), ("qm9", {"loss": "absolute"})])
def test_it_goes_the_way_of_ours_without_asynchrony(
    name: str, more: dict[str, Any], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same weights, batches, order, losses, optimizer with its rates, decay and metrics; two batches are collated at a
    time, so that there are several chunks."""
    monkeypatch.setattr(baseline, "CHUNK", 2)
    monkeypatch.setattr(baseline, "VALID_BATCH", 3)
    changed = SYNCHRONOUS.get(name, {})
    settings = {**changed, **more, "epochs": 3, "decay": 0.5, "optimizer": "sgd", "learning_rate": 0.01}
    batch = changed.get("bucket", 1)
    _, found = ran(make(name, batch, **settings))
    wanted = ours(make(name, batch, **settings))
    assert len(found.history) == len(wanted.history) == 3
    for one, other in zip(found.history, wanted.history, strict=True):
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-4)
        assert one.valid_loss == pytest.approx(other.valid_loss, rel=1e-4)
        assert one.valid_metrics == pytest.approx(other.valid_metrics, rel=1e-4)
    assert (found.metric, found.epoch) == (wanted.metric, wanted.epoch)


@pytest.mark.parametrize("name", ["sentiment", "list-reduction"])
def test_the_weights_after_an_update_of_the_workloads_own_optimizer(name: str, make: Make) -> None:
    """Adagrad, whose embedding has a rate of its own and sparse gradients; Adam."""
    changed = SYNCHRONOUS[name] | {"epochs": 1, "limit": 1}
    job = make(name, 1, **changed)
    learner = Learner(job)
    (batch,) = job.batches("train", 1, 1)
    learner.train([learner.peer.collate(batch)], Total())
    other = make(name, 1, **changed)
    ours(other)
    # A first step of Adam is the sign of a gradient: where that is zero but for rounding, it may be any.
    large = {n: p.grad.to_dense().abs() > 1e-6 for n, p in learner.peer.named_parameters() if p.grad is not None}
    wanted = learner.peer.weights(other.graph.model.state_dict())
    got = learner.peer.state_dict()
    assert any(mask.any() for mask in large.values())
    assert_close({n: got[n][m] for n, m in large.items()}, {n: wanted[n][m] for n, m in large.items()}, 1e-5)


def test_optimizers_are_grouped_by_rate(make: Make) -> None:
    job = make("sentiment", 2)
    learner = Learner(job)
    rates = {
        name: group["lr"]
        for optimizer in learner.optimizers
        for group in optimizer.param_groups
        for name, parameter in learner.peer.named_parameters()
        if any(parameter is one for one in group["params"])
    }
    assert rates.pop("embedding.weight") == 0.02
    assert set(rates.values()) == {0.05}
    assert len(rates) == len(list(learner.peer.parameters())) - 1
    job = make("babi15", 2, rate_of={"propagate_cell": 0.1})
    with pytest.raises(Exception, match="rate_of: the baseline has no parameters of its own for propagate_cell"):
        optimizers(Learner(make("babi15", 2)).peer, job)


def test_gradients_are_clipped_module_by_module(make: Make) -> None:
    job = make("qm9", 4, clip_norm=1e-3)
    learner = Learner(job)
    first = next(job.batches("train", 4, 1))
    learner.train([learner.peer.collate(first)], Total())
    assert len(learner.modules) == 5
    for module in learner.modules:
        norm = torch.cat([p.grad.flatten() for p in module if p.grad is not None]).norm()
        assert float(norm) == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("kind", [Level, Recursive])
def test_dropout_is_of_training_only(kind: type[Level | Recursive], make: Make) -> None:
    job = make("sentiment", 3, dropout=0.5)
    peer = kind(job.graph.model)
    collated = peer.collate(next(job.batches("train", 3)))

    def passes() -> list[torch.Tensor]:
        return [torch.cat([prediction for prediction, _ in peer.score(collated)]) for _ in range(2)]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        one, other = passes()
        assert not torch.equal(one, other)
        peer.eval()
        one, other = passes()
        assert torch.equal(one, other)


def test_a_validation_drops_nothing(make: Make) -> None:
    job = make("sentiment", 3, dropout=0.5)
    learner, totals = Learner(job), [Total(), Total()]
    batches = [learner.peer.collate(batch) for batch in job.batches("train", 3)]
    for total in totals:
        learner.valid(batches, total)
    assert totals[0] == totals[1]
    assert totals[0].records == 3
    assert totals[0].rows == sum(len(batch.label) for batch in batches) > 3


def test_a_seed_decides_all(make: Make) -> None:
    runs = [ran(make("sentiment", 2, epochs=2, seed=seed))[1] for seed in (0, 0, 1)]
    losses = [[record.train_loss for record in run.history] for run in runs]
    assert losses[0] == losses[1] != losses[2]


def test_list_reduction_learns(make: Make) -> None:
    job = make("list-reduction", 50, train_size=2_000, valid_size=200, hidden=32, epochs=8)
    _, result = ran(job)
    first, last = result.history[0], result.history[-1]
    assert last.train_loss < 0.8 * first.train_loss
    assert result.value > 0.4


def test_babi15_stops_at_the_target(make: Make) -> None:
    job = make("babi15", 2, train_size=100, valid_size=50, epochs=20, target=0.9)
    _, result = ran(job)
    assert result.reached
    assert result.value >= 0.9
    assert result.epoch == result.epochs == len(result.history) < 20
    assert result.seconds_to_target == result.seconds == result.history[-1].seconds


def test_a_lower_error_is_better(make: Make) -> None:
    _, result = ran(make("qm9", 4, epochs=4, target=1e9))
    assert (result.reached, result.epochs) == (True, 1)
    _, result = ran(make("qm9", 4, epochs=4, target=1e-9))
    assert (result.reached, result.epochs) == (False, 4)
    assert result.value == min(record.valid_metrics["absolute_error"] for record in result.history)


def test_the_clock_stands_while_batches_are_made(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    clock asked    chunk 1: 0, 1    chunk 2: 2, 3    chunk 3: 4, 5    validation: 6, 7       each takes one second
    """
    monkeypatch.setattr(baseline, "CHUNK", 1)
    ticks = count()
    run = Run(make("mnist", 5, epochs=1), watch=Stopwatch(lambda: float(next(ticks))))
    run.go()
    assert next(ticks) == 8
    result = run.result()
    assert result.seconds == result.history[0].seconds == 4
    assert result.train_records_per_second == 12 / 3
    assert result.valid_records_per_second == 4 / 1


def test_the_report_has_the_keys_of_ours(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = tmp_path / "baseline.json", tmp_path / "ours.json"
    argv = ["qm9", "--limit", "6", "--epochs", "2", "--data-dir", str(root)]
    assert main([*argv, "--batch", "4", "--json", str(one)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in out[:2]] == [["epoch", "1"], ["epoch", "2"]]
    assert out[2].startswith("qm9: absolute_error ")
    assert ampnet(["train", *argv, "--quiet", "--json", str(other)]) == 0
    found, wanted = json.loads(one.read_text()), json.loads(other.read_text())
    assert list(found) == list(wanted)
    assert list(found["history"][0]) == list(wanted["history"][0])
    assert found["staleness"] == {"mean": 0, "max": 0, "messages": 0, "histogram": {}, "per_node": {}}
    assert set(found["settings"]) == {*wanted["settings"], "batch"}
    assert (found["settings"]["batch"], found["settings"]["threads"], found["settings"]["limit"]) == (4, 1, 6)


def test_a_target_that_is_not_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    argv = ["babi15", "--limit", "4", "--epochs", "1", "--target", "1", "--quiet", "--json", str(file)]
    assert main(argv) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert "(target 1 not reached) in 1 epoch, " in line
    assert json.loads(file.read_text())["reached"] is False


def test_ctrl_c_reports_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = Learner.train, count()

    def train(self: Learner, *args: Any) -> None:
        if next(calls) == 1:
            raise KeyboardInterrupt
        original(self, *args)

    monkeypatch.setattr(Learner, "train", train)
    file = tmp_path / "out.json"
    assert main(["babi15", "--limit", "4", "--quiet", "--json", str(file)]) == 130
    assert capsys.readouterr().out.startswith("interrupted after 1 epoch, ")
    found = json.loads(file.read_text())
    assert (found["state"], found["epochs"], found["value_epoch"]) == ("interrupted", 1, 1)


def test_a_loss_that_is_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    assert main(["babi15", "--learning-rate", "1e38", "--quiet", "--json", str(file)]) == 1
    assert "the loss of epoch 1 is nan" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("mnist --batch 0 --json F", "baseline mnist: --batch: 0 is too small; give 1 or more"),
        ("mnist --batch x --json F", "--batch: 'x' is not a whole number; give 1 or more"),
        ("mnist --target 97 --json F", "--target: 97 is not a fraction; for 97 % give 0.97"),
        ("qm9 --target 0 --json F", "--target: 0 is too small"),
        ("mnist --bath 3 --json F", "unknown option --bath; did you mean --batch?"),
        ("mnist", "the following arguments are required: --json"),
        ("adaptive-depth --json F", "invalid choice: 'adaptive-depth'"),
        ("", "the following arguments are required: WORKLOAD"),
    ],
)
def test_a_wrong_command_line(argv: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "out.json") if word == "F" else word for word in argv.split()]) == 2
    assert said in capsys.readouterr().err


def test_data_that_are_not_there(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["mnist", "--json", str(tmp_path / "out.json"), "--data-dir", str(tmp_path / "empty")]) == 1
    assert capsys.readouterr().err.startswith("baseline: ")


def test_help_shows_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["sentiment", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "trees in an update (default: 25)" in text
    assert "(default: none; the paper's is 0.82)" in text
