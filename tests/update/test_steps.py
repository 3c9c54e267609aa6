"""Steps by fused kernels are those of torch's own ``optimizer.step()``, and updates at once are those one by one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, LRScheduler

from ampnet.nodes import Embedding, Linear
from ampnet.testing import assert_close
from ampnet.update.at_once import apply_at_once
from ampnet.update.policy import Update
from ampnet.update.steps import Stepper, stepper
from ampnet.update.updater import Updater

F64 = torch.float64
Make = Callable[[Any], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": partial(SGD, lr=0.1),
    "sgd decay": partial(SGD, lr=0.1, weight_decay=0.01),
    "momentum": partial(SGD, lr=0.1, momentum=0.9),
    "momentum decay": partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01, dampening=0.2),
    "nesterov": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": partial(Adam, lr=0.01),
    "adam decay": partial(Adam, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.01),
    "adamw": partial(AdamW, lr=0.01),
    "adamw decay": partial(AdamW, lr=0.01, betas=(0.8, 0.95), weight_decay=0.2, fused=True),
    "adagrad": partial(Adagrad, lr=0.1),
    "adagrad decay": partial(Adagrad, lr=0.1, lr_decay=0.1, weight_decay=0.01, initial_accumulator_value=0.1, eps=1e-6),
}
SCHEDULES: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "exponential": partial(ExponentialLR, gamma=0.7),
    "cosine": partial(CosineAnnealingLR, T_max=4),
    "lambda": partial(LambdaLR, lr_lambda=lambda step: 1 / (1 + step)),
}


def parameters(seed: int = 0) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=random, dtype=F64)) for shape in ((5, 3), (5,), ())]


def gradients(step: int) -> list[Tensor]:
    return [p.detach().clone() for p in parameters(100 + step)]


def named(tensors: Any) -> dict[str, Tensor]:
    return {str(i): t.detach() for i, t in enumerate(tensors)}


class Pair:
    """An optimizer that is stepped quickly, and the same as torch does it."""

    def __init__(self, make: Make) -> None:
        self.ours, self.theirs = parameters(), parameters()
        self.optimizers = make(self.ours), make(self.theirs)
        quick = stepper(self.optimizers[0])
        assert isinstance(quick, Stepper)
        self.quick = quick

    def step(self, number: int, count: int = 1) -> None:
        self.quick.step(gradients(number), count)
        for p, g in zip(self.theirs, gradients(number), strict=True):
            p.grad = g / count
        self.optimizers[1].step()

    def check(self) -> None:
        assert_close(named(self.ours), named(self.theirs), 1e-12)
        for mine, other in zip(self.ours, self.theirs, strict=True):
            known = [
                {k: v for k, v in o.state[p].items() if v is not None}
                for o, p in zip(self.optimizers, (mine, other), strict=True)
            ]
            assert_close(*({k: torch.as_tensor(v, dtype=F64) for k, v in some.items()} for some in known), 1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("count", [1, 7])
def test_five_steps(name: str, count: int) -> None:
    pair = Pair(OPTIMIZERS[name])
    for number in range(5):
        pair.step(number, count)
        pair.check()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_of_learning_rates(name: str, schedule: str) -> None:
    pair = Pair(OPTIMIZERS[name])
    schedules = [SCHEDULES[schedule](optimizer) for optimizer in pair.optimizers]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of a schedule that steps before its optimizer did
        for number in range(5):
            pair.step(number)
            for one in schedules:
                one.step()
    pair.check()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_may_be_loaded_in_between(name: str) -> None:
    """Once, the settings were those from before: a learning rate that was loaded, or scheduled later, had no effect."""
    pair = Pair(OPTIMIZERS[name])
    for number in range(3):
        pair.step(number)
    saved = copy.deepcopy(pair.optimizers[0].state_dict())
    for number in range(3, 5):
        pair.step(number)
    for optimizer in pair.optimizers:
        state = copy.deepcopy(saved)
        state["param_groups"][0]["lr"] *= 0.5
        optimizer.load_state_dict(state)
    for number in range(5, 8):
        pair.step(number)
        pair.check()
    for optimizer in pair.optimizers:
        optimizer.param_groups[0]["lr"] *= 0.5
    pair.step(8)
    pair.check()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_torch_and_we_may_take_turns(name: str) -> None:
    pair = Pair(OPTIMIZERS[name])
    for number in range(6):
        if number % 2:
            for some, optimizer in zip((pair.ours, pair.theirs), pair.optimizers, strict=True):
                for p, g in zip(some, gradients(number), strict=True):
                    p.grad = g
                optimizer.step()
        else:
            pair.step(number)
        pair.check()


def test_a_state_of_one_optimizer_goes_on_in_another() -> None:
    for name in ("momentum", "adam", "adagrad"):
        pair = Pair(OPTIMIZERS[name])
        for number in range(3):
            pair.step(number)
        other = Pair(OPTIMIZERS[name])
        for p, q in zip(other.ours + other.theirs, pair.ours + pair.theirs, strict=True):
            p.data.copy_(q.data)
        other.optimizers[0].load_state_dict(pair.optimizers[1].state_dict())
        other.optimizers[1].load_state_dict(pair.optimizers[0].state_dict())
        other.step(3)
        other.check()


def test_what_is_unusual_is_left_to_torch() -> None:
    ps = parameters()
    unusual = {
        "amsgrad": Adam(ps, amsgrad=True),
        "maximize": SGD(ps, lr=0.1, maximize=True),
        "capturable": Adam(ps, capturable=True),
        "differentiable": Adam(ps, differentiable=True),
        "rate as a tensor": Adam(ps, lr=torch.tensor(0.1)),
        "two groups": SGD([{"params": ps[:1]}, {"params": ps[1:], "lr": 0.2}], lr=0.1),
        "another": RMSprop(ps),
        "of one's own": type("Own", (SGD,), {})(ps, lr=0.1),
        "half": SGD([nn.Parameter(torch.ones(2, dtype=torch.bfloat16))], lr=0.1),
        "mixed": SGD([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=F64))], lr=0.1),
        "columns": SGD([nn.Parameter(torch.ones(4, 4)[:, :2])], lr=0.1),
    }
    for hook in ("register_step_pre_hook", "register_step_post_hook"):
        optimizer = SGD(ps, lr=0.1)
        getattr(optimizer, hook)(lambda *a, **k: None)
        unusual[hook] = optimizer
    assert {name for name, optimizer in unusual.items() if stepper(optimizer) is not None} == set()


def test_columns_of_a_larger_matrix_leave_the_others_alone() -> None:
    """Once, the kernels wrote into neighbours: a tile's weights are columns of the whole."""
    for name in ("sgd", "momentum", "adam", "adagrad"):
        whole = torch.ones(4, 6, dtype=F64)
        updater = Updater([nn.Parameter(whole[:, 1:3])])
        updater.adopt(Update(OPTIMIZERS[name]))  # type: ignore[arg-type]
        updater.adding[0].fill_(0.5)
        updater.count_messages(1)
        updater.apply()
        assert (whole[:, 1:3] != 1).all()
        assert (whole[:, :1] == 1).all()
        assert (whole[:, 3:] == 1).all()


