"""The tape: the calls of a kept layout are written down once, and played again with the same results to the bit."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from ampnet import Graph, Inline, Instance, Update, native
from ampnet.events.log import Event, Played
from ampnet.native import calls
from ampnet.wave.tape import Tape
from tests.replicas.small import case
from tests.wave.both import model, player_of

pytestmark = pytest.mark.skipif(not native.state().native, reason="kernels are not compiled here")
MODELS = ("list-reduction-gru", "list-reduction-lstm", "sentiment", "babi15", "qm9", "adaptive-depth")


def fresh(name: str) -> tuple[Graph, list[Instance]]:
    graph = case(name).graph()
    return graph, model(name)[1]


def tapes_of(runtime: Inline) -> list[Tape]:
    kept = player_of(runtime).planner._layouts.values()
    return [layout.tape for layouts in kept for layout in layouts if isinstance(layout.tape, Tape)]


def train(
    name: str, epochs: int, *, taped: bool = True, update: Update | None = None, **settings: object
) -> list[Tensor]:
    """The weights after some epochs of the same waves."""
    graph, instances = fresh(name)
    before = {n: v.clone() for n, v in graph.module().state_dict().items()}
    policy = update or Update(partial(torch.optim.Adam, lr=0.01), 3, "instances")
    with pytest.MonkeyPatch.context() as patch:
        if not taped:
            patch.setattr("ampnet.wave.passage.Passage._find_tape", lambda self: None)
        with Inline(graph, update=policy, max_active_keys=3, **settings) as runtime:  # type: ignore[arg-type]
            losses = [runtime.train(instances).loss for _ in range(epochs)]
            assert taped == any(tape.stretches[0] and tape.stretches[1] for tape in tapes_of(runtime))
    out = [torch.tensor(losses), *(v.clone() for v in graph.module().state_dict().values())]
    graph.module().load_state_dict(before)
    return out


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(map(torch.equal, a, b))


@pytest.mark.parametrize("name", MODELS)
def test_played_again_it_trains_the_same_to_the_bit(name: str) -> None:
    assert same(train(name, 6), train(name, 6, taped=False))


@pytest.mark.parametrize("every", [1, 7])
def test_sums_that_are_added_to_and_sums_that_are_begun(every: int) -> None:
    """Several waves in an update, and one: a gradient is written to a sum that was applied, and added to another."""
    update = Update(partial(torch.optim.Adam, lr=0.01), every, "instances")
    assert same(train("qm9", 6, update=update), train("qm9", 6, update=update, taped=False))


def test_few_calls_are_left() -> None:
    graph, instances = fresh("qm9")
    with Inline(graph, update=Update(min_update_frequency=3, count="instances"), max_active_keys=3) as runtime:
        used = []
        for _ in range(6):
            before = calls.count
            runtime.train(instances)
            used.append(calls.count - before)
    assert used[-1] == used[-2]
    assert used[-1] < used[0] / 2


def test_a_trace_has_every_operation_and_changes_nothing() -> None:
    told: list[Event] = []
    plain = train("sentiment", 6)
    assert same(plain, train("sentiment", 6, listeners=[told.append]))
    counts = [len(event.nodes) for event in told if isinstance(event, Played)]
    assert counts
    assert sum(counts[: len(counts) // 6]) == sum(counts[-(len(counts) // 6) :]), (
        "as many operations when they are played by the tape"
    )


def test_an_operation_that_torch_computes_is_not_written_down() -> None:
    graph, instances = fresh("qm9")
    with Inline(graph, update=Update(min_update_frequency=3, count="instances"), max_active_keys=3) as runtime:
        for _ in range(4):
            runtime.train(instances)
        for tape in tapes_of(runtime):
            written = {at for stretch in tape.single for at in stretch}
            losses = {i for i, op in enumerate(tape._layout.operations) if op.site.kind in ("loss", "input")}
            assert written
            assert not written & losses


def test_other_weights_are_noticed() -> None:
    """Weights that are put elsewhere (`Module.to`) make a tape worthless."""
    graph, instances = fresh("list-reduction-gru")
    with Inline(graph, update=None, max_active_keys=3) as runtime:
        for _ in range(4):
            runtime.train(instances)
        first = {n: g.clone() for n, g in graph.gradients().items()}
    graph.module().float()
    assert first
    graph.module().double()
    with Inline(graph, update=None, max_active_keys=3) as runtime:
        for node in graph.parameterised().values():
            node.updater.reset()
        for _ in range(4):
            runtime.train(instances)
        assert all(g.isfinite().all() for g in graph.gradients().values())
