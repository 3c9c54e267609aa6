"""Checkpoints of `fit`: when they are written, what a resume refuses, what callbacks keep, and each instance counted
once (P15), in flight and on worker processes."""

from __future__ import annotations

import csv
import errno
import itertools
import os
import signal
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam

import ampnet
from ampnet import (
    Callback,
    Checkpoint,
    CheckpointError,
    CSVLogger,
    EarlyStopping,
    FitInterrupted,
    Processes,
    Update,
    fit,
)
from ampnet.checkpoint import Checkpoints, Loaded
from ampnet.errors import CallbackError, CheckpointWarning, DataError, RestartWarning, WorkerDied
from ampnet.events.log import EventLog
from ampnet.fitting import Run
from ampnet.fitting.records import Resumed
from ampnet.instance import StreamStats
from ampnet.interval import Interval
from tests.fitting import joined
from tests.fitting.resumed import TRAIN, VALID, assert_same, inline, lasting, reader, sentences, train

ADAM = Update(partial(Adam, lr=0.02), 4, "instances")
LENGTHS = {"train": len(TRAIN), "valid": len(VALID)}


def last(folder: Path) -> Loaded:
    found = Checkpoints(folder).latest()
    assert found is not None
    return found


class Quits(Callback):
    """Ends the run by an error, like a killed process, after some checkpoints."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_checkpoint(self, path: Path, seconds: float) -> None:
        self.after -= 1
        if not self.after:
            raise RuntimeError("killed")


def killed(folder: Path, after: int, **settings: Any) -> None:
    with inline(ADAM) as runtime, pytest.raises(CallbackError, match="killed"):
        train(runtime, folder, callbacks=[Quits(after)], **settings)


# -- settings


@pytest.mark.parametrize(
    ("given", "count", "unit"),
    [
        ("30 s", 30, "seconds"), ("30s", 30, "seconds"), ("5m", 300, "seconds"), ("1.5 h", 5400, "seconds"),
        ("2 minutes", 120, "seconds"), ("1 epoch", 1, "epochs"), ("3epochs", 3, "epochs"), (500, 500, "instances"),
        ("500", 500, "instances"), ("1 instance", 1, "instances"),
    ],
)  # fmt: skip
def test_intervals(given: Any, count: float, unit: str) -> None:
    assert Interval.of(given) == Interval(count, unit)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["", "s", "30 x", "-1", "0", "0 s", "1.5 epochs", "0 epochs", "1e3", "30 s 5"])
def test_what_is_no_interval(given: str) -> None:
    with pytest.raises(ValueError, match="30 s"):
        Checkpoint("here", every=given)


def test_settings_are_checked_before_anything_is_done() -> None:
    with pytest.raises(ValueError, match="keep must be 1 or more"):
        Checkpoint("here", keep=0)
    with pytest.raises(ValueError, match="drained"):
        Checkpoint("here", at="soon")  # type: ignore[arg-type]
    with inline(ADAM) as runtime, pytest.raises(ValueError, match="need checkpoint="):
        fit(runtime, train=TRAIN, epochs=1, resume=True)


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    with inline(ADAM) as runtime:
        fit(runtime, train=TRAIN, epochs=2, checkpoint=Checkpoint(tmp_path, every=10, keep=2))
    assert Checkpoints(tmp_path).numbers() == [5, 6]  # the sixth is at the end


def test_by_the_clock(tmp_path: Path) -> None:
    """Within an epoch that would not end without it."""

    def until_written(epoch: int) -> Iterator[Any]:
        for sample in itertools.cycle(TRAIN):
            yield sample
            if Checkpoints(tmp_path).numbers():
                return

    with inline(ADAM) as runtime:
        fit(runtime, train=until_written, epochs=1, checkpoint=Checkpoint(tmp_path, every="0.01 s", keep=99))
    first = Checkpoints(tmp_path).read(tmp_path / "checkpoint-000001")
    assert first.data["fit"]["open"]["train 1"]["position"]["pumped"]


# -- finding and refusing


def test_nothing_to_resume(tmp_path: Path) -> None:
    class Told(Callback):
        def on_begin(self, run: Run) -> None:
            begins.append(run.begins)

    begins: list[str | None] = []
    with inline(ADAM) as runtime, pytest.raises(CheckpointError, match=f"no checkpoint to resume from in {tmp_path}"):
        train(runtime, tmp_path, resume=True)
    with inline(ADAM) as runtime:
        result = train(runtime, tmp_path, resume="auto", epochs=1, callbacks=[Told()])
    assert result.resumed is None
    with inline(ADAM) as runtime:
        result = train(runtime, tmp_path, resume="auto", epochs=2, callbacks=[Told()])
    assert result.resumed is not None
    assert result.epochs == 2
    assert begins == [f"no checkpoint in {tmp_path}: training from the start", str(result.resumed)]


def test_another_run_is_not_overwritten(tmp_path: Path) -> None:
    killed(tmp_path, 2)
    with inline(ADAM) as runtime, pytest.raises(CheckpointError, match="has checkpoints of another run.*resume=True"):
        train(runtime, tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 3}, "seed is 3, and was 0"),
        ({"train": sentences(29)}, "number of train examples is 29, and was 30"),
        ({"valid": None}, "number of valid examples is none, and was 7"),
        ({"metric": "train_loss"}, "metric is train_loss, and was loss"),
        ({"shuffle": False}, "shuffle is False, and was none"),
    ],
)
def test_other_settings_of_fit(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    killed(tmp_path, 2)
    with inline(ADAM) as runtime, pytest.raises(CheckpointError, match=words):
        train(runtime, tmp_path, resume=True, **change)


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (Update(partial(Adam, lr=0.1), 4, "instances"), r"optimizer of node 'cell' is Adam\(lr=0.1\), and was"),
        (Update(partial(SGD, lr=0.02), 4, "instances"), r"is SGD\(lr=0.02\), and was Adam\(lr=0.02\)"),
        (ADAM.but(min_update_frequency=5), "min_update_frequency of node 'cell' is 5, and was 4"),
        (ADAM.but(weights="stash"), "weights of node 'cell' is stash, and was auto"),
    ],
)
def test_other_updates(update: Update, words: str, tmp_path: Path) -> None:
    killed(tmp_path, 2)
    with inline(update) as runtime, pytest.raises(CheckpointError, match=words):
        train(runtime, tmp_path, resume=True)


def test_settings_of_the_caller(tmp_path: Path) -> None:
    def go(width: int, **more: Any) -> None:
        checkpoint = Checkpoint(tmp_path, settings={"width": width, "names": ("a", "b")})
        with inline(ADAM) as runtime:
            fit(runtime, train=TRAIN, epochs=1, checkpoint=checkpoint, **more)

    go(3)
    go(3, resume=True)
    with pytest.raises(CheckpointError, match=r"settings.width is 4, and was 3"):
        go(4, resume=True)


def test_another_model(tmp_path: Path) -> None:
    from tests.fitting.models import inline as line

    killed(tmp_path, 2)
    with line() as runtime, pytest.raises(CheckpointError):
        train(runtime, tmp_path, resume=True)


def test_a_checkpoint_of_something_else(tmp_path: Path) -> None:
    Checkpoints(tmp_path).write(1, {}, {"kind": "else"})
    with inline(ADAM) as runtime, pytest.raises(CheckpointError, match="not a checkpoint of a training run"):
        train(runtime, tmp_path, resume=True)


def test_data_that_have_become_fewer(tmp_path: Path) -> None:
    """Of a source without a length, it is noticed when it ends too early."""
    killed(tmp_path, 3, train=lambda epoch: iter(TRAIN))
    with inline(ADAM) as runtime, pytest.raises(DataError, match="ended after 20 instances, and 24 of it"):
        train(runtime, tmp_path, resume=True, train=lambda epoch: iter(TRAIN[:20]))


def test_settings_that_may_differ_are_said(tmp_path: Path) -> None:
    killed(tmp_path, 2)
    with (
        inline(ADAM, max_active_keys=3) as runtime,
        pytest.warns(CheckpointWarning, match=r"max_active_keys 3 \(was 8\)"),
    ):
        result = train(runtime, tmp_path, resume=True, epochs=4, target=0.0)
    assert result.epochs == 4


def test_the_last_good_one_is_used(tmp_path: Path) -> None:
    killed(tmp_path, 3)
    (tmp_path / "checkpoint-000003" / "data.json").write_text("{}")
    with inline(ADAM) as runtime, pytest.warns(CheckpointWarning, match="checkpoint-000003"):
        result = train(runtime, tmp_path, resume=True)
    assert result.resumed is not None
    assert result.resumed.path.name == "checkpoint-000002"


def test_a_finished_run(tmp_path: Path) -> None:
    with inline(ADAM) as runtime:
        wanted = train(runtime, tmp_path, epochs=2)
    with inline(ADAM) as runtime:
        result = train(runtime, tmp_path, epochs=2, resume=True)
        assert runtime.stats().waves == 0
    assert result.resumed is not None
    assert result.resumed.finished
    assert str(result.resumed) == f"the run in {tmp_path} is finished, after 2 epochs"
    assert_same(lasting(result), lasting(wanted))
    with inline(ADAM) as runtime:
        result = train(runtime, tmp_path, epochs=3, resume=True)
    assert [record.epoch for record in result.history] == [1, 2, 3]
    assert result.history[:2] == wanted.history


def test_a_target_that_was_reached(tmp_path: Path) -> None:
    with inline(ADAM) as runtime:
        wanted = train(runtime, tmp_path, epochs=5, target=100.0)
    assert wanted.reached
    with inline(ADAM) as runtime:
        assert_same(lasting(train(runtime, tmp_path, epochs=5, target=100.0, resume=True)), lasting(wanted))
    with inline(ADAM) as runtime:
        result = train(runtime, tmp_path, epochs=3, target=0.0, resume=True)
    assert not result.reached
    assert result.epochs == 3


# -- failures and interrupts


def test_a_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes on, it is said once and again at the end, and the last good checkpoint stays."""
    write, calls = os.write, 0

    def full(descriptor: int, data: Any) -> int:
        nonlocal calls
        calls += 1
        if calls > 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr("ampnet.checkpoint.folder.os.write", full)
    with inline(ADAM) as runtime, pytest.warns(CheckpointWarning, match="No space left") as said:
        result = train(runtime, tmp_path, epochs=2)
    monkeypatch.undo()
    assert result.epochs == 2
    assert ["Training goes on" in str(one.message) for one in said] == [True, False]
    assert Checkpoints(tmp_path).numbers() == [1, 2]
    with inline(ADAM) as runtime:
        again = train(runtime, tmp_path, epochs=2, resume=True)
    assert_same(lasting(again), lasting(result))


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_writes_a_last_checkpoint(tmp_path: Path) -> None:
    """The first Ctrl-C lets the instances in flight complete. The resumed run equals one with a checkpoint there."""

    def some(epoch: int) -> Iterator[Any]:
        for number, sample in enumerate(TRAIN):
            if number == 14 and epoch == 2 and not asked:
                asked.append(epoch)
                os.kill(os.getpid(), signal.SIGINT)
            yield sample

    asked: list[int] = []
    with inline(ADAM) as runtime, pytest.raises(FitInterrupted) as interrupted:
        train(runtime, tmp_path, train=some, every="1 epoch")
    assert interrupted.value.result.epochs == 1
    found = last(tmp_path)
    position = found.data["fit"]["open"]["train 2"]["position"]
    assert 10 < position["pumped"] < 30
    assert not position["in_flight"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with inline(ADAM) as runtime:
        result = train(runtime, tmp_path, train=some, every="1 epoch", resume=True)
    assert result.epochs == 3


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_during_a_checkpoint(tmp_path: Path) -> None:
    """Once it raised a StallError: it asked for a pause within a pause, when nothing was in flight to end it."""

    class Asks(Callback):
        def on_checkpoint(self, path: Path, seconds: float) -> None:
            if path.name == "checkpoint-000002":
                os.kill(os.getpid(), signal.SIGINT)

    with inline(ADAM) as runtime, pytest.raises(FitInterrupted):
        train(runtime, tmp_path, every="7 instances", callbacks=[Asks()])
    with inline(ADAM) as runtime:
        assert train(runtime, tmp_path, every="7 instances", resume=True).epochs == 3


def test_a_callback_may_interrupt(tmp_path: Path) -> None:
    """Like the command line at Ctrl-C: no error, fewer epochs, and a checkpoint."""

    class Asks(Callback):
        def on_begin(self, run: Run) -> None:
            self.run = run

        def on_train_end(self, epoch: int, stats: StreamStats) -> None:
            if epoch == 2:
                self.run.interrupt()

    with inline(ADAM) as runtime:
        result = train(runtime, tmp_path, epochs=4, every="1000 epochs", callbacks=[Asks()])
    assert result.epochs == 1
    assert Checkpoints(tmp_path).numbers() == [1]
    with inline(ADAM) as runtime:
        again = train(runtime, tmp_path, epochs=4, every="1000 epochs", resume=True)
    assert again.epochs == 4
    assert again.history[:1] == result.history


# -- callbacks


def test_a_csv_has_no_row_twice(tmp_path: Path) -> None:
    """Rows of epochs after the checkpoint are written again; the torn last row of a killed process is dropped."""
    path, folder = tmp_path / "run.csv", tmp_path / "run"
    with inline(ADAM) as runtime, pytest.raises(CallbackError, match="killed"):
        train(runtime, folder, every=25, callbacks=[CSVLogger(path), Quits(3)], epochs=5)  # in epoch 3
    with path.open("a") as file:
        file.write("3,0.1,0.2\r\n4,0.")
    with inline(ADAM) as runtime:
        result = train(runtime, folder, every=25, callbacks=[CSVLogger(path)], epochs=5, resume=True)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [float(row["valid_loss"]) for row in rows] == [record.valid_loss for record in result.history]


def test_callbacks_are_found_by_class_and_order(tmp_path: Path) -> None:
    class Counts(Callback):
        def __init__(self) -> None:
            self.epochs: list[int] = []

        def on_epoch_begin(self, epoch: int) -> None:
            self.epochs.append(epoch)

        def state(self) -> dict[str, Any]:
            return {"epochs": self.epochs, "by": {1: torch.ones(2), "tensor": ()}}

        def load_state(self, state: Any) -> None:
            self.epochs = state["epochs"]
            assert set(state["by"]) == {1, "tensor"}
            assert torch.equal(state["by"][1], torch.ones(2))

    with inline(ADAM) as runtime, pytest.raises(CallbackError, match="killed"):
        train(runtime, tmp_path, callbacks=[Counts(), EarlyStopping(patience=9), Counts(), Quits(5)])
    one, two = Counts(), Counts()
    with (
        inline(ADAM) as runtime,
        pytest.warns(CheckpointWarning, match="callback EarlyStopping, and this fit has none"),
    ):
        train(runtime, tmp_path, callbacks=[one, two], resume=True)
    assert one.epochs == two.epochs == [1, 2, 3]  # on_epoch_begin was not called again for epoch 2


def test_a_path_is_not_a_checkpoint(tmp_path: Path) -> None:
    with inline(ADAM) as runtime, pytest.raises(TypeError, match=r"is a path; write checkpoint=ampnet.Checkpoint\('"):
        fit(runtime, train=TRAIN, epochs=1, checkpoint=str(tmp_path))  # type: ignore[arg-type]


def test_the_words_of_a_resume() -> None:
    path = Path("run/checkpoint-000002")
    within = Resumed(path, 0, "train 1", 1000, 0.0, 1, False)
    assert str(within) == f"resumed from {path}, after 1,000 instances of 'train 1'"
    later = Resumed(path, 1, "train 2", 50, 0.0, 1, False)
    assert str(later) == f"resumed from {path}, after 1 epoch and 50 instances of 'train 2'"
    assert str(Resumed(path, 0, None, 0, 0.0, 1, False)) == f"resumed from {path}, after 0 epochs"


def test_a_state_that_cannot_be_kept(tmp_path: Path) -> None:
    class Odd(Callback):
        def state(self) -> dict[str, Any]:
            return {"file": object()}

    with inline(ADAM) as runtime, pytest.raises(CheckpointError, match="callback/Odd/file has an object"):
        train(runtime, tmp_path, callbacks=[Odd()])


# -- in flight, and on worker processes


@pytest.mark.parametrize("at", ["drained", "flying"])
@pytest.mark.parametrize("schedule", ["backward-first", "sweep"])
def test_each_instance_counts_once(at: str, schedule: str, tmp_path: Path) -> None:
    first, second = EventLog(), EventLog()
    how: dict[str, Any] = {"schedule": schedule, "wave_size": 2, "max_active_keys": 6}
    with inline(ADAM, listeners=[first], **how) as runtime, pytest.raises(CallbackError, match="killed"):
        train(runtime, tmp_path, every=17, at=at, callbacks=[Quits(3)])
    found = last(tmp_path)
    in_flight = found.data["fit"]["open"]["train 2"]["position"]["in_flight"]
    assert bool(in_flight) == (at == "flying")
    with inline(ADAM, listeners=[second], **how) as runtime:
        result = train(runtime, tmp_path, every=17, at=at, resume=True)
    assert joined.faults(first, found, second, LENGTHS) == []
    assert result.epochs == 3
    broken = [event for event in second if getattr(event, "stream", "") != "train 3"]
    assert joined.faults(first, found, [*second, *broken], LENGTHS)


def test_several_streams_in_flight(tmp_path: Path) -> None:
    """Without a barrier: the last of an epoch, its validation, and the first of the next one."""
    first, second = EventLog(), EventLog()
    how: dict[str, Any] = {"schedule": "sweep", "wave_size": 2, "max_active_keys": 6}
    with inline(ADAM, listeners=[first], **how) as runtime:
        train(runtime, tmp_path / "whole", every=31, at="flying")
    found = Checkpoints(tmp_path / "whole").read(tmp_path / "whole" / "checkpoint-000001")
    opened = found.data["fit"]["open"]
    assert list(opened) == ["train 1", "valid 1", "train 2"]
    assert all(of["position"]["in_flight"] for of in opened.values())
    with inline(ADAM, listeners=[second], **how) as runtime:
        result = train(runtime, tmp_path, every=31, at="flying", resume=found.path)
    assert joined.faults(first, found, second, LENGTHS) == []
    assert result.epochs == 3


@pytest.mark.parametrize("at", ["drained", "flying"])
def test_worker_processes(at: str, tmp_path: Path) -> None:
    """Equal in counts; weights differ, as those of any two asynchronous runs do."""
    first, second = EventLog(), EventLog()

    def make(log: EventLog) -> Processes:
        return Processes(reader(), update=ADAM, workers=2, max_active_keys=8, listeners=[log])

    with make(first) as runtime:
        train(runtime, tmp_path / "whole", every=17, at=at)
    found = Checkpoints(tmp_path / "whole").read(tmp_path / "whole" / "checkpoint-000003")
    with make(second) as runtime:
        result = train(runtime, tmp_path, every=17, at=at, resume=found.path)
    assert joined.faults(first, found, second, LENGTHS) == []
    assert result.epochs == 3
    with make(EventLog()) as runtime:
        assert train(runtime, tmp_path, every=17, at=at, resume=True, epochs=4).epochs == 4


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_worker_lost_once_too_often_leaves_a_checkpoint(restarts: int, tmp_path: Path) -> None:
    """Although none was due yet: of the weights in shared memory, with the instances in flight to be computed again."""
    first, second = EventLog(), EventLog()

    def make(log: EventLog, **how: Any) -> Processes:
        return Processes(reader(), update=ADAM, workers=2, max_active_keys=8, listeners=[log], **how)

    def killing(epoch: int) -> Iterator[Any]:
        for number, sample in enumerate(TRAIN):
            if epoch == 2 and number in (9, 20):
                os.kill(runtime.pids[0], signal.SIGKILL)
            yield sample

    with (
        warnings.catch_warnings(),
        make(first, max_restarts=restarts) as runtime,
        pytest.raises(WorkerDied, match="SIGKILL"),
    ):
        warnings.simplefilter("ignore", RestartWarning)
        train(runtime, tmp_path, every="1 h", train=killing)
    found = last(tmp_path)
    assert found.data["fit"]["open"]["train 2"]["position"]["in_flight"]
    with make(second) as runtime:
        result = train(runtime, tmp_path, every="1 h", resume=True, train=lambda epoch: list(TRAIN))
    assert joined.faults(first, found, second, LENGTHS) == []
    assert result.epochs == 3


def test_another_runtime(tmp_path: Path) -> None:
    """A run that was begun in one process continues on two, and the other way round."""
    killed(tmp_path, 2)
    with (
        Processes(reader(), update=ADAM, workers=2, max_active_keys=8) as runtime,
        pytest.warns(CheckpointWarning, match=r"runtime processes \(was inline\)"),
    ):
        result = train(runtime, tmp_path, resume=True, epochs=2)
    assert result.epochs == 2
    with inline(ADAM) as inside, pytest.warns(CheckpointWarning, match=r"runtime inline \(was processes\)"):
        assert train(inside, tmp_path, resume=True, epochs=3).epochs == 3


def test_it_is_a_public_name() -> None:
    assert ampnet.Checkpoint is Checkpoint
