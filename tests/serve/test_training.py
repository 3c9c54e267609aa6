"""Predictions during training: they are right, and training does not notice them.

training      turn ── turn ── [predictions] ── turn ── [predictions] ── turn ──
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch

from ampnet import Callback, Inline, Processes, Seq, Stream, Update, compile, fit, serve
from ampnet.errors import AmpnetError
from ampnet.instance import Instance
from ampnet.lang import Compiled
from ampnet.runtime import beside
from ampnet.serve.serving import Serving
from tests.serve.asking import Reader, ask, reader

ONE = {"tokens": [1, 2, 3]}


def instances(graph: Compiled, number: int = 60) -> list[Instance]:
    torch.manual_seed(1)
    return [graph.instance(Seq(torch.randint(20, (1 + i % 6,))), torch.tensor(i % 5)) for i in range(number)]


def adam() -> Update:
    return Update(lambda parameters: torch.optim.Adam(parameters, lr=0.01), min_update_frequency=3)


def everything(runtime: Inline) -> list[Any]:
    """Weights, gradient sums, optimizer states and queues, to the bit."""
    snapshot = runtime.snapshot()
    return [{name: t.tolist() for name, t in snapshot.tensors.items()}, snapshot.data["nodes"], runtime.held()]


class Asking:
    """A loader during which requests come in: at some instances it waits until one was answered."""

    def __init__(self, serving: Serving, data: list[Instance], bad: bool = False) -> None:
        self.serving, self.data, self.bad = serving, data, bad
        self.answers: list[Any] = []
        self.threads: list[threading.Thread] = []

    def _ask(self, body: Any) -> None:
        self.answers.append(ask(self.serving, body))

    def __iter__(self) -> Iterator[Instance]:
        for number, instance in enumerate(self.data):
            if number % 5 == 2:
                body = {"tokens": [1, 99]} if self.bad and number % 2 else ONE
                thread = threading.Thread(target=self._ask, args=(body,))
                thread.start()
                self.threads.append(thread)
            yield instance

    def join(self) -> None:
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize("schedule", [None, "random"])
def test_inline_training_is_the_same_to_the_bit(schedule: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "SHARE", 1.0)  # at every turn that has a request
    results = []
    for asks in (False, True):
        graph = reader()
        data = instances(graph)
        with Inline(graph, update=adam(), max_active_keys=6, wave_size=2, schedule=schedule, seed=3) as runtime:
            if not asks:
                runtime.train(data)
                runtime.train(data)
            else:
                with serve(runtime, port=None, rate=None) as serving:
                    serving.desk.wait = 0.0
                    asking = Asking(serving, data, bad=True)
                    runtime.train(asking)
                    runtime.train(data)
                    asking.join()
                assert len(asking.answers) == 12
                assert {a.status_code for a in asking.answers} == {200, 422}
            results.append(everything(runtime))
    assert results[0] == results[1]


def test_inline_predictions_use_the_weights_between_two_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the run, a batch is played in the thread of the run; its results are those of the weights of that moment."""
    graph = reader()
    data = instances(graph)
    with Inline(graph, update=adam(), max_active_keys=2) as runtime, serve(runtime, port=None, rate=None) as serving:
        serving.desk.wait = 0.0
        player = serving._player
        plain, seen = player.predict, []

        def watched(given: Any) -> list[Any]:
            seen.append(threading.current_thread() is threading.main_thread())
            with torch.no_grad():
                expected = eager(graph)
            results = plain(given)
            assert torch.allclose(results[0], expected, atol=1e-6)
            return results

        monkeypatch.setattr(player, "predict", watched)
        asking = Asking(serving, data * 3)
        runtime.train(asking)
        asking.join()
        assert all(answer.status_code == 200 for answer in asking.answers)
        assert any(seen)
        updates = [answer.json()["weights"]["updates"] for answer in asking.answers]
        assert max(updates) > min(updates)


def eager(graph: Compiled) -> torch.Tensor:
    model = graph.model
    assert isinstance(model, Reader)
    h = torch.zeros(8)
    for token in ONE["tokens"]:
        h = model.cell(model.embedding(torch.tensor(token)), h)
    return model.classify(h)


