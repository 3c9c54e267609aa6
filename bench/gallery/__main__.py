"""The command: models of `examples/gallery` beside batched torch, one process, one thread.

    ours     waves, `Inline`: the model as the gallery has it, written for one instance
    eager    the same model called as it is, one instance after the other
    torch    batched by hand (`bench.gallery.peers`)

python -m bench.gallery                                    all models, 20 and 100 instances in an update
python -m bench.gallery gru_tagger --batch 50 --turns 9    one of them
python -m bench.gallery gru_tagger --profile               where an epoch of ours spends its time

Instances and collated batches are made beforehand, and all rows train on the same ones in the same order, from the same
weights; the gradients of eager and torch are compared first, in float64. The rows take turns, by processor time, each
as many epochs as fit into its seconds; the best turn of each counts (eager has one). A ratio is ours to torch.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib.util
import json
import pstats
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from bench.gallery.peers import PEERS
from bench.machine import describe
from bench.ported.entry import Ported
from bench.ported.race import TOLERANCE, OursRow, TorchRow

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"
BOUND = 0.9
"""Ours should have at least this part of torch's speed."""
HEAD = f"{'model':20} {'update':>6} {'ours/s':>9} {'eager/s':>9} {'torch/s':>9} {'ratio':>6}"


def example(name: str) -> ModuleType:
    """A file of the gallery, imported."""
    spec = importlib.util.spec_from_file_location(f"gallery_{name}", GALLERY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def entry(name: str, batch: int) -> Ported:
    """A model of the gallery, with ``batch`` instances in an update."""
    found = example(name)
    return Ported(
        name=name, about=str(found.__doc__).splitlines()[0], model=found.make_model, peer=PEERS[name],
        data=found.make_data, batch=batch, optimizer=partial(torch.optim.Adam, lr=1e-3, fused=True),
    )  # fmt: skip


def difference(one: Ported, batch: list[Any]) -> float:
    """The largest difference of the peer's gradients of a batch from those of the model as it is written, in float64,
    relative to the largest entry of all of them."""
    records = [tuple(_wide(value) for value in record) for record in batch]
    model, peer = one.seeded(torch.float64), one.peer(one.seeded(torch.float64))
    torch.stack([model.loss(*record) for record in records]).sum().backward()
    collated = peer.collate(records)
    torch.stack([peer.judge(*piece) for piece in peer.score(collated)]).sum().backward()
    got, want = _gradients(peer), peer.weights(_gradients(model))
    if got.keys() != want.keys():
        raise AssertionError(f"gradients on one side only: {sorted(got.keys() ^ want.keys())}")
    largest = max(float(g.abs().max()) for g in want.values())
    return max(float((g - want[name]).abs().max()) for name, g in got.items()) / largest


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


class EagerRow:
    """The model called as it is, with a step of the optimizer for every batch."""

    def __init__(self, one: Ported, batches: list[list[Any]]) -> None:
        self.model, self.batches = one.seeded(), batches
        self.optimizer = one.optimizer([p for p in self.model.parameters() if p.requires_grad])

    def epoch(self) -> int:
        """Train on all instances; returns their number."""
        for batch in self.batches:
            self.optimizer.zero_grad(set_to_none=True)
            for record in batch:
                (self.model.loss(*record) / len(batch)).backward()
            self.optimizer.step()
        return sum(len(batch) for batch in self.batches)


def speed(epoch: Callable[[], int], seconds: float) -> float:
    """Instances for each second of the processor."""
    done, began = 0, time.process_time()
    while True:
        done += epoch()
        passed = time.process_time() - began
        if passed >= seconds:
            return done / passed


def measure(name: str, batch: int, *, seconds: float, turns: int, updates: int) -> dict[str, Any]:
    """The best speed of each row, and the ratio of ours to torch."""
    one = entry(name, batch)
    batches = one.batches(updates)
    gap = difference(one, batches[0])
    if not gap <= TOLERANCE:
        raise AssertionError(f"{name}: gradients of the model and of its peer differ by {gap:.2g} in float64")
    ours = OursRow(one, batches)
    with ours.runtime:
        rows = {"ours": ours.epoch, "torch": TorchRow(one, batches).epoch}
        best = {"ours": 0.0, "eager": speed(EagerRow(one, batches[:2]).epoch, 0), "torch": 0.0}
        for epoch in rows.values():
            epoch()
        for _ in range(turns):
            for row, epoch in rows.items():
                best[row] = max(best[row], speed(epoch, seconds))
        assert ours.runtime.stats().engine == "waves", ours.runtime.stats().words()
    return {"model": name, "update": batch, **best, "ratio": best["ours"] / best["torch"], "difference": gap}


def profile(name: str, batch: int, updates: int) -> None:
    """Print the functions that take longest in an epoch after the first."""
    one = entry(name, batch)
    ours = OursRow(one, one.batches(updates))
    with ours.runtime:
        ours.epoch()
        profiler = cProfile.Profile()
        profiler.runcall(ours.epoch)
    pstats.Stats(profiler, stream=sys.stdout).sort_stats("tottime").print_stats(30)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gallery", description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="NAME", help=f"all by default: {', '.join(PEERS)}")
    parser.add_argument("--batch", type=int, action="append", help="instances in an update (default: 20, and 100)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="of each row; the best counts (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=20, help="of an epoch (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    parser.add_argument("--profile", action="store_true", help="print a profile of an epoch of ours instead")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.models if name not in PEERS]
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; there are: {', '.join(PEERS)}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    results = []
    try:
        print(HEAD, flush=True)
        for name in given.models or PEERS:
            for batch in given.batch or (20, 100):
                if given.profile:
                    profile(name, batch, given.updates)
                    continue
                found = measure(name, batch, seconds=given.seconds, turns=given.turns, updates=given.updates)
                speeds = " ".join(f"{found[row]:9,.0f}" for row in ("ours", "eager", "torch"))
                missed = "" if found["ratio"] >= BOUND else "  missed"
                print(f"{name:20} {batch:6} {speeds} {found['ratio']:6.2f}{missed}", flush=True)
                results.append(found)
    finally:
        torch.set_num_threads(threads)
    if given.json is not None:
        settings = {"seconds": given.seconds, "turns": given.turns, "updates": given.updates, "bound": BOUND}
        given.json.write_text(
            json.dumps({"settings": settings, "machine": describe(), "models": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