# Rows of a table


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_rows_or_all_of_a_table(name: str) -> None:
    """Rows without a gradient stay as they are, so only the others are looked at."""
    results = []
    for by_rows in (True, False):
        table = nn.Parameter(torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=F64))
        optimizer = OPTIMIZERS[name]([table])
        quick = stepper(optimizer)
        assert quick is not None
        assert quick.can_step_rows()
        for number, rows in enumerate(([1, 4], [4], [0, 8, 4])):
            index, total = torch.tensor(rows), torch.zeros(9, 3, dtype=F64)
            total[index] = torch.randn(len(rows), 3, generator=torch.Generator().manual_seed(number), dtype=F64)
            if by_rows:
                quick.step_rows(table.detach(), index, total[index])
            else:
                table.grad = total
                optimizer.step()
        results.append(
            {"table": table.detach().clone(), **{k: torch.as_tensor(v) for k, v in optimizer.state[table].items()}}
        )
    assert_close(*results, 1e-12)


def test_rows_are_not_enough_where_others_change_too() -> None:
    assert {
        name
        for name, make in OPTIMIZERS.items()
        if (quick := stepper(make(parameters()))) is not None and quick.can_step_rows()
    } == {"sgd", "adagrad"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_embedding_updates_as_torch_does(name: str) -> None:
    node = Embedding(8, 3, dtype=F64)
    twin = nn.Parameter(next(iter(node.parameters.values())).detach().clone())
    optimizer = OPTIMIZERS[name]([twin])
    updater = node.updater
    updater.adopt(Update(OPTIMIZERS[name], 3))  # type: ignore[arg-type]
    for number in range(4):
        rows = torch.tensor([number, 5, number + 1])
        g = torch.randn(3, 3, generator=torch.Generator().manual_seed(number), dtype=F64)
        updater.adding[0].index_add_(0, rows, g)
        updater.touch(rows)
        updater.count_messages(3)
        assert updater.due()
        updater.apply()
        twin.grad = torch.zeros(8, 3, dtype=F64).index_add_(0, rows, g) / 3
        optimizer.step()
    assert_close({"table": updater.weights[0]}, {"table": twin}, 1e-12)


# Several nodes at once


def updaters(make: Make, frequencies: list[int], **settings: Any) -> list[Updater]:
    out = []
    for number, frequency in enumerate(frequencies):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            updater = Linear(3, 2 + number % 2, dtype=F64).updater
        updater.adopt(Update(make, frequency, **settings))  # type: ignore[arg-type]
        out.append(updater)
    return out


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("average", [True, False])
def test_several_at_once_are_the_same_as_one_by_one(name: str, average: bool) -> None:
    """Some come in later than others, so that their first steps, and their numbers of steps, differ."""
    together = updaters(OPTIMIZERS[name], [1, 1, 2, 1, 1], average=average)
    alone = updaters(OPTIMIZERS[name], [1, 1, 2, 1, 1], average=average)
    for number in range(5):
        for some in (together, alone):
            for place, updater in enumerate(some):
                if place == 4 and number < 2:
                    continue
                random = torch.Generator().manual_seed(10 * number + place)
                for total in updater.adding:
                    total.add_(torch.randn(total.shape, generator=random, dtype=F64))
                updater.count_messages(1 + place % 2)
        apply_at_once([updater for updater in together if updater.due()])
        for updater in alone:
            if updater.due():
                updater.apply()
        for one, other in zip(together, alone, strict=True):
            assert one.version == other.version
            assert_close(named(one.weights), named(other.weights), 1e-12)


def test_at_once_with_clipping_schedules_and_nodes_of_other_settings() -> None:
    def some() -> list[Updater]:
        schedule = partial(ExponentialLR, gamma=0.5)
        return [
            *updaters(OPTIMIZERS["adam"], [1, 1]),
            *updaters(OPTIMIZERS["adam"], [1, 1], clip_norm=0.1),
            *updaters(OPTIMIZERS["adam"], [1, 1], schedule=schedule, schedule_every="update"),
            *updaters(OPTIMIZERS["momentum"], [1, 1]),
            *updaters(partial(RMSprop, lr=0.01), [1, 1]),
        ]

    together, alone = some(), some()
    for number in range(4):
        for group in (together, alone):
            for place, updater in enumerate(group):
                for total in updater.adding:
                    total.add_(number + place + 1)
                updater.count_messages(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            apply_at_once(together)
            for updater in alone:
                updater.apply()
    for one, other in zip(together, alone, strict=True):
        assert one.version == other.version == 4
        assert_close(named(one.weights), named(other.weights), 1e-12)


# Sums that were applied


def test_sums_start_from_zero_after_an_update_however_they_are_added_to() -> None:
    """Once, who went through all of them (as modules do) added to what had been applied already."""
    for add in ("through all", "by number", "by a product"):
        updater = Linear(2, 2, dtype=F64).updater
        updater.adopt(Update(partial(SGD, lr=1.0)))
        start = [w.clone() for w in updater.weights]
        for _ in range(3):
            if add == "through all":
                for total in updater.adding:
                    total.add_(1)
            elif add == "by number":
                for i in range(2):
                    updater.adding[i].add_(1)
            else:
                updater.adding.add_whole(torch.ones(1, 2, dtype=F64), torch.ones(1, 2, dtype=F64))
                updater.adding[1].add_(1)
            updater.count_messages(1)
            updater.apply()
        for w, before in zip(updater.weights, start, strict=True):
            assert torch.allclose(w, before - 3)


def test_an_update_without_any_gradient_leaves_sums_at_zero() -> None:
    updater = Linear(2, 2, dtype=F64).updater
    updater.adopt(Update(partial(SGD, lr=1.0)))
    updater.adding[0].add_(1)
    updater.count_messages(1)
    assert updater.apply() is not None
    assert updater.apply() is None
    assert not any(total.any() for total in updater.sums)
