"""Two raylets, as two machines: one leaves in the middle of training, another one joins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ampnet import Cluster, Stream
from ampnet.data.list_reduction import generate
from ampnet.errors import ClusterWarning, RestartWarning
from ampnet.instance import Instance
from ampnet.models import list_reduction
from tests.runtime.cluster.small import ADAM, depth, points

ray = pytest.importorskip("ray")
WHOLE = {"first": 0, "middle": 1, "last": 0}


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """Instead of the fixture for forked processes: the raylets are this process's children."""


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    from ray.cluster_utils import Cluster as Raylets

    raylets = Raylets(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    raylets.add_node(num_cpus=1)
    yield raylets
    raylets.shutdown()


def meanwhile(instances: list[Instance], at: int, act: Any) -> Iterator[Instance]:
    for i, one in enumerate(instances):
        if i == at:
            act()
        yield one


def test_training_goes_on_with_fewer_machines_and_takes_in_a_new_one(two: Any) -> None:
    graph = depth()
    settings: dict[str, Any] = {"affinity": WHOLE, "update": ADAM, "max_active_keys": 8, "patience": 0.1}
    with Cluster(graph, address=two.address, workers=2, data=points, **settings) as runtime:
        losses = [runtime.train(runtime.instances).loss]
        nodes = {seat.actor for seat in runtime._seats or ()}
        assert len(nodes) == 2

        def leave() -> None:
            two.remove_node(next(iter(two.worker_nodes)))

        with (
            pytest.warns(RestartWarning, match="with its machine"),
            pytest.warns(ClusterWarning, match="fewer workers: 2 before, 1 now"),
        ):
            stats = runtime.run([Stream(meanwhile(runtime.instances, 12, leave), True, "train")])[0]
        losses.append(stats.loss)
        assert stats.instances == len(runtime.instances)
        assert len(runtime.pids) == 1
        two.add_node(num_cpus=1)

        def until_it_joined() -> Iterator[Instance]:
            while len(runtime.pids) < 2:
                yield from runtime.instances

        with pytest.warns(ClusterWarning, match="more workers: 1 before, 2 now"):
            stats = runtime.run([Stream(until_it_joined(), True, "train")])[0]
        assert stats.instances % len(runtime.instances) == 0
        losses.append(runtime.train(runtime.instances).loss)
        found = runtime.stats()
        assert (found.workers, found.restarts, len(found.changes)) == (2, 1, 2)
        assert not runtime.held()
    assert losses == sorted(losses, reverse=True)


@pytest.mark.slow
def test_list_reduction_learns_on_two_machines_as_on_one(two: Any) -> None:
    import numpy as np

    graph = list_reduction.build()
    data = list(list_reduction.instances(graph, generate(20_000, 0), 100, np.random.default_rng(0)))
    with Cluster(graph, address=two.address, workers=2, update=ADAM, max_active_keys=4) as runtime:
        losses = [runtime.train(data).loss for _ in range(4)]
    assert losses[-1] < 0.7 * losses[0]
