"""`Runtime.predict` on every runtime: results in the order of the data, in waves, with the weights of now."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampnet import AmpnetError, Inline, Model, NodeError, Processes, Replicate, Seq, Update, WorkerDied, compile
from ampnet.errors import RestartWarning
from ampnet.lang import Compiled, fold, loss
from ampnet.runtime.host import Host
from ampnet.runtime.runtime import Runtime
from ampnet.testing.predicted import assert_same, eager

UPDATE = Update(partial(torch.optim.SGD, lr=0.05), 2, "instances")

workers = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


class Summed(Model):
    """Has a head, ``extra``, that no loss depends on: it is in the prediction graph only."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(12, 6), nn.Linear(6, 6)
        self.out, self.extra = nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, tokens: Seq, label: Tensor) -> Any:
        h = fold(lambda h, t: torch.tanh(self.cell(h + self.embedding(t))), tokens, self.zeros(6))
        scores = self.out(h)
        loss(scores, label)
        return scores, self.extra(h)


def samples(count: int) -> list[tuple[Seq, Tensor]]:
    generator = torch.Generator().manual_seed(count)
    return [(Seq(torch.randint(0, 10, (1 + i % 5,), generator=generator)), torch.tensor(i % 3)) for i in range(count)]


def made(**how: Any) -> Compiled:
    torch.manual_seed(0)
    return compile(Summed().double(), *samples(1)[0], **how)


RUNTIMES: dict[str, Callable[[], Runtime]] = {
    "inline": lambda: Inline(made(), update=UPDATE, max_active_keys=6),
    "inline, replicas": lambda: Inline(made(replicas=2), update=UPDATE, max_active_keys=6),
    "parted": lambda: Processes(
        made(), workers=2, affinity={"embedding": 0, "cell": 0, "out": 1}, update=UPDATE, max_active_keys=6
    ),
    "tiles": lambda: Processes(made(tiles={"cell": 2}), workers=2, update=UPDATE, max_active_keys=6),
    "shared": lambda: Processes(
        made(replicas=Replicate(2, sync="shared")), workers=2, update=UPDATE, max_active_keys=6
    ),
    "averaged": lambda: Processes(made(replicas=2), workers=2, update=UPDATE, max_active_keys=6),
}


@workers
@pytest.mark.parametrize("kind", RUNTIMES)
def test_every_runtime_predicts_before_and_after_training(kind: str) -> None:
    data = samples(23)
    bare = [tokens for tokens, _ in data]
    with RUNTIMES[kind]() as runtime:
        graph = runtime.graph
        assert isinstance(graph, Compiled)
        model = graph.model
        assert isinstance(model, Model)
        for _ in range(2):
            found = runtime.predict(bare)
            for place, (sample, got) in enumerate(zip(data, found, strict=True)):
                assert_same(got, eager(model, sample), f"sample {place}")
            runtime.train(graph.instances(data))
        found = runtime.predict(bare)
        with torch.no_grad():
            model.extra.weight.add_(1)  # type: ignore[union-attr,operator]
        again = runtime.predict(bare)
        assert not torch.equal(found[0][1], again[0][1])
        assert torch.equal(found[0][0], again[0][0])
        stats = runtime.stats()
        assert stats.engine == "waves"
        assert stats.instances == 6 * 23
        assert not runtime.held()


@workers
@pytest.mark.parametrize("kind", ["inline", "parted", "shared"])
def test_a_stream_of_predictions_is_bounded(kind: str) -> None:
    data, read = samples(40), list[int]()

    def endless() -> Iterator[Seq]:
        for i, (tokens, _) in enumerate(data):
            read.append(i)
            yield tokens

    with RUNTIMES[kind]() as runtime:
        whole = runtime.predict([tokens for tokens, _ in data])
        stream = runtime.predict_stream(endless(), chunk=8)
        first = [next(stream) for _ in range(3)]
        assert len(read) == 8
        assert runtime.infer(runtime.graph.read(data[:4])).instances == 4  # between two results
        found = [*first, *stream]
    assert len(read) == 40
    for place, (got, want) in enumerate(zip(found, whole, strict=True)):
        assert_same(got, want, f"sample {place}")


@workers
@pytest.mark.parametrize("kind", ["inline", "parted", "shared"])
def test_an_error_is_named_and_the_runtime_goes_on(kind: str) -> None:
    data = samples(12)
    bad = Seq(torch.tensor([11, 12, 3]))  # there is no row 12
    with RUNTIMES[kind]() as runtime:
        with pytest.raises(NodeError, match="embedding"):
            runtime.predict([*(tokens for tokens, _ in data), bad])
        assert not runtime.held()
        assert len(runtime.predict([tokens for tokens, _ in data])) == 12
        assert runtime.train(runtime.graph.read(data)).instances == 12


