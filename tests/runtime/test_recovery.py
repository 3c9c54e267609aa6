"""A lost worker is replaced and training goes on: each instance of an epoch counts once (P13, P15).

`test_kills` kills at every point of small runs; here are the other promises around a restart.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from ampnet import AmpnetError, Instance, Processes, Stream, Update, replicate
from ampnet.controller import Progress
from ampnet.data import generated
from ampnet.errors import CheckpointError, RestartWarning, WorkerDied
from ampnet.events.check import check
from ampnet.events.log import EventLog, Restart, Retire, Updated
from ampnet.lang import Compiled, compile
from ampnet.models import Mlp
from ampnet.models.tree_lstm import TreeLstm
from ampnet.replicas.sync import Sync
from ampnet.runtime.recovery import Recovery
from tests.runtime.conftest import children

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
ADAM = Update(partial(torch.optim.Adam, lr=0.01), 4, "instances")


def trees(count: int = 40, replicas: int = 1, sync: Any = "updates") -> tuple[Compiled, list[Instance]]:
    torch.manual_seed(0)
    graph = compile(TreeLstm(vocabulary=100, embedding=8, hidden=8), *next(generated.trees(1, seed=0)))
    instances = [graph.instance(*one) for one in generated.trees(count, seed=1)]
    if replicas > 1:
        replicate(graph, None, replicas, sync=Sync(sync, 2) if sync in ("updates", "ring") else Sync(sync))
    return graph, instances


def killing(runtime: Processes, instances: list[Instance], *at: int, worker: int = 0) -> Iterator[Instance]:
    """Yields the instances; kills a worker before some of them."""
    for number, instance in enumerate(instances):
        if number in at:
            os.kill(runtime.pids[worker], signal.SIGKILL)
        yield instance


def restarts_of(act: Callable[[], object]) -> list[str]:
    """Call a function; returns the texts of its restart warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RestartWarning)
        act()
    return [str(one.message) for one in told]


@pytest.mark.parametrize("how", ["parted", "shared", "updates", "ring", "gradients"])
def test_each_instance_is_counted_once_in_statistics_and_log(how: str) -> None:
    graph, instances = trees() if how == "parted" else trees(replicas=2, sync=how)
    log, kids = EventLog(), children()
    with Processes(graph, workers=2, update=ADAM, max_active_keys=8, listeners=[log]) as runtime:
        runtime.train(instances[:4])
        stats: list[Any] = []
        streams = [
            Stream(killing(runtime, instances, 15, worker=1), True, "train"),
            Stream(killing(runtime, instances, 20), False, "valid"),
        ]
        told = restarts_of(lambda: stats.extend(runtime.run(streams)))
        assert len(told) == 2
        assert "worker 'worker1' was killed by signal 9 (SIGKILL)" in told[0]
        assert "restart 1 of at most 3" in told[0]
        assert [one.instances for one in stats] == [len(instances)] * 2
        retired = [n for event in log.events if isinstance(event, Retire) for n in event.instances]
        assert len(retired) == len(set(retired)) == 4 + 2 * len(instances)
        assert len([event for event in log.events if isinstance(event, Restart)]) == 2
        assert runtime.stats().restarts == 2
        assert runtime.stats().replayed > 0
        assert not runtime.held()
        check(log.events)
        runtime.train(instances)
    assert children() == kids


def test_after_the_last_restart_the_next_loss_is_an_error() -> None:
    graph, instances = trees()
    with Processes(graph, workers=2, update=ADAM, max_active_keys=8, max_restarts=1) as runtime:
        runtime.train(instances[:4])
        with (
            pytest.warns(RestartWarning),
            pytest.raises(WorkerDied, match="worker0' was killed.*started again 1 times before"),
        ):
            runtime.train(killing(runtime, instances, 10, 30))
        with pytest.raises(AmpnetError, match="this runtime has ended: worker"):
            runtime.train(instances)


def test_optimizers_go_on_with_the_states_saved_last() -> None:
    graph, instances = trees()
    with Processes(graph, workers=2, update=ADAM, max_active_keys=8) as runtime:
        runtime.train(instances)
        before = runtime.snapshot()
        os.kill(runtime.pids[0], signal.SIGKILL)
        (told,) = restarts_of(lambda: runtime.held())
        assert "nothing was in flight" in told
        after = runtime.snapshot()
        assert set(after.tensors) == set(before.tensors)
        assert all(tensor.equal(before.tensors[name]) for name, tensor in after.tensors.items())
        assert after.data == before.data


def test_rates_set_before_a_loss_hold_after_it() -> None:
    graph, instances = trees()
    with Processes(graph, workers=2, update=ADAM, max_active_keys=8) as runtime:
        runtime.train(instances)
        runtime.set_learning_rates(0.5)
        assert len(restarts_of(lambda: runtime.train(killing(runtime, instances, 10)))) == 1
        assert set(runtime.learning_rates.values()) == {0.5}


