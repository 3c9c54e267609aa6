"""Instruments read the engine that trains: logs, traces, pictures and reports of waves, several of them in flight.

train --log LOG --trace TRACE ──> check LOG;  gantt LOG or TRACE;  report LOG or TRACE
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from pathlib import Path

import pytest
import torch

from ampnet.cli import main
from ampnet.events.log import Begin, Forward, Played, Wave, read_log
from ampnet.experiments.saved import read
from tests.runtime.conftest import children

TRAIN = ("train", "list-reduction", "--train-size", "400", "--valid-size", "100", "--hidden", "16", "--bucket", "10")
BRIEF = (*TRAIN, "--epochs", "2", "--quiet")
linux = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
ORDERS = [
    "",
    "--wave-size 2",
    "--wave-size 1 --schedule fifo --max-active-keys 6",
    "--schedule sweep --min-update-frequency 2",
    "--wave-size 2 --schedule random --seed 3 --count messages --min-update-frequency 7",
    "--wave-size 1 --schedule fifo --weights stash --optimizer sgd",
    "--replicas 2 --workers 1 --sync updates --sync-every 3",
]
"""Inline."""


@pytest.mark.parametrize("options", [*ORDERS, "--no-waves"])
def test_a_run_is_the_same_to_the_bit_whoever_looks(options: str, tmp_path: Path) -> None:
    """Promise P20: the weights with and without a log, a trace and a live view."""

    def weights(name: str, *files: str) -> dict[str, torch.Tensor]:
        model = tmp_path / name
        assert main([*BRIEF, *options.split(), "--save", str(model), *files]) == 0
        return dict(read(model).state)

    plain = weights("plain.safetensors")
    files = ("--log", str(tmp_path / "run.log"), "--trace", str(tmp_path / "run.json"))
    watched = weights("watched.safetensors", *files, "--live")
    assert plain.keys() == watched.keys()
    for name, weight in plain.items():
        assert torch.equal(weight, watched[name]), name
    begin = next(event for event in read_log(tmp_path / "run.log") if isinstance(event, Begin))
    assert begin.settings["engine"] == ("messages" if options == "--no-waves" else "waves")


def looked_at(folder: Path, options: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Train with a log and a trace; everything that reads them must find it in order."""
    log, trace, report = folder / "run.log", folder / "trace.json", folder / "report.json"
    files = ("--log", str(log), "--trace", str(trace), "--json", str(report))
    assert main([*BRIEF, *options.split(), *files]) == 0
    engine = json.loads(report.read_text())["engine"]
    assert (engine["name"], engine["reason"]) == ("waves", None)

    events = list(read_log(log))
    assert not any(isinstance(event, Forward) for event in events)
    waves = [event for event in events if isinstance(event, Wave)]
    assert len(waves) == engine["waves"]
    assert sum(len(wave.instances) for wave in waves) == engine["instances"]
    wave_of = {(event.worker, event.wave): 0 for event in events if isinstance(event, Played)}
    assert len(wave_of) == len(waves)

    capsys.readouterr()
    code = main(["check", str(log)])
    assert (code, capsys.readouterr().out.partition(":")[0]) == (0, "all promises kept")
    for run in (log, trace):
        for picture in (folder / f"{run.stem}.svg", folder / f"{run.stem}.html"):
            assert main(["gantt", str(run), "-o", str(picture)]) == 0
            assert picture.stat().st_size > 1000
            assert "busy" in capsys.readouterr().out
        page = folder / f"{run.stem}-report.html"
        assert main(["report", str(run), "-o", str(page)]) == 0
        assert page.stat().st_size > 10_000
        assert "waves" in capsys.readouterr().out


@pytest.mark.parametrize("options", ORDERS)
def test_everything_that_reads_a_run_reads_waves(
    options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    looked_at(tmp_path, options, capsys)


@linux
@pytest.mark.parametrize("options", ["", "--wave-size 2 --schedule random --max-active-keys 12", "--sync gradients"])
def test_replicas_on_workers_too(options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    looked_at(tmp_path, f"--replicas 2 {options}", capsys)
    assert not children()


def test_the_live_view_says_where_it_is_and_is_gone_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    threads = threading.active_count()
    assert main([*BRIEF, "--live"]) == 0
    found = re.match(r"live view: http://127\.0\.0\.1:(\d+)/\n", capsys.readouterr().out)
    assert found is not None
    with socket.socket() as probe, pytest.raises(ConnectionError):
        probe.connect(("127.0.0.1", int(found[1])))
    assert threading.active_count() == threads


def test_a_live_view_at_a_port_in_use_is_an_error_before_anything_else(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([*BRIEF, "--live", str(port)]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert f"--live: port {port}: " in said.err
    assert "give another, or none to take any that is free" in said.err
    assert main([*BRIEF, "--live", "70000"]) == 2
    assert "0 to 65535" in capsys.readouterr().err
