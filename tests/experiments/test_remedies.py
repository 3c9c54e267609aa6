"""Options about stale gradients become the policies of nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ampnet.experiments.catalog import WORKLOADS
from ampnet.experiments.running import make_graph, policies
from ampnet.experiments.settings import Training
from ampnet.update.remedies import AnnealedRate, InverseRate, LoweredMomentum, Remedy

LISTS = WORKLOADS["list-reduction"]


def remedies(**given: object) -> dict[str, tuple[Remedy, ...] | None]:
    """Returns the remedies of each node of list reduction."""
    settings: Training = replace(LISTS.settings(), **given).complete()  # type: ignore[arg-type]
    graph = make_graph(LISTS, settings, LISTS.facts(settings, LISTS.load(replace(settings, limit=20), None)))
    common, own = policies(settings, graph)
    return {name: own.get(graph.called(name), common).remedies for name in graph.parameterised()}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ()),
        ({"stale_rate": "inverse"}, (InverseRate(),)),
        ({"stale_rate": "root", "stale_momentum": "lowered"}, (InverseRate(0.5), LoweredMomentum())),
        ({"stale_momentum": "lowered"}, (LoweredMomentum(),)),
        ({"replicas": 2}, (AnnealedRate(1000),)),
        ({"replicas": 2, "stale_updates": 50, "stale_momentum": "lowered"}, (AnnealedRate(50), LoweredMomentum())),
        ({"replicas": 2, "stale_rate": "full"}, ()),
        ({"replicas": 2, "sync": "epoch"}, ()),
    ],
)
def test_rates_are_annealed_where_replicas_share_weights(given: dict[str, object], expected: object) -> None:
    assert set(remedies(**given).values()) == {expected}


@pytest.mark.parametrize(("replicas", "decay"), [(1, 0.7), (8, 0.7), (16, 0.7**0.5), (32, 0.7**0.25)])
def test_many_replicas_decay_more_slowly(replicas: int, decay: float) -> None:
    settings = replace(LISTS.settings(), replicas=replicas)
    assert settings.stretched_decay() == settings.complete().stretched_decay() == pytest.approx(decay)