def test_weights_are_not_those_of_an_earlier_snapshot() -> None:
    graph, instances = trees()
    with Processes(graph, workers=2, update=ADAM, max_active_keys=8) as runtime:
        runtime.train(instances)
        runtime.snapshot()
        runtime.train(instances)
        before = [p.detach().clone() for p in graph.model.parameters()]
        os.kill(runtime.pids[0], signal.SIGKILL)
        assert len(restarts_of(runtime.held)) == 1
        assert all(p.equal(q) for p, q in zip(graph.model.parameters(), before, strict=True))


def test_weights_loaded_between_runs_are_not_averaged() -> None:
    graph, instances = trees(replicas=2)
    with Processes(graph, workers=2, update=ADAM, max_active_keys=8) as runtime:
        runtime.train(instances)
        with torch.no_grad():
            for parameter in graph.model.parameters():
                parameter.zero_()
        os.kill(runtime.pids[0], signal.SIGKILL)
        assert len(restarts_of(runtime.held)) == 1
        assert not any(bool(p.any()) for p in graph.model.parameters())


def test_statistics_after_restore_and_a_loss() -> None:
    """Numbers of instances occur again after `restore`; what was counted under them before is another matter."""
    graph, instances = trees()
    with Processes(graph, workers=2, update=None, max_active_keys=8) as runtime:
        runtime.train(instances[:4])
        kept = runtime.snapshot()
        whole = runtime.train(instances)
        runtime.restore(kept)
        found: list[Any] = []
        runtime.infer([])  # starts the workers
        assert len(restarts_of(lambda: found.append(runtime.train(killing(runtime, instances, 15))))) == 1
        assert found[0].loss == pytest.approx(whole.loss)
        assert found[0].metrics == pytest.approx(whole.metrics)


