"""``python -m bench.paper``: the list of runs, their execution, tables, pictures and the page."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.paper import __main__ as program
from bench.paper import baseline, execute, page
from bench.paper.bounds import checks
from bench.paper.execute import Executor, Job, RunFailed
from bench.paper.figures import BOUNDS, PAPER, Better, Epochs, Slowdown, Throughput
from bench.paper.results import read
from bench.paper.runs import RUNS, Run, chosen
from bench.paper.table import bounds_table, throughput_table, workload_table

from ampnet.cli import make_parser

BY_NAME = {run.name: run for run in RUNS}
BABI = BY_NAME["babi15-waves-16"]
MACHINE = {"processor": "Abacus", "cores": 2, "python": "3.11.7", "torch": "2.13", "load": "0.50"}


def store(
    folder: Path,
    name: str,
    values: Sequence[float] = (0.9, 0.98),
    *,
    seed: int = 0,
    train: float = 1000.0,
    machine: Mapping[str, Any] = MACHINE,
    staleness: float = 0.0,
) -> None:
    """A file of results as `execute` writes it: ten seconds an epoch, the target reached or not."""
    job = Job(BY_NAME[name], seed)
    target, paper = job.run.target, PAPER[job.run.workload]
    metric = "accuracy" if paper.higher_is_better else "absolute_error"
    best = (max if paper.higher_is_better else min)(values)
    reached = target is not None and (best >= target if paper.higher_is_better else best <= target)
    history = [
        {"epoch": i, "seconds": 10.0 * i, "valid_metrics": {metric: v}, "train_loss": 1.0}
        for i, v in enumerate(values, 1)
    ]
    report = {
        "metric": metric,
        "value": best,
        "target": target,
        "reached": reached,
        "epochs": len(values),
        "seconds": 10.0 * len(values),
        "train_inst_per_s": train,
        "valid_inst_per_s": 2 * train,
        "staleness": {"mean": staleness, "max": 1, "histogram": {"0": 5}, "per_node": {"a": {"mean": 0, "max": 0}}},
        "settings": {"vectors": "wordvec300", "affinity": {"a": 1}},
        "history": history,
    }
    found = {"run": execute.described(job), "machine": machine, "wall_seconds": 12.0}
    folder.mkdir(exist_ok=True)
    job.file(folder).write_text(json.dumps({**found, "report": execute.trimmed(report)}))


def cells(table: str, start: str) -> list[str]:
    """The line of a table that starts so."""
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


# -- the list of runs


def test_names_are_unique_and_fit_for_files() -> None:
    assert len(BY_NAME) == len(RUNS)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in BY_NAME)
    assert [run.name for run in chosen(["mnist-torch-*", "qm9-waves-1"])] == [
        "mnist-torch-1",
        "mnist-torch-2",
        "qm9-waves-1",
    ]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_command_is_understood(run: Run, tmp_path: Path) -> None:
    module, *argv = run.command(1)
    argv += ["--json", str(tmp_path / "report.json"), "--quiet"]
    assert module == ("bench.paper.baseline" if run.way == "torch" else "ampnet")
    parser = baseline.make_parser() if run.way == "torch" else make_parser()
    args, unknown = parser.parse_known_args(argv)
    assert not unknown
    assert (args.seed, args.epochs, args.target) == (1, run.epochs, run.target)


def test_every_bound_has_a_run_and_runs_go_beyond_it() -> None:
    for bound in BOUNDS:
        same = [run for run in RUNS if run.workload == bound.workload and run.study == "table"]
        if isinstance(bound, Epochs):
            wanted = (bound.max_active_keys, bound.replicas)
            there = [run for run in same if (run.max_active_keys, run.replicas) == wanted]
            assert there
            assert all(run.epochs >= bound.at_most for run in there)
        if isinstance(bound, Throughput):
            assert bound.above == max(row.rate for row in PAPER[bound.workload].rows)


# -- tables


def test_a_line_has_medians_over_the_seeds(tmp_path: Path) -> None:
    for seed, (epochs, train) in enumerate(((3, 900.0), (5, 1000.0), (4, 5000.0))):
        store(tmp_path, "mnist-waves-4", [0.9] * (epochs - 1) + [0.98], seed=seed, train=train)
    table = workload_table(PAPER["mnist"], read(tmp_path))
    assert cells(table, "waves") == ["waves", "4", "3", "4", "40.0", "1,000", "2,000", "0.0", "4", "44.0", "5,750"]
    assert cells(table, "TensorFlow, in the paper")[-3:] == ["3", "34.5", "5,880"]
    assert "messages" not in table


def test_a_target_that_was_not_reached_is_a_dash_and_the_best_value(tmp_path: Path) -> None:
    for seed, last in enumerate((0.98, 0.95, 0.961)):
        store(tmp_path, "mnist-waves-1", [0.9, last], seed=seed)
        store(tmp_path, "mnist-messages-1", [0.9, 0.98 if seed else 0.95], seed=seed)
    store(tmp_path, "qm9-waves-1", [9.0, 5.123])
    results = read(tmp_path)
    table = workload_table(PAPER["mnist"], results)
    assert cells(table, "waves")[3:5] == ["- (1 of 3 seeds; best 98.0 %)", "-"]
    assert cells(table, "messages")[3:5] == ["2 (2 of 3 seeds)", "20.0"]
    assert cells(workload_table(PAPER["qm9"], results), "waves")[3] == "- (best 5.12)"


def test_bounds_are_met_missed_or_not_run(tmp_path: Path) -> None:
    store(tmp_path, "list-reduction-waves-1", [0.9] * 6 + [0.98], train=66_001)
    store(tmp_path, "list-reduction-waves-16", [0.9] * 9 + [0.98])
    store(tmp_path, "list-reduction-messages-1", [0.9] * 8 + [0.98])
    store(tmp_path, "list-reduction-messages-16", [0.9] * 9 + [0.98])
    store(tmp_path, "list-reduction-replicas2-4", [0.9] * 19 + [0.98])
    store(tmp_path, "list-reduction-torch-1", train=1e6)
    store(tmp_path, "qm9-best", [4.5, 3.9, 4.1])
    bounds = (
        Epochs("list-reduction", 1, 8),
        Epochs("list-reduction", 4, 9),
        Slowdown("list-reduction", 16),
        Throughput("list-reduction", 66_000),
        Slowdown("mnist", 4),
        Better("qm9", 4.0),
    )
    found = [(check.what, check.measured, check.kept) for check in checks(read(tmp_path), bounds)]
    assert found == [
        ("epochs: waves, 1 in flight", "7", True),
        ("epochs: messages, 1 in flight", "9", False),
        ("epochs: 4 in flight", "-", None),
        ("epochs: messages, 16 in flight, against waves, 1 in flight", "1.43 x (10 against 7)", False),
        ("sequences/s in training", "66,001 (waves, 1 in flight)", True),
        ("epochs: 4 in flight against 1", "-", None),
        ("error, best settings", "3.900 (epoch 2)", True),
    ]
    assert "**MISSED**" in bounds_table(read(tmp_path))


@pytest.mark.parametrize(("count", "asked"), [("instances", []), ("messages", ["waves, 16 in flight"])])
def test_waves_of_many_are_another_training_where_messages_are_counted(
    count: str, asked: list[str], tmp_path: Path
) -> None:
    for number in (1, 16):
        store(tmp_path, f"sentiment-waves-{number}", [0.5] * number + [0.9])
        path = tmp_path / f"sentiment-waves-{number}-s0.json"
        data = json.loads(path.read_text())
        data["report"]["settings"]["count"] = count
        path.write_text(json.dumps(data))
    found = checks(read(tmp_path), (Slowdown("sentiment", 16),))
    assert [check.what for check in found if check.kept is not None] == [
        f"epochs: {title}, against waves, 1 in flight" for title in asked
    ]


def test_lines_say_which_machine_they_are_from_if_there_are_several(tmp_path: Path) -> None:
    store(tmp_path, "mnist-waves-1")
    store(tmp_path, "mnist-waves-4", machine=MACHINE | {"load": "7.00"})
    assert "machine" not in workload_table(PAPER["mnist"], read(tmp_path))
    store(tmp_path, "mnist-waves-4", seed=1, machine=MACHINE | {"processor": "Difference Engine"})
    results = read(tmp_path)
    lines = workload_table(PAPER["mnist"], results).splitlines()
    assert [line.split("|")[9].strip() for line in lines if "waves" in line] == ["A", "A, B"]
    assert "1,000 / 2,000 (A, B)" in throughput_table(results)
    text = page.text(results)
    assert "- A: Abacus, 2 cores; Python 3.11.7, torch 2.13" in text
    assert "- B: Difference Engine" in text


# -- the page


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A file for every run."""
    for i, run in enumerate(RUNS):
        far = [9.0, 6.0, 4.5] if run.workload == "qm9" else [0.5, 0.75, 0.9, 1.0]
        store(tmp_path / "results", run.name, far, train=1000.0 + i, staleness=i % 7)
    return tmp_path / "results"


