"""Signals at real processes: one line, the right exit code, whole files or none, no child left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampnet.cli import interrupt
from ampnet.events.check import check
from ampnet.events.log import read_log
from ampnet.events.run_file import read_run

TRAIN = ("train", "list-reduction", "--train-size", "1500", "--valid-size", "100", "--epochs", "500")


def start(*options: str, when: str = "") -> subprocess.Popen[str]:
    """A process group with the command. ``when``: code that runs in it first."""
    code = f"import sys; sys.argv[0] = 'ampnet'\n{when}\nfrom ampnet.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *TRAIN, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, env=environment)


def ended(process: subprocess.Popen[str], number: signal.Signals) -> tuple[str, str]:
    """What it printed. Its exit code is that of the signal, nothing is a traceback, and its group is empty."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in out + err
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    return out, err


def files(folder: Path) -> list[str]:
    return [
        *("--log", str(folder / "run.jsonl"), "--trace", str(folder / "run.json")),
        *("--json", str(folder / "result.json"), "--save", str(folder / "model.safetensors")),
    ]


AT = """
import signal, sys
class At:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            signal.raise_signal({number})
sys.meta_path.insert(0, At())
"""
"""Raises a signal when a module is imported: a moment of the start that does not depend on the machine's speed."""


def slow(*values: str) -> Any:
    """A case of its own process, for ``make bench``."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "module",
    ["torch", "ampnet.cli.train", slow("ampnet.cli"), slow("torch.nn.functional"), slow("ampnet.cli.choosing")],
)
def test_a_signal_during_the_start_is_one_line(module: str, tmp_path: Path) -> None:
    """Once Ctrl-C in the first two seconds was a traceback of the import that it had met."""
    number = signal.SIGTERM if module == "torch" else signal.SIGINT
    process = start(*files(tmp_path), when=AT.format(name=module, number=int(number)))
    out, err = ended(process, number)
    assert (out, err) == ("", "ampnet: interrupted\n")
    assert list(tmp_path.iterdir()) == []


IN = """
import signal, {module} as module
original = module.{name}
def interrupted(*args, **settings):
    if not signals: return original(*args, **settings)
    signal.raise_signal(signals.pop())
    return original(*args, **settings)
signals = {signals}
module.{name} = interrupted
"""
"""Raises signals when a function is called."""


@pytest.mark.parametrize(
    ("module", "name"), [slow("ampnet.cli.train", "make_graph"), slow("ampnet.cli.train", "choose"), ("os", "fork")]
)
def test_a_signal_before_the_training_leaves_nothing(module: str, name: str, tmp_path: Path) -> None:
    when = IN.format(module=module, name=name, signals=[int(signal.SIGHUP)])
    process = start(*files(tmp_path), "--workers", "2", when=when)
    _, err = ended(process, signal.SIGHUP)
    if name != "fork":  # there it may be a request already
        assert err == "ampnet: interrupted\n"
        assert list(tmp_path.iterdir()) == []
    assert not [path for path in tmp_path.iterdir() if ".part" in path.name]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_a_request(number: signal.Signals, tmp_path: Path) -> None:
    """Once SIGTERM and SIGHUP left ``.part`` files, and no model. A closed terminal sends SIGHUP to the workers too."""
    process = start(*files(tmp_path), *(["--workers", "2"] if number == signal.SIGHUP else []))
    assert process.stdout is not None
    while "epoch  1" not in (line := process.stdout.readline()):
        assert line or process.poll() is None
    os.killpg(process.pid, number)
    out, _ = ended(process, number)
    assert "interrupted after " in out
    assert "saved the model of epoch " in out
    names = {"run.jsonl", "run.json", "result.json", "model.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert json.loads((tmp_path / "result.json").read_text())["state"] == "interrupted"
    assert check(read_log(tmp_path / "run.jsonl")) == []
    assert not read_run(tmp_path / "run.json").incomplete


def test_the_second_signal_is_an_exception() -> None:
    with interrupt.Stopping() as stopping:
        assert not stopping.asked
        signal.raise_signal(signal.SIGTERM)
        assert stopping.asked
        assert stopping.code == 143
        with pytest.raises(interrupt.Interrupted) as raised:
            signal.raise_signal(signal.SIGHUP)
        assert raised.value.number == signal.SIGHUP
    assert interrupt.code_of(signal.SIGHUP) == 129


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt.Stopping() as stopping:
            signal.raise_signal(signal.SIGHUP)
        assert not stopping.asked
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_as_before() -> None:
    def all_of() -> list[object]:
        return [signal.getsignal(number) for number in interrupt.SIGNALS]

    before = all_of()
    ways: list[Callable[[], object]] = [interrupt.Stopping, lambda: interrupt.handling(interrupt.leave)]
    for make in ways:
        with make():  # type: ignore[attr-defined]
            assert all_of() != before
        assert all_of() == before