def endless(data: list[Instance], over: threading.Event) -> Iterator[Instance]:
    for number in count():
        if over.is_set():
            return
        yield data[number % len(data)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_workers_train_while_predictions_are_played(replicas: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "FRESH", 0.0)
    torch.manual_seed(0)
    graph = compile(Reader(), Seq(torch.tensor([1, 2, 3])), torch.tensor(1), replicas=replicas)
    data, over = instances(graph), threading.Event()
    with (
        Processes(graph, workers=2, update=adam(), max_active_keys=8) as runtime,
        serve(runtime, port=None, rate=None) as serving,
    ):
        at_rest = ask(serving, ONE).json()
        assert torch.allclose(torch.tensor(at_rest["predictions"][0]), eager(graph).detach(), atol=1e-6)
        found = []

        def client() -> None:
            while len(found) < 12 or found[-1].json()["weights"]["updates"] < 5:
                found.append(ask(serving, ONE))
                if found[-1].status_code != 200:
                    break
            over.set()

        thread = threading.Thread(target=client)
        thread.start()
        runtime.run([Stream(endless(data, over), True, "train")])
        thread.join()
        assert {answer.status_code for answer in found} == {200}
        updates = [answer.json()["weights"]["updates"] for answer in found]
        assert updates == sorted(updates)
        assert runtime.held() == {}
        after = ask(serving, ONE).json()
        assert torch.allclose(torch.tensor(after["predictions"][0]), eager(graph).detach(), atol=1e-6)
        assert after["weights"]["updates"] >= updates[-1]


def test_weights_of_workers_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node's weights are of one version: after every update of plain descent on a loss with gradient 1, all
    elements of a weight are equal, and so are those that a prediction uses."""
    monkeypatch.setattr(beside, "FRESH", 0.0)
    from torch import nn

    from ampnet.lang import Model, loss

    class Ramp(Model):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(200, 200, bias=False)
            nn.init.zeros_(self.layer.weight)

        def forward(self, x: Any) -> Any:
            out = self.layer(x)
            loss(out.sum())
            return out

    graph = compile(Ramp(), torch.ones(200))
    data, over = [graph.instance(torch.ones(200))] * 4, threading.Event()
    update = Update(lambda parameters: torch.optim.SGD(parameters, lr=1e-3))
    with (
        Processes(graph, workers=2, update=update, max_active_keys=4) as runtime,
        serve(runtime, port=None, rate=None) as serving,
    ):
        found: list[Any] = []

        def client() -> None:
            while len(found) < 20 or (found[-1] == found[0] and len(found) < 2000):  # until an update was seen
                found.append(ask(serving, {"x": [1.0] * 200}).json())
            over.set()

        thread = threading.Thread(target=client)
        thread.start()
        runtime.run([Stream(endless(data, over), True, "train")])
        thread.join()
    rows = [answer["predictions"][0] for answer in found]
    assert all(max(row) - min(row) < 1e-3 * max(1.0, abs(row[0])) for row in rows)
    assert rows[-1][0] < rows[0][0] <= 0


def test_fit_tells_the_epoch_and_requests_are_served_between_runs() -> None:
    graph = reader()
    data = instances(graph)
    seen: list[Any] = []

    class Between(Callback):
        at_rest = True

        def on_epoch_end(self, record: Any) -> None:
            seen.append(record.epoch)

    with Inline(graph, update=adam(), max_active_keys=4) as runtime, serve(runtime, port=None) as serving:
        assert ask(serving, ONE).json()["weights"] == {"epoch": None, "updates": 0}
        fit(runtime, train=data, valid=data[:5], epochs=2, callbacks=[serving, Between()])
        after = ask(serving, ONE).json()
        assert after["weights"]["epoch"] == 2
        assert after["weights"]["updates"] > 0
        assert torch.allclose(torch.tensor(after["predictions"][0]), eager(graph).detach(), atol=1e-6)


def test_other_weights_loaded_between_runs_are_served() -> None:
    for make in (Inline, Processes):
        graph = reader()
        with make(graph, update=adam(), max_active_keys=4) as runtime, serve(runtime, port=None) as serving:
            ask(serving, ONE)
            graph.model.load_state_dict(reader(7).model.state_dict())
            got = ask(serving, ONE).json()["predictions"][0]
            assert torch.allclose(torch.tensor(got), eager(graph).detach(), atol=1e-6)


def test_a_runtime_has_one_server_and_none_begins_in_a_run() -> None:
    graph = reader()
    with Inline(graph, update=adam()) as runtime:
        with serve(runtime, port=None), pytest.raises(AmpnetError, match="served already"):
            serve(runtime, port=None)
        with serve(runtime, port=None):
            pass
        late: list[str] = []

        def on_end(stats: Any) -> None:
            with pytest.raises(AmpnetError) as caught:
                serve(runtime, port=None)
            late.append(str(caught.value))

        runtime.run([Stream(instances(graph)[:3], True, "train")], on_end=on_end)
        assert "set up before the run" in late[0]


def test_a_run_that_fails_leaves_the_server_answering() -> None:
    graph = reader()
    with Inline(graph, update=adam(), max_active_keys=2) as runtime, serve(runtime, port=None) as serving:
        bad = graph.instance(Seq(torch.tensor([99])), torch.tensor(1))
        with pytest.raises(AmpnetError):
            runtime.train([*instances(graph)[:4], bad])
        assert ask(serving, ONE).status_code == 200
        assert runtime.held() == {}