def test_the_page_has_all_tables_and_its_pictures_exist(full: Path, tmp_path: Path) -> None:
    results = page.write(full, tmp_path / "docs" / "results.md", tmp_path / "docs" / "pictures")
    text = (tmp_path / "docs" / "results.md").read_text()
    links = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert links == [f"pictures/{name}.png" for name in (*PAPER, "frequency", "staleness")]
    assert all((tmp_path / "docs" / link).stat().st_size > 10_000 for link in links)
    assert not list(tmp_path.rglob("*.part"))
    assert "Not run" not in text
    assert "Not results" not in text
    assert "Fewer seeds than planned" in text
    assert "`wordvec300`" in text
    assert "| 3,200 | 50.0 % | 75.0 % | 90.0 % | 100.0 % |" in text
    assert all(f"`{run.name}`" in page.text(replace(results, missing=RUNS)) for run in RUNS)


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    assert "Nothing has been run yet." in page.text(read(tmp_path))


@pytest.mark.skipif(not list(page.RESULTS.glob("*.json")), reason="there are no files of results")
def test_the_committed_page_is_that_of_the_committed_files() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert text == page.text(read(page.RESULTS)), "'python -m bench.paper write' makes it again"
    assert all((page.PAGE.parent / link).exists() for link in re.findall(r"!\[.*?\]\((.*?)\)", text))