@workers
@pytest.mark.parametrize("kind", ["inline", "parted"])
def test_not_within_a_run(kind: str) -> None:
    data = samples(4)
    with RUNTIMES[kind]() as runtime:

        def asks() -> Iterator[Any]:
            runtime.predict([data[0][0]])
            yield from ()

        with pytest.raises(AmpnetError, match="within a run"):
            runtime.train(asks())
        assert len(runtime.predict([data[0][0]])) == 1


@workers
@pytest.mark.parametrize("kind", ["inline", "parted", "averaged"])
def test_no_run_within_a_prediction(kind: str) -> None:
    """Once it was not refused: on workers the two took one another's answers, and a KeyError of the controller came of
    it."""
    data = samples(12)
    with RUNTIMES[kind]() as runtime:

        def trains() -> Iterator[Seq]:
            for i, (tokens, _) in enumerate(data):
                if i == 7:
                    runtime.train(runtime.graph.read(data))
                yield tokens

        with pytest.raises(AmpnetError, match="run was called within a run"):
            runtime.predict(trains())
        assert not runtime.held()
        assert len(runtime.predict([tokens for tokens, _ in data])) == 12
        assert runtime.train(runtime.graph.read(data)).instances == 12


@workers
def test_a_prediction_after_an_error_waits_for_workers_that_are_behind() -> None:
    """Once a worker that had not heard yet that a run was abandoned went on with its updates, while others predicted:
    some results were those of the old weights, others of the new ones."""
    data = samples(24)

    def falls_behind(host: Host) -> None:
        abandon, busy = host._abandon, torch.rand(300, 300)

        def late(era: int) -> None:
            for _ in range(200):
                busy.copy_(torch.tanh(busy @ busy))
            weight.data.add_(1)
            abandon(era)

        if host.number == 1:
            host._abandon = late  # type: ignore[method-assign]

    def fails() -> Iterator[Any]:
        yield from data[:12]
        raise ValueError("no more")

    runtime = RUNTIMES["averaged"]()
    with runtime:
        assert isinstance(runtime, Processes)
        weight = runtime.graph.model.out.weight  # type: ignore[attr-defined]
        runtime.on_worker = falls_behind
        with pytest.raises(AmpnetError, match="no more"):
            runtime.train(fails())
        found = runtime.predict([tokens for tokens, _ in data])
        for place, (sample, got) in enumerate(zip(data, found, strict=True)):
            assert_same(got, eager(runtime.graph.model, sample), f"sample {place}")  # type: ignore[attr-defined]


def test_no_data_is_no_result() -> None:
    with Inline(made()) as runtime:
        assert runtime.predict([]) == []
        assert list(runtime.predict_stream([])) == []
        with pytest.raises(ValueError, match="chunk"):
            runtime.predict_stream([], chunk=0)


@workers
def test_a_worker_that_dies_is_named() -> None:
    data = [tokens for tokens, _ in samples(30)]
    affinity = {"embedding": 0, "cell": 0, "out": 1}
    with Processes(made(), workers=2, affinity=affinity, update=UPDATE, max_active_keys=6, max_restarts=0) as runtime:
        runtime.predict(data)

        def kills() -> Iterator[Seq]:
            yield from data[:10]
            os.kill(runtime.pids[1], signal.SIGKILL)
            yield from data

        with pytest.raises(WorkerDied, match="worker1"):
            runtime.predict(kills())
        with pytest.raises(AmpnetError, match="this runtime has ended"):
            runtime.predict(data)


@workers
@pytest.mark.parametrize("kind", ["parted", "shared"])
def test_predictions_go_on_after_a_lost_worker(kind: str) -> None:
    data = [tokens for tokens, _ in samples(30)]
    with RUNTIMES[kind]() as runtime:
        assert isinstance(runtime, Processes)
        expected = runtime.predict(data)

        def kills() -> Iterator[Seq]:
            yield from data[:10]
            os.kill(runtime.pids[1], signal.SIGKILL)
            yield from data[10:]

        with pytest.warns(RestartWarning, match="worker 'worker1' was killed by signal 9"):
            got = runtime.predict(kills())
        torch.testing.assert_close(got, expected)
        assert runtime.stats().restarts == 1
        assert not runtime.held()


@workers
@pytest.mark.parametrize("kind", ["inline", "parted", "shared"])
def test_an_interrupt_leaves_nothing_in_flight(kind: str) -> None:
    data = samples(12)

    def interrupted() -> Iterator[Seq]:
        yield from (tokens for tokens, _ in data)
        raise KeyboardInterrupt

    with RUNTIMES[kind]() as runtime:
        with pytest.raises(KeyboardInterrupt):
            runtime.predict(interrupted())
        assert not runtime.held()
        assert runtime.train(runtime.graph.read(data)).instances == 12
        assert len(runtime.predict([tokens for tokens, _ in data])) == 12


@workers
def test_a_model_that_was_cast_needs_a_new_runtime() -> None:
    with RUNTIMES["parted"]() as runtime:
        runtime.train(runtime.graph.read(samples(4)))
        runtime.graph.to(torch.float32)
        with pytest.raises(AmpnetError, match="make a new runtime"):
            runtime.predict([samples(1)[0][0]])
