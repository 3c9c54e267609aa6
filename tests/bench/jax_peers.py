"""Peers in JAX compute what those in torch do: predictions, first loss, gradients, and the loss after updates.

In float32, which is what they are timed in. Batches differ in size, so padding takes part. `test_jax_peers.py` runs
this file in a process of its own: a process that has imported JAX must not fork, and other tests do.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from bench.contender import TorchPeer
from bench.peers.peer import Peer
from bench.workload import Data, Wanted, Workload
from bench.workloads import BY_NAME

ROWS = [(workload, name) for workload in BY_NAME.values() for name in workload.foreign if workload.name != "babi15-100"]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
CLOSE = 1e-4
"""Relative to the largest entry of all gradients."""


def torch_of(workload: Workload, kind: type[Peer], data: Data) -> TorchPeer:
    return TorchPeer(workload, data, kind)


def few(workload: Workload) -> Data:
    """Three batches; of trees, small ones: a program is compiled for every level of the highest."""
    if workload.name != "sentiment":
        return workload.data(Wanted(4, "generated", most=3))
    data = workload.data(Wanted(2, "generated", most=40))
    train, valid = (
        sorted(part, key=lambda batch: sum(len(tree) for (tree,) in batch))[:3] for part in (data.train, data.valid)
    )
    return replace(data, train=train, valid=valid)


@pytest.mark.parametrize(("workload", "name"), ROWS, ids=[f"{w.name}, {name}" for w, name in ROWS])
def test_a_peer_in_jax_computes_what_one_in_torch_does(
    workload: Workload, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.jax_contender import JaxRow
    from bench.peers.jax_peer import own

    data, kind = few(workload), workload.foreign[name].load()
    if kind.most_shapes == 4:
        monkeypatch.setattr(kind, "most_shapes", 1)
    row = JaxRow(workload, data, kind)
    other = torch_of(workload, row.peer.of, data)
    for place in (0, 2):
        one = row._train[place]
        dense, rows = row.step.gradients(row.params, one.batch)
        mean = torch.zeros(())
        for prediction, label in other.peer.score(other._train[place]):
            mean = mean + other.peer.judge(prediction, label) / other._train[place].count
        names, weights = zip(*((n, p) for n, p in other.peer.named_parameters() if p.requires_grad), strict=True)
        wanted = own({n: g.to_dense() for n, g in zip(names, torch.autograd.grad(mean, weights), strict=True)})
        scale = max(float(np.abs(gradient).max()) for gradient in wanted.values())
        for weight, gradient in dense.items():
            close(np.asarray(gradient), wanted.pop(weight), scale)
        for table, gradient in rows.items():
            numbers = np.asarray(one.batch.touched[table])
            real = numbers < len(wanted[table])
            close(np.asarray(gradient)[real], wanted[table][numbers[real]], scale)
            wanted.pop(table)
        assert not wanted
    for place in (0, 1, 2):
        ours, theirs = row.train([place]), other.train([place])
        assert ours.records == theirs.records
        assert ours.loss == pytest.approx(theirs.loss, rel=10 * CLOSE)  # after Adam's first updates signs can differ
    ours, theirs = row.valid([0, 1]), other.valid([0, 1])
    assert ours.loss == pytest.approx(theirs.loss, rel=10 * CLOSE)
    assert ours.metric == pytest.approx(theirs.metric, rel=10 * CLOSE)
    assert row.updates() == 3


def close(got: np.ndarray, want: np.ndarray, scale: float) -> None:
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= CLOSE * scale


def test_padding_is_not_counted_and_shapes_are_few() -> None:
    import jax
    from bench.jax_contender import JaxRow

    workload = BY_NAME["qm9"]
    data = workload.data(Wanted(4, "generated", most=12))
    row = JaxRow(workload, data, workload.foreign["jax"].load())
    shapes = {tuple(leaf.shape for leaf in jax.tree.leaves(one.batch)) for one in row._train}
    assert 1 < len(shapes) <= row.peer.most_shapes
    assert row.train([0, 1]).records == 8
    before = row.step.train._cache_size()
    row.warm()
    compiled = row.step.train._cache_size()
    assert compiled >= before
    row.train(range(12))
    assert row.step.train._cache_size() == compiled, "something was compiled after warm()"


def test_sizes_are_padded_to_the_largest_of_a_group() -> None:
    from bench.peers.jax_peer import groups

    sizes = [(1, 9), (2, 1), (7, 7), (8, 3)]
    assert groups(sizes, 4) == sizes
    assert groups(sizes, 2) == [(2, 9), (2, 9), (8, 7), (8, 7)]


def test_optimizers_have_the_constants_of_torch() -> None:
    import jax.numpy as jnp
    from bench.peers.jax_optimizer import adagrad_rows, optimizer_of

    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad):
        weight = torch.tensor([1.0, -2.0], requires_grad=True)
        theirs, ours = make([weight], lr=0.1), optimizer_of(partial(make, lr=0.1))
        mine = jnp.array([1.0, -2.0])
        memory = ours.start(mine)
        for gradient in ([0.5, 0.0], [2.0, -1e-3], [0.1, 3.0]):
            weight.grad = torch.tensor(gradient)
            theirs.step()
            mine, memory = ours.step(mine, jnp.array(gradient), memory)
            assert np.asarray(mine) == pytest.approx(weight.detach().numpy(), rel=1e-5)
    with pytest.raises(ValueError, match="no counterpart"):
        optimizer_of(partial(torch.optim.RMSprop, lr=0.1))
    table, sums = jnp.ones((3, 1)), jnp.zeros((3, 1))
    table, sums = adagrad_rows(table, sums, jnp.array([2, 3]), jnp.array([[2.0], [5.0]]), 0.1)
    assert np.asarray(table)[:, 0].tolist() == pytest.approx([1, 1, 0.9])
    assert np.asarray(sums)[:, 0].tolist() == [0, 0, 4]
