"""``ampnet profile``: a table of nodes, a line for each process, all of it as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ampnet.cli import main
from ampnet.cli.profiling import WORKLOADS
from ampnet.models import registry

SHORT = ("--seconds", "0.2")
HEAD = "node kind direction calls msgs rows us/call kernels bookk. watched ops MB us/inst share"


def test_every_model_has_a_workload() -> None:
    assert list(WORKLOADS) == list(registry.GRAPHS)


@pytest.mark.parametrize("model", WORKLOADS)
def test_every_model(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", model, *SHORT]) == 0
    title, speeds, empty, head, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith(f"{model}, inline, ")
    assert "instances/s" in speeds
    assert (empty, " ".join(head.split())) == ("", HEAD)
    end = lines.index("")
    shares = [float(line.split()[-1].rstrip("%")) for line in lines[:end]]
    assert shares == sorted(shares, reverse=True)
    assert 30 < sum(shares) < 100
    assert title.split(", ")[3] == "in waves"
    assert lines[end + 1].split()[:3] == ["process", "seconds", "nodes"]
    assert lines[end + 1].split()[5:9] == ["rehearse", "layout", "payloads", "check"]
    name, _seconds, *parts = lines[end + 2].split()
    assert name == "inline"
    kernels = parts.pop(2)
    assert 0 < float(kernels.rstrip("%")) < 100
    assert sum(float(part.rstrip("%")) for part in parts) == pytest.approx(100, abs=0.6)


def test_waves_of_one_that_take_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 8 molecules in flight each is a wave: a call of a node of one round is one molecule's."""
    file = tmp_path / "profile.json"
    options = ("--wave-size", "1", "--schedule", "fifo", "--max-active-keys", "8", "--json", str(file))
    assert main(["profile", "qm9", *SHORT, *options]) == 0
    assert capsys.readouterr().out.startswith("qm9, inline, 8 in flight, in waves of 1, fifo, adam\n")
    data = json.loads(file.read_text())
    assert (data["settings"]["engine"], data["settings"]["wave_size"]) == ("waves", 1)
    (loss,) = [node for node in data["nodes"] if (node["node"], node["direction"]) == ("loss", "forward")]
    assert loss["calls"] == loss["messages"] == data["stretches"]["timed"]["instances"]


def test_message_by_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "qm9", "--messages", *SHORT]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "qm9, inline, 64 in flight, all that waits at once, adam"
    assert " ".join(out[3].split()) == HEAD.replace("MB", "merge waits MB")
    assert any(line.split()[1] == "Phi" for line in out[4:] if line)
    assert "merging" in out[-2]
    assert "rehearse" not in out[-2]


def test_settings_top_sort_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profile.json"
    options = ("--bucket", "1", "--max-active-keys", "30", "--max-batch", "7", "--enough-rows", "none")
    more = ("--optimizer", "none", "--top", "3", "--sort", "calls", "--json", str(file))
    assert main(["profile", "list-reduction", *SHORT, *options, *more]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "list-reduction, inline, 30 in flight, all that waits at once, none"
    assert out[7].startswith("... and ")
    data = json.loads(file.read_text())
    assert data["settings"]["max_batch"] == 7
    assert data["settings"]["bucket"] == 1
    assert set(data["stretches"]) == {"bare", "timed", "watched"}
    forward = [node for node in data["nodes"] if node["direction"] == "forward"]
    assert all(node["messages"] <= 7 * node["calls"] for node in forward)
    assert not any(node["direction"] == "update" for node in data["nodes"])
    calls = [int(line.split()[3].replace(",", "")) for line in out[4:7]]
    assert calls == sorted((node["calls"] for node in data["nodes"]), reverse=True)[:3]
    for node in data["nodes"]:
        assert node["kernels"] + node["bookkeeping"] == pytest.approx(node["seconds"])


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
def test_replicas_are_on_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "by-hand", "--seconds", "0.5", "--replicas", "2", "--top", "4"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("by-hand, 2 workers, 8 in flight")
    assert out[0].endswith("2 replicas")
    assert [line.split()[0] for line in out[-3:]] == ["worker0", "worker1", "controller"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "the following arguments are required: WORKLOAD"),
        (["chess"], "invalid choice: 'chess'"),
        (["mnist", "--cell", "gru"], "--cell: only list-reduction has cells to choose from, not mnist"),
        (
            ["qm9", "--bucket", "5"],
            "--bucket: qm9 has single instances only; mnist, list-reduction, by-hand have buckets",
        ),
        (["qm9", "--enough-rows", "all"], "--enough-rows: 'all' is not a whole number; give 1 or more"),
        (["qm9", "--seconds", "0"], "--seconds: 0 is too small"),
        (["qm9", "--sort", "name"], "--sort: invalid choice: 'name'"),
        (["qm9", "--optimizer", "lion"], "--optimizer: invalid choice: 'lion'"),
        (["qm9", "--workers", "0"], "--workers: 0 is too small; give 1 or more"),
        (["qm9", "--schedule", "never"], "--schedule: invalid choice: 'never'"),
        (["qm9", "--wave-size", "0"], "--wave-size: 0 is too small; give 1 or more"),
        (["qm9", "--top", "none"], "--top: 'none' is not a whole number"),
        (["qm9", "--json", "/no/such/folder/x.json"], "--json: there is no folder /no/such/folder"),
        (["qm9", "--speed"], "unknown option --speed"),
    ],
)
def test_a_bad_request_is_one_line(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *argv]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
