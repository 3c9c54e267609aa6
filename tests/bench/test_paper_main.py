"""The command line of `bench.paper`: what runs, what is skipped, what is written where."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench.paper import __main__ as program
from bench.paper import execute, page
from bench.paper.commit import commit
from bench.paper.execute import Job, RunFailed
from bench.paper.plan import QUICK, RUNS
from bench.paper.results import read
from bench.paper.runs import chosen

from tests.bench.papers import BY_NAME, store

BABI = BY_NAME["babi15-waves-16"]


@dataclass(slots=True)
class Pretended:
    """In the place of an executor: stores made-up results, and keeps the names of its jobs."""

    out: Path
    ran: list[str] = field(default_factory=list)
    fail: bool = False

    def __call__(self, out: Path, data_dir: Path | None, limit: int | None) -> Pretended:
        assert out == self.out
        return self

    def start(self, job: Job, cores: Sequence[int]) -> Any:
        self.ran.append(str(job))
        return SimpleNamespace(job=job, cores=tuple(cores), alone=True)

    def wait(self, running: Sequence[Any]) -> Any:
        return running[0]

    def finish(self, one: Any) -> dict[str, Any]:
        if self.fail:
            raise RunFailed("first line\nenough")
        store(self.out, one.job.run.name, [0.9, 1.0], seed=one.job.seed)
        path = one.job.file(self.out)
        found: dict[str, Any] = json.loads(path.read_text())
        found["run"]["command"] = one.job.run.typed(one.job.seed)  # that of the quick part may differ
        path.write_text(json.dumps(found))
        return found

    def end(self, one: Any) -> None:
        pass


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    made = Pretended(tmp_path)
    monkeypatch.setattr(program, "Executor", made)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    return made


def run(*argv: str) -> int:
    return program.main([*argv])


def test_a_result_of_this_code_and_command_is_not_made_again(
    pretended: Pretended, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path, BABI.name, [0.9, 1.0], seed=0, commit="0ther")
    store(tmp_path, BABI.name, [0.9, 1.0], seed=1)
    store(tmp_path, BABI.name, [0.9, 1.0], seed=2)
    old = tmp_path / f"{BABI.name}-s2.json"
    old.write_text(old.read_text().replace("--epochs 20", "--epochs 19"))
    asked = ("--only", BABI.name, "--seeds", "4", "--out", str(tmp_path))
    assert run(*asked) == 0
    assert pretended.ran == [f"{BABI.name} seed {seed}" for seed in (0, 2, 3)]
    out = capsys.readouterr().out
    assert f"3 runs (1 of 4 have a result of {commit()}); 3 of them took 36 s before" in out
    assert f"[3/3] {BABI.name} seed 3: 100.0 % after 2 epochs, 20 s\n" in out
    assert (tmp_path / "results.md").exists()
    pretended.ran.clear()
    assert run(*asked) == 0
    assert pretended.ran == []
    assert run(*asked, "--limit", "60") == 0  # few records are another thing
    assert len(pretended.ran) == 4
    pretended.ran.clear()
    assert run(*asked, "--again") == 0
    assert len(pretended.ran) == 4


def test_the_first_seeds_of_all_runs_come_first(pretended: Pretended, tmp_path: Path) -> None:
    assert run("--only", "babi15-waves-*", "--only", "mnist-waves-4", "--seeds", "2", "--out", str(tmp_path)) == 0
    names = ("mnist-waves-4", "babi15-waves-1", "babi15-waves-16")
    assert pretended.ran == [f"{name} seed {seed}" for seed in (0, 1) for name in names]


def test_each_machine_has_its_part(
    pretended: Pretended, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--list") == 0
    small = capsys.readouterr().out
    assert run("--list", "--cores", "16") == 0
    large = capsys.readouterr().out
    assert small.count("\n") + large.count("\n") == len(RUNS)
    assert all(line.startswith("c16-") for line in large.splitlines())
    assert run("--list", "--quick") == 0
    assert capsys.readouterr().out.count("\n") == len(QUICK)
    assert run("--cores", "16", "--only", "*grid-8-1", "--seeds", "1", "--out", str(tmp_path)) == 0
    assert pretended.ran == ["c16-grid-8-1 seed 0"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert run("--cores", "16", "--again", "--out", str(tmp_path)) == 2
    assert "--cores: there are 2 here, and results are of 16" in capsys.readouterr().err


def test_the_quick_part_prints_its_tables_and_leaves_the_others_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (page.PAGE, *page.RESULTS.glob("*"))}
    made = Pretended(tmp_path / "quick")
    monkeypatch.setattr(program, "Executor", made)
    monkeypatch.setattr(program, "QUICK_RESULTS", tmp_path / "quick")
    assert run("--quick") == 0
    assert sorted(made.ran) == sorted(f"{one.name} seed 0" for one in QUICK)
    out = capsys.readouterr().out
    assert "## Bounds" in out
    assert "| synchronous | 4 |" in out
    assert "## Staleness and remedies" in out
    assert "![" not in out
    assert len(read(tmp_path / "quick", QUICK).measured) == len(QUICK)
    assert (tmp_path / "quick" / "pictures" / "mnist.png").exists()
    assert before == {path: path.stat().st_mtime_ns for path in (page.PAGE, *page.RESULTS.glob("*"))}
    assert page.QUICK_RESULTS not in (page.RESULTS, *page.RESULTS.parents)


def test_time_that_is_over_and_failures_have_exit_codes(
    pretended: Pretended, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path, BABI.name, [0.9, 1.0], seed=0, commit="0ther")  # took 12 s
    assert run("--only", BABI.name, "--seeds", "1", "--seconds", "9", "--out", str(tmp_path)) == 3
    assert f"the time is over; the same command goes on with 1 more: {BABI.name} seed 0" in capsys.readouterr().out
    assert pretended.ran == []
    pretended.fail = True
    assert run("--only", BABI.name, "--seeds", "1", "--out", str(tmp_path)) == 1
    said = capsys.readouterr()
    assert f"[1/1] {BABI.name} seed 0: failed: enough\n" in said.out
    assert f"{BABI.name} seed 0 failed:\nfirst line\nenough" in said.err


def test_ctrl_c_keeps_what_is_done(
    pretended: Pretended, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: Pretended, running: Sequence[Any]) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Pretended, "wait", stop)
    assert run("--only", BABI.name, "--seeds", "2", "--out", str(tmp_path)) == 130
    assert "interrupted; the same command goes on with 2 more" in capsys.readouterr().out
    assert not (tmp_path / "results.md").exists()


def test_code_that_has_no_name_is_told(
    pretended: Pretended, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (program, execute):
        monkeypatch.setattr(place, "commit", lambda: "unknown")
    asked = ("--only", BABI.name, "--seeds", "1", "--out", str(tmp_path))
    assert run(*asked) == 0
    assert "the commit of this code is not known" in capsys.readouterr().out
    assert run(*asked) == 0
    assert len(pretended.ran) == 1


def test_results_are_kept_where_no_picture_can_be_drawn(
    pretended: Pretended, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> None:
        raise ModuleNotFoundError("No module named 'matplotlib'")

    monkeypatch.setattr(program, "write", fail)
    assert run("--only", BABI.name, "--seeds", "1", "--out", str(tmp_path)) == 0
    assert "the page is not written: No module named 'matplotlib'" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == [f"{BABI.name}-s0.json"]


def test_the_commit_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("commit") == 0
    assert capsys.readouterr().out.strip() == commit()


@pytest.mark.parametrize(
    "argv",
    [
        ["--limit", "5"],
        ["--only", "nothing"],
        ["--only", "nothing", "--only", "mnist-*"],
        ["--only", "c16-grid-*"],
        ["--only", "mnist-*", "--cores", "16"],
        ["--quick", "--cores", "16"],
        ["--out", str(page.RESULTS), "--quick"],
        ["--cores", "3"],
        ["--seeds", "0"],
        ["--seconds", "soon"],
        ["--only", "mnist-*", "write"],
        ["--list", "write"],
        ["--lis"],
    ],
)
def test_a_wrong_command_line_runs_nothing(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(argv) == 2
    assert argv[0] in capsys.readouterr().err


def test_files_of_no_run_are_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, "mnist-waves-1")
    store(tmp_path, "mnist-waves-4")
    (tmp_path / "shopping.json").write_text('["milk"]')
    old = tmp_path / "mnist-waves-4-s0.json"
    old.write_text(old.read_text().replace("--epochs 8", "--epochs 9"))
    results = read(tmp_path)
    assert [one.run.name for one in results.measured] == ["mnist-waves-1"]
    assert results.unknown == ("mnist-waves-4-s0.json", "shopping.json")
    assert len(results.missing) == len(RUNS) - 1
    assert run("write", "--out", str(tmp_path)) == 0
    said = capsys.readouterr()
    assert "left out: mnist-waves-4-s0.json" in said.err
    assert "written: results.md, from 1 result files" in said.out
    assert len(chosen(["mnist-waves-*"], RUNS)) == 2
