"""Seeded random models by waves, several in flight and in a random order: the gradients of the eager model.

A failing seed is reproduced by ``check(seed)``; ``seeded(seed)[0]`` is its program.
"""

from __future__ import annotations

import pytest

from ampnet import Inline
from ampnet.lang import compile
from ampnet.testing import assert_close, model_gradients
from ampnet.testing.language import by_model_names
from ampnet.testing.written import WrittenModel, example, seeded

CHUNK = 100


def check(seed: int) -> None:
    """Train on the instances of a seed with frozen weights. All of them must have gone by waves."""
    program, drawn = seeded(seed)
    model, size = WrittenModel(program), 1 + seed % 2
    graph = compile(model, *example())
    instances = list(graph.instances(drawn))
    with Inline(graph, update=None, max_active_keys=6, wave_size=size, schedule="random", seed=seed) as runtime:
        runtime.train(instances)
        stats = runtime.stats()
        assert runtime.held() == {}
    assert (stats.engine, stats.reason) == ("waves", None)
    assert -(-len(instances) // size) <= stats.waves <= len(instances)
    assert_close(by_model_names(graph, graph.gradients()), model_gradients(model, drawn))


@pytest.mark.parametrize("seed", [*range(40), 1454, 1632])  # the last two: rounds to whose rows no gradient comes
def test_seeds(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2000, CHUNK))
def test_many_seeds(first: int) -> None:
    failed: dict[int, str] = {}
    for seed in range(first, first + CHUNK):
        try:
            check(seed)
        except Exception as error:
            failed[seed] = f"{type(error).__name__}: {error}"
    shown = "\n".join(f"seed {seed}: {why}" for seed, why in failed.items())
    assert not failed, f"{len(failed)} of {CHUNK} seeds:\n{shown}"
