"""The table of a group: sums, means, and what optimizers remember, in any of the ways they remember it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from ampnet import Sync, Update
from ampnet.nodes import Linear
from ampnet.replicas.group import Copy, Replicas, Table, digest
from ampnet.update.updater import Updater
from tests.replicas.small import OPTIMIZERS, SGD


def updaters(n: int, policy: Update | None = None, dtype: torch.dtype = torch.float64) -> list[Updater]:
    """Of Linears that have nothing in common."""
    out = []
    for seed in range(n):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            node = Linear(3, 2, dtype=dtype)
        node.updater.adopt(policy if policy is not None else Update(SGD))
        out.append(node.updater)
    return out


def group(n: int, kind: Any = "epoch") -> Replicas:
    return Replicas("cell", tuple(f"cell#{i + 1}" for i in range(n)), Sync(kind), "instance", True, False)


def stepped(updater: Updater, value: float) -> None:
    for total in updater.sums:
        total.fill_(value)
    updater.count_messages(1)
    updater.apply()


def averaged(table: Table, some: list[Updater]) -> None:
    for i, updater in enumerate(some):
        table.add_weights(updater, i == 0)
    table.divide(len(some))
    for updater in some:
        updater.replace(table.sums)
        table.take_memory(updater)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_mean_of_weights(n: int) -> None:
    some = updaters(n)
    want = [torch.stack([u.weights[i] for u in some]).mean(0) for i in (0, 1)]
    table = Table.of(some[0], Sync(), n)
    for _ in range(2):  # what was on the table does not stay there
        averaged(table, some)
        for updater in some:
            assert all(torch.allclose(w, mean, atol=1e-15) for w, mean in zip(updater.weights, want, strict=True))
    assert len({digest(u) for u in some}) == 1


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "rmsprop", "adadelta", "adamw", "nadam", "amsgrad"])
def test_every_optimizer_has_its_memory_averaged(optimizer: str) -> None:
    further: dict[str, Any] = {
        "rmsprop": partial(torch.optim.RMSprop, momentum=0.5, centered=True),
        "adadelta": torch.optim.Adadelta,
        "adamw": torch.optim.AdamW,
        "nadam": torch.optim.NAdam,
        "amsgrad": partial(torch.optim.Adam, amsgrad=True),
    }
    some = updaters(2, Update({**OPTIMIZERS, **further}[optimizer]))
    table = Table.of(some[0], Sync(), 2)
    for i, updater in enumerate(some):
        for step in range(1 + 2 * i):
            stepped(updater, 1.0 + i + step)
    before = [[dict(u.optimizer.state[p]) for p in u.parameters] for u in some]  # type: ignore[union-attr]
    before = [[{k: v.clone() for k, v in s.items() if isinstance(v, Tensor)} for s in states] for states in before]
    averaged(table, some)
    for updater in some:
        assert updater.optimizer is not None
        for i, parameter in enumerate(updater.parameters):
            state = updater.optimizer.state[parameter]
            for name, value in before[0][i].items():
                other = before[1][i][name]
                mean = (value + other) / 2 if value.shape == parameter.shape else torch.maximum(value, other)
                assert torch.allclose(state[name], mean), name
        stepped(updater, 1.0)  # and it goes on from there


def test_a_member_without_memory_gives_none_and_gets_the_mean() -> None:
    some = updaters(3, Update(OPTIMIZERS["fused"]))
    table = Table.of(some[0], Sync(), 3)
    averaged(table, some)  # nobody has any
    assert all(not u.optimizer.state for u in some)  # type: ignore[union-attr]
    stepped(some[1], 2.0)
    own = some[1].optimizer.state[some[1].parameters[0]]["exp_avg"].clone()  # type: ignore[union-attr]
    averaged(table, some)
    for updater in some:
        assert updater.optimizer is not None
        assert torch.allclose(updater.optimizer.state[updater.parameters[0]]["exp_avg"], own)
        stepped(updater, 1.0)
    assert table.having.tolist() == [1, 1]


def test_frozen_parameters_are_left_out_of_the_memory() -> None:
    some = updaters(2)
    for updater in some:
        updater.parameters[1].requires_grad_(False)
        updater.adopt(Update(OPTIMIZERS["momentum"]))
        stepped(updater, 1.0)
    table = Table.of(some[0], Sync(), 2)
    assert [i for i, _, _ in table.memory] == [0]
    averaged(table, some)
    assert torch.equal(some[0].weights[0], some[1].weights[0])


def test_a_table_holds_what_its_policy_needs() -> None:
    (updater,) = updaters(1, Update(OPTIMIZERS["adam"]))
    for sync, sums, memory in (
        (Sync(), 2, 4),
        (Sync(optimizer="keep"), 2, 0),
        (Sync("shared"), 0, 4),
        (Sync("gradients"), 2, 0),
    ):
        table = Table.of(updater, sync, 2)
        assert (len(table.sums), len(table.memory)) == (sums, memory)
        assert len(table.tensors()) == sums + memory + len(table.steps) + 3


def test_a_table_that_is_put_elsewhere_is_the_same_table() -> None:
    some = updaters(2, Update(OPTIMIZERS["adam"]))
    for i, updater in enumerate(some):
        stepped(updater, 1.0 + i)
    table = Table.of(some[0], Sync(), 2)
    elsewhere = [torch.zeros_like(tensor) for tensor in table.tensors()]
    table.move(elsewhere)
    assert all(a is b for a, b in zip(table.tensors(), elsewhere, strict=True))
    averaged(table, some)
    assert digest(some[0]) == digest(some[1])
    assert float(elsewhere[0].abs().sum()) > 0


def test_gradients_of_all_are_summed_and_those_of_each_start_anew() -> None:
    some = updaters(3)
    table = Table.of(some[0], Sync("gradients"), 3)
    for round_ in (1.0, 10.0):
        counts = []
        for i, updater in enumerate(some):
            if i != 1:  # the second has none
                updater.sums[0].fill_(round_ * (i + 1))
                updater.count_messages(i + 1)
            counts.append(table.add_gradients(updater, i == 0))
            assert float(updater.sums[0].abs().sum()) == 0
            assert not updater.full()
        sums, count = table.gradients()
        assert counts == [1, 0, 3]
        assert count == 4
        assert bool((sums[0] == 4 * round_).all())


def test_drift_is_a_part_of_the_norm_of_the_mean() -> None:
    some = updaters(2)
    for value, updater in zip((1.0, 3.0), some, strict=True):
        for weight in updater.weights:
            weight.fill_(value)
    table = Table.of(some[0], Sync(), 2)
    for i, updater in enumerate(some):
        table.add_weights(updater, i == 0)
    table.divide(2)
    assert [table.drift(u) for u in some] == [0.5, 0.5]
    for total in table.sums:
        total.zero_()
    assert table.drift(some[0]) == 0.0  # of nothing there is no part


def test_a_digest_is_of_all_weights_and_of_their_bits() -> None:
    (one,) = updaters(1)
    first = digest(one)
    assert digest(one) == first
    one.weights[1][-1] += 1e-15
    assert digest(one) != first
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        (narrow,) = updaters(1, dtype=dtype)
        assert digest(narrow) == digest(narrow)


def test_narrow_weights_are_summed_in_float32() -> None:
    some = updaters(2, dtype=torch.bfloat16)
    table = Table.of(some[0], Sync(), 2)
    assert {total.dtype for total in table.sums} == {torch.float32}
    averaged(table, some)
    assert digest(some[0]) == digest(some[1])
    assert some[0].weights[0].dtype is torch.bfloat16


def test_between_runs_all_take_the_first_or_the_mean() -> None:
    some = updaters(3)
    first = some[0].weights[0].clone()
    group(3).equalise(some)
    assert all(torch.equal(u.weights[0], first) for u in some)
    some = updaters(3)
    mean = torch.stack([u.weights[0] for u in some]).mean(0)
    group(3).average(some)
    assert all(torch.equal(u.weights[0], mean) for u in some)
    some = updaters(3)
    first = some[0].weights[0].clone()
    group(3, "gradients").average(some)
    assert all(torch.equal(u.weights[0], first) for u in some)


@pytest.mark.parametrize("n", [2, 3, 5, 7])
def test_the_mean_of_equal_weights_is_not_taken(n: int) -> None:
    some = updaters(n)
    group(n).equalise(some)
    before = some[0].weights[0].clone()
    for _ in range(5):
        group(n).average(some)
    assert torch.equal(some[-1].weights[0], before)


def test_others_follow_the_first() -> None:
    for kind in ("epoch", "shared"):
        some = updaters(2)
        some[0].parameters[0].data = some[0].parameters[0].data.float()
        some[0].parameters[1].requires_grad_(False)
        some[0].rebind()
        group(2, kind).follow(some)
        mine, given = some[1].parameters, some[0].parameters
        assert mine[0].dtype is torch.float32
        assert not mine[1].requires_grad
        assert (mine[0].data_ptr() == given[0].data_ptr()) is (kind == "shared")
        assert some[1].weights[0].data_ptr() == mine[0].data_ptr()
        assert some[1].sums[0].dtype is torch.float32


def test_settings_are_plain_data() -> None:
    assert group(2).settings() == {
        "node": "cell", "members": ["cell#1", "cell#2"], "by_instance": True, "route": "instance", "sync": "epoch",
        "every": 100, "optimizer": "average",
    }  # fmt: skip
    assert Copy("cell", 1, 2, True) == Copy("cell", 1, 2, True)
