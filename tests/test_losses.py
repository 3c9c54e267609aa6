"""Several losses of one model: kept apart by name, with metrics of their own, alike on every runtime."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampnet import Inline, ModelError, Processes, Replicate, Seq, StreamStats, Update, compile
from ampnet.cli.progress import epoch_line, progress_lines
from ampnet.controller import Progress
from ampnet.events import Recorder
from ampnet.events.report import page
from ampnet.fitting import EpochRecord, fit
from ampnet.lang import Compiled, Model, Ratio, each, fold, loss
from ampnet.nodes import Loss
from ampnet.testing import assert_compiled
from tests.cli.test_progress import FACTS

WIDTH, WORDS = 4, 7


def said(scores: Tensor, label: Tensor) -> Tensor:
    return (scores.argmax(-1) == 1).double()


F1 = Ratio(lambda s, y: 2 * said(s, y) * (y == 1), lambda s, y: said(s, y) + (y == 1))


class Two(Model):
    """The mood of a sentence, and the next word at every word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(WORDS, WIDTH), nn.GRUCell(WIDTH, WIDTH)
        self.mood, self.next = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, WORDS)

    def forward(self, words: Seq, mood: Tensor) -> None:
        h = fold(lambda h, word: self.cell(self.embedding(word.this), h), words, self.zeros(WIDTH))
        loss(self.mood(h), mood, name="mood", metrics={"f1": F1, "confident": lambda s, y: s.softmax(-1).amax(-1)})
        each(lambda w: loss(self.next(self.embedding(w.this)), w.next, name="word", weight=0.5), words)


def rows(count: int = 12) -> list[dict[str, Any]]:
    random = torch.Generator().manual_seed(0)
    out = []
    for i in range(count):
        words = torch.randint(0, WORDS, (1 + i % 4, 2), generator=random)
        out.append({"words": Seq(this=words[:, 0], next=words[:, 1]), "mood": torch.tensor(int(i % 3 == 0))})
    return out


def model() -> Two:
    torch.manual_seed(0)
    return Two().double()


def wanted() -> dict[str, float]:
    """The same by hand, eagerly."""
    with torch.no_grad():
        judged = [j for row in rows() for j in model().judge(row)]
    mood, word = ([j for j in judged if j.name == name] for name in ("mood", "word"))
    guesses = torch.stack([j.prediction for j in mood])
    labels = torch.stack([j.label for j in mood])
    found, true = guesses.argmax(-1) == 1, labels == 1
    return {
        "mood.loss": float(torch.stack([j.value for j in mood]).mean()),
        "mood.accuracy": float((guesses.argmax(-1) == labels).double().mean()),
        "mood.f1": float(2 * (found & true).sum() / (found.sum() + true.sum())),
        "mood.confident": float(guesses.softmax(-1).amax(-1).mean()),
        "word.loss": float(torch.stack([j.value for j in word]).mean()),
        "word.accuracy": float(torch.tensor([float(j.prediction.argmax() == j.label) for j in word]).mean()),
    }


def check(stats: StreamStats, want: dict[str, float]) -> None:
    assert list(stats.metrics) == list(want)
    assert stats.metrics == pytest.approx(want, rel=1e-6)
    assert stats.losses == pytest.approx({"mood": want["mood.loss"], "word": want["word.loss"]})
    assert stats.loss == pytest.approx(want["mood.loss"] + want["word.loss"])


@pytest.mark.parametrize("way", ["waves", "messages", "processes", "replicas", "replicas on processes"])
def test_losses_and_metrics_are_kept_apart_on_every_runtime(way: str) -> None:
    replicas: Any = Replicate(2) if "replicas" in way else 1
    graph = compile(model(), rows()[0], replicas=replicas)
    make = partial(Processes, workers=2) if "processes" in way else partial(Inline, waves=way != "messages")
    with make(graph, max_active_keys=5) as runtime:
        assert runtime.stats().engine == ("messages" if way == "messages" else "waves")
        check(runtime.train(rows()), wanted())
        check(runtime.infer(rows()), wanted())


def test_gradients_are_of_the_sum() -> None:
    assert_compiled(model(), rows(5), max_active_keys=3)


def test_one_loss_has_plain_names() -> None:
    class One(Two):
        def forward(self, words: Seq, mood: Tensor) -> None:
            h = fold(lambda h, word: self.cell(self.embedding(word.this), h), words, self.zeros(WIDTH))
            loss(self.mood(h), mood, name="mood", metrics={"f1": F1})

    with Inline(compile(One(), rows()[0])) as runtime:
        stats = runtime.infer(rows())
    assert list(stats.metrics) == ["accuracy", "f1"]
    assert stats.losses == {"mood": stats.loss}


