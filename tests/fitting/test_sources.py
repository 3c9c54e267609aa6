"""What `fit` takes as data, and in which order it is pumped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ampnet import DataError, fit
from ampnet.fitting.sources import length_of, source_of
from ampnet.instance import Instance
from tests.fitting.models import inline, points

POINTS = points(12)


def firsts(source: Any, epoch: int) -> list[float]:
    return [float(instance.feeds["x"].payload) for instance in source(epoch)]


class Points(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return len(POINTS)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        self.read += 1
        return POINTS[i]


@pytest.mark.parametrize("kind", ["list", "dataset"])
def test_sized_data_are_shuffled_by_seed_and_epoch(kind: str) -> None:
    with inline() as runtime:

        def made(seed: int, shuffle: bool | None = None) -> Any:
            data = POINTS if kind == "list" else Points()
            return source_of(data, runtime, shuffle=shuffle, seed=seed, epochs=3, name="train")

        plain = [float(x) for x, _ in POINTS]
        first = firsts(made(0), 1)
        assert sorted(first) == sorted(plain)
        assert first != plain
        assert firsts(made(0), 1) == first
        assert firsts(made(0), 2) != first
        assert firsts(made(1), 1) != first
        assert firsts(made(0, shuffle=False), 1) == plain


def test_a_list_is_made_into_instances_once_and_a_dataset_is_read_anew() -> None:
    data = Points()
    with inline() as runtime:
        kept = source_of(POINTS, runtime, shuffle=None, seed=0, epochs=3, name="train")
        assert {id(i) for i in kept(1)} == {id(i) for i in kept(2)}
        anew = source_of(data, runtime, shuffle=None, seed=0, epochs=3, name="train")
        assert all(isinstance(i, Instance) for i in [*anew(1), *anew(2)])
    assert data.read == 24


def test_the_seed_decides_what_is_learned() -> None:
    def trained(seed: int) -> Tensor:
        with inline() as runtime:
            fit(runtime, train=POINTS, epochs=2, seed=seed)
            weight: Tensor = runtime.graph.model.first.weight  # type: ignore[attr-defined]
            return weight.detach().clone()

    assert torch.equal(trained(3), trained(3))
    assert not torch.equal(trained(3), trained(4))


@pytest.mark.parametrize(
    "data",
    [
        tuple(POINTS),
        [{"x": x, "y": y} for x, y in POINTS],
        DataLoader(Points(), batch_size=None),
        lambda epoch: POINTS[:epoch],
        lambda epoch: iter(POINTS),
    ],
    ids=["tuple", "dicts", "loader", "function", "function of iterators"],
)
def test_data_of_every_kind(data: Any) -> None:
    with inline() as runtime:
        assert fit(runtime, train=data, valid=data, epochs=2).epochs == 2


def test_a_bad_sample_is_named_by_its_number() -> None:
    with inline() as runtime, pytest.raises(DataError, match="sample 2 of train"):
        fit(runtime, train=[*POINTS[:2], (torch.zeros(3), torch.zeros(1))], epochs=1)


def test_what_cannot_be_shuffled() -> None:
    with inline() as runtime, pytest.raises(DataError, match="function of the epoch: shuffle there"):
        fit(runtime, train=lambda epoch: POINTS, epochs=1, shuffle=True)


def test_lengths() -> None:
    assert length_of(POINTS) == 12
    assert length_of(Points()) == 12
    assert length_of(iter(POINTS)) is None
    with inline() as runtime:
        graph: Any = runtime.graph
        assert length_of([graph.instance(*POINTS[0]), graph.instance(*POINTS[1])]) == 2
