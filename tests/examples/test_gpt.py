"""examples/gpt: the pipeline computes what plain torch computes, and learns; its text is the same every time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from examples.gpt.__main__ import main
from examples.gpt.data import library, windows
from examples.gpt.model import Gpt, Sizes, affinity, next_character, stages

import ampnet
from ampnet.testing import assert_close, assert_compiled, assert_predicts

SMALL = Sizes(blocks=4, width=8, heads=2, context=6, characters=11)
needs_linux = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


def microbatches(count: int, sequences: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(0)
    shape = (2, sequences, SMALL.context)
    drawn = [torch.randint(0, SMALL.characters, shape, generator=random) for _ in range(count)]
    return [(both[0], both[1]) for both in drawn]


@pytest.fixture
def model() -> Gpt:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Gpt(SMALL).double()


def test_the_graph_computes_what_the_model_computes(model: Gpt) -> None:
    data = [(tokens[0], targets[0]) for tokens, targets in microbatches(3)]
    graph = assert_compiled(model, data, max_active_keys=3)
    assert_predicts(model, data, graph=graph, max_active_keys=3)


@needs_linux
def test_gradients_on_four_workers_are_those_of_autograd(model: Gpt) -> None:
    data = microbatches(6)
    plain = model.plain()
    total = torch.stack([next_character(plain(tokens), targets).mean() for tokens, targets in data]).sum()
    names = {f"{name}.{own}": p for name, part in model.parts() for own, p in part.named_parameters()}
    want = dict(zip(names, torch.autograd.grad(total, list(names.values())), strict=True))
    graph = ampnet.compile(model, data[0][0][0], data[0][1][0])
    with ampnet.Processes(graph, workers=4, affinity=affinity(model, 4), max_active_keys=5, wave_size=1) as runtime:
        trained = runtime.train([graph.bucket(3, *batch) for batch in data])
        assert runtime.stats().in_flight > 1
        assert_close(graph.gradients(), want)
    assert trained.loss == pytest.approx(float(total.detach()) / 6)


@needs_linux
def test_it_learns(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--blocks=4", "--width=16", "--heads=2", "--context=16", "--held-out=8", "--parts=2", "--updates=40"]
    with torch.random.fork_rng():
        losses = main([*small, "--learning-rate=0.01", "--workers=4"])
    assert losses[-1] < 0.75 * losses[0]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert "tokens/s" in lines[2]


def test_stages_have_equally_many_blocks() -> None:
    model = Gpt(Sizes(blocks=4, width=8, heads=2))
    assert [[name for name, _ in some] for some in stages(model, 2)] == [
        ["embed", "blocks_0", "blocks_1"],
        ["blocks_2", "blocks_3", "head"],
    ]
    assert affinity(model, 4) == {
        "embed": 0,
        "blocks_0": 0,
        "blocks_1": 1,
        "blocks_2": 2,
        "blocks_3": 3,
        "head": 3,
        "loss": 3,
    }
    with pytest.raises(ValueError, match="4 blocks cannot be cut into 3 equal stages"):
        stages(model, 3)


# Data


def test_the_standard_library_is_read_in_one_order() -> None:
    corpus = library()
    assert len(corpus.train) > 10 * len(corpus.valid) > 100_000
    again = library()
    assert torch.equal(corpus.train, again.train)
    assert torch.equal(corpus.valid, again.valid)
    first, second = (list(corpus.microbatches(3, 2, 16, seed=5)) for _ in range(2))
    assert all(
        torch.equal(a, b) for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True)
    )
    assert first[0][0].shape == (2, 16)
    assert not torch.equal(first[0][0], next(iter(corpus.microbatches(1, 2, 16, seed=6)))[0])


def test_every_20th_file_is_held_out_and_tests_are_not_read(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}.py").write_bytes(b"%d" % (number % 20 // 19) * 3)
    for folder in ("test", "site-packages/else"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "no.py").write_text("never")
    (tmp_path / "text.txt").write_text("never")
    corpus = library(tmp_path)
    assert bytes(corpus.train.tolist()) == b"0" * 3 * 38
    assert bytes(corpus.valid.tolist()) == b"1" * 3 * 2


def test_a_target_is_the_next_character() -> None:
    tokens, targets = windows(torch.arange(10, dtype=torch.uint8), torch.tensor([0, 4]), 3)
    assert tokens.tolist() == [[0, 1, 2], [4, 5, 6]]
    assert targets.tolist() == [[1, 2, 3], [5, 6, 7]]
