"""``ampnet train``: what it prints, what it writes, how it ends."""

from __future__ import annotations

import json
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from ampnet import AmpnetError, Inline, __version__
from ampnet.cli import interrupt, main, make_parser
from ampnet.cli import train as command
from ampnet.cli.progress import Plain
from ampnet.cli.report import size
from ampnet.events.check import assert_kept
from ampnet.events.log import read_log
from ampnet.experiments.catalog import WORKLOADS
from ampnet.experiments.list_reduction import Settings
from ampnet.experiments.running import make_judge, make_runtime
from ampnet.experiments.settings import Optimizer
from ampnet.fitting import EpochRecord
from ampnet.models.list_reduction import build
from ampnet.nodes.loss import Loss

SMALL = ("--train-size", "400", "--valid-size", "100", "--hidden", "16")
TINY = ("train", "list-reduction", *SMALL, "--epochs", "2")
EPOCH = re.compile(
    r"epoch +(\d+)  loss \d+\.\d{3}  accuracy [01]\.\d{4}  train [\d,]+/s  valid [\d,]+/s  "
    r"staleness \d+\.\d \(max \d+\)  [\d:]+(, [\d:]+ left)?"
)
SUMMARY = re.compile(
    r"list-reduction: accuracy [01]\.\d{4}( \(target [\d.e-]+ (not )?reached\))? in \d+ epochs?, \d+\.\d s; "
    r"train [\d,]+ sequences/s, valid [\d,]+/s; staleness \d+\.\d \(max \d+\); "
    r"engine: (waves, [\d,]+ played, at most \d+ in flight|messages \([^;]+\))"
    r"(; busy: \d+ %(, \d+ %)+; bounded by [^;]+)?"
)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_line_per_epoch_and_a_closing_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TINY) == 0
    first, second, last = lines(capsys)
    assert [m and m[1] for m in (EPOCH.fullmatch(first), EPOCH.fullmatch(second))] == ["1", "2"]
    assert SUMMARY.fullmatch(last)
    assert "target" not in last
    assert " in 2 epochs, " in last


def test_quiet_prints_the_closing_line_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--quiet"]) == 0
    (only,) = lines(capsys)
    assert SUMMARY.fullmatch(only)


def test_a_target_reached_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--epochs", "9", "--target", "0.001"]) == 0
    *_, last = lines(capsys)
    assert "(target 0.001 reached) in 1 epoch, " in last


