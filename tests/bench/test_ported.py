"""The models of `bench.ported`: ours in plain torch, ours in the runtime and the batched torch module have the same
gradients in float64."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from bench.peers.peer import Peer
from bench.ported import ALL, PORTED, Ported
from bench.ported.__main__ import main
from bench.ported.entry import apart, of_eager, of_inline, of_peer
from torch import Tensor

from ampnet import Inline

FEW = 4
"""Records of a batch."""
TOLERANCE = 1e-8
"""Relative to the largest entry of a gradient."""


def of_model(one: Ported) -> tuple[list[tuple[object, ...]], dict[str, Tensor]]:
    """Some records, and the gradients of their summed loss by plain autograd."""
    records = list(one.data(FEW, 1))
    return records, of_eager(one.seeded(torch.float64), records)


def assert_equal(got: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> None:
    gap, where = apart(got, want)
    assert gap <= TOLERANCE, where


@pytest.mark.parametrize("one", ALL, ids=PORTED)
def test_the_runtime_computes_what_the_model_says(one: Ported) -> None:
    records, want = of_model(one)
    assert_equal(of_inline(one.compiled(records[0], torch.float64), records), want)


@pytest.mark.parametrize("one", ALL, ids=PORTED)
def test_messages_compute_what_the_model_says(one: Ported) -> None:
    """Message by message, without computing whole instances at once."""
    if "waves" not in inspect.signature(Inline).parameters:
        pytest.skip("this runtime has no other way to compute")
    records, want = of_model(one)
    assert_equal(of_inline(one.compiled(records[0], torch.float64), records, waves=False), want)


@pytest.mark.parametrize("one", ALL, ids=PORTED)
def test_torch_computes_what_the_model_says(one: Ported) -> None:
    records, want = of_model(one)
    peer = one.peer(one.seeded(torch.float64))
    assert_equal(of_peer(peer, records), peer.weights(want))


def test_every_gradient_is_there() -> None:
    """All parameters are reached by some loss, so none of the comparisons above is one of zeros."""
    for one in ALL:
        records = list(one.data(3 * FEW, 1))
        for name, gradient in of_eager(one.seeded(torch.float64), records).items():
            assert gradient.abs().sum() > 0, f"{one.name}: {name}"


def test_the_registry_is_complete() -> None:
    assert list(PORTED) == [one.name for one in ALL]
    assert len(PORTED) == 7
    for one in ALL:
        assert issubclass(one.peer, Peer)
        assert 20 <= one.batch <= 64
        assert [len(batch) for batch in one.batches(2)] == [one.batch] * 2


def test_data_follows_from_its_seed() -> None:
    for one in ALL:
        first, again, other = (of_peer(one.peer(one.seeded()), list(one.data(2, seed))) for seed in (5, 5, 6))
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert any(not torch.equal(first[name], other[name]) for name in first)


def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ported.json"
    main(["gru-tree", "--seconds", "0.01", "--turns", "1", "--batches", "1", "--profile", "--json", str(path)])
    out = capsys.readouterr().out
    assert "gru-tree" in out and "ratio" in out and "GRU cell" in out
    (result,) = json.loads(path.read_text())["models"]
    assert result["ours"] > 0 and result["torch"] > 0
    assert result["ratio"] == pytest.approx(result["ours"] / result["torch"])


def test_the_command_knows_its_models(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bert"])
    assert "gru-tree" in capsys.readouterr().err
