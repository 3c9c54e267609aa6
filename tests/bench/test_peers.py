"""Every peer computes what our model computes: the same losses and the same gradients, in float64.

Ours is the compiled graph in the inline runtime with frozen weights, which is held against plain autograd elsewhere
(`tests/lang`). A peer's gradients are ours in the form of its own weights (`Peer.weights`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from bench.batch import Batch, Bucket
from bench.contender import TorchPeer, lasting
from bench.peers.foreign import missing
from bench.workload import Data, Wanted, Workload, compiled, instances
from bench.workloads import BY_NAME
from bench.workloads import list_reduction as lists
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ampnet import Inline
from ampnet.testing.oracle import assert_close

FEW = 3
"""Records of a batch."""
PEERS = [(workload, name) for workload in BY_NAME.values() for name in workload.peers if name != "torch compile"]


def small(workload: Workload) -> Data:
    return workload.data(Wanted(FEW, "generated", most=2))


def doubled(batch: Batch) -> Batch:
    """The same in float64."""
    if isinstance(batch, Bucket):
        return Bucket(batch.count, tuple(_double(a) for a in batch.arguments))
    return [tuple(_double(a) for a in _shared(record)) for record in batch]


def _double(given: Any) -> Any:
    if isinstance(given, Tensor):
        return given.double() if given.is_floating_point() else given
    return given


def _shared(record: tuple[Any, ...]) -> tuple[Any, ...]:
    """Elements are changed in place: edges know their nodes by identity."""
    for part in record:
        columns: Mapping[str, Any] = getattr(part, "_columns", {})
        for name, column in columns.items():
            part._columns[name] = _double(column)
    return record


def of_ours(workload: Workload, data: Data) -> tuple[Batch, float, dict[str, Tensor]]:
    """The first batch in float64, its mean loss, and the gradients of the model's parameters."""
    graph = compiled(workload, data, workload.ours["ours"]).to(torch.float64)
    batch = doubled(data.train[0])
    with Inline(graph, max_active_keys=2, enough_rows=None) as runtime:
        given = instances(graph, batch)
        stats = runtime.train(given)
    sums = {}
    names = {id(parameter): name for name, parameter in graph.model.named_parameters()}
    for node in graph.parameterised().values():
        for parameter, total in zip(node.updater.parameters, node.updater.sums, strict=True):
            sums[names[id(parameter)]] = total / len(given)
    return batch, stats.loss, sums


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")  # of torch_geometric, of dgl
@pytest.mark.parametrize(("workload", "name"), PEERS, ids=[f"{w.name}, {name}" for w, name in PEERS])
def test_a_peer_computes_what_ours_does(workload: Workload, name: str) -> None:
    kind = workload.peers[name]
    if kind.needs is not None and (why := missing((kind.needs,))):
        pytest.skip(why)
    data = small(workload)
    batch, loss, gradients = of_ours(workload, data)
    peer = kind(workload.seeded(data).double())
    given = peer.collate(batch)
    total, rows = torch.zeros((), dtype=torch.float64), 0
    for prediction, label in peer.score(given):
        part = peer.judge(prediction, label)
        (part / given.count).backward()
        total, rows = total + part.detach(), rows + len(label)
    assert float(total) / rows == pytest.approx(loss, rel=1e-10)
    trained = {name for name, p in peer.named_parameters() if p.requires_grad}
    want = {name: g for name, g in peer.weights(gradients).items() if name in trained}
    assert_close({name: p.grad.to_dense() for name, p in peer.named_parameters() if name in trained}, want)  # type: ignore[union-attr]


@pytest.mark.parametrize("workload", BY_NAME.values(), ids=BY_NAME)
def test_compiled_peers_are_the_others(workload: Workload) -> None:
    """They only differ by `torch.compile`, which is torch's to test (and takes a minute)."""
    if "torch compile" in workload.peers:
        kind = workload.peers["torch compile"]
        assert kind.compiled
        assert any(issubclass(kind, other) for name, other in workload.peers.items() if name != "torch compile")


@pytest.mark.parametrize(
    ("name", "peer", "rest"),
    [
        ("mnist", "torch eager", 0.0),
        ("list-reduction", "torch eager", 0.0),
        ("sentiment", "torch level", 0.0),
        ("permuted-layers", "torch by depth sorted", 0.0),
        ("qm9", "torch sparse", 0.25),
    ],
)
def test_flops_are_those_of_the_products(name: str, peer: str, rest: float) -> None:
    """As torch counts them over an update. The sparse peer multiplies all kinds at every node, which is more."""
    workload = BY_NAME[name]
    data = workload.data(Wanted(workload.batch, "generated", most=1))
    if name == "list-reduction":
        length = len(data.train[0].arguments[0])  # type: ignore[union-attr]
        data = replace(data, facts={"length": length})
    contender = TorchPeer(workload, data, workload.peers[peer])
    with FlopCounterMode(display=False) as counter:
        contender.train([0])
    counted = counter.get_total_flops() / workload.batch
    assert workload.flops(data) == pytest.approx(counted, rel=rest or 0.03)


def test_all_start_from_the_same_loss() -> None:
    """The first update of every contender sees the same batch with the same weights."""
    for workload in (BY_NAME["list-reduction"], BY_NAME["permuted-layers"]):
        data = workload.data(Wanted(4, "generated", most=2))
        losses = {
            name: TorchPeer(workload, data, kind).train([0]).loss
            for name, kind in workload.peers.items()
            if name != "torch compile"
        }
        assert max(losses.values()) == pytest.approx(min(losses.values()), rel=1e-5)


def test_lasting_ends_by_time_or_number() -> None:
    assert list(lasting(iter(range(9)), most=4)) == [0, 1, 2, 3]
    assert list(lasting(iter(range(9)), 1e-9)) == [0]
    assert list(lasting(iter(range(3)), 60)) == [0, 1, 2]


def test_by_hand_has_the_instances_of_the_compiled_model() -> None:
    workload = lists.LIST_REDUCTION
    data = workload.data(Wanted(5, "generated", most=2))
    losses = []
    for row in ("ours", "ours by hand", "ours single sequences"):
        ours = workload.ours[row]
        graph = ours.graph(workload, data, ours)
        with Inline(graph, max_active_keys=3) as runtime:
            stats = runtime.infer(ours.instances(graph, data.train[0]))
        assert stats.records == 5
        losses.append(stats.loss)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
