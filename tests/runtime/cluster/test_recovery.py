"""What a cluster keeps over a loss and from one program to the next."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR

from ampnet import Checkpoint, Cluster, Inline, Instance, Stream, fit
from ampnet.errors import RestartWarning
from ampnet.events.check import assert_kept
from ampnet.events.log import Event, Restart, Retire, Wave
from tests.runtime.cluster.small import ADAM, WHOLE, depth, points

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """Instead of the fixture for forked processes: Ray has processes of its own (see `test_cluster`)."""


def test_log_schedules_and_changed_weights_over_a_loss() -> None:
    """Once, workers numbered their waves from 1 again after a loss, which made a log that breaks its promises."""
    graph, events = depth(), list[Event]()
    update = replace(ADAM, schedule=partial(ExponentialLR, gamma=0.5))
    with Cluster(
        graph, workers=2, affinity=WHOLE, update=update, max_active_keys=8, data=points, listeners=[events.append]
    ) as runtime:

        def killing() -> Iterator[Instance]:
            yield from runtime.instances[:12]
            os.kill(runtime.pids[1], signal.SIGKILL)
            yield from runtime.instances[12:]

        runtime.train(runtime.instances)
        with pytest.warns(RestartWarning, match=r"died.*It is replaced if there is a processor for it \(restart 1 of"):
            runtime.run([Stream(killing(), True, "train"), Stream(runtime.instances, True, "train")])
        assert runtime.learning_rates == pytest.approx(dict.fromkeys(runtime.learning_rates, 0.5**3 * 1e-2))
        with torch.no_grad():
            graph.model.middle.weight.fill_(0.25)
        os.kill(runtime.pids[1], signal.SIGKILL)
        with pytest.warns(RestartWarning, match="nothing was in flight"):
            assert not runtime.held()
        assert (graph.model.middle.weight == 0.25).all()
        assert (runtime.snapshot().tensors["weight/middle.weight"] == 0.25).all()
    assert len([event for event in events if isinstance(event, Restart)]) == 2
    retired = [n for event in events if isinstance(event, Retire) for n in event.instances]
    assert len(retired) == len(set(retired)) == 3 * 24
    waves = [(event.worker, event.wave) for event in events if isinstance(event, Wave)]
    assert len(waves) == len(set(waves))
    assert_kept(events)


def test_a_run_is_resumed_from_a_checkpoint(tmp_path: Path) -> None:
    """With one wave in flight nothing is left to chance: the result is that of a run that was never interrupted."""
    how = {"update": ADAM, "max_active_keys": 4, "wave_size": 4}
    data = {"train": points(), "valid": points(8, seed=1), "barrier": True}
    with Inline(depth(), **how) as inline:
        want = fit(inline, epochs=4, **data)
    for epochs in (2, 4):
        graph = depth()
        with Cluster(graph, workers=2, affinity=WHOLE, **how) as runtime:
            found = fit(runtime, epochs=epochs, checkpoint=Checkpoint(tmp_path, every=12), resume="auto", **data)
    assert found.resumed is not None
    assert [one.train_loss for one in found.history] == pytest.approx([one.train_loss for one in want.history])
    assert [one.valid_loss for one in found.history] == pytest.approx([one.valid_loss for one in want.history])
    torch.testing.assert_close(graph.model.state_dict(), inline.graph.model.state_dict())
