"""The paper's RNN: it computes what plain torch computes, learns, and repeats itself to the bit."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from ampnet import Inline, Update
from ampnet.cli import main
from ampnet.data.list_reduction import buckets, generate
from ampnet.models import by_hand as rnn
from ampnet.testing import assert_close

GOLDEN = Path(__file__).parents[1] / "golden" / "list_reduction.json"


@pytest.mark.parametrize("bucket", [1, 7])
def test_predictions_equal_plain_torch(bucket: int) -> None:
    graph, data = rnn.build(hidden=6, dtype=torch.float64), generate(60, 2)
    groups = list(buckets(data, bucket))
    with Inline(graph, max_active_keys=5) as runtime:
        stats = runtime.infer((rnn.instance(data, w, 6, torch.float64) for w in groups), keep_predictions=True)
    for position, where in enumerate(groups):
        ((_, _, rows),) = stats.predictions[position]
        assert_close({"scores": rows}, {"scores": rnn.eager(graph.module(), data, where).detach()})
    right = sum(int((rnn.eager(graph.module(), data, w).argmax(1).numpy() == data.labels[w]).sum()) for w in groups)
    assert stats.metrics["accuracy"] == pytest.approx(right / 60)
    assert stats.records == 60


def test_an_unlabelled_sequence_gets_a_prediction() -> None:
    from ampnet import Instance, feed

    graph, data = rnn.build(hidden=6), generate(3, 2)
    full = rnn.instance(data, np.array([1]), 6)
    blank = Instance({**full.feeds, "label": feed(None, messages=1)})
    with Inline(graph) as runtime:
        stats = runtime.infer([blank], keep_predictions=True)
    ((_, _, rows),) = stats.predictions[0]
    torch.testing.assert_close(rows, rnn.eager(graph.module(), data, np.array([1])).detach())


def loss_curve() -> list[float]:
    data = generate(600, 9)
    graph = rnn.build(hidden=16, seed=3, dtype=torch.float64)
    update = Update(partial(torch.optim.Adam, lr=5e-3), 1, "instances", weights="current", remedies=())
    with Inline(graph, update=update, max_active_keys=4, waves=False) as runtime:  # recorded message by message
        return [
            runtime.train(rnn.instances(data, 20, np.random.default_rng(epoch), 16, torch.float64)).loss
            for epoch in range(4)
        ]


def test_the_loss_curve_is_the_golden_one() -> None:
    """A refactoring proves itself by this curve. If learning is meant to change, write it anew and say so."""
    got = loss_curve()
    want = json.loads(GOLDEN.read_text(encoding="utf-8"))["loss"]
    assert got == pytest.approx(want, rel=1e-6)
    assert got[-1] < got[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_learns_in_other_dtypes(dtype: torch.dtype) -> None:
    data = generate(400, 9)
    graph = rnn.build(hidden=32, seed=3, dtype=dtype)
    with Inline(graph, update=Update(partial(torch.optim.Adam, lr=5e-3), 1, "instances"), max_active_keys=2) as runtime:
        losses = [runtime.train(rnn.instances(data, 20, np.random.default_rng(e), 32, dtype)).loss for e in range(6)]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "options",
    [
        ["--max-active-keys", "1"],
        ["--max-active-keys", "4"],
        ["--max-active-keys", "16"],
        ["--max-active-keys", "16", "--seed", "1"],
        ["--bucket", "1"],
    ],
    ids=" ".join,
)
def test_it_reaches_97_percent_in_ten_epochs(options: list[str], tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = ["train", "list-reduction", "--target", "0.97", "--epochs", "10", "--quiet", "--json", str(out)]
    assert main([*command, *options]) == 0
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["value"] >= 0.97
    assert result["epochs"] <= 10


def epochs(tmp_path: Path, *options: str) -> int:
    out = tmp_path / "result.json"
    command = ["train", "list-reduction", "--target", "0.97", "--epochs", "14", "--quiet", "--json", str(out)]
    assert main([*command, *options]) == 0
    found: int = json.loads(out.read_text(encoding="utf-8"))["epochs"]
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", ["0", "1"])
def test_two_replicas_need_at_most_two_epochs_more_than_one(seed: str, tmp_path: Path) -> None:
    one = epochs(tmp_path, "--seed", seed)
    assert epochs(tmp_path, "--seed", seed, "--replicas", "2") <= one + 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_four_replicas_need_no_more_epochs_than_in_the_paper(tmp_path: Path) -> None:
    assert epochs(tmp_path, "--replicas", "4") <= 14
