"""The training loop: what it pumps, when it stops, and what it says afterwards.

`Scripted` is a runtime without a graph: it uses up each stream and ends it with the numbers of a script. What depends
on real overlap of streams is tested on `Inline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pytest
import torch

from ampnet.controller import Progress
from ampnet.data.list_reduction import generate
from ampnet.errors import DataError
from ampnet.events.log import Epoch, EventLog, Pump
from ampnet.fitting import Callback, EpochRecord, FitInterrupted, FitResult, fit
from ampnet.instance import Instance, Stream, StreamStats, feed
from ampnet.models.by_hand import build, instances
from ampnet.runtime.inline import Inline
from ampnet.update.policy import Update


class On(Callback):
    """Calls functions."""

    def __init__(
        self,
        epoch_end: Callable[[EpochRecord], None] = lambda record: None,
        turn: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.on_epoch_end, self.on_turn = epoch_end, turn  # type: ignore[method-assign]


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Scripted:
    """Streams follow each other; with ``ahead`` each is opened, and pumped once, before the one before it ends."""

    def __init__(self, values: dict[str, float], clock: Clock, *, ahead: bool = False) -> None:
        self.values, self.clock, self.ahead = values, clock, ahead
        self.streams: list[str] = []
        self.stopped = False

    def run(
        self,
        streams: Iterable[Stream],
        *,
        barrier: bool = False,
        on_end: Callable[[StreamStats], None] | None = None,
        on_turn: Callable[[Progress], None] | None = None,
    ) -> list[StreamStats]:
        assert on_end is not None
        source = iter(streams)
        following = self._open(source)
        while following is not None:
            stream, pumped = following
            while not self.stopped and next(pumped, None) is not None:
                pass
            following = self._open(source) if self.ahead else None
            self.clock.now += 2.0 if stream.train else 1.0
            on_end(self._stats(stream))
            if self.stopped and following is not None:
                on_end(self._stats(following[0]))
                break
            if following is None and not self.stopped:
                following = self._open(source)
        return []

    def _open(self, source: Iterator[Stream]) -> tuple[Stream, Iterator[Instance]] | None:
        stream = next(source, None)
        if stream is None:
            return None
        self.streams.append(stream.name)
        pumped = iter(stream.instances)
        next(pumped, None)
        return stream, pumped

    def _stats(self, stream: Stream) -> StreamStats:
        value = self.values.get(stream.name, 0.0)
        records, seconds = (100, 2.0) if stream.train else (30, 1.0)
        return StreamStats(stream.name, stream.train, 3, records, 1 - value, {"accuracy": value}, seconds, skipped=1)

    def stop(self) -> None:
        self.stopped = True


ONE = Instance({"label": feed(torch.zeros(1))})


def three(epoch: int) -> list[Instance]:
    return [ONE, ONE, ONE]


def scripted(values: dict[str, float], *, ahead: bool = False, **settings: object) -> tuple[FitResult, Scripted]:
    runtime = Scripted(values, clock := Clock(), ahead=ahead)
    given: dict[str, object] = {
        "train": three,
        "valid": three,
        "epochs": 3,
        "metric": "accuracy",
        "clock": clock,
        **settings,
    }
    return fit(runtime, **given), runtime  # type: ignore[arg-type]


def test_an_epoch_is_its_training_and_its_validation() -> None:
    heard: list[EpochRecord] = []
    result, runtime = scripted(
        {"valid 1": 0.5, "valid 2": 0.75, "valid 3": 0.625}, callbacks=[On(epoch_end=heard.append)]
    )
    assert runtime.streams == ["train 1", "valid 1", "train 2", "valid 2", "train 3", "valid 3"]
    assert [r.epoch for r in heard] == [1, 2, 3]
    assert result.history == tuple(heard)
    assert heard[1] == EpochRecord(2, 1.0, {"accuracy": 0.0}, 0.25, {"accuracy": 0.75}, 50.0, 30.0, 6.0)
    assert result.epochs == 3
    assert result.seconds == 9.0
    assert result.skipped == 6


def test_without_a_target_the_best_epoch_counts() -> None:
    result, _ = scripted({"valid 1": 0.5, "valid 2": 0.75, "valid 3": 0.625})
    assert (result.value, result.epoch) == (0.75, 2)
    assert result.target is None
    assert not result.reached
    assert result.seconds_to_target is None


@pytest.mark.parametrize("ahead", [False, True])
def test_the_target_stops_the_run_and_its_epoch_is_reported(ahead: bool) -> None:
    """Opened ahead of time, the training of epoch 3 has begun when the validation of epoch 2 ends.

    train 1 .. valid 1 .. train 2 .. valid 2 .. │ target reached
                                      train 3 . │ cut short: in no record
    0          2          3          5          6 seconds
    """
    result, runtime = scripted({"valid 1": 0.5, "valid 2": 0.75}, ahead=ahead, epochs=9, target=0.75)
    assert runtime.stopped
    assert runtime.streams[4:] == (["train 3"] if ahead else [])
    assert result.reached
    assert (result.value, result.epoch, result.epochs) == (0.75, 2, 2)
    assert [r.epoch for r in result.history] == [1, 2]
    assert result.seconds_to_target == 6.0


def test_rates_are_examples_by_the_seconds_of_all_streams() -> None:
    result, _ = scripted({})
    assert result.train_records_per_second == 300 / 6.0
    assert result.valid_records_per_second == 90 / 3.0


def test_a_lower_metric_may_be_the_better_one() -> None:
    """The loss is one minus the scripted value."""
    result, _ = scripted({"valid 1": 0.25, "valid 2": 0.5}, metric="loss", higher_is_better=False)
    assert (result.value, result.epoch) == (0.5, 2)
    result, _ = scripted({"valid 1": 0.25, "valid 2": 0.5}, metric="loss", higher_is_better=False, target=0.75)
    assert (result.value, result.epoch, result.reached) == (0.75, 1, True)


def test_nan_neither_reaches_a_target_nor_is_best() -> None:
    nan = float("nan")
    result, _ = scripted({"valid 1": nan, "valid 2": 0.25, "valid 3": nan}, target=0.5)
    assert (result.value, result.epoch, result.reached) == (0.25, 2, False)


def test_without_validation_the_trainings_metric_counts() -> None:
    result, runtime = scripted({"train 2": 0.5}, valid=None, target=0.5)
    assert runtime.streams == ["train 1", "train 2"]
    assert (result.epoch, result.reached) == (2, True)
    assert result.valid_records_per_second is None
    assert (result.history[1].valid_loss, result.history[1].valid_metrics) == (None, {})


def test_an_unknown_metric_is_named_beside_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"metric 'f1' is not reported .* there are: loss, accuracy"):
        scripted({}, metric="f1")


def test_no_epoch_is_no_training() -> None:
    with pytest.raises(ValueError, match="epochs must be 1 or more, got 0"):
        scripted({}, epochs=0)


def test_an_interrupt_carries_the_result_so_far() -> None:
    def interrupt(record: EpochRecord) -> None:
        if record.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(FitInterrupted) as caught:
        scripted({"valid 1": 0.75, "valid 2": 0.5}, callbacks=[On(epoch_end=interrupt)])
    assert isinstance(caught.value, KeyboardInterrupt)
    assert (caught.value.result.epochs, caught.value.result.value) == (2, 0.75)


def test_an_interrupt_before_the_first_epoch_has_nothing_to_tell() -> None:
    def interrupt(epoch: int) -> list[Instance]:
        raise KeyboardInterrupt

    with pytest.raises(FitInterrupted) as caught:
        scripted({}, train=interrupt)
    result = caught.value.result
    assert (result.epochs, result.epoch, result.history) == (0, 0, ())
    assert result.value != result.value


HIDDEN = 8
DATA = generate(60, seed=1)


def data(epoch: int) -> Iterator[Instance]:
    return instances(DATA, 10, hidden=HIDDEN)


def inline(log: EventLog | None = None, *, max_active_keys: int = 4) -> Inline:
    listeners = () if log is None else (log,)
    return Inline(build(HIDDEN), update=Update(count="instances"), max_active_keys=max_active_keys, listeners=listeners)


def eager() -> Inline:
    """A runtime that tells of progress as often as it can."""
    runtime = inline()
    runtime.run = partial(runtime.run, turn_seconds=0.0)  # type: ignore[method-assign]
    return runtime


@pytest.mark.parametrize("barrier", [False, True])
def test_the_next_stream_begins_while_the_last_one_drains(barrier: bool) -> None:
    """Without a barrier "valid 1" is pumped before "train 1" has ended; with one, only afterwards."""
    log = EventLog()
    result = fit(inline(log), train=data, valid=data, epochs=2, barrier=barrier)
    assert result.epochs == 2
    first_pump = {e.stream: i for i, e in reversed(list(enumerate(log))) if isinstance(e, Pump)}
    ended = {e.stream: i for i, e in enumerate(log) if isinstance(e, Epoch)}
    for before, after in (("train 1", "valid 1"), ("valid 1", "train 2"), ("train 2", "valid 2")):
        assert (ended[before] < first_pump[after]) is barrier


def test_a_target_reached_leaves_nothing_in_flight() -> None:
    runtime = inline()
    result = fit(runtime, train=data, valid=data, epochs=5, metric="accuracy", target=1e-9)
    assert (result.reached, result.epochs, result.epoch) == (True, 1, 1)
    assert runtime.held() == {}


@pytest.mark.parametrize("validates", [False, True])
def test_a_target_reached_when_several_epochs_are_in_flight(validates: bool) -> None:
    """Once, with data sets smaller than ``max_active_keys``, two streams ended at one retirement; the first one's end
    stopped the run, which ended the second, which was then ended again."""
    runtime = inline(max_active_keys=64)
    result = fit(runtime, train=data, valid=data if validates else None, epochs=5, metric="accuracy", target=1e-9)
    assert (result.reached, result.epochs) == (True, result.epoch)


def test_an_epoch_cut_short_by_another_is_in_no_record() -> None:
    runtime = eager()

    def turn(progress: Progress) -> None:
        if progress.stream == "train 2":
            runtime.stop()

    result = fit(runtime, train=data, valid=data, epochs=5, callbacks=[On(turn=turn)])
    assert [r.epoch for r in result.history] == [1]
    assert not result.reached


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(DataError, match="'valid 1' has no instance"):
        fit(inline(), train=data, valid=lambda epoch: [], epochs=2)


def test_a_loader_that_fails_is_named_with_its_epoch() -> None:
    def failing(epoch: int) -> Iterator[Instance]:
        yield from data(epoch)
        if epoch == 2:
            raise OSError("disk gone")

    with pytest.raises(DataError, match=r"stream 'train 2': the loader failed .* disk gone"):
        fit(inline(), train=failing, valid=None, epochs=3)


def test_progress_is_passed_on() -> None:
    heard: list[Progress] = []
    fit(eager(), train=data, valid=data, epochs=2, callbacks=[On(turn=heard.append)])
    assert {p.stream for p in heard} >= {"train 1", "train 2"}
    assert all(p.in_flight <= 4 for p in heard)


# -- mistakes of the first hour


def test_a_model_or_a_graph_is_no_runtime() -> None:
    graph = build(hidden=4)
    for given in (graph, graph.module()):
        with pytest.raises(TypeError, match=r"fit takes a runtime, got a .*ampnet\.Inline\(ampnet\.compile"):
            fit(given, train=[], epochs=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a runtime takes a graph, got a ModuleDict: ampnet.compile"):
        Inline(graph.module())  # type: ignore[arg-type]


def test_a_runtime_without_an_optimizer_is_refused() -> None:
    """Once such a fit ran to its end, and no weight had changed."""
    with Inline(build(hidden=4)) as runtime, pytest.raises(ValueError, match="no optimizer, so training would change"):
        fit(runtime, train=[], epochs=1)


def test_callbacks_are_a_list() -> None:
    with pytest.raises(TypeError, match=r"callbacks=\[On\(\.\.\.\)\]"):
        fit(Scripted({}, Clock()), train=[], epochs=1, callbacks=On())  # type: ignore[arg-type]


def test_a_method_that_nobody_calls_is_refused() -> None:
    with pytest.raises(TypeError, match="Theirs.on_train_epoch_end would never be called: did you mean 'on_train_end'"):
        type("Theirs", (Callback,), {"on_train_epoch_end": lambda self: None})


def test_a_result_is_shown_in_a_line() -> None:
    shown = FitResult("accuracy", 0.97541, 7, 0.97, True, 8, 27.81, 25.0, 100.0, None, 0, (), "enough")
    assert repr(shown) == "FitResult(accuracy 0.9754 in epoch 7 of 8, target 0.97 reached, 27.8 s, stopped: enough)"
    assert repr(FitResult.empty("loss")) == "FitResult(loss nan in epoch 0 of 0, 0.0 s)"
