"""Shared memory: what was one memory before is one memory afterwards, in all processes."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from ampnet import Graph, Inline, Processes, Update, tile
from ampnet.events.check import check
from ampnet.events.log import EventLog
from ampnet.nodes import Linear
from ampnet.runtime.children import fork
from ampnet.runtime.shared import Arena, share
from ampnet.testing import assert_close
from tests.test_tile import F64, chain, instances, mlp, rows

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
By = Literal["outputs", "inputs"]
ways = pytest.mark.parametrize("by", ["outputs", "inputs"])


def in_another_process(change: Any) -> None:
    os.waitpid(fork(change), 0)


def whole_and_tiles(graph: Graph) -> tuple[nn.Linear, list[nn.Linear]]:
    tiled = graph.tiled["fc"]
    return tiled.module, list(tiled.parts)


@ways
def test_tiles_stay_views_of_the_whole(by: By) -> None:
    graph = chain()
    tile(graph, "fc", 2, by=by)
    before = {name: weight.clone() for name, weight in graph.module().state_dict().items()}
    share(graph)
    assert_close(graph.module().state_dict(), before, 0.0)
    whole, (_, second) = whole_and_tiles(graph)
    dim = 0 if by == "outputs" else 1
    assert second.weight.stride() == whole.weight.stride()

    def change() -> None:
        graph.nodes["fc~2"].updater.weights[0].fill_(3.0)  # type: ignore[attr-defined]

    in_another_process(change)
    assert bool((second.weight == 3).all())
    assert int((whole.weight == 3).sum(dim)[0]) == second.weight.shape[dim]
    assert graph.module()["fc"].weight is whole.weight


def test_parameters_that_are_one_memory_stay_one() -> None:
    """As replicas have them: other parameters, the same place. Views that overlap in part stay so, too."""
    graph = chain()
    first = graph.nodes["fc"].module.weight  # type: ignore[attr-defined]
    twin, part = nn.Linear(5, 4, bias=False, dtype=F64), nn.Linear(5, 2, bias=False, dtype=F64)
    twin.weight, part.weight = nn.Parameter(first.detach()), nn.Parameter(first.detach()[1:3])
    graph.add("twin", Linear(twin))
    graph.add("part", Linear(part))
    none = nn.Linear(5, 1, bias=False)
    none.weight = nn.Parameter(torch.zeros(0, 5))
    graph.add("none", Linear(none))
    share(graph)

    def change() -> None:
        part.weight.detach().fill_(3.0)

    in_another_process(change)
    assert torch.equal(first, twin.weight) and torch.equal(first[1:3], part.weight)
    assert int((first == 3).sum()) == 10


def test_every_node_has_sums_of_its_own() -> None:
    graph = chain()
    tile(graph, "fc", 2)
    share(graph)
    sums = [total for node in graph.parameterised().values() for total in node.updater.sums]
    sums[0].fill_(1.0)
    assert all(float(total.abs().sum()) == 0 for total in sums[1:])
    assert len({total.data_ptr() for total in sums}) == len(sums)


def test_further_tensors_are_put_there_too() -> None:
    given = [torch.arange(3), torch.ones(2, 2, dtype=torch.bfloat16), torch.zeros(0), torch.eye(3)[:, 1]]
    copies = share(chain(), given)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(copies, given, strict=True))

    def change() -> None:
        copies[0][1] = 7

    in_another_process(change)
    assert copies[0].tolist() == [0, 7, 2] and given[0].tolist() == [0, 1, 2]


def test_an_arena_has_room_for_what_it_was_made_for() -> None:
    given = [torch.rand(1000), torch.rand(1000, dtype=F64)]
    arena = Arena.of(given)
    assert [torch.equal(arena.copy(tensor), tensor) for tensor in given] == [True, True]
    with pytest.raises(ValueError, match="buffer"):
        arena.copy(torch.rand(1000))


def trained(make: Any, by: By | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights of the chain after three epochs, as the graph has them and as the model saw them in between."""
    graph = chain(activation="relu")
    model = graph.module()["fc"]
    if by is not None:
        tile(graph, "fc", 2, by=by)
    seen = {}
    with make(graph, update=Update(partial(torch.optim.SGD, lr=0.05), 2, "instances"), max_active_keys=1) as runtime:
        for epoch in range(3):
            runtime.train(instances(rows()))
            seen[f"weight after {epoch}"] = model.weight.detach().clone()
        assert not runtime.held()
    return {name: weight.clone() for name, weight in graph.module().state_dict().items()}, seen


@ways
def test_training_on_two_workers_gives_the_weights_of_the_whole(by: By) -> None:
    """And the model in this process sees every update of the tiles, each made by another process."""
    want = trained(Inline, None)
    log = EventLog()
    hosts = {"*": 0, "fc~2": 1}
    got = trained(partial(Processes, workers=2, affinity=hosts, listeners=[log]), by)
    for mine, theirs in zip(got, want, strict=True):
        assert_close(mine, theirs)
    assert check(log.events) == []


@ways
def test_a_compiled_model_in_tiles_on_workers_placed_by_cost(by: By) -> None:
    weights = []
    for make in (Inline, partial(Processes, workers=2)):
        graph, data = mlp()
        tile(graph, "hidden_0", 2, by=by)
        update = Update(partial(torch.optim.SGD, lr=0.05), 1, "instances")
        with make(graph, update=update, max_active_keys=1) as runtime:  # type: ignore[operator]
            runtime.train([graph.instance(*arguments) for arguments in data])
        weights.append({name: p.detach().clone() for name, p in graph.model.named_parameters()})
    assert_close(weights[1], weights[0])
