"""How runs of `bench.paper` are executed: one as a process, many on cores, and which code they are of."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from bench.paper import execute
from bench.paper.commit import CODE, commit
from bench.paper.execute import Executor, Job, RunFailed, Started
from bench.paper.runs import Run
from bench.paper.schedule import Schedule

from tests.bench.papers import BY_NAME

BABI = BY_NAME["babi15-waves-16"]
CORES = sorted(os.sched_getaffinity(0))


class Scripted(Run):
    """A run that is a Python module of a test."""

    def command(self, seed: int) -> list[str]:
        return [self.args[0]]


def executed(executor: Executor, job: Job, cores: Sequence[int] = CORES[:1]) -> dict[str, Any]:
    one = executor.start(job, cores)
    assert executor.wait([one]) is one
    return executor.finish(one)


def module(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Returns a job that runs this code; ``report`` is the path of its report."""
    (folder / "scripted_run.py").write_text("import sys\nreport = sys.argv[sys.argv.index('--json') + 1]\n" + code)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return Job(Scripted("scripted", "babi15", "sync", 1, (0,), target=1.0, args=("scripted_run",)), 0)


# -- one run


def test_a_run_becomes_a_file(tmp_path: Path) -> None:
    job = Job(replace(BABI, args=("--size", "12", "--hidden", "2")), 3)
    found = executed(Executor(tmp_path, limit=10), job)
    assert json.loads(job.file(tmp_path).read_text()) == json.loads(json.dumps(found))
    assert [path.name for path in tmp_path.iterdir()] == ["babi15-waves-16-s3.json"]
    told = found["run"]
    assert told["command"].endswith("--seed 3 --size 12 --hidden 2")
    assert (told["cores"], told["alone"], told["limit"], told["commit"]) == (1, True, 10, commit())
    assert len(found["report"]["history"]) == 2
    assert found["report"]["engine"]["name"] == "waves"
    assert "histogram" not in json.dumps(found)
    assert "affinity" not in found["report"]["settings"]


