"""``ampnet train --workers``: the same command on worker processes; what it prints, writes and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ampnet.cli import main
from ampnet.cli import train as command
from ampnet.cli.progress import Plain
from ampnet.events.check import assert_kept
from ampnet.events.log import read_log
from ampnet.events.staleness import staleness_of
from ampnet.experiments.list_reduction import Settings
from ampnet.experiments.running import make_runtime
from ampnet.models.list_reduction import build
from ampnet.runtime.crew import most
from ampnet.runtime.inline import Inline
from ampnet.runtime.processes import Processes
from tests.cli.test_train import EPOCH, FATAL, SUMMARY, TINY, interrupting, lines
from tests.runtime.conftest import children

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
TWO = (*TINY, "--workers", "2")


def test_the_same_lines_and_a_log_that_keeps_the_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, report, trace = (tmp_path / name for name in ("run.log", "report.json", "trace.json"))
    files = ("--log", str(log), "--json", str(report), "--trace", str(trace))
    assert main([*TWO, "--train-size", "4000", *files]) == 0
    expected, first, second, last, size_of_log = lines(capsys)
    assert re.fullmatch(
        r"placement: 2 workers( \(1 without nodes\))?, \d\.\d x one core expected, bounded by .*; "
        r"--replicas 2: \d\.\d x",
        expected,
    )
    both = "without nodes" not in expected  # of a small model, by the costs of a machine that is shared with others
    assert size_of_log.startswith(f"log: {log}, ")
    for number, line in enumerate((first, second), start=1):  # a short epoch may end before any event was sent
        assert EPOCH.fullmatch(line.replace("staleness -", "staleness 0.0 (max 0)"))
        assert f"epoch  {number}" in line
    assert SUMMARY.fullmatch(last)
    assert re.search(r"; busy: \d+ %, \d+ %; bounded by ", last)
    assert main(["check", str(log)]) == 0
    assert "all promises kept" in lines(capsys)[0]
    data = json.loads(report.read_text())
    assert (data["settings"]["workers"], data["settings"]["affinity"]) == (2, "auto")
    recounted = staleness_of(read_log(log))
    assert data["staleness"]["messages"] == sum(of.messages for of in recounted.values())
    assert data["staleness"]["max"] == max(of.max for of in recounted.values())
    assert main(["gantt", str(trace), "-o", str(tmp_path / "run.svg")]) == 0
    assert re.search(r"worker0 \d+ %, worker1 \d+ %" if both else r"worker0 \d+ %", lines(capsys)[0])
    assert not children()


def test_one_is_the_inline_runtime() -> None:
    assert isinstance(make_runtime(build(8), Settings()), Inline)
    two = make_runtime(build(8), Settings(workers=2, affinity={"cell": 1}, memory_per_worker=10**9))
    assert isinstance(two, Processes)
    assert (two.settings["workers"], two.affinity, two.memory_per_worker) == (2, {"cell": 1}, 10**9)


def test_a_file_says_which_node_goes_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where, report = tmp_path / "where.json", tmp_path / "report.json"
    where.write_text('{"*": 0, "cell*": 1}')
    assert main([*TWO, "--affinity", str(where), "--pin", "--json", str(report), "--log", str(tmp_path / "log")]) == 0
    assert json.loads(report.read_text())["settings"]["affinity"] == {"*": 0, "cell*": 1}
    began = next(iter(read_log(tmp_path / "log")))
    placed: dict[str, Any] = began.settings["affinity"]  # type: ignore[attr-defined]
    assert placed["cell"] == 1
    assert placed["embedding"] == placed["classify"] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"cel": 1}', 'where.json, entry "cel": no node is called that; did you mean '),
        ('{"cell": 2}', 'where.json, entry "cell": 2 is no worker; there are 2, numbered from 0'),
        ('{"cell": -1}', 'where.json, entry "cell": -1 is no worker'),
        ('{"cell": "one"}', "where.json, entry \"cell\": 'one' is no worker"),
        ('{"cell": true}', 'where.json, entry "cell": true is no worker'),
        ('{"cell": 0, "cell": 1}', 'where.json, entry "cell": it is there twice'),
        ("[1]", "where.json holds no object; write nodes and their workers, like"),
        ('{"cell": 1,\n}', "where.json, line 2: this is not JSON"),
        (b"\xff\xfe", "where.json is not text"),
        (None, "there is no file"),
    ],
)
def test_a_bad_file_is_one_line_before_any_work(
    text: str | bytes | None,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "train", lambda *a, **k: pytest.fail("work was started"))
    where = tmp_path / "where.json"
    if text is not None:
        where.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main([*TWO, "--affinity", str(where)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ampnet train list-reduction: --affinity: ")
    assert error.count("\n") == 1
    assert said in error


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--workers 0", "--workers: 0 is too small; give 1 or more"),
        ("--workers some", "--workers: 'some' is not a whole number"),
        (f"--workers {10**20}", f"--workers: {10**20} is too large; give {most()} or less on this machine"),
        ("--workers 1000000", f"--workers: 1000000 is too large; give {most()} or less on this machine"),
        ("--threads 1000000", f"--threads: 1000000 is too large; give {most()} or less on this machine"),
        ("--replicas 1000000", f"--replicas: 1000000 is too large; give {most()} or less on this machine"),
        ("--workers 2 --no-waves", "--no-waves: worker processes play waves, and pass no messages; give --workers 1"),
        ("--workers 2 --max-batch 3", "--max-batch: worker processes play waves, and pass no messages"),
        ("--pin", "--pin: there are no worker processes; give --workers 2 or more"),
        ("--affinity {file}", "--affinity: there are no worker processes; give --workers 2 or more"),
    ],
)
def test_options_that_do_not_fit(given: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "where.json").write_text("{}")
    assert main([*TINY, *given.format(file=tmp_path / "where.json").split()]) == 2
    assert said in capsys.readouterr().err


def test_an_error_of_a_worker_is_one_message_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--json", str(tmp_path / "run.json"), "--log", str(tmp_path / "run.log"))
    assert main([*TWO, *FATAL, *files]) == 1
    captured = capsys.readouterr()
    assert re.match(
        r"ampnet: node '\w+' failed in (forward|backward) at \(instance=.* on worker 'worker\d'", captured.err
    )
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []
    assert not children()


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_reports_what_was_reached(
    times: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, at_once = Processes.run, {"turn_seconds": 0.0}
    monkeypatch.setattr(Processes, "run", lambda *args, **settings: run(*args, **settings | at_once))
    monkeypatch.setattr(Plain, "epoch", interrupting(times))
    report, log = tmp_path / "run.json", tmp_path / "run.log"
    assert main([*TWO, "--epochs", "200", "--target", "1", "--json", str(report), "--log", str(log)]) == 130
    _, first, last, _ = lines(capsys)
    assert re.fullmatch(r"interrupted after \d epochs?, \d+\.\d s", first)
    assert SUMMARY.fullmatch(last.replace("staleness -", "staleness 0.0 (max 0)"))
    assert json.loads(report.read_text())["state"] == "interrupted"
    assert_kept(read_log(log), complete=times == 1)
    assert not children()


def test_ctrl_c_goes_to_the_whole_group_and_what_is_in_flight_comes_back(tmp_path: Path) -> None:
    """A terminal sends it to every process in the foreground: workers must not mind."""
    report, log = tmp_path / "run.json", tmp_path / "run.log"
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from ampnet.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    argv = [*TWO, "--epochs", "100000", "--json", str(report), "--log", str(log)]
    with subprocess.Popen(
        [sys.executable, "-c", script, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("placement: ")
        assert process.stdout.readline().startswith("epoch  1")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert err == ""
    *_, before, last, _ = out.splitlines()
    assert before.startswith("interrupted after ")
    assert SUMMARY.fullmatch(last)
    assert sorted(tmp_path.iterdir()) == [report, log]
    assert_kept(read_log(log))


def test_several_threads_in_each_worker(tmp_path: Path) -> None:
    """Once, a worker waited for ever for threads that its maker had used and that were not in the forked process."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    command_line = [sys.executable, "-m", "ampnet", *TWO, "--hidden", "64", "--threads", "2", "--quiet"]
    ran = subprocess.run(command_line, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    assert SUMMARY.fullmatch(ran.stdout.strip())
