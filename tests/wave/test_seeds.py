"""Seeded random models by waves, several in flight and in a random order: the gradients of the eager model.

A failing seed is reproduced by ``check(seed)``; ``seeded(seed)[0]`` is its program.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ampnet import Inline
from ampnet.lang import compile
from ampnet.testing import assert_close, model_gradients
from ampnet.testing.language import by_model_names
from ampnet.testing.written import Program, WrittenModel, example, seeded
from ampnet.testing.written.instances import Sizes, instance

CHUNK = 100


def check(seed: int) -> None:
    """Train on the instances of a seed with frozen weights. All of them must have gone by waves."""
    check_program(*seeded(seed), seed)


def check_program(program: Program, drawn: list[tuple[Any, ...]], seed: int) -> None:
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


@pytest.mark.parametrize("seed", range(40))
def test_seeds(seed: int) -> None:
    check(seed)


ROUNDS: list[Program] = [
    [
        "beside",
        ("repeat", 5, "learned", ["few", ("stack", "words", "zeros", "forget", "max")]),
        ("tree", "larger", "x", ["centred"], [("loss", "squared_error", 0.5), ("loss", "quartic", 0.5)], "both"),
    ],
    [("scan", "tokens", "learned", ["scale", ("while", ["first", "given"])], ["given"], "logsumexp")],
]


@pytest.mark.parametrize("program", ROUNDS)
def test_rounds_to_whose_rows_no_gradient_comes(program: Program) -> None:
    rng = np.random.default_rng(0)
    check_program(program, [instance(rng, Sizes(n, n, n, n, n, n - 1, n - 1)) for n in (1, 2, 3, 2, 1, 3)], 0)


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
