"""Instances on their way to their team: the same waves, in the same order, to all of its workers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ampnet import DataError, Graph, Instance, Update, feed, replicate
from ampnet.errors import TransportError
from ampnet.runtime.by_name import adopt
from ampnet.runtime.equality import Equality
from ampnet.runtime.known import Known
from ampnet.runtime.staging import Staging
from ampnet.runtime.teams import teams_of
from ampnet.runtime.transport import Note
from tests.replicas.small import SGD, chain, rows

INPUTS = {"x": ("instance", "t"), "y": ("instance", "t")}
ONE = rows(1)[0]
Sent = list[tuple[int, int, int | None, list[int]]]
"""(worker, team, wave, instances)"""


def staged(graph: Graph, hosts: dict[str, int], places: int = 8, wave_size: int | None = None) -> tuple[Staging, Sent]:
    sent: Sent = []

    def send(worker: int, note: Note) -> None:
        sent.append((worker, note.data["team"], note.data["wave"], np.asarray(note.arrays["instances"]).tolist()))

    teams = [team for team, _ in teams_of(graph, graph.validate(), hosts)]
    return Staging(teams, graph.copies, places, wave_size, Known(), INPUTS, send), sent


def some(*numbers: int) -> dict[int, Instance]:
    return dict.fromkeys(numbers, ONE)


def test_one_team_on_two_workers() -> None:
    staging, sent = staged(chain("linear", "tanh"), {"linear1": 0, "tanh2": 2, "loss": 2})
    assert staging.stage(some(0, 1, 2, 3, 4), True, 0) == [2] * 5  # workers
    assert sent == [(0, 0, 1, [0, 1, 2, 3]), (2, 0, 1, [0, 1, 2, 3])]
    sent.clear()  # the last instance waits for others, until no more are pumped
    staging.pumped({0})
    assert sent == [(0, 0, 2, [4]), (2, 0, 2, [4])]
    sent.clear()
    staging.stage(some(5, 6), True, 0)
    staging.pumped({0})
    assert sent == []  # 5 of 8 places are in play: a full wave does not fit
    staging.retired(np.array([0, 1, 2, 3]))
    staging.stage(some(7), True, 0)
    assert sent == []
    staging.stage(some(8, 9), True, 0)
    assert sent == [(0, 0, 3, [5, 6, 7, 8]), (2, 0, 3, [5, 6, 7, 8])]


def test_the_last_wave_of_a_stream_does_not_wait() -> None:
    """Once, the last instances of a validation waited until the training epoch beside it was over."""
    staging, sent = staged(chain("linear", "tanh"), {"linear1": 0, "tanh2": 1, "loss": 1}, places=8)
    staging.stage(some(0, 1, 2, 3, 4), True, 0)
    staging.pumped({0})
    sent.clear()
    staging.stage(some(5), False, 1)
    staging.pumped({0, 1})
    assert sent == []  # 5 of 8 places are in play, and stream 1 goes on
    staging.stage(some(6), False, 1)
    staging.pumped({0})
    assert sent == [(0, 0, 3, [5, 6]), (1, 0, 3, [5, 6])]


def test_teams_of_one_worker_get_instances_as_they_come() -> None:
    graph = chain("linear", "tanh")
    replicate(graph, None, 2)
    staging, sent = staged(
        graph, {name: graph.copies[name].number if name in graph.copies else 0 for name in graph.nodes}
    )
    assert staging.stage(some(0, 2, 4, 6), True, 0) == [1] * 4
    assert staging.stage(some(1, 3), False, 1) == [1] * 2
    assert sent == [(0, 0, None, [0, 2, 4, 6]), (1, 1, None, [1, 3])]


def test_where_one_team_is_parted_waves_of_all_have_numbers() -> None:
    """A worker may be in several teams: no two waves have the same number anywhere."""
    graph = chain("linear", "tanh")
    replicate(graph, None, 2)
    hosts = {name: int(name == "loss#1") if name in graph.copies else 0 for name in graph.nodes}
    staging, sent = staged(graph, hosts, wave_size=2)
    assert staging.stage(some(0, 2), True, 0) == [2, 2]
    assert staging.stage(some(1, 3), True, 0) == [1, 1]
    assert sent == [(0, 0, 1, [0, 2]), (1, 0, 1, [0, 2]), (0, 1, 2, [1, 3])]


def test_after_an_error_numbers_go_on() -> None:
    staging, sent = staged(chain("linear", "tanh"), {"linear1": 0, "tanh2": 1, "loss": 1}, places=2)
    staging.stage(some(0), True, 0)
    staging.clear()
    staging.stage(some(1), True, 0)
    assert [wave for _, _, wave, _ in sent] == [1, 1, 2, 2]


def test_what_cannot_be_sent_is_named() -> None:
    graph = chain("linear")
    teams = [team for team, _ in teams_of(graph, graph.validate(), {"linear1": 0, "loss": 0})]

    def refuse(worker: int, note: Note) -> None:
        raise TransportError("no plain memory")

    staging = Staging(teams, {}, 4, None, Known(), INPUTS, refuse)
    odd = Instance({"x": feed(torch.zeros(1, 3).to_sparse(), t=0), "y": feed(torch.zeros(1, 3), t=0)})
    with pytest.raises(DataError, match="input 'x': no plain memory"):
        staging.stage({0: odd}, True, 0)


def test_replicas_are_waited_for_after_every_training_stream() -> None:
    equality = Equality(["a", "b"])
    assert equality.end()
    assert not equality.equal("a", 1)
    assert equality.end()
    assert not equality.equal("b", 2)
    assert equality.equal("a", 2)
    equality.clear()
    assert equality.end()
    assert not equality.equal("a", 1)
    assert equality.equal("b", 1)
    assert not Equality([]).end()


def test_a_worker_that_has_other_copies_only_hears_nothing_of_a_wave() -> None:
    """
    worker 0    loss, linear1#1        all waves
    worker 1    linear1#2              those whose instances have odd numbers
    """
    graph = chain("linear", "tanh")
    replicate(graph, "linear1", 2)
    hosts = {name: int(name == "linear1#2") for name in graph.nodes}
    staging, sent = staged(graph, hosts, wave_size=2)
    assert staging.shares == (2, 2)
    assert staging.stage(some(0, 1, 2, 3), True, 0) == [1, 2, 1, 2]
    assert sent == [(0, 0, 1, [0, 2]), (0, 0, 2, [1, 3]), (1, 0, 2, [1, 3])]


@pytest.mark.parametrize(("every", "block"), [(3, 3), (100, 4)])
def test_blocks_for_replicas_of_the_whole_model_end_with_an_update(every: int, block: int) -> None:
    """Half of a replica's places, or an update. Once, many staged instances made blocks that left a replica idle at the
    end of an epoch."""
    graph = chain("linear")
    replicate(graph, None, 2)
    adopt(graph, Update(SGD, every, "instances"), {})
    hosts = {name: int(name.endswith("#2")) for name in graph.nodes}
    staging, _ = staged(graph, hosts)
    assert staging.shares == (2, block)
