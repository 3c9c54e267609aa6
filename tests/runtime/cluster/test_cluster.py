"""A graph on workers that Ray started: the results of inline, and one named error when something goes wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ampnet import AmpnetError, Cluster, DataError, GraphError, Inline, Instance, NodeError, Stream, Sync, replicate
from ampnet.errors import RestartWarning, WorkerDied
from ampnet.recipe import Recipe
from ampnet.runtime.cluster.connection import Connection
from ampnet.testing import assert_close
from ampnet.testing.parted import random_hosts
from tests.runtime.cluster.small import ADAM, WHOLE, Depth, depth, listening, more_points_elsewhere, points
from tests.runtime.test_processes import gradients, small

pytestmark = pytest.mark.usefixtures("local_ray")
ray = pytest.importorskip("ray")


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(local_ray: Connection) -> Iterator[None]:
    """Instead of the fixture for forked processes: no actor, no placement group, no open port."""
    ports = listening()
    yield
    assert not [a for a in ray._private.state.actors().values() if a["State"] not in ("DEAD",)]
    groups = ray.util.placement_group_table().values()
    assert all(group["state"] == "REMOVED" for group in groups)
    assert listening() <= ports


def killing(instances: list[Instance], at: int, kill: object) -> Iterator[Instance]:
    for i, one in enumerate(instances):
        if i == at:
            kill()  # type: ignore[operator]
        yield one


def test_gradients_are_those_of_the_inline_runtime() -> None:
    graph, instances = small("qm9")
    with Inline(graph, update=None, max_active_keys=3) as inline:
        want_loss = inline.train(instances).loss
    want = gradients(graph)
    affinity = random_hosts(graph, 2, seed=1)
    with Cluster(graph, workers=2, affinity=affinity, max_active_keys=3) as runtime:
        stats = runtime.train(instances)
        assert not runtime.held()
        assert runtime.infer(iter(instances)).loss == pytest.approx(want_loss, abs=1e-12)
        assert runtime.stats().engine == "waves"
    assert stats.loss == pytest.approx(want_loss, abs=1e-12)
    assert_close(gradients(graph), want)


def test_training_with_one_wave_in_flight_equals_inline_training_and_a_prediction_has_the_weights() -> None:
    graph, again = depth(), depth()
    data = [graph.instance(*one) for one in points()]
    with Inline(again, update=ADAM, max_active_keys=4) as inline:
        want = [inline.train(data).loss for _ in range(3)]
    with Cluster(graph, workers=2, affinity=WHOLE, update=ADAM, max_active_keys=4, wave_size=4) as runtime:
        found = [runtime.train(data).loss for _ in range(2)]
        weights = {name: value.clone() for name, value in graph.model.state_dict().items()}
        torch.testing.assert_close(runtime.predict(points(5)), [graph.model(*one) for one in points(5)])
        with torch.no_grad():
            graph.model.last.weight.zero_()
        torch.testing.assert_close(runtime.predict(points(5)), [graph.model(*one) for one in points(5)])
        graph.model.load_state_dict(weights)
        bad = graph.instance(torch.full((3,), float("nan"), dtype=torch.float64), 1, torch.tensor(1))
        with pytest.raises((NodeError, DataError), match="not finite"):
            runtime.train([bad])
        found.append(runtime.train(data).loss)
    assert found == pytest.approx(want, abs=1e-10)
    torch.testing.assert_close(graph.model.state_dict(), again.model.state_dict())


def test_replicas_that_are_averaged_are_equal_after_every_stream() -> None:
    graph = depth()
    replicate(graph, None, 2, sync=Sync("updates", 2))
    with Cluster(graph, workers=2, update=ADAM, max_active_keys=4, data=points) as runtime:
        losses = [runtime.train(runtime.instances).loss for _ in range(6)]
        for group in graph.replicas.values():
            first, second = runtime._members(group)
            assert all(torch.equal(a, b) for a, b in zip(first.weights, second.weights, strict=True))
        assert runtime.snapshot().data["equal"]
    assert losses[-1] < losses[0]


def test_a_killed_worker_is_replaced_and_after_the_last_restart_the_error_names_it() -> None:
    graph = depth()
    with Cluster(
        graph, workers=2, affinity=WHOLE, update=ADAM, max_active_keys=8, max_restarts=1, data=points
    ) as runtime:
        first = runtime.train(runtime.instances)
        before = runtime.pids

        def kill() -> None:
            os.kill(runtime.pids[1], signal.SIGKILL)

        with pytest.warns(RestartWarning, match="worker 'worker1' on machine .* died"):
            stats = runtime.run([Stream(killing(runtime.instances, 12, kill), True, "train")])[0]
        assert stats.instances == len(runtime.instances)
        assert runtime.pids[0] == before[0] and runtime.pids[1] != before[1]
        assert runtime.stats().restarts == 1
        assert runtime.train(runtime.instances).loss < first.loss
        pids = runtime.pids
        with pytest.raises(WorkerDied, match="worker1"):
            runtime.run([Stream(killing(runtime.instances, 12, kill), True, "train")])
        with pytest.raises(AmpnetError, match="has ended"):
            runtime.train(runtime.instances)
    assert not any(map(alive, pids))
    assert any(not torch.equal(value, graph.model.state_dict()[n]) for n, value in depth().model.state_dict().items())


def test_other_data_on_another_machine_are_named() -> None:
    with (
        pytest.raises(DataError, match=r"machine .* has other data: \d+ of 24 instances differ .* first instance 7"),
        Cluster(depth(), workers=1, data=more_points_elsewhere) as runtime,
    ):
        runtime.train(runtime.instances)


class Other(Recipe):
    """Makes another graph than it was recorded for."""

    def make(self):  # type: ignore[no-untyped-def]
        self.model = Depth(7).double()
        self.dtypes = {}
        self.__post_init__()
        return super().make()


def test_another_graph_there_is_found_before_training() -> None:
    graph = depth()
    recipe = graph.recipe
    assert isinstance(recipe, Recipe)
    graph.recipe = Other(recipe.model, recipe.example, recipe.named, recipe.passes)
    with (
        pytest.raises(AmpnetError, match="differs from the controller's"),
        Cluster(graph, workers=1, update=ADAM) as runtime,
    ):
        runtime.train([graph.instance(*one) for one in points()])


def test_what_cannot_be_on_several_machines_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = depth()
    replicate(graph, None, 2, sync="shared")
    with pytest.raises(GraphError, match="sync='updates'"):
        Cluster(graph)
    with pytest.raises(GraphError, match="wired by hand"):
        Cluster(ampnet_graph())
    with (
        pytest.raises(AmpnetError, match=r"64 workers need 64 processors, and the Ray cluster has 3 on 1 machine:"),
        Cluster(depth(), workers=64) as runtime,
    ):
        runtime.train([depth().instance(*one) for one in points()])


def ampnet_graph():  # type: ignore[no-untyped-def]
    from ampnet import Graph

    return Graph("by hand")