def test_losses_of_one_name_are_one() -> None:
    class Deep(Model):
        """A loss after each layer."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

        def forward(self, x: Tensor, y: Tensor) -> None:
            for layer in self.layers:
                x = torch.tanh(layer(x))
                loss(x, y, "squared_error")

    torch.manual_seed(0)
    given = (torch.ones(WIDTH).double(), torch.zeros(WIDTH).double())
    deep = Deep().double()
    graph = assert_compiled(deep, [given, given])
    with Inline(graph) as runtime:
        stats = runtime.infer([given])
    assert list(stats.losses) == ["loss"]
    assert list(stats.metrics) == ["absolute_error"]
    with torch.no_grad():
        want = torch.stack([j.value for j in deep.judge(*given)]).mean()
    assert stats.loss == pytest.approx(float(want))


def test_skipped_messages_are_in_no_mean() -> None:
    class Careful(Model):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(1, 1)

        def forward(self, x: Tensor, y: Tensor) -> None:
            loss(self.a(x), y, "squared_error", name="a", on_nan="skip")
            loss(self.a(x), y + 1, "squared_error", name="b", on_nan="skip")

    good, bad = (torch.ones(1), torch.zeros(1)), (torch.tensor([torch.inf]), torch.zeros(1))
    graph = compile(Careful(), *good)
    results = {}
    for waves in (True, False):
        with Inline(graph, waves=waves, max_active_keys=1) as runtime:
            alone, both = runtime.train([good]), runtime.train([good, bad])
            assert both.skipped >= 1
            assert both.losses == pytest.approx(alone.losses)
            results[waves] = both.losses
    assert results[True] == pytest.approx(results[False])


# -- names


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "a.b"}, "the name of a loss is a word without a dot"),
        ({"name": ""}, "the name of a loss is a word"),
        ({"metrics": {"loss": said}}, "metric 'loss' of loss 'loss' is the loss itself"),
        ({"metrics": {"f1": 3}}, "metric 'f1' of loss 'loss' is 3; metrics are functions"),
    ],
)
def test_names_that_would_be_mixed_up_are_refused_at_their_line(settings: dict[str, Any], words: str) -> None:
    class Wrong(Model):
        def forward(self, x: Tensor) -> None:
            loss(x, x, "squared_error", **settings)

    with pytest.raises(ModelError, match=words) as caught:
        compile(Wrong(), torch.zeros(2))
    assert "test_losses.py" in str(caught.value)


def test_metrics_are_beside_the_usual_or_in_its_place() -> None:
    assert list(Loss(metrics={"f1": F1}).metrics) == ["accuracy", "f1", "f1 per"]
    assert Loss(metrics={"accuracy": said}).metrics == {"accuracy": said}
    assert list(Loss(lambda p, y: p.sum(1), metrics={"far": said}).metrics) == ["far"]
    assert list(Loss("squared_error", metrics={}).metrics) == ["absolute_error"]
    with pytest.raises(ValueError, match="cannot be called 'loss'"):
        Loss(metrics={"loss": said})


# -- where they are shown


def trained(**settings: Any) -> tuple[Compiled, Any]:
    graph = compile(model(), rows()[0])
    update = Update(partial(torch.optim.SGD, lr=0.1), min_update_frequency=4)
    return graph, Inline(graph, update=update, **settings)


def test_fit_goes_by_the_metric_of_one_loss() -> None:
    graph, runtime = trained()
    instances = list(graph.instances(rows()))
    with runtime:
        result = fit(runtime, train=lambda epoch: instances, epochs=2, metric="mood.accuracy")
        assert result.value == result.history[result.epoch - 1].train_metrics["mood.accuracy"]
        lowest = fit(runtime, train=lambda epoch: instances, epochs=3, metric="word.loss")
        assert lowest.value == min(record.train_metrics["word.loss"] for record in lowest.history)
        with pytest.raises(ValueError, match=r"there are: loss, mood.loss, .*Did you mean 'mood.accuracy' or"):
            fit(runtime, train=lambda epoch: instances, epochs=1, metric="accuracy")
        with pytest.raises(ValueError, match="a higher loss is not better"):
            fit(runtime, train=lambda epoch: instances, epochs=1, metric="mood.loss", higher_is_better=True)


def test_progress_shows_each_loss() -> None:
    metrics = {"mood.loss": 0.2, "mood.accuracy": 0.5, "word.loss": 0.3, "word.accuracy": 0.1}
    line = epoch_line(EpochRecord(1, 0.5, metrics, None, {}, 10.0, None, 1.0), FACTS)
    assert "loss 0.500 (mood 0.200, word 0.300)" in line
    progress = Progress("train 1", True, 10, 1.0, 0.5, metrics, 2)
    assert "loss 0.500 (mood 0.200, word 0.300)" in progress_lines(progress, 20, FACTS)[1]


def test_log_and_report_have_each_loss(tmp_path: Path) -> None:
    from ampnet.events import LogWriter, read_run

    recorder, log = Recorder(), LogWriter(tmp_path / "run.jsonl")
    _, runtime = trained(listeners=[recorder, log])
    with runtime:
        runtime.train(rows())
        stats = runtime.infer(rows(), name="valid")
    log.close()
    shown = page(recorder.record())
    for name in ("mood.loss", "word.loss", "mood.f1", "word.accuracy"):
        assert f">{name}" in shown or f"<b>{name}" in shown
    last = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines() if '"Epoch"' in line][-1]
    assert last["metrics"] == pytest.approx(stats.metrics)
    assert read_run(tmp_path / "run.jsonl").streams[-1].metrics == pytest.approx(stats.metrics)
