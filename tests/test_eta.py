"""Elapsed time and the time left, from the rates measured so far."""

from __future__ import annotations

from math import nan

import pytest

from ampnet.controller import Progress
from ampnet.eta import Eta, clock_text
from ampnet.fitting import EpochRecord


def progress(stream: str, records: int, seconds: float) -> Progress:
    return Progress(stream, stream.startswith("train"), records, seconds, nan, {}, 4)


def record(train: float, valid: float | None) -> EpochRecord:
    return EpochRecord(1, 0.3, {}, None if valid is None else 0.2, {}, train, valid, 30.0)


def eta(clock: list[float]) -> Eta:
    return Eta(4, {"train": 1000, "valid": 100}, clock=lambda: clock[0])


def test_nothing_is_said_of_what_is_left_before_something_was_measured() -> None:
    clock = [5.0]
    made = eta(clock)
    clock[0] = 70.0
    assert made.text(progress("train 1", 0, 0.0)) == "elapsed 1:05"


def test_in_the_first_epoch_validation_is_expected_to_be_as_fast_as_training() -> None:
    #           train 1                          valid 1    three more epochs
    # 250 of 1000 in 10 s, so 25/s: 30 s left   + 4 s       + 3 x 44 s
    left = eta([0.0]).left(progress("train 1", 250, 10.0))
    assert left == pytest.approx((34.0, 34.0 + 3 * 44.0))


def test_later_each_stream_has_its_own_rate() -> None:
    made = eta([0.0])
    made.epoch(record(train=100.0, valid=50.0))  # 10 s and 2 s
    assert made.left(progress("train 2", 0, 0.0)) == pytest.approx((12.0, 12.0 + 2 * 12.0))
    assert made.left(progress("valid 2", 50, 1.0)) == pytest.approx((1.0, 1.0 + 2 * 12.0))
    assert made.text(progress("valid 2", 50, 1.0)) == "elapsed 0:00  left: epoch 0:01, run 0:25 at most"


def test_the_last_epoch_is_the_end_of_the_run() -> None:
    made = eta([0.0])
    made.epoch(record(train=100.0, valid=None))
    epoch, run = made.left(progress("valid 4", 100, 1.0)) or (nan, nan)
    assert epoch == run == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (9, "0:09"), (59.6, "1:00"), (760, "12:40"), (3599.6, "1:00:00"), (11_100, "3:05:00")],
)
def test_a_duration_in_words(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text
