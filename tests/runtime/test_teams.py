"""Who computes an instance: all workers, or those of one replica of the whole model."""

from __future__ import annotations

from ampnet import Graph, replicate
from ampnet.graph import End
from ampnet.runtime.teams import teams_of
from tests.replicas.small import chain


def graph(part: object = "none", n: int = 2) -> Graph:
    made = chain("linear", "tanh", "linear")
    if part != "none":
        replicate(made, part, n)  # type: ignore[arg-type]
    return made


def spread(made: Graph, workers: int) -> dict[str, int]:
    return {name: i % workers for i, name in enumerate(made.nodes)}


def test_without_replicas_all_nodes_are_one_team() -> None:
    made = graph()
    ((team, ends),) = teams_of(made, made.validate(), {"linear1": 0, "tanh2": 1, "linear3": 1, "loss": 3})
    assert list(team.nodes) == ["linear1", "tanh2", "linear3", "loss"]
    assert team.workers == [0, 1, 3]
    assert ends == {"x": End("linear1", 0), "y": End("loss", 1)}


def test_each_replica_of_the_whole_model_is_a_team() -> None:
    made = graph(None, 3)
    hosts = {name: made.copies[name].number % 2 if name in made.copies else 0 for name in made.nodes}
    teams = teams_of(made, made.validate(), hosts)
    assert [team.workers for team, _ in teams] == [[0], [1], [0]]
    for number, (team, ends) in enumerate(teams, start=1):
        assert list(team.nodes) == [f"{name}#{number}" for name in ("linear1", "tanh2", "linear3", "loss")]
        assert ends == {"x": End(f"linear1#{number}", 0), "y": End(f"loss#{number}", 1)}


def test_a_replica_may_be_parted() -> None:
    made = graph(None)
    hosts = {name: 2 * made.copies[name].number + ("l" in name) if name in made.copies else 0 for name in made.nodes}
    teams = teams_of(made, made.validate(), hosts)
    assert [team.workers for team, _ in teams] == [[0, 1], [2, 3]]


def test_replicas_of_a_part_are_one_team_with_what_shares_out_their_rows() -> None:
    for part in ("linear1", ("linear1", "tanh2"), ("tanh2", "linear3", "loss")):
        made = graph(part)
        ((team, ends),) = teams_of(made, made.validate(), spread(made, 3))
        assert set(team.nodes) == set(made.nodes)
        assert set(ends) == {"x", "y"}
        routes = {name for name, node in made.nodes.items() if node.role == "route"}
        assert routes
        assert team.workers == sorted({team.hosts[name] for name in set(made.nodes) - routes})


def test_replicas_in_two_numbers_are_one_team() -> None:
    made = graph(("linear1", "tanh2"), 2)
    replicate(made, ("linear3", "loss"), 3)
    assert len(teams_of(made, made.validate(), spread(made, 2))) == 1