# -- execution


class Wrong(Run):
    """A run that cannot even begin."""

    def command(self, seed: int) -> list[str]:
        return ["no_such_module"]


def test_a_run_becomes_a_file_and_one_that_fails_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ("--size", "12", "--hidden", "2")
    jobs = [Job(Wrong("wrong", "babi15", "waves", 1, (0,)), 0), Job(replace(BABI, args=tiny), 3)]
    assert program.run_all(jobs, Executor(tmp_path, limit=10)) == 1
    told = capsys.readouterr()
    first, second = told.out.splitlines()
    assert first.startswith("[1/2] wrong seed 0: failed: ")
    assert re.fullmatch(r"\[2/2\] babi15-waves-16 seed 3: .* % after 2 epochs, \d+ s \(target 1 not reached\)", second)
    assert "wrong seed 0 failed:" in told.err
    assert "No module named no_such_module" in told.err
    assert [path.name for path in tmp_path.iterdir()] == ["babi15-waves-16-s3.json"]
    found = json.loads(jobs[1].file(tmp_path).read_text())
    assert found["run"]["command"].endswith("--seed 3 --size 12 --hidden 2")
    assert len(found["report"]["history"]) == 2
    assert "histogram" not in json.dumps(found)
    assert "affinity" not in found["report"]["settings"]
    assert "**Not results:** runs with 10 training records" in page.text(read(tmp_path, [jobs[1].run]))