def test_a_run_is_kept_to_its_cores_and_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import json, os, time\nmost = time.monotonic() + 30\n"
    code += "while len(os.sched_getaffinity(0)) > 1 and time.monotonic() < most: pass\n"
    code += "told = {'history': [], 'value': [*os.sched_getaffinity(0)], 'metric': os.environ['OMP_NUM_THREADS']}\n"
    job = module(tmp_path, code + "json.dump(told, open(report, 'w'))", monkeypatch)
    found = executed(Executor(tmp_path / "out"), job, CORES[-1:])
    assert (found["report"]["value"], found["report"]["metric"]) == (CORES[-1:], "1")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit('all\\nis lost')", "all\nis lost"),
        ("", "ended with 0, without a report"),
        ("open(report, 'w').write('{')", "its report cannot be read: JSONDecodeError"),
        ("open(report, 'w').write('{}')", "its report cannot be read: KeyError"),
    ],
)
def test_a_run_without_a_result_is_a_failure(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = module(tmp_path, code, monkeypatch)
    with pytest.raises(RunFailed, match=message):
        executed(Executor(tmp_path / "out"), job)
    assert not (tmp_path / "out").exists()


def test_a_result_that_cannot_be_stored_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = module(tmp_path, "open(report, 'w').write('{\"history\": []}')", monkeypatch)
    (tmp_path / "out").write_text("a file, and no folder")
    with pytest.raises(RunFailed, match="its result cannot be stored"):
        executed(Executor(tmp_path / "out"), job)


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_run_that_diverged_is_a_result(epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = f"open(report, 'w').write('{{\"history\": [], \"epochs\": {epochs}}}')\n" if epochs else ""
    job = module(tmp_path, written + "raise SystemExit(\"node 'a' failed: LossError: not finite\")", monkeypatch)
    report = executed(Executor(tmp_path / "out"), job)["report"]
    assert report["diverged"] == "node 'a' failed: LossError: not finite"
    assert report["epochs"] == epochs
    if not epochs:
        assert (report["metric"], report["target"], report["reached"]) == ("accuracy", 1.0, False)


def test_the_job_that_ends_first_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = module(
        tmp_path, "import os, time\ntime.sleep(60 if os.environ['OMP_NUM_THREADS'] == '2' else 0)", monkeypatch
    )
    executor = Executor(tmp_path / "out")
    slow = executor.start(Job(replace(job.run, way="torch", workers=2), 0), CORES[:1])
    quick = executor.start(job, CORES[:1])
    assert executor.wait([slow, quick]) is quick
    quick.close()
    began = time.monotonic()
    executor.end(slow)
    assert slow.process.returncode is not None
    assert not Path(slow.folder.name).exists()
    assert time.monotonic() - began < execute.GRACE + 10


def test_the_end_is_that_of_ctrl_c(tmp_path: Path) -> None:
    code = "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(7))\nprint(1, flush=True)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code + "time.sleep(60)"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    Executor(tmp_path).end(cast(Started, SimpleNamespace(process=process, close=lambda: None)))
    process.stdout.close()
    assert process.returncode in (7, -signal.SIGINT)


# -- many


@dataclass(slots=True)
class Fake:
    """An executor whose jobs take the seconds of their seed, on a clock of its own."""

    now: float = 0.0
    log: list[str] = field(default_factory=list)
    fail: str = ""
    stop: str = ""

    def start(self, job: Job, cores: Sequence[int]) -> Any:
        self.log.append(f"{self.now:g} {job.run.name} on {','.join(map(str, cores))}")
        return SimpleNamespace(job=job, cores=tuple(cores), alone=True, ends=self.now + job.seed)

    def wait(self, running: Sequence[Any]) -> Any:
        one = min(running, key=lambda one: one.ends)
        if one.job.run.name == self.stop:
            raise KeyboardInterrupt
        self.now = one.ends
        return one

    def finish(self, one: Any) -> Mapping[str, Any]:
        if one.job.run.name == self.fail:
            raise RunFailed("it is cold")
        return {"alone": one.alone}

    def end(self, one: Any) -> None:
        self.log.append(f"{self.now:g} {one.job.run.name} ended")


def job(name: str, seconds: int, *, timed: bool = False, width: int = 1, cores: Any = 2) -> Job:
    run = Run(name, "babi15", "workers" if width > 1 else "sync", 1, (0,), workers=width, cores=cores, timed=timed)
    return Job(run, seconds)


def schedule(fake: Fake, **more: Any) -> tuple[Schedule, dict[str, bool]]:
    """Returns a schedule on four cores, and who was alone."""
    alone: dict[str, bool] = {}

    def tell(job: Job, result: Any) -> None:
        if not isinstance(result, RunFailed):
            alone[job.run.name] = result["alone"]

    settings = {"cores": (0, 1, 2, 3), "clock": lambda: fake.now, "on_result": tell, **more}
    return Schedule(cast(Executor, fake), **settings), alone


def test_timed_runs_are_alone_and_others_share_no_core() -> None:
    """
    time      0    5  6  7    10  11
    core 0    a    c  c  e
         1    a    d  d  d
         2         d  d  d
         3         f     e
    """
    fake = Fake()
    plan, alone = schedule(fake, at_once=3)
    jobs = [job("c", 2), job("d", 5, width=2), job("a", 5, timed=True), job("e", 4, width=2), job("f", 1)]
    outcome = plan.run(jobs)
    assert fake.log == ["0 a on 0,1", "5 c on 0", "5 d on 1,2", "5 f on 3", "7 e on 0,3"]
    assert alone == {"a": True, "c": False, "d": False, "e": False, "f": False}
    assert sorted(map(str, outcome.done)) == sorted(map(str, jobs))


def test_a_timed_run_of_16_cores_has_all_of_them() -> None:
    fake = Fake()
    plan, alone = schedule(fake, at_once=4)
    plan.run([job("a", 1, timed=True, cores=16), job("b", 1, timed=True, cores=16), job("c", 1, width=16, cores=16)])
    assert fake.log == ["0 a on 0,1,2,3", "1 b on 0,1,2,3", "2 c on 0,1,2,3"]
    assert all(alone.values())


def test_one_at_a_time_is_the_default() -> None:
    fake = Fake()
    plan, alone = schedule(fake)
    plan.run([job("a", 1), job("b", 1)])
    assert fake.log == ["0 a on 0", "1 b on 0"]
    assert all(alone.values())


def test_no_run_starts_when_the_time_is_over_or_too_short_for_it() -> None:
    fake = Fake()
    known = {"long": 50.0, "short": 2.0}
    plan, _ = schedule(fake, seconds=10, expected=lambda job: known.get(job.run.name))
    outcome = plan.run([job("a", 6), job("long", 50), job("b", 3), job("short", 2), job("c", 6), job("d", 1)])
    assert [line.split()[1] for line in fake.log] == ["a", "b", "c"]  # at 9 s 'short' does not fit, 'c' is not known
    assert [one.run.name for one in outcome.left] == ["long", "short", "d"]
    assert not outcome.failed


def test_failures_are_kept_and_the_others_go_on() -> None:
    fake = Fake(fail="a")
    plan, alone = schedule(fake)
    outcome = plan.run([job("a", 1), job("b", 1)])
    assert [(one.run.name, said) for one, said in outcome.failed] == [("a", "it is cold")]
    assert [one.run.name for one in outcome.done] == ["b"]
    assert alone == {"b": True}


def test_ctrl_c_ends_all_that_run() -> None:
    fake = Fake(stop="b")
    plan, _ = schedule(fake, at_once=2)
    outcome = plan.run([job("a", 1), job("b", 2), job("c", 9), job("d", 9)])
    assert outcome.interrupted
    assert fake.log[-2:] == ["1 b ended", "1 c ended"]
    assert [one.run.name for one in outcome.left] == ["b", "c", "d"]
    assert [one.run.name for one in outcome.done] == ["a"]


# -- which code


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a repository with code and a document."""
    monkeypatch.delenv("AMPNET_COMMIT", raising=False)
    commit.cache_clear()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "model.py").write_text("1")
    (tmp_path / "README.md").write_text("1")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "1")
    return tmp_path


def git(folder: Path, *args: str) -> str:
    named = ["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *named, *args], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def name_of(checkout: Path) -> str:
    commit.cache_clear()
    return commit(checkout)


def test_the_commit_is_the_last_that_changed_the_code(checkout: Path) -> None:
    first = name_of(checkout)
    assert first == git(checkout, "rev-parse", "--short", "HEAD")
    (checkout / "README.md").write_text("2")
    assert name_of(checkout) == first
    git(checkout, "commit", "--quiet", "-am", "2")
    assert name_of(checkout) == first
    (checkout / "src" / "model.py").write_text("2")
    changed = name_of(checkout)
    assert changed.startswith(f"{first}+")
    (checkout / "src" / "model.py").write_text("3")
    assert name_of(checkout) not in (first, changed)
    (checkout / "src" / "model.py").write_text("2")
    assert name_of(checkout) == changed
    (checkout / "src" / "new.py").write_text("2")
    assert name_of(checkout) not in (first, changed)
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "3")
    assert name_of(checkout) == git(checkout, "rev-parse", "--short", "HEAD")


def test_a_copy_without_git_is_named_by_a_variable_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMPNET_COMMIT", raising=False)
    assert name_of(tmp_path) == "unknown"
    (tmp_path / "COMMIT").write_text("abc1234\n")
    assert name_of(tmp_path) == "abc1234"
    monkeypatch.setenv("AMPNET_COMMIT", "def5678")
    assert name_of(tmp_path) == "def5678"


def test_the_code_exists() -> None:
    assert all((execute.CHECKOUT / path).exists() for path in CODE)
