"""What a run shows of itself: plain lines, or a live view where there is a terminal and rich."""

from __future__ import annotations

import re
import sys
from math import nan
from typing import Any

import pytest

from ampnet.cli.progress import Display, Facts, LiveView, Plain, make_display
from ampnet.controller import Progress
from ampnet.events.staleness import Staleness
from ampnet.fitting import EpochRecord


def facts(staleness: Staleness) -> Facts:
    return Facts(12, {"train": 100_000, "valid": 10_000}, "accuracy", lambda: staleness)


FACTS = facts(Staleness(4, 2.14, 7, {0: 2, 1: 1, 7: 1}))
RECORD = EpochRecord(3, 0.3, {"accuracy": 0.9}, 0.214, {"accuracy": 0.93124}, 31_204.4, 92_110.0, 13.0)
LINE = "epoch  3  loss 0.214  accuracy 0.9312  train 31,204/s  valid 92,110/s  staleness 2.1 (max 7)  0:13, 0:39 left"


def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


def test_an_epoch_in_a_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    make_display(FACTS).epoch(RECORD)
    assert capsys.readouterr().out == LINE + "\n"


def test_a_small_loss_is_not_zero(capsys: pytest.CaptureFixture[str]) -> None:
    make_display(FACTS).epoch(EpochRecord(3, 0.3, {}, 2.34e-5, {"accuracy": 0.9}, 31_204.4, 92_110.0, 13.0))
    assert "  loss 2.3e-05  " in capsys.readouterr().out


def test_without_validation_the_trainings_numbers_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    make_display(FACTS).epoch(EpochRecord(10, 0.3, {"accuracy": 0.9}, None, {}, 31_204.4, None, 13.0))
    assert (
        capsys.readouterr().out
        == "epoch 10  loss 0.300  accuracy 0.9000  train 31,204/s  staleness 2.1 (max 7)  0:13, 0:03 left\n"
    )


def test_quiet_shows_only_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with make_display(FACTS, quiet=True) as display:
        assert type(display) is Display
        display.turn(Progress("valid 3", False, 6900, 0.1, 0.2, {"accuracy": 0.937}, 4))
        display.epoch(RECORD)
        display.say("done")
    assert capsys.readouterr().out == "done\n"


def test_a_terminal_is_shown_what_moves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(monkeypatch)
    with make_display(FACTS) as display:
        assert isinstance(display, LiveView)
        display.turn(Progress("valid 3", False, 6900, 0.1, 0.2, {"accuracy": 0.937}, 4))
        display.epoch(RECORD)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    assert re.search(r"epoch 3/12 valid ━+.*━+ 6,900/10,000  69,000/s", shown)
    assert "loss 0.200  accuracy 0.9370  4 in flight  staleness 2.1 (max 7)" in shown
    assert "elapsed 0:00  left: epoch 0:00, run 0:14 at most" in shown
    assert LINE in shown


def test_what_is_not_measured_yet_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch)
    with make_display(facts(Staleness(0, nan, 0, {}))) as display:
        display.turn(Progress("train 1", True, 0, 0.1, nan, {}, 4))
    shown = capsys.readouterr().out
    assert "4 in flight  staleness -" in shown
    assert "nan" not in shown


@pytest.mark.parametrize("absent", ["rich", "terminal"])
def test_plain_lines_without_rich_or_terminal(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    if absent == "rich":
        for module in [m for m in sys.modules if m.partition(".")[0] == "rich"] + ["rich"]:
            monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    else:
        monkeypatch.setenv("TERM", "dumb")
    display: Any = make_display(FACTS)
    assert type(display) is Plain
