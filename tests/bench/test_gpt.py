"""bench/gpt: contenders compute the same where they should; results are continued, compared and drawn."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.gpt import __main__ as command
from bench.gpt import asynchronous, cores, pipelining, result
from bench.gpt.settings import Setting, Trace
from bench.gpt.turn import run, setting_of
from examples.gpt.data import library
from examples.gpt.model import Sizes

from ampnet import native

needs_linux = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
SMALL = Setting(
    "1f1b", 4, 6, Sizes(blocks=4, width=16, heads=2, context=8), sequences=1, warm=2, snapshots=2, held_out=4, ramp=3
)


def changed(**changes: Any) -> Setting:
    return replace(SMALL, **changes)


def _driven(weight: torch.Tensor) -> torch.Tensor:
    """Entries that a gradient drives. Softmax does not see a bias of the keys: its gradient is zero but for rounding,
    of which Adam makes steps of full size, with any sign."""
    width = SMALL.sizes.width
    keep = torch.ones(len(weight), dtype=torch.bool)
    if weight.shape == (3 * width,):
        keep[width : 2 * width] = False
    return keep


@needs_linux
@pytest.mark.parametrize("native_kernels", [True, False])
def test_one_microbatch_in_flight_is_what_synchronous_pipelines_compute(native_kernels: bool) -> None:
    corpus = library()
    traces: dict[str, Trace] = {name: pipelining.run(changed(contender=name), corpus) for name in ("1f1b", "gpipe")}
    with nullcontext() if native_kernels else native.disabled():
        traces["ours"] = asynchronous.run(changed(contender="ours", in_flight=1), corpus)
    want = traces.pop("1f1b")
    initial = [p.detach() for p in SMALL.model().plain().parameters()]
    assert max(float((a - b).abs().max()) for a, b in zip(initial, want.weights[-1], strict=True)) > 1e-3
    for trace in (*traces.values(), want):
        assert len(trace.weights) == len(trace.seconds) == 3
        assert len(trace.busy) == 4
        assert all(0 < busy < trace.seconds[-1] for busy in trace.busy)
        assert trace.staleness == 0
        for got, weight in zip(trace.weights[-1], want.weights[-1], strict=True):
            moved = _driven(weight) if native_kernels else ...
            torch.testing.assert_close(got[moved], weight[moved], rtol=1e-4, atol=1e-5)


@needs_linux
def test_a_turn_of_ours() -> None:
    with torch.random.fork_rng():
        turn = run(changed(contender="ours", in_flight=5, updates=12))
    assert [point.tokens for point in turn.curve] == [64, 224, 384]
    assert turn.curve[0].seconds == 0 < turn.curve[1].seconds < turn.curve[2].seconds
    assert turn.tokens_per_second == pytest.approx(320 / turn.curve[-1].seconds)
    assert turn.staleness > 0
    assert 0 < turn.bubble < 1


def test_a_setting_survives_json() -> None:
    assert setting_of(json.loads(json.dumps(asdict(SMALL)))) == SMALL


def test_snapshots_are_taken_at_equal_distances() -> None:
    assert changed(warm=4, updates=24, snapshots=10).marks() == [4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24]
    assert changed(warm=4, updates=7, snapshots=10).marks() == [4, 5, 6, 7]


def test_the_rate_rises_and_stays() -> None:
    optimizer = SMALL.optimizer([torch.nn.Parameter(torch.zeros(1))])
    schedule, rates = SMALL.schedule(optimizer), []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3, 1e-3, 1e-3])


def test_every_stage_has_cores_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cores, "_place", lambda number: ("0", str(number % 4)))  # i and i + 4 are one core
    assert cores.sets_for(2) == [{0, 1, 4, 5}, {2, 3, 6, 7}]
    assert cores.sets_for(4) == [{0, 4}, {1, 5}, {2, 6}, {3, 7}]
    assert cores.sets_for(8)[3] == cores.sets_for(8)[7] == {3, 7}


# Results


def a_run(contender: str, speed: float, losses: list[float], microbatches: int = 4) -> dict[str, Any]:
    end = 100 / speed
    curve = [{"tokens": 50 * i, "seconds": end * i / 2, "loss": loss} for i, loss in enumerate(losses)]
    turn = {"tokens_per_second": speed, "bubble": 0.4, "busy": [0.6] * 4, "staleness": 0.0, "curve": curve}
    setting = asdict(changed(contender=contender, microbatches=microbatches))
    machine = {"processor": "none", "cores": 1, "torch": "0"}
    return {"seconds": 1.0, "machine": machine, "setting": setting, "turn": turn}


def test_runs_are_compared_at_equal_tokens_and_at_equal_seconds() -> None:
    runs = [a_run("ours", 50.0, [5.0, 3.0, 2.02]), a_run("1f1b", 25.0, [5.0, 3.0, 2.0]), a_run("ours", 9.0, [5.0], 8)]
    ours, base, alone = result.lines_of(runs)
    assert (ours.ratio, ours.loss_ratio) == (2.0, pytest.approx(1.01))
    assert ours.seconds == base.seconds == 2.0
    assert (ours.loss_at_seconds, base.loss_at_seconds) == (2.02, 3.0)
    assert (ours.ideal_bubble, base.ideal_bubble) == (0.0, pytest.approx(3 / 7))
    assert alone.ratio is None
    checks = result.checks_of([ours, base, alone])
    assert [kept for _, kept in checks] == [True, True]
    assert "2.00" in checks[0][0]
    assert "+1.0%" in checks[1][0]
    slow = result.lines_of([a_run("ours", 29.0, [5.0, 3.0, 2.1]), a_run("1f1b", 25.0, [5.0, 3.0, 2.0])])
    assert [kept for _, kept in result.checks_of(slow)] == [False, False]
    assert len(result.table([ours, base, alone]).splitlines()) == 4


def test_the_command_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[tuple[str, int]] = []
    fails = {"gpipe"}

    def turn(data: dict[str, Any], limit: float) -> dict[str, Any] | None:
        taken.append((data["contender"], data["microbatches"]))
        speeds = {"ours": 50.0, "1f1b": 25.0, "gpipe": 20.0}
        made: dict[str, Any] = a_run(data["contender"], speeds[data["contender"]], [5.0, 3.0, 2.0])["turn"]
        return None if data["contender"] in fails else made

    monkeypatch.setattr(command, "_turn", turn)
    out, picture = tmp_path / "gpt.json", tmp_path / "gpt.png"
    options = ["--quick", f"--out={out}", "--microbatches", "4", "8", "--seconds=0.1"]
    assert command.main(options) == command.FAILED
    assert len(taken) == 6
    fails.clear()
    taken.clear()
    assert command.main([*options, f"--picture={picture}"]) == command.REACHED
    assert taken == [("gpipe", 4), ("gpipe", 8)]
    assert picture.stat().st_size > 10_000
    found = json.loads(out.read_text())
    assert [line["contender"] for line in found["lines"]] == ["ours", "1f1b", "gpipe"] * 2
    updates = {(run["setting"]["microbatches"], run["setting"]["updates"]) for run in found["runs"]}
    assert len(updates) == 2  # the same for all contenders
    capsys.readouterr()
    assert command.main([*options, "--contenders", "ours", "--learning-rate=0.5"]) == command.REACHED
    assert "6 runs of" in capsys.readouterr().out
    assert taken[2:] == [("ours", 4), ("ours", 8)]


def test_a_run_that_fails_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert command._turn({"nothing": 1}, 60.0) is None
    assert "KeyError" in capsys.readouterr().err
    assert command._turn(asdict(SMALL), 0.1) is None
    assert "it took longer than 0 seconds" in capsys.readouterr().err
