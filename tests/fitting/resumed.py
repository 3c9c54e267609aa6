"""What the tests of checkpoints train, and how two runs are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ampnet import Checkpoint, FitResult, Inline, Model, Seq, Update, compile, fit
from ampnet.checkpoint import Checkpoints
from ampnet.lang import Compiled, fold, loss
from ampnet.runtime.runtime import Runtime


class Reader(Model):
    """A loop over a sequence, dropout, and two losses."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(7, 4), nn.Linear(8, 4)
        self.drop, self.mood, self.size = nn.Dropout(0.3), nn.Linear(4, 3), nn.Linear(4, 1)

    def forward(self, xs: Seq, mood: Tensor, size: Tensor) -> Tensor:
        h = fold(lambda h, x: torch.tanh(self.cell(torch.cat([h, self.embed(x)]))), xs, torch.zeros(4))
        h = self.drop(h)
        loss(self.mood(h), mood, name="mood")
        loss(self.size(h), size, "squared_error", name="size")
        return h


def sentences(count: int, seed: int = 0) -> list[tuple[Seq, Tensor, Tensor]]:
    some = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (count,), generator=some).tolist()
    tokens = [torch.randint(7, (length,), generator=some) for length in lengths]
    return [(Seq(t), t.sum() % 3, torch.tensor([float(len(t))])) for t in tokens]


def reader(seed: int = 0) -> Compiled:
    torch.manual_seed(seed)
    return compile(Reader(), *sentences(1)[0])


TRAIN, VALID = sentences(30), sentences(7, seed=1)


def train(runtime: Runtime, folder: Path, *, every: Any = 8, epochs: int = 3, **settings: Any) -> FitResult:
    """Trains on sentences, with all checkpoints kept."""
    resume = settings.pop("resume", False)
    at = settings.pop("at", "drained")
    checkpoint = Checkpoint(folder, every=every, keep=1000, at=at)
    data = {"train": TRAIN, "valid": VALID, **settings}
    return fit(runtime, epochs=epochs, checkpoint=checkpoint, resume=resume, **data)


def lasting(result: FitResult) -> dict[str, Any]:
    """A result without times."""
    plain = asdict(result)
    for record in plain["history"]:
        for name in ("seconds", "train_records_per_second", "valid_records_per_second"):
            record.pop(name)
    names = ("metric", "value", "epoch", "reached", "epochs", "skipped", "stopped", "history")
    return {name: plain[name] for name in names}


def assert_same(one: Any, other: Any, where: str = "") -> None:
    """Equal to the bit; NaN equals NaN."""
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8)), where
    elif isinstance(one, Mapping):
        assert set(one) == set(other), where
        for name in one:
            assert_same(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(one, float) and math.isnan(one):
        assert math.isnan(other), where
    else:
        assert one == other, where


def assert_resumes(
    make: Callable[[], Runtime], folder: Path, callbacks: Callable[[], list[Any]] = list, **settings: Any
) -> None:
    """A run resumed from any of its checkpoints equals the uninterrupted run to the bit: weights, optimizers, counters,
    records, statistics, and every later checkpoint."""
    whole = folder / "whole"
    torch.manual_seed(5)
    with make() as runtime:
        wanted = train(runtime, whole, callbacks=callbacks(), **settings)
        snapshot = runtime.snapshot()
    numbers = Checkpoints(whole).numbers()
    assert len(numbers) > 2
    for number in {numbers[0], numbers[len(numbers) // 2], numbers[-1]}:
        torch.manual_seed(number)  # a new process has other states
        there = folder / f"from {number}"
        with make() as runtime:
            start = whole / f"checkpoint-{number:06d}"
            result = train(runtime, there, callbacks=callbacks(), resume=start, **settings)
            assert result.resumed is not None
            assert result.resumed.path == start
            again = runtime.snapshot()
        assert_same(again.tensors, snapshot.tensors, f"{number}: tensors")
        assert_same(again.data, snapshot.data, f"{number}: data")
        assert_same(lasting(result), lasting(wanted), f"{number}: result")
        _assert_same_checkpoints(whole, there, numbers[numbers.index(number) + 1 :])


def _assert_same_checkpoints(whole: Path, there: Path, numbers: list[int]) -> None:
    """The checkpoints of the resumed run are those that the other wrote after it."""
    found = Checkpoints(there)
    assert len(found.numbers()) == len(numbers)
    for number, own in zip(numbers, found.numbers(), strict=True):
        one, other = (Checkpoints(at).read(at / f"checkpoint-{n:06d}") for at, n in ((whole, number), (there, own)))
        assert_same(one.tensors, other.tensors, f"checkpoint {number}")
        assert_same(one.data["runtime"], other.data["runtime"], f"checkpoint {number}")
        for opened, wanted in zip(one.data["fit"]["open"].values(), other.data["fit"]["open"].values(), strict=True):
            assert {**opened["position"], "seconds": 0} == {**wanted["position"], "seconds": 0}
        assert one.data["generators"] == other.data["generators"]


def inline(update: Update, graph: Compiled | None = None, **settings: Any) -> Inline:
    """At most eight instances in flight."""
    return Inline(graph or reader(), update=update, **{"max_active_keys": 8, **settings})
