"""Two raylets, as two machines: one leaves in the middle of training, another one joins. A program of its own
(`test_elastic.py` runs it): in one process Ray cannot join a second cluster after a first one.

    python -m tests.runtime.cluster.elastic REPLICAS
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from ray.cluster_utils import Cluster as Raylets

from ampnet import Cluster, Stream, replicate
from ampnet.errors import ClusterWarning, RestartWarning
from ampnet.events.check import assert_kept
from ampnet.events.log import Event, Wave
from ampnet.instance import Instance
from ampnet.replicas.sync import Sync
from tests.runtime.cluster.small import ADAM, WHOLE, depth, points


def goes_on_with_fewer_machines_and_takes_in_a_new_one(raylets: Raylets, replicas: int) -> None:
    graph = depth()
    settings: dict[str, Any] = {"update": ADAM, "max_active_keys": 8, "patience": 0.1}
    if replicas > 1:
        replicate(graph, None, replicas, sync=Sync("updates", 2))
    else:
        settings["affinity"] = WHOLE
    events: list[Event] = []
    settings["listeners"] = [events.append]
    with Cluster(graph, address=raylets.address, workers=2, data=points, **settings) as runtime:
        losses = [runtime.train(runtime.instances).loss]

        def until_it_left() -> Iterator[Instance]:
            raylets.remove_node(next(iter(raylets.worker_nodes)))
            while len(runtime.pids) == 2:
                yield from runtime.instances

        with (
            pytest.warns(RestartWarning, match="with its machine"),
            pytest.warns(ClusterWarning, match="fewer workers: 2 before, 1 now"),
        ):
            stats = runtime.run([Stream(until_it_left(), True, "train")])[0]
        losses.append(stats.loss)
        assert stats.instances % len(runtime.instances) == 0
        assert len(runtime.pids) == 1
        raylets.add_node(num_cpus=1)

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
    assert losses[-1] < losses[0]
    waves = [(event.worker, event.wave) for event in events if isinstance(event, Wave)]
    assert len(waves) == len(set(waves))
    assert_kept(events)


def main() -> None:
    raylets = Raylets(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        raylets.add_node(num_cpus=1)
        goes_on_with_fewer_machines_and_takes_in_a_new_one(raylets, int(sys.argv[1]))
    finally:
        raylets.shutdown()
    print("right")


if __name__ == "__main__":
    main()