def test_a_target_missed_is_exit_code_3(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert main([*TINY, "--target", "1", "--json", str(file)]) == 3
    *_, last = lines(capsys)
    assert "(target 1 not reached) in 2 epochs, " in last
    assert json.loads(file.read_text())["reached"] is False


def test_the_report_is_one_whole_object(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert main([*TINY, "--seed", "3", "--json", str(file)]) == 0
    assert list(tmp_path.iterdir()) == [file]
    report = json.loads(file.read_text())
    assert report["workload"] == "list-reduction"
    assert (report["metric"], report["target"], report["reached"]) == ("accuracy", None, False)
    assert (report["epochs"], report["state"], report["skipped"]) == (2, "done", 0)
    assert (report["version"], report["torch"]) == (__version__, torch.__version__)
    assert report["machine"]["threads"] == 1
    assert report["machine"]["cpus"] >= 1
    assert set(report["settings"]) == {item.name for item in fields(Settings)}
    assert (report["settings"]["seed"], report["settings"]["hidden"]) == (3, 16)
    best = max(record["valid_metrics"]["accuracy"] for record in report["history"])
    assert report["value"] == best
    assert [record["epoch"] for record in report["history"]] == [1, 2]
    for rate in ("train_inst_per_s", "valid_inst_per_s", "seconds"):
        assert report[rate] > 0
    staleness = report["staleness"]
    assert sum(staleness["histogram"].values()) == staleness["messages"] > 0
    assert max(map(int, staleness["histogram"])) == staleness["max"]
    assert set(staleness["per_node"]) == {"embedding", "cell", "classify"}
    assert sum(node["messages"] for node in staleness["per_node"].values()) == staleness["messages"]


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    def losses(seed: str) -> list[float]:
        assert main([*TINY, "--seed", seed, "--quiet", "--json", str(tmp_path / "run.json")]) == 0
        history = json.loads((tmp_path / "run.json").read_text())["history"]
        return [record[key] for record in history for key in ("train_loss", "valid_loss")]

    assert losses("1") == losses("1")
    assert losses("1") != losses("2")


def test_message_by_message_gradients_are_stale(tmp_path: Path) -> None:
    """Several are in flight, and a node updates itself before the last of them has come back."""

    def staleness(*more: str) -> float:
        assert main([*TINY, "--bucket", "10", "--quiet", "--json", str(tmp_path / "run.json"), *more]) == 0
        report = json.loads((tmp_path / "run.json").read_text())
        assert report["engine"]["name"] == ("messages" if "--no-waves" in more else "waves")
        assert report["settings"]["waves"] is ("--no-waves" not in more)
        return float(report["staleness"]["mean"])

    assert staleness() == 0
    assert staleness("--schedule", "backward-first", "--wave-size", "2") == 0
    assert staleness("--no-waves") > 0
    assert staleness("--schedule", "fifo", "--wave-size", "1") > 0
    assert staleness("--schedule", "random") > 0


@pytest.mark.parametrize(
    ("options", "least", "most", "in_flight"),
    [
        ("", 4, 10, 1),  # an update waits for 10 buckets
        ("--wave-size auto", 4, 10, 1),
        ("--wave-size 4", 2, 4, 1),
        ("--wave-size 1 --schedule fifo", 1, 1, 40),
        ("--wave-size 1 --schedule random --max-active-keys 3", 1, 1, 3),
        ("--schedule sweep --max-active-keys 16 --min-update-frequency 100", 3, 4, 5),  # a stream ends with less
    ],
)
def test_waves_are_as_large_and_as_many_as_asked(
    options: str, least: int, most: int, in_flight: int, tmp_path: Path
) -> None:
    """Two epochs of buckets of at most 10 sequences; ``least``, ``most``: instances in a wave, on average."""
    file = tmp_path / "run.json"
    assert main([*TINY, "--bucket", "10", "--quiet", "--json", str(file), *options.split()]) == 0
    engine = json.loads(file.read_text())["engine"]
    assert (engine["name"], engine["reason"], engine["in_flight"]) == ("waves", None, in_flight)
    assert engine["instances"] == pytest.approx(2 * 57, rel=0.1)
    assert least <= engine["instances"] / engine["waves"] <= most


def test_the_closing_line_says_why_messages_were_passed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*TINY, "--no-waves", "--json", str(tmp_path / "run.json")]) == 0
    assert lines(capsys)[-1].endswith("; engine: messages (waves=False)")
    engine = json.loads((tmp_path / "run.json").read_text())["engine"]
    counts = {"waves": 0, "instances": 0, "in_flight": 0, "busy": []}
    counts |= {"restarts": 0, "replayed": 0, "workers": 0, "changes": []}
    assert engine == {"name": "messages", "reason": "waves=False", **counts}


