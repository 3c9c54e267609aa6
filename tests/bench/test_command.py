"""``ampnet bench`` from end to end: rows, table, file, picture; what is missing is skipped by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.growth import slope
from bench.rounds import TurnFailed, rounds, take
from bench.rows import Row, Settings
from bench.workloads import BY_NAME

from ampnet.cli import bench as cli
from ampnet.cli import main
from bench import command, growth, rows

SHORT = ("--seconds", "0.2", "--repeats", "1", "--batches", "4", "--data", "generated")
PROGRAM = """\
import json, sys
print("not this line")
assert "--batch" in sys.argv and "--peer" in sys.argv
fast = 500.0 if "hogwild2" in sys.argv else 300.0
print(json.dumps(dict(train_inst_per_s=fast, valid_inst_per_s=900.0, loss_first=2.0, loss_last=1.0, data="synthetic")))
"""


@pytest.fixture
def _quick_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's peak is not measured, which takes seconds."""
    told = [sys.executable, "-c", "print('{\"gflops\": 50.0}')"]
    monkeypatch.setattr(command, "gemm_row", lambda n, settings: Row(f"gemm {n}", "gemm", n, told, n))


def bench(out: Path, *argv: str) -> int:
    return main(["bench", *argv, "--out", str(out)])


def test_ours_and_a_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path, "qm9", *SHORT, "--rows", "ours", "torch sparse 1 thread") == 0
    out = capsys.readouterr().out
    assert "qm9: gated graph network" in out
    assert "generated data" in out
    assert "ratio to 'torch sparse 1 thread'; fastest matrix product: " in out
    found = json.loads((tmp_path / "qm9.json").read_text())
    ours, peer = found["lines"]
    assert (ours["row"], ours["kind"], ours["cores"]) == ("ours", "ours", 1)
    assert (peer["row"], peer["ratio"]) == ("torch sparse 1 thread", 1.0)
    assert ours["ratio"] == pytest.approx(ours["best"] / peer["best"])
    assert ours["gflops"] == pytest.approx(ours["of_peak"] * found["peak"]["1"])
    assert ours["loss_first"] == pytest.approx(peer["loss_first"], rel=0.2)
    assert min(ours["mib"], peer["mib"]) > 50
    assert found["machine"]["torch"]
    assert found["settings"]["repeats"] == 1
    assert (tmp_path / "qm9.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["qm9.json", "qm9.png"]


@pytest.mark.usefixtures("_quick_peak")
def test_json_goes_to_stdout_and_the_table_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path, "permuted-layers", *SHORT, "--rows", "ours by*", "--json") == 0
    captured = capsys.readouterr()
    assert [line["row"] for line in json.loads(captured.out)["lines"]] == ["ours by messages"]
    assert "no ratios: 'torch by depth padded 1 thread' was not run" in captured.err


@pytest.mark.usefixtures("_quick_peak")
def test_an_external_program_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "qm9_ggsnn.py").write_text(PROGRAM)
    options = ("--external", str(folder), "--cores", "2", "--base", "torch_manual 1 thread")
    assert bench(tmp_path, "qm9", *SHORT, *options, "--rows", "torch_manual*") == 0
    found = json.loads((tmp_path / "qm9.json").read_text())
    speeds = {line["row"]: (line["best"], line["ratio"]) for line in found["lines"]}
    assert speeds["torch_manual 1 thread"] == (300.0, 1.0)
    assert speeds["torch_manual 2 threads"] == (300.0, 1.0)
    assert speeds["torch_manual hogwild2"] == (500.0, pytest.approx(5 / 3))
    assert {line["data"] for line in found["lines"]} == {"generated"}


@pytest.mark.usefixtures("_quick_peak")
def test_a_program_that_fails_is_told_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "qm9_ggsnn.py").write_text(
        "import sys\nif '2' in sys.argv: raise ValueError('no [such] luck')\n" + PROGRAM
    )
    options = ("--external", str(folder), "--cores", "2")
    assert bench(tmp_path, "qm9", *SHORT, *options, "--rows", "torch_manual ? thread*") == 1
    assert "failed: torch_manual 2 threads: ValueError: no [such] luck" in capsys.readouterr().out
    found = json.loads((tmp_path / "qm9.json").read_text())
    assert [line["row"] for line in found["lines"]] == ["torch_manual 1 thread"]
    assert list(found["failed"]) == ["torch_manual 2 threads"]


@pytest.mark.usefixtures("_quick_peak")
def test_what_is_not_installed_is_skipped_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "missing", lambda needs: f"{needs[0]} is not installed")
    assert bench(tmp_path, "babi15", *SHORT, "--cores", "1", "--rows", "pyg*") == 0
    assert "skipped: pyg 1 thread (torch_geometric is not installed)" in capsys.readouterr().out
    assert json.loads((tmp_path / "babi15.json").read_text())["skipped"]
    assert json.loads((tmp_path / "babi15-100.json").read_text())["lines"] == []


def test_to_the_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--to-target", "--rows", "ours", "torch eager 1 thread", "--data", "generated", "--batches", "30")
    assert bench(tmp_path, "mnist", *options) == 0
    out = capsys.readouterr().out
    assert "mnist: to loss 0.01" in out
    assert out.count("1 of 1") == 2
    found = json.loads((tmp_path / "mnist-to-target.json").read_text())
    assert list(found["races"]) == ["ours", "torch eager 1 thread"]
    for (race,) in found["races"].values():
        assert race["reached"]
        assert race["value"] <= race["target"]