def test_nothing_is_left_of_a_run_whose_file_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pretend(command: list[str], environment: object) -> tuple[int, str]:
        Path(command[command.index("--json") + 1]).write_text('{"history": ')
        return 0, ""

    monkeypatch.setattr(execute, "_finished", pretend)
    with pytest.raises(RunFailed, match="its report cannot be read: JSONDecodeError"):
        Executor(tmp_path)(Job(BABI, 0))
    monkeypatch.setattr(execute, "_finished", lambda command, environment: (0, ""))
    with pytest.raises(RunFailed, match="ended with 0, without a report"):
        Executor(tmp_path)(Job(BABI, 0))
    assert not list(tmp_path.iterdir())


def test_ctrl_c_keeps_what_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Executor, "__call__", stop)
    assert program.main(["--only", BABI.name, "--out", str(tmp_path)]) == 130
    assert "interrupted; 0 before it are done" in capsys.readouterr().out


def test_ctrl_c_ends_the_process_that_runs() -> None:
    code = "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(7))\nprint(1, flush=True)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code + "time.sleep(60)"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    began = time.monotonic()
    execute._end(process)
    process.stdout.close()
    assert process.returncode in (7, -signal.SIGINT)
    assert time.monotonic() - began < 10


# -- the command line


def test_only_what_is_missing_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path, BABI.name, [0.9, 1.0], seed=1)
    ran: list[str] = []

    def pretend(self: Executor, job: Job) -> dict[str, Any]:
        ran.append(str(job))
        store(tmp_path, job.run.name, [0.9, 1.0], seed=job.seed)
        found: dict[str, Any] = json.loads(job.file(tmp_path).read_text())
        return found

    monkeypatch.setattr(Executor, "__call__", pretend)
    assert program.main(["run", "--only", BABI.name, "--missing", "--seeds", "3", "--out", str(tmp_path)]) == 0
    assert ran == [f"{BABI.name} seed 0", f"{BABI.name} seed 2"]
    out = capsys.readouterr().out
    assert "2 runs; 2 of them took 24 s before" in out
    assert f"[2/2] {BABI.name} seed 2: 100.0 % after 2 epochs, 20 s\n" in out
    assert (tmp_path / "results.md").exists()
    assert program.main(["--list", "--only", "babi15-*"]) == 0
    assert capsys.readouterr().out.count("\n") == len(chosen(["babi15-*"]))


@pytest.mark.parametrize(
    "argv",
    [
        ["--limit", "5"],
        ["--only", "nothing"],
        ["--only", "nothing", "--only", "mnist-*"],
        ["--seeds", "0"],
        ["--only", "mnist-*", "write"],
        ["--list", "write"],
        ["--lis"],
    ],
)
def test_a_wrong_command_line_runs_nothing(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(argv) == 2
    assert argv[0] in capsys.readouterr().err


def test_files_of_other_commands_are_left_out_and_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path, "mnist-waves-1")
    store(tmp_path, "mnist-waves-4")
    (tmp_path / "shopping.json").write_text('["milk"]')
    old = tmp_path / "mnist-waves-4-s0.json"
    old.write_text(old.read_text().replace("--epochs 8", "--epochs 9"))
    results = read(tmp_path)
    assert [one.run.name for one in results.measured] == ["mnist-waves-1"]
    assert results.unknown == ("mnist-waves-4-s0.json", "shopping.json")
    ran: list[str] = []

    def pretend(self: Executor, job: Job) -> Mapping[str, Any]:
        ran.append(str(job))
        raise RunFailed("enough")

    monkeypatch.setattr(Executor, "__call__", pretend)
    assert program.main(["--only", "mnist-waves-?", "--seeds", "1", "--missing", "--out", str(tmp_path)]) == 1
    assert ran == ["mnist-waves-4 seed 0"]
    assert "left out: mnist-waves-4-s0.json" in capsys.readouterr().err


def test_a_file_that_says_so_may_be_of_another_command(tmp_path: Path) -> None:
    store(tmp_path, "qm9-best", [4.5, 3.9])
    path = tmp_path / "qm9-best-s0.json"
    data = json.loads(path.read_text())
    data["run"] |= {"command": "ampnet train qm9 --by-hand", "note": "It was cold that day."}
    path.write_text(json.dumps(data))
    text = page.text(read(tmp_path))
    assert "ampnet train qm9 --by-hand" in text
    assert "It was cold that day." in text