def test_messages_that_nobody_asked_for_are_a_line_on_stderr() -> None:
    """In a process of its own: here warnings are errors."""
    argv = [sys.executable, "-m", "ampnet", *TINY, "--epochs", "1", "--max-batch", "5", "--quiet"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr.startswith("ampnet: this graph is not played in waves but run message by message")
    assert done.stderr.count("\n") == 1
    assert "engine: messages (max_batch" in done.stdout


def test_the_log_tells_its_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    assert main([*TINY, "--log", str(log)]) == 0
    assert lines(capsys)[-1] == f"log: {log}, {size(log.stat().st_size)}"
    assert main([*TINY, "--log", str(log), "--quiet"]) == 0
    assert len(lines(capsys)) == 1
    assert [size(n) for n in (999, 1234, 99_950, 1_234_567, 12_345_678_901)] == [
        "999 bytes",
        "1.2 kB",
        "100.0 kB",
        "1.2 MB",
        "12.3 GB",
    ]


@pytest.mark.filterwarnings("default")
def test_what_is_not_a_number_is_null_in_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rate like this makes every loss nan; skipped, they leave nothing to average. A line on stderr says so."""
    file = tmp_path / "run.json"
    wild = ("--optimizer", "sgd", "--learning-rate", "1e30", "--on-nan", "skip")
    assert main([*TINY, *wild, "--json", str(file)]) == 0
    warned = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in warned] == ["ampnet"] * len(warned)
    assert warned[0].startswith(
        "ampnet: stream 'valid 1': the loss or prediction of 'loss' is not finite at (instance="
    )
    report = json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert report["history"][1]["valid_loss"] is None
    assert report["skipped"] > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--epochs 0", "--epochs: 0 is too small; give 1 or more"),
        ("--epochs many", "--epochs: 'many' is not a whole number"),
        ("--target 97", "--target: 97 is not a fraction; for 97 % give 0.97"),
        ("--target -0.5", "--target: -0.5 is not a fraction; give a number above 0 and at most 1"),
        ("--target nan", "--target: nan is not a finite number"),
        ("--max-active-keys -1", "--max-active-keys: -1 is too small"),
        ("--learning-rate 0", "--learning-rate/--lr: 0 is too small; give a number above 0"),
        ("--lr 0", "--learning-rate/--lr: 0 is too small; give a number above 0"),
        ("--update-after cell", "--update-after: 'cell' is no name with a value; write it like embedding=1000"),
        ("--update-after cell=0", "--update-after: 0 is too small; give 1 or more"),
        ("--update-after cell=1,cell=2", "--update-after: cell is there twice"),
        ("--update-after cel=1", "--update-after: no node with parameters is called 'cel'; did you mean 'cell'?"),
        ("--rate-of x*=1", "--rate-of: no node with parameters is called 'x*'; there are: cell, classify, embedding"),
        ("--rate-of cell=fast", "--rate-of: 'fast' is not a number"),
        ("--limit 0", "--limit: 0 is too small; give 1 or more"),
        ("--keep -1", "--keep: -1 is too small; give 0 or more"),
        ("--beta2 1", "--beta2: 1 is no share; give a number from 0 up, below 1"),
        ("--weight-decay -1", "--weight-decay: -1 is no share; give a number from 0 up, below 1"),
        ("--dropout 0.5", "unknown option --dropout"),
        ("--save {tmp}/none/model.safetensors", "--save: there is no folder"),
        ("--save {tmp}/run --json {tmp}/run", "--save: the same file as --json"),
        ("--decay 80", "--decay: 80 is not a fraction; for 80 % give 0.8"),
        ("--no-waves --precision bfloat16", "--precision: without waves products are in float32"),
        ("--schedule swep", "--schedule: invalid choice: 'swep'; did you mean 'sweep'?"),
        ("--wave-size 0", "--wave-size: 0 is too small; give 1 or more"),
        ("--wave-size many", "--wave-size: 'many' is not a whole number"),
        ("--epoch 3", "unknown option --epoch; did you mean --epochs?"),
        ("--frobnicate", "unknown option --frobnicate; 'ampnet train list-reduction --help' lists"),
        ("--json {tmp}/none/run.json", "--json: there is no folder"),
        ("--log {tmp}", "is a folder; give a file in it"),
        ("--json /dev/null", "is a device and no regular file"),  # root would have replaced it by a file
        ("--json {tmp}/run --log {tmp}/run", "--log: the same file as --json"),
        ("--log {tmp}/run --trace {tmp}/run", "--trace: the same file as --log"),
    ],
)
def test_a_bad_value_is_one_line_before_any_work(
    given: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "train", lambda *a, **k: pytest.fail("work was started"))
    argv = [part.format(tmp=tmp_path) for part in given.split()]
    assert main([*TINY, *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ampnet train list-reduction: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("argv", [[], ["train"], ["train", "chess"], ["fly"]])
def test_a_command_that_is_not_one_is_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_setting_is_an_option_that_shows_its_default(workload: str) -> None:
    parser: Any = make_parser()
    for word in ("train", workload):
        parser = next(a for a in parser._actions if a.dest in ("command", "workload")).choices[word]
    helps = {action.dest: action.help for action in parser._actions if action.dest != "help"}
    for item in fields(WORKLOADS[workload].settings):
        assert "(default: " in helps[item.name]
    assert {"save", "json", "log", "trace", "quiet", "debug"} <= set(helps)
    assert all("(default: " in text for text in helps.values())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["--version"])
    assert leaving.value.code == 0
    assert capsys.readouterr().out == f"ampnet {__version__}\n"


def test_settings_reach_the_runtime() -> None:
    runtime = make_runtime(
        build(8),
        Settings(
            max_active_keys=7,
            min_update_frequency=3,
            count="messages",
            schedule="fifo",
            max_batch=5,
            waves=False,
            learning_rate=0.5,
            decay=0.25,
            optimizer="momentum",
            clip_norm=2.0,
            weights="stash",
            on_nan="skip",
            update_after={"emb*": 9},
            rate_of={"embedding": 0.125, "classify": 0.25},
        ),
    )
    assert (runtime.settings["max_active_keys"], runtime.settings["max_batch"]) == (7, 5)
    assert runtime.settings["schedule"] == "fifo"
    loss = runtime.graph.nodes["loss"]
    assert isinstance(loss, Loss)
    assert loss.on_nan == "skip"
    updater = runtime.graph.parameterised()["cell"].updater
    policy, optimizer = updater.policy, updater.optimizer
    assert policy is not None
    assert (policy.min_update_frequency, policy.count, policy.clip_norm, policy.weights) == (
        3,
        "messages",
        2.0,
        "stash",
    )
    assert isinstance(optimizer, torch.optim.SGD)
    assert (optimizer.defaults["lr"], optimizer.defaults["momentum"]) == (0.5, 0.9)
    assert isinstance(updater.schedule, torch.optim.lr_scheduler.ExponentialLR)
    assert updater.schedule.gamma == 0.25
    embedding, classify = (runtime.graph.parameterised()[name].updater for name in ("embedding", "classify"))
    assert embedding.policy is not None
    assert classify.policy is not None
    assert (embedding.policy.min_update_frequency, classify.policy.min_update_frequency) == (9, 3)
    assert [u.optimizer.defaults["lr"] for u in (embedding, classify) if u.optimizer] == [0.125, 0.25]


def test_settings_of_waves_reach_the_runtime() -> None:
    with make_runtime(build(8), Settings(wave_size=3, schedule="random", seed=7)) as runtime:
        assert isinstance(runtime, Inline)
        assert runtime.player is not None
        assert (runtime.player.wave_size, type(runtime.player.schedule).__name__) == (3, "Random")
        assert (runtime.settings["engine"], runtime.settings["wave_size"]) == ("waves", 3)
    with make_runtime(build(8), Settings()) as runtime:
        assert runtime.settings["schedule"] == "backward-first"
    with make_runtime(build(8), Settings(waves=False)) as runtime:
        assert runtime.settings["schedule"] == "sweep"
    with make_judge(build(8), Settings(max_batch=5, waves=False, max_active_keys=7)) as judge:
        assert judge.stats().engine == "waves"  # how it was trained is no matter


def test_adam_is_fused_and_no_decay_is_no_schedule() -> None:
    updater = make_runtime(build(8), Settings(hidden=8, decay=1.0)).graph.parameterised()["cell"].updater
    assert isinstance(updater.optimizer, torch.optim.Adam)
    assert updater.optimizer.defaults["fused"]
    assert updater.schedule is None


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [
        ("adam", torch.optim.AdamW),
        ("sgd", torch.optim.SGD),
        ("momentum", torch.optim.SGD),
        ("adagrad", torch.optim.Adagrad),
    ],
)
def test_weights_decay_and_are_still_stepped_directly(
    optimizer: Optimizer, kind: type[torch.optim.Optimizer], tmp_path: Path
) -> None:
    settings = Settings(hidden=8, optimizer=optimizer, weight_decay=0.25, rate_of={"classify": 0.5})
    nodes = make_runtime(build(8), settings).graph.parameterised()
    for node in nodes.values():
        assert type(node.updater.optimizer) is kind
        assert node.updater.optimizer.defaults["weight_decay"] == 0.25
        assert node.updater.stepper is not None

    def loss(*more: str) -> float:
        argv = [*TINY, "--optimizer", optimizer, "--quiet", "--json", str(tmp_path / "run.json"), *more]
        assert main(argv) == 0
        return float(json.loads((tmp_path / "run.json").read_text())["history"][-1]["train_loss"])

    assert loss("--weight-decay", "0") == loss() != loss("--weight-decay", "0.5")


FATAL = ("--optimizer", "sgd", "--learning-rate", "1e30")


def test_an_error_is_one_message_and_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("--json", "--log", "--trace", "--save")
    files = [part for name in names for part in (name, str(tmp_path / f"run.{name[2:]}"))]
    assert main([*TINY, *FATAL, *files]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("ampnet: node 'loss' failed in forward at (instance=")
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_where_an_error_came_from() -> None:
    with pytest.raises(AmpnetError, match="the loss is nan"):
        main([*TINY, *FATAL, "--debug"])


def test_the_log_keeps_the_promises(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    assert main([*TINY, "--max-active-keys", "8", "--log", str(log)]) == 0
    assert list(tmp_path.iterdir()) == [log]
    assert_kept(read_log(log))


def interrupting(times: int) -> Callable[[Plain, EpochRecord], None]:
    """Ctrl-C at the end of the first epoch, so often."""

    def epoch(self: Plain, record: EpochRecord) -> None:
        if record.epoch == 1:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return epoch


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_reports_what_was_reached(
    times: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first Ctrl-C lets what is in flight come back; the second ends the run where it stands."""
    run, at_once = Inline.run, {"turn_seconds": 0.0}
    monkeypatch.setattr(Inline, "run", lambda *args, **settings: run(*args, **settings | at_once))
    monkeypatch.setattr(Plain, "epoch", interrupting(times))
    before = signal.getsignal(signal.SIGINT)
    report, log = tmp_path / "run.json", tmp_path / "run.log"
    files = ("--json", str(report), "--log", str(log))
    assert main([*TINY, "--epochs", "50", "--target", "1", *files]) == 130
    assert signal.getsignal(signal.SIGINT) is before
    first, last, size_of_log = lines(capsys)
    assert size_of_log.startswith(f"log: {log}, ")
    assert re.fullmatch(r"interrupted after 1 epoch, \d+\.\d s", first)
    assert SUMMARY.fullmatch(last)
    data = json.loads(report.read_text())
    assert (data["state"], data["reached"], data["epochs"]) == ("interrupted", False, 1)
    assert sorted(tmp_path.iterdir()) == [report, log]
    assert_kept(read_log(log), complete=times == 1)


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_after_the_last_epoch_interrupts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Plain, "epoch", interrupting(1))
    assert main([*TINY, "--epochs", "1"]) == 0
    assert "interrupted" not in capsys.readouterr().out


def test_ctrl_c_ends_a_real_process_cleanly(tmp_path: Path) -> None:
    """A process started in the background may have been told to ignore Ctrl-C; this one is told to hear it."""
    report, log = tmp_path / "run.json", tmp_path / "run.log"
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from ampnet.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    argv = [*TINY, "--epochs", "100000", "--json", str(report), "--log", str(log)]
    with subprocess.Popen(
        [sys.executable, "-c", script, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert EPOCH.fullmatch(process.stdout.readline().rstrip())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert err == ""
    *_, before, last, size_of_log = out.splitlines()
    assert size_of_log.startswith(f"log: {log}, ")
    assert before.startswith("interrupted after ")
    assert SUMMARY.fullmatch(last)
    assert json.loads(report.read_text())["state"] == "interrupted"
    assert sorted(tmp_path.iterdir()) == [report, log]
    assert_kept(read_log(log))


def test_the_module_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ampnet", *TINY, "--quiet"])
    before = {number: signal.getsignal(number) for number in interrupt.SIGNALS}
    try:
        with pytest.raises(SystemExit) as leaving:
            runpy.run_module("ampnet", run_name="__main__")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert leaving.value.code == 0
    assert SUMMARY.search(capsys.readouterr().out)
