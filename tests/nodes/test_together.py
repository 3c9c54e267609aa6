"""Functions of one row are given all rows only where that is the same, whatever the weights are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ampnet.errors import PayloadError
from ampnet.nodes import Module
from ampnet.nodes.bodies import Mapped
from ampnet.nodes.together import call, over_rows, rows_at_once

FUNCTIONS = {
    "leaky_relu": (nn.functional.leaky_relu, True),
    "last column": (lambda x: x[..., -1], True),
    "first column": (lambda x: x[0], False),
    "softmax of a row": (lambda x: x.softmax(-1), True),
    "softmax over the first dimension": (lambda x: x.softmax(0), False),
    "turned round": (lambda x: x.flip(0), False),
    "all of it": (lambda x: x.sum(), False),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_function_of_all_rows_is_one_of_each(name: str, rows: int) -> None:
    function, at_once = FUNCTIONS[name]
    x = torch.randn(rows, 4)
    found = rows_at_once(function, [x], [True])
    assert (found is function) == at_once
    assert torch.equal(found(x), torch.stack([function(row) for row in x]))


def test_a_constant_is_not_mapped() -> None:
    x, constant = torch.randn(5, 4), torch.randn(4)
    found = rows_at_once(torch.maximum, [x, constant], [True, False])
    assert torch.equal(found(x, constant), torch.maximum(x, constant))


class Mixing(nn.Module):
    """Mixes the rows of its batch as soon as its gate is not zero, which it is at first."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * x.mean(0)


@pytest.mark.parametrize("shape", [(1, 3), (2, 3)])
def test_weights_that_are_zero_hide_nothing(shape: tuple[int, int]) -> None:
    module, x = Mixing(), torch.randn(5, *shape)
    for gate in (0.0, 2.0):
        w = {"gate": torch.tensor([gate])}
        module.gate.data.fill_(gate)
        found = over_rows("here", lambda w, row: call(module, w, row, {}), module, w, [x], batches=True)
        torch.testing.assert_close(found, torch.stack([module(row) for row in x]))


@pytest.mark.parametrize("module", [nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten()), nn.Conv2d(1, 2, 3)])
def test_a_network_for_batches_is_given_one(module: nn.Module) -> None:
    """Rows that are batches of one: the result is what it is for each."""
    x = torch.randn(4, 1, 1, 5, 5)
    found = Mapped().rows(module, dict(module.named_parameters()), [x], [])
    torch.testing.assert_close(found, torch.stack([module(row) for row in x]))


def test_random_numbers_are_refused() -> None:
    with pytest.raises(PayloadError, match="random"):
        Mapped().rows(nn.Dropout(0.5), {}, [torch.randn(4, 3)], [])


def test_parameters_are_back_after_a_call() -> None:
    """Also after one that fails; tied ones are replaced together."""
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    before = dict(module.named_parameters())
    x, w = torch.randn(2, 3), {name: torch.randn_like(p) for name, p in before.items()}
    want = torch.func.functional_call(module, w, (x,))
    assert torch.equal(call(module, w, (x,), {}), want)
    with pytest.raises(RuntimeError):
        call(module, w, (torch.randn(2, 4),), {})
    assert all(p is before[name] for name, p in module.named_parameters())
    assert module[1].weight is module[0].weight
    Module(module)
