"""Generated data has the sizes and distributions of the real data, and real data is taken where it is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from bench.batch import Bucket
from bench.contender import OurRuntime
from bench.rows import Settings, ours_of
from bench.turn import measure, race
from bench.workload import Target, Wanted, Workload
from bench.workloads import BY_NAME, WORKLOADS, mnist, qm9, sentiment

from ampnet.errors import DataError
from ampnet.testing.oracle import assert_close

SHORT = Settings(seconds=0.1, warmup=0.05, valid_seconds=0.05)


@pytest.fixture
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any data set."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("AMPNET_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ampnet.data.places.CHECKOUT", tmp_path)


@pytest.mark.usefixtures("_no_data")
@pytest.mark.parametrize("workload", BY_NAME.values(), ids=BY_NAME)
def test_without_a_data_set_data_is_generated_and_we_train_on_it(workload: Workload) -> None:
    data = workload.data(Wanted(workload.batch, most=2))
    assert data.kind == "generated"
    assert len(data.train) == len(data.valid) == 2
    assert all(len(batch) == workload.batch for batch in (*data.train, *data.valid))
    contender = OurRuntime(workload, data, ours_of(workload, "ours"))
    turn = measure(contender, data, SHORT, workload)
    assert turn.train > 0
    assert turn.valid > 0
    assert np.isfinite([turn.loss_first, turn.loss_last, turn.flops]).all()
    # An update for every batch; those that retire together with the next one's share it.
    assert turn.updates is not None
    assert 0.4 < turn.updates < 1.1


@pytest.mark.usefixtures("_no_data")
@pytest.mark.parametrize("name", ["mnist", "sentiment", "qm9"])
def test_real_data_that_is_asked_for_and_not_there_is_an_error(name: str) -> None:
    workload = BY_NAME[name]
    with pytest.raises(DataError, match="not found"):
        workload.data(Wanted(workload.batch, "real", most=1))


@pytest.mark.parametrize("name", ["mnist", "sentiment", "qm9"])
def test_real_data_is_taken_where_it_is_found(name: str) -> None:
    workload = BY_NAME[name]
    data = workload.data(Wanted(workload.batch, most=2))
    if data.kind != "real":
        pytest.skip("no data set here")
    assert len(data.train) == len(data.valid) == 2
    assert workload.flops(data) == pytest.approx(
        workload.flops(workload.data(Wanted(workload.batch, "generated", most=2))), rel=0.4
    )


@pytest.mark.parametrize("workload", BY_NAME.values(), ids=BY_NAME)
def test_data_follows_from_its_seed(workload: Workload) -> None:
    first, again, other = (workload.data(Wanted(4, "generated", most=1, seed=seed)) for seed in (0, 0, 1))
    batches = [_numbers(data.train[0]) for data in (first, again, other)]
    assert batches[0].equal(batches[1])
    assert not batches[0].equal(batches[2])
    assert not batches[0].equal(_numbers(first.valid[0]))


def _numbers(batch: object) -> torch.Tensor:
    """All that is in a batch, in a row."""
    parts = []
    for record in [batch.arguments] if isinstance(batch, Bucket) else batch:  # type: ignore[attr-defined]
        for part in record:
            columns = [part] if isinstance(part, torch.Tensor) else list(part._columns.values())
            parts += [torch.as_tensor(column).double().reshape(-1) for column in columns]
    return torch.cat(parts)


def test_generated_trees_are_those_of_the_treebank() -> None:
    trees = [tree for (tree,) in sentiment.generated(400, 0)]
    leaves = np.array([(len(tree) + 1) // 2 for tree in trees])
    assert leaves.mean() == pytest.approx(19.1, abs=1.0)
    assert leaves.min() >= 2
    assert leaves.max() <= 52
    labels = np.bincount(np.concatenate([tree._columns["label"] for tree in trees]), minlength=5)
    assert (labels > 0).all()


def test_generated_molecules_are_of_the_size_of_the_real_ones() -> None:
    rng = np.random.default_rng(0)
    molecules = [qm9.molecule(rng) for _ in range(300)]
    assert np.mean([len(m.atoms) for m in molecules]) == pytest.approx(18.06, abs=0.4)
    assert 2 * np.mean([len(m.bonds) for m in molecules]) == pytest.approx(37.4, abs=1.0)


def test_generated_images_are_copies_of_ten() -> None:
    images, labels = mnist.generated(300, 0)
    assert images.shape == (300, 784)
    means = torch.stack([images[labels == k].mean(0) for k in range(10)])
    nearest = torch.cdist(images, means).argmin(1)
    assert (nearest == labels).float().mean() > 0.99


def test_every_workload_has_what_its_rows_name() -> None:
    for workload in BY_NAME.values():
        assert workload.rival in workload.peers
        assert workload.base.removesuffix(" 1 thread") in workload.peers
        assert workload.target.metric in ("accuracy", "absolute_error", "loss")
    assert len(BY_NAME) == sum(len(several) for several in WORKLOADS.values())


def test_replicas_and_workers_follow_from_the_first_row() -> None:
    ours = ours_of(BY_NAME["list-reduction"], "ours 3 replicas")
    assert (ours.replicas, ours.workers, ours.in_flight, ours.every) == (3, 3, BY_NAME["list-reduction"].each, 1)


def test_a_race_ends_at_the_target_or_when_the_time_is_up() -> None:
    from dataclasses import replace

    workload = BY_NAME["list-reduction"]
    data = workload.data(Wanted(20, "generated", most=4))
    for target, reached in ((Target("accuracy", 0.01), True), (Target("loss", 1e-9, seconds=1e-9), False)):
        contender = OurRuntime(workload, data, ours_of(workload, "ours"))
        found = race(contender, data, replace(workload, target=target))
        assert (found.reached, found.epochs) == (reached, 1)
        assert found.seconds > 0


def test_turns_of_ours_and_of_a_peer_learn_alike() -> None:
    """With one instance in flight, ours is minibatch training: the same weights as the peer's after some updates."""
    from bench.contender import TorchPeer

    workload = BY_NAME["mnist"]
    data = workload.data(Wanted(workload.batch, "generated", most=3))
    ours = OurRuntime(workload, data, ours_of(workload, "ours"))
    peer = TorchPeer(workload, data, workload.peers["torch eager"])
    for contender in (ours, peer):
        contender.train([0, 1, 2])
    assert_close(dict(peer.peer.state_dict()), ours.graph.model.state_dict(), 1e-5)  # type: ignore[attr-defined]
    assert ours.valid([0]).loss == pytest.approx(peer.valid([0]).loss, rel=1e-4)
    assert ours.valid([0]).metric == pytest.approx(peer.valid([0]).metric)
    assert ours.updates() == peer.updates() == 3
