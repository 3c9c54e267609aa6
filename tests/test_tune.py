"""How many instances to have in flight: what is chosen of what was tried, and that trying leaves no trace."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ampnet import Graph, Inline, Instance, Update, feed, tune
from ampnet.cli import main
from ampnet.errors import DataError, NodeError
from ampnet.events.log import Listener
from ampnet.experiments.list_reduction import Settings
from ampnet.nodes import Linear, Loss
from ampnet.testing import TickClock
from ampnet.tune import Suggestion, Trial, choose, suggest


def small() -> Graph:
    graph = Graph()
    graph.add("linear", Linear(nn.Linear(4, 4)))
    graph.add("loss", Loss("squared_error"))
    graph.input("x", "linear")
    graph.connect("linear", "loss.prediction")
    graph.input("label", "loss.label")
    return graph


def some(count: int) -> list[Instance]:
    x = torch.randn(3, 4)
    return [Instance({"x": feed(x, messages=1), "label": feed(x, messages=1)}) for _ in range(count)]


def inline(graph: Graph, number: int, listeners: Sequence[Listener], rate: float = 1e-3, **more: Any) -> Inline:
    """By messages, and an update for each of them, so that what is in flight is stale."""
    update = Update(partial(torch.optim.SGD, lr=rate), 1, "messages")
    settings = {"waves": False, **more}
    return Inline(graph, update=update, max_active_keys=number, listeners=listeners, **settings)


waves = partial(inline, waves=True)
"""In waves that are played one after the other."""
turns = partial(inline, waves=True, schedule="fifo", wave_size=1)
"""In waves that take turns: they are stale."""


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ({1: (100, 0)}, 1),
        ({1: (10, 0), 4: (80, 1), 16: (100, 3)}, 16),  # 80 % are not enough
        ({1: (10, 0), 4: (96, 1), 16: (100, 3)}, 4),  # 96 % are
        ({1: (10, 0), 4: (60, 1), 16: (100, 5)}, 4),  # the fastest is too stale: what is 60 % of it is the best now
        ({1: (10, 5), 4: (60, 9)}, 1),  # all are: the least
        ({1: (100, 0), 4: (90, 0), 16: (80, 0)}, 1),
    ],
)
def test_the_smallest_that_is_fast_enough_and_not_too_stale(found: dict[int, tuple[float, float]], chosen: int) -> None:
    assert choose([Trial(number, rate, lag, 9) for number, (rate, lag) in found.items()]) == chosen


def test_where_nothing_can_be_stale_the_fastest_is_chosen() -> None:
    trials = [Trial(1, 10, 5.0), Trial(4, 60, 6.0), Trial(16, 100, 7.0)]
    assert (choose(trials), choose(trials, stalest=None)) == (1, 16)


@pytest.mark.parametrize(
    ("found", "tried"),
    [
        ({1: (10, 0), 4: (20, 1), 16: (40, 2), 64: (80, 3), 256: (160, 4)}, 5),  # faster and faster
        ({1: (40, 0), 4: (41, 1), 16: (39, 2), 64: (99, 3), 256: (99, 4)}, 3),  # two were no faster than the first
        ({1: (40, 0), 4: (41, 1), 16: (60, 2), 64: (61, 3), 256: (60, 4)}, 5),  # one alone may be chance
        ({1: (40, 0), 4: (80, 5), 16: (90, 9), 64: (99, 9), 256: (99, 9)}, 2),  # others are staler still
    ],
)
def test_it_ends_when_more_is_no_use(
    found: dict[int, tuple[float, float]], tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trial(graph: Graph, instances: object, make: object, number: int, *args: object) -> tuple[Trial, str, bool]:
        return Trial(number, *found[number], 9), "waves", True

    monkeypatch.setattr(tune, "_try", trial)
    result = suggest(small(), some(300), inline)
    assert [one.in_flight for one in result.trials] == list(found)[:tried]


@pytest.mark.parametrize("make", [inline, waves, turns])
def test_a_graph_that_was_tried_is_as_it_was(make: tune.Make) -> None:
    graph, instances = small(), some(20)
    random = torch.get_rng_state()
    before = copy.deepcopy([*graph.parameterised()["linear"].updater.weights])
    found = suggest(graph, instances, make, seconds=0.1, stalest=99)
    assert [trial.in_flight for trial in found.trials][:2] == [1, 4]
    assert max(trial.in_flight for trial in found.trials) <= 16  # there are 20 instances
    assert all(trial.rate > 0 for trial in found.trials)
    after = graph.parameterised()["linear"].updater.weights
    assert all(map(torch.equal, before, after))
    assert graph.parameterised()["linear"].updater.version == 0
    assert torch.equal(random, torch.get_rng_state())


@pytest.mark.parametrize(("make", "engine"), [(inline, "messages"), (turns, "waves")])
def test_what_interleaves_is_bounded_by_its_staleness(make: tune.Make, engine: str) -> None:
    found = suggest(small(), some(20), make, seconds=0.1, stalest=0)
    assert (found.in_flight, len(found.trials), found.bound, found.engine) == (1, 2, 0, engine)
    assert found.trials[0].staleness == 0 < found.trials[1].staleness <= found.trials[1].stalest
    assert "too stale" in str(found)


def test_waves_played_one_after_the_other_are_bounded_by_nothing() -> None:
    """With so many in flight a wave has as many instances; the bound of 0 does not count."""
    found = suggest(small(), some(70), waves, numbers=(1, 4, 16, 64), seconds=0.2, stalest=0)
    assert (found.bound, found.engine) == (None, "waves")
    assert found.in_flight > 1
    assert all(trial.staleness == 0 < trial.waves for trial in found.trials)
    assert 0.9 <= found.trials[0].wave_size <= 1 < found.trials[1].wave_size <= 4
    assert "too stale" not in str(found)


def test_the_same_readings_of_the_clock_give_the_same_suggestion() -> None:
    """A clock that moves on by a second at every look: each stretch is of as many instances in every call."""
    found = [suggest(small(), some(20), waves, seconds=40.0, clock=TickClock()) for _ in range(2)]
    assert found[0] == found[1]
    assert str(found[0]) == str(found[1])


def test_fewer_instances_than_the_least_number_and_none() -> None:
    found = suggest(small(), some(3), inline, seconds=0.02, numbers=(8, 32))
    assert [trial.in_flight for trial in found.trials] == [3]
    with pytest.raises(DataError, match="no instance"):
        suggest(small(), [], inline)


def test_a_number_that_the_training_does_not_bear_ends_it() -> None:
    def wild(graph: Graph, number: int, listeners: Sequence[Listener]) -> Inline:
        return inline(graph, number, listeners, rate=1e-3 if number == 1 else 1e9)

    found = suggest(small(), some(20), wild, seconds=0.1)
    assert [trial.in_flight for trial in found.trials] == [1]
    with pytest.raises(NodeError, match="the loss is"):
        suggest(small(), some(20), wild, seconds=0.1, numbers=(4, 16))


def test_the_table() -> None:
    trials = (Trial(1, 1234.5, 0.0, 0), Trial(4, 5678.9, 1.25, 3), Trial(16, 6000.0, 7.5, 9))
    assert str(Suggestion(4, trials, 0.9, 4.0, "messages")).splitlines() == [
        "in flight  records/s  of the best  staleness",
        "        1      1,234          22%        0.0",
        "        4      5,679         100%        1.2  <- chosen",
        "       16      6,000         106%        7.5  too stale",
        "max_active_keys: 4, the smallest number with 90% of the best throughput and a mean staleness of at most 4; "
        "measured in messages",
    ]


def test_the_table_of_waves() -> None:
    trials = (Trial(1, 1234.5, 0.0, 0, 900, 1.0), Trial(16, 6000.0, 0.0, 0, 90, 15.25))
    assert str(Suggestion(16, trials, 0.95, None)).splitlines() == [
        "in flight  instances/wave  records/s  of the best  staleness",
        "        1             1.0      1,234          21%        0.0",
        "       16            15.2      6,000         100%        0.0  <- chosen",
        "max_active_keys: 16, the smallest number with 95% of the best throughput; measured in waves, played one after "
        "the other: nothing is stale",
    ]


def test_until_it_is_found_out_the_setting_is_the_default() -> None:
    settings = Settings()
    assert replace(settings, max_active_keys="auto").complete() == settings.complete()


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training after it is as if the number had been given."""
    monkeypatch.setattr(tune, "suggest", partial(suggest, seconds=0.05))
    monkeypatch.setattr(tune, "NUMBERS", (1, 2))
    argv = ["train", "list-reduction", "--train-size", "400", "--valid-size", "100", "--epochs", "1"]

    def losses(number: str) -> tuple[int, list[float]]:
        file = tmp_path / f"{number}.json"
        assert main([*argv, "--max-active-keys", number, "--json", str(file)]) == 0
        report = json.loads(file.read_text())
        return report["settings"]["max_active_keys"], [one["train_loss"] for one in report["history"]]

    chosen, tuned = losses("auto")
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "in flight  instances/wave  records/s  of the best  staleness"
    assert "measured in waves, played one after the other" in out
    assert f"max_active_keys: {chosen}, the smallest number" in out
    assert losses(str(chosen)) == (chosen, tuned)
    capsys.readouterr()
    assert main([*argv, "--max-active-keys", "auto", "--quiet"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert main([*argv, "--max-active-keys", "many"]) == 2
    assert "--max-active-keys: 'many' is not a whole number" in capsys.readouterr().err
