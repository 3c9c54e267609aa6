"""A training process that is killed at any point (K) goes on from its last checkpoint, to the same weights (P14)."""

from __future__ import annotations

import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.optim import Adam

from ampnet import Inline, Update
from ampnet.checkpoint import Checkpoints
from tests.fitting.resumed import assert_same, inline, lasting, train

ADAM = Update(partial(Adam, lr=0.02), 4, "instances")
TURNS = 40
"""Fewer than a whole run has."""


def run(folder: Path, **settings: Any) -> tuple[Any, Any]:
    with inline(ADAM, schedule="fifo", wave_size=2) as runtime:
        result = train(runtime, folder, every=7, epochs=2, resume="auto", **settings)
        return lasting(result), runtime.snapshot()


def killed_at(turn: int, folder: Path) -> None:
    """Train in a process of its own, which kills itself at a turn."""
    child = os.fork()
    if not child:
        original, count = Inline._turn, 0

        def counted(self: Inline) -> None:
            nonlocal count
            count += 1
            if count == turn:
                os.kill(os.getpid(), signal.SIGKILL)
            original(self)

        Inline._turn = counted  # type: ignore[method-assign]
        try:
            run(folder)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again(seed: int, tmp_path: Path) -> None:
    """Each process continues what the one before has left, and is killed in turn."""
    wanted, snapshot = run(tmp_path / "whole")
    some = random.Random(seed)
    folder = tmp_path / "killed"
    for _ in range(4):
        killed_at(some.randrange(1, TURNS), folder)
    result, again = run(folder)
    assert_same(result, wanted)
    assert_same(again.tensors, snapshot.tensors)
    assert_same(again.data, snapshot.data)
    assert not [name for name in os.listdir(folder) if not name.startswith("checkpoint-")]
    assert Checkpoints(folder).numbers()[-1] >= 8