def test_rows_of_a_workload() -> None:
    names = [row.name for row in rows.rows_of(BY_NAME["mnist"], Settings(), 4)]
    assert names == [
        "ours",
        "ours 2 replicas",
        "ours 4 replicas",
        "ours 2 workers",
        "torch eager 1 thread",
        "torch eager 2 threads",
        "torch eager 4 threads",
        "torch compile 1 thread",
        "torch compile 2 threads",
        "torch compile 4 threads",
        "jax 1 thread",
        "jax 2 threads",
        "jax 4 threads",
    ]
    alone = [row.name for row in rows.rows_of(BY_NAME["mnist"], Settings(), 1)]
    assert alone == ["ours", "torch eager 1 thread", "torch compile 1 thread", "jax 1 thread"]
    on_gpu = [row.name for row in rows.rows_of(BY_NAME["mnist"], Settings(device="cuda"), 4)]
    assert on_gpu == ["ours", "torch eager", "torch compile", "jax"]


def _row(code: str) -> Row:
    return Row("a program", "peer", 1, [sys.executable, "-c", code], 1)


def test_turns_alternate_and_the_last_object_counts() -> None:
    told: list[tuple[int, str]] = []
    first, second = (_row(f"print('{{\"train\": {speed}}}')") for speed in (1, 2))
    every = rounds([first, second], 2, 60, lambda number, row: told.append((number, row.command[-1][-2])))
    assert [[one["train"] for one in turns.found] for turns in every] == [[1, 1], [2, 2]]
    assert [number for number, _ in told] == [0, 0, 1, 1]
    assert every[0].found[0]["bytes"] > 1 << 20


def test_threads_are_set_before_the_process_starts() -> None:
    code = "import os, json; print(json.dumps({'threads': os.environ['OMP_NUM_THREADS']}))"
    assert take(Row("", "peer", 3, [sys.executable, "-c", code], 3), 60)["threads"] == "3"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(3)", "ended with 3, without a result"),
        ("print('[1]')", "ended with 0, without a result"),
        ("print('{broken')", "ended with 0, without a result"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_turn_without_a_result(code: str, said: str) -> None:
    with pytest.raises(TurnFailed, match=said):
        take(_row(code), 60)


def test_a_turn_that_takes_too_long_is_ended() -> None:
    with pytest.raises(TurnFailed, match="it took too long"):
        take(_row("import threading; threading.Event().wait()"), 0.2)


def test_bounds_are_checked_where_both_rows_were_run() -> None:
    from bench.result import _checks

    workload = BY_NAME["permuted-layers"]
    fastest = {"ours": 30.0, "torch by depth sorted 1 thread": 10.0, "torch by depth padded 1 thread": 20.0}
    (check,) = _checks(workload, fastest)
    assert not check.kept
    assert check.text == "permuted-layers: 'ours' at least 2 x 'torch by depth * 1 thread': 1.50"


def test_growth_is_measured_and_painted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sizes of two panels; the others are made of the same stuff."""
    few = [panel for panel in growth.panels(1) if panel.name in ("depth of tree", "workers")]
    smaller = [growth.Panel(p.name, p.on, p.sizes[:2], p.make, p.wanted) for p in few]
    monkeypatch.setattr(growth, "panels", lambda cores: smaller)
    assert bench(tmp_path, "growth", "--seconds-a-point", "0.05") == 0
    curves: list[dict[str, Any]] = json.loads((tmp_path / "growth.json").read_text())["curves"]
    assert [curve["name"] for curve in curves] == ["depth of tree", "workers"]
    assert all(seconds > 0 for curve in curves for seconds in curve["seconds"])
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("panel", growth.panels(1), ids=lambda panel: panel.name)
def test_every_panel_has_instances_of_its_size(panel: growth.Panel) -> None:
    runtime, made = panel.make(panel.sizes[0])
    with runtime:
        assert growth.per_instance(runtime, made[:4], 0.01) > 0


def test_the_slope_is_the_power() -> None:
    assert slope((1, 2, 4), (3.0, 6.0, 12.0)) == pytest.approx(1)
    assert slope((1, 2, 4), (3.0, 12.0, 48.0)) == pytest.approx(2)
    assert slope((8,), (1.0,)) != slope((8,), (1.0,))  # nan


def test_a_chain_is_as_deep_as_it_says() -> None:
    from bench.peers.tree_lstm import heights_of

    for depth in (1, 2, 7):
        tree = growth._chain(depth)
        assert heights_of(tree._parents).max() == depth


def test_without_the_folder_the_remedy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ampnet.data.places.CHECKOUT", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "mnist"]) == 1
    err = capsys.readouterr().err
    assert "not part of the installed package" in err
    assert "'make bench'" in err


def test_the_command_knows_the_workloads() -> None:
    from bench.workloads import WORKLOADS

    assert tuple(WORKLOADS) == cli.WORKLOADS


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "the following arguments are required: WORKLOAD"),
        (["chess"], "invalid choice: 'chess'"),
        (["qm9", "--rows", "tensorflow*"], "--rows: tensorflow* is no row; there are: 'ours', "),
        (["qm9", "--repeats", "0"], "--repeats: 0 is too small; give 1 or more"),
        (["qm9", "--seconds", "0"], "--seconds: 0 is too small"),
        (["qm9", "--external", "/no/such"], "--external: there is no folder /no/such"),
        (["qm9", "--data", "some"], "--data: invalid choice: 'some'"),
        (["qm9", "--device", "tpu"], "--device: invalid choice: 'tpu'"),
        (["qm9", "--speed"], "unknown option --speed"),
    ],
)
def test_a_bad_request_is_one_line(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *argv]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