class Odd(torch.optim.SGD):
    """Keeps what no checkpoint can."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["thing"] = object()
        return super().step(closure)


def test_an_optimizer_that_cannot_be_saved_trains_and_begins_anew() -> None:
    graph, instances = trees()
    update = Update(partial(Odd, lr=0.01), 4, "instances")
    with Processes(graph, workers=2, update=update, max_active_keys=8) as runtime:
        runtime.train(instances)
        with pytest.raises(CheckpointError, match="node '.*': Odd keeps 'thing', a object"):
            runtime.snapshot()
        runtime._recovery._due = 0.0
        (told,) = restarts_of(lambda: runtime.train(killing(runtime, instances * 3, 100)))
        assert "begins with a new optimizer: Odd keeps 'thing'" in told


def test_states_are_saved_again_after_an_answer_that_never_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ampnet.runtime.recovery.EVERY", 0.0)
    recovery = Recovery(1)
    recovery.begin()  # and the run is abandoned
    assert recovery.is_due()


def test_schedules_of_epochs_make_up_for_epochs_since_the_last_save() -> None:
    graph, instances = trees()
    schedule = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    update = Update(partial(torch.optim.Adam, lr=1.0), 4, "instances", schedule=schedule)
    with Processes(graph, workers=2, update=update, max_active_keys=8) as runtime:
        runtime.train(instances)
        runtime.snapshot()
        for rate in (0.25, 0.125):
            runtime.train(instances)
            os.kill(runtime.pids[0], signal.SIGKILL)
            assert len(restarts_of(runtime.held)) == 1
            assert set(runtime.learning_rates.values()) == {rate}


def versions_of(log: EventLog, node: str) -> int:
    """Returns the last version of a node in the log."""
    return max((event.version for event in log.events if isinstance(event, Updated) and event.node == node), default=0)


@pytest.mark.parametrize("sync", [None, "updates"])
def test_versions_grow_over_a_loss(sync: str | None) -> None:
    graph, instances = trees() if sync is None else trees(replicas=2, sync=sync)
    log = EventLog()
    with Processes(graph, workers=2, update=ADAM, max_active_keys=8, listeners=[log]) as runtime:
        runtime.train(instances[:1])

        def kills() -> Iterator[Instance]:
            """Kills a worker once updates of all nodes are in the log; what a killed worker has not sent is lost."""
            yield from instances
            while min(versions_of(log, node) for node in graph.parameterised()) <= 4:
                yield from instances
            os.kill(runtime.pids[0], signal.SIGKILL)
            yield from instances

        assert len(restarts_of(lambda: runtime.train(kills()))) == 1
    seen = [event for event in log.events if isinstance(event, Updated | Restart)]
    first = next(i for i, event in enumerate(seen) if isinstance(event, Restart))
    for node in graph.parameterised():
        before, after = (
            [event.version for event in some if isinstance(event, Updated) and event.node == node]
            for some in (seen[:first], seen[first:])
        )
        assert before[-1] > 4
        assert after[0] >= before[-1] - 1  # the last one may have been made just before the loss


def test_numbering_goes_on_after_a_loss() -> None:
    """Instances in flight at a loss are still counted at their copies."""
    graph, _ = trees(1)
    controller = Processes(graph, workers=2).controller
    controller.share_out(2, 3)
    numbers = controller.numbers
    controller.share_out(2, 3)
    assert controller.numbers is numbers


def test_bfloat16_on_workers() -> None:
    torch.manual_seed(0)
    model = TreeLstm(vocabulary=100, embedding=8, hidden=8).bfloat16()
    graph = compile(model, *next(generated.trees(1, seed=0)))
    instances = [graph.instance(*one) for one in generated.trees(12, seed=1)]
    with Processes(graph, workers=2, update=ADAM, max_active_keys=4) as runtime:
        assert runtime.train(instances).instances == len(instances)
        kept = runtime.snapshot()
        runtime.restore(kept)
        again = runtime.snapshot()
        assert all(tensor.equal(kept.tensors[name]) for name, tensor in again.tensors.items())


def test_a_worker_lost_between_runs() -> None:
    graph, instances = trees()
    with Processes(graph, workers=2, update=ADAM, max_active_keys=8) as runtime:
        runtime.train(instances)
        os.kill(runtime.pids[1], signal.SIGKILL)
        assert len(restarts_of(lambda: runtime.train(instances))) == 1


def test_a_stopped_worker_is_replaced() -> None:
    graph, instances = trees()

    def stopping() -> Iterator[Instance]:
        yield from instances[:10]
        os.kill(runtime.pids[1], signal.SIGSTOP)
        yield from instances[10:]

    with Processes(graph, workers=2, update=ADAM, max_active_keys=8, stuck_after=0.5) as runtime:
        runtime.train(instances[:4])
        (told,) = restarts_of(lambda: runtime.train(stopping()))
        assert "it was stopped (SIGSTOP)" in told


@pytest.mark.parametrize("replicas", [1, 2])
def test_snapshots_move_between_runtimes(replicas: int) -> None:
    """A snapshot of workers is restored by other workers, by themselves, and in one process."""
    graph, instances = trees(replicas=replicas)
    with Processes(graph, workers=2, update=ADAM, max_active_keys=8) as runtime:
        runtime.train(instances)
        kept = runtime.snapshot()
        runtime.train(instances)
        runtime.restore(kept)
        again = runtime.snapshot()
        assert all(tensor.equal(kept.tensors[name]) for name, tensor in again.tensors.items())
        assert again.data["nodes"] == kept.data["nodes"]
        runtime.train(instances)
    other, instances = trees(replicas=replicas)
    from ampnet import Inline

    with Inline(other, update=ADAM, max_active_keys=8) as inline:
        inline.restore(kept)
        assert all(
            tensor.equal(kept.tensors[name])
            for name, tensor in inline.snapshot().tensors.items()
            if name[:5] != "table"
        )
        assert inline.train(instances).instances == len(instances)
        inlined = inline.snapshot()
    third, instances = trees(replicas=replicas)
    with Processes(third, workers=2, update=ADAM, max_active_keys=8) as runtime:
        runtime.restore(inlined)
        assert runtime.train(instances).instances == len(instances)


def test_a_snapshot_during_a_run() -> None:
    graph, instances = trees(200)
    taken: list[Any] = []

    def turn(progress: Progress) -> None:
        taken.append(runtime.snapshot())

    with Processes(graph, workers=2, update=ADAM, max_active_keys=8) as runtime:
        (stats,) = runtime.run([Stream(instances, True, "train")], on_turn=turn, turn_seconds=0.0)
        assert stats.instances == len(instances)
    assert len(taken) > 2
    versions = [max(node["version"] for node in one.data["nodes"].values()) for one in taken]
    assert versions == sorted(versions)
    assert versions[-1] > versions[0]


def test_an_error_in_a_node_is_no_loss() -> None:
    torch.manual_seed(0)
    graph = compile(Mlp(8, 3, 4), *next(generated.images(1, 0, 8, 4)))
    instances = [graph.instance(*one) for one in generated.images(6, 0, 8, 4)]
    bad = graph.instance(torch.zeros(8), torch.tensor(99))
    with Processes(graph, workers=2, update=ADAM, max_active_keys=2) as runtime:
        with pytest.raises(AmpnetError, match="99"):
            runtime.train([*instances, bad])
        assert runtime.stats().restarts == 0
        runtime.train(instances)


@pytest.mark.parametrize("value", [-1, True, 1.5, "3"])
def test_max_restarts_is_a_whole_number(value: Any) -> None:
    graph, _ = trees(1)
    with pytest.raises(ValueError, match="max_restarts must be a whole number"):
        Processes(graph, max_restarts=value)
