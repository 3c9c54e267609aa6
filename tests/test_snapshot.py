"""Snapshots: what a runtime goes on from. Restored at rest, `Inline` goes on as if it had never stopped, to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam
from torch.optim.lr_scheduler import CyclicLR, ExponentialLR

from ampnet.data import generated
from ampnet.errors import AmpnetError, CheckpointError
from ampnet.graph import Graph
from ampnet.instance import Instance
from ampnet.lang import Compiled, compile
from ampnet.models.mlp import Mlp
from ampnet.models.tree_lstm import TreeLstm
from ampnet.replicas.replicate import replicate
from ampnet.replicas.sync import Sync
from ampnet.runtime.inline import Inline
from ampnet.snapshot import Snapshot
from ampnet.tile import tile
from ampnet.update.policy import Update


def trees(hidden: int = 6) -> tuple[Compiled, list[Instance]]:
    torch.manual_seed(0)
    graph = compile(TreeLstm(vocabulary=100, hidden=hidden), *next(generated.trees(1, seed=0)))
    return graph, [graph.instance(*one) for one in generated.trees(24, seed=1)]


def through_json(snapshot: Snapshot) -> Snapshot:
    """Returns the snapshot as a checkpoint would keep it."""
    return Snapshot({k: v.clone() for k, v in snapshot.tensors.items()}, json.loads(json.dumps(snapshot.data)))


def weights(graph: Graph) -> list[Tensor]:
    return [w.clone() for node in graph.parameterised().values() for w in node.updater.weights]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(x.equal(y) for x, y in zip(a, b, strict=True))


SETTINGS: dict[str, tuple[Callable[[Compiled], object], dict[str, Any]]] = {
    "adam": (lambda g: None, {"update": Update(partial(Adam, lr=1e-2), 3)}),
    "adam-leftover": (lambda g: None, {"update": Update(partial(Adam, lr=1e-2), 7), "wave_size": 2}),
    "messages-counted": (lambda g: None, {"update": Update(partial(SGD, lr=1e-2), 5, "messages")}),
    "momentum": (lambda g: None, {"update": Update(partial(SGD, lr=1e-2, momentum=0.9), 2)}),
    "adagrad-table": (lambda g: None, {"update": Update(partial(Adagrad, lr=1e-2), 5), "wave_size": 2}),
    "schedule": (
        lambda g: None,
        {
            "update": Update(
                partial(Adam, lr=1e-2), 2, schedule=partial(ExponentialLR, gamma=0.9), schedule_every="update"
            )
        },
    ),
    "random": (lambda g: None, {"update": Update(partial(SGD, lr=1e-2), 2), "schedule": "random", "wave_size": 1}),
    "stash": (lambda g: None, {"update": Update(partial(SGD, lr=1e-2), 2, weights="stash"), "schedule": "random"}),
    "one-by-one": (lambda g: None, {"update": Update(partial(Adam, lr=1e-2), 1, "instances"), "schedule": "fifo"}),
    "replicas": (
        lambda g: replicate(g, None, 2, sync=Sync("updates", 3)),
        {"update": Update(partial(Adam, lr=1e-2), 2)},
    ),
    "shared": (lambda g: replicate(g, None, 2, sync=Sync("shared")), {"update": Update(partial(Adam, lr=1e-2), 2)}),
    "gradients": (
        lambda g: replicate(g, None, 2, sync=Sync("gradients")),
        {"update": Update(partial(SGD, lr=1e-2), 2)},
    ),
}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_inline_goes_on_to_the_bit(name: str) -> None:
    prepare, settings = SETTINGS[name]

    def made() -> tuple[Compiled, list[Instance], Inline]:
        graph, instances = trees()
        prepare(graph)
        return graph, instances, Inline(graph, max_active_keys=4, seed=3, **settings)

    graph, instances, runtime = made()
    runtime.train(instances[:13])
    kept = through_json(runtime.snapshot())
    runtime.train(instances[13:])
    runtime.train(instances)
    whole = weights(graph)

    other, again, resumed = made()
    resumed.train(again[5:9])  # anything else that happened before is undone
    resumed.restore(kept)
    resumed.train(again[13:])
    resumed.train(again)
    assert equal(weights(other), whole)
    assert resumed.snapshot().data["nodes"] == runtime.snapshot().data["nodes"]
    assert not resumed.held()


def test_a_snapshot_shares_no_memory() -> None:
    graph, instances = trees()
    runtime = Inline(graph, update=Update(partial(Adam, lr=1e-2), 2), max_active_keys=4)
    runtime.train(instances)
    kept = runtime.snapshot()
    before = {name: tensor.clone() for name, tensor in kept.tensors.items()}
    runtime.train(instances)
    assert all(tensor.equal(before[name]) for name, tensor in kept.tensors.items())
    assert set(kept.tensors) >= {f"weight/{name}" for name in graph.model.state_dict()}
    assert any(name.startswith("optimizer/") for name in kept.tensors)


def test_a_snapshot_can_be_restored_again_and_again() -> None:
    """Training after `restore` changes neither its tensors nor its data (CyclicLR takes its state apart)."""
    graph, instances = trees()
    update = Update(
        partial(SGD, lr=1e-2, momentum=0.9),
        2,
        schedule=partial(CyclicLR, base_lr=1e-3, max_lr=1e-2, step_size_up=3),
        schedule_every="update",
    )
    runtime = Inline(graph, update=update, max_active_keys=4)
    runtime.train(instances)
    kept = runtime.snapshot()
    before, found = through_json(kept), []
    for _ in range(2):
        runtime.restore(kept)
        runtime.train(instances)
        found.append(weights(graph))
    assert equal(*found)
    assert all(tensor.equal(before.tensors[name]) for name, tensor in kept.tensors.items())
    assert through_json(kept).data == before.data


def test_tiles_are_kept_once() -> None:
    torch.manual_seed(0)
    graph = compile(Mlp(), *next(generated.images(1, seed=0)))
    name = next(n for n, node in graph.parameterised().items() if type(node).__name__ == "Linear")
    tile(graph, name, 2)
    runtime = Inline(graph, update=Update(partial(SGD, lr=1e-2)), max_active_keys=2)
    kept = runtime.snapshot()
    assert not any(key.startswith("copy/") for key in kept.tensors)
    runtime.train([graph.instance(*one) for one in generated.images(4, seed=1)])
    runtime.restore(kept)
    assert all(value.equal(kept.tensors[f"weight/{key}"]) for key, value in graph.model.state_dict().items())


def test_what_does_not_fit_is_named_and_changes_nothing() -> None:
    graph, instances = trees()
    runtime = Inline(graph, update=Update(partial(Adam, lr=1e-2), 2))
    runtime.train(instances)
    kept = runtime.snapshot()

    def refused(graph: Compiled, update: Update, match: str) -> None:
        other, before = Inline(graph, update=update), weights(graph)
        with pytest.raises(CheckpointError, match=match):
            other.restore(kept)
        assert equal(weights(graph), before)

    refused(trees(hidden=7)[0], Update(partial(Adam, lr=1e-2), 2), r"float32\[.*in the checkpoint and float32\[")
    refused(trees()[0], Update(partial(SGD, lr=1e-2), 2), "has SGD, in the checkpoint Adam")
    copied = trees()[0]
    replicate(copied, None, 2, sync=Sync("updates", 3))
    refused(copied, Update(partial(Adam, lr=1e-2), 2), "which this graph does not have|is not in the checkpoint")


def test_not_within_a_run() -> None:
    graph, instances = trees()
    runtime = Inline(graph, update=Update(partial(SGD, lr=1e-2)))
    kept = runtime.snapshot()

    def loader() -> Any:
        yield instances[0]
        runtime.restore(kept)

    with pytest.raises(AmpnetError, match="restore was called within a run"):
        runtime.train(loader())
