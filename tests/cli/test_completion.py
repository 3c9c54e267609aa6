"""Completion with TAB: what a word may become, and the script in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ampnet.cli import main, make_parser
from ampnet.cli.completion import completions
from ampnet.experiments.described import DESCRIBED


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("tr", ["train"]),
        ("train ", list(DESCRIBED)),
        ("train sent", ["sentiment"]),
        ("train mnist --opt", ["--optimizer"]),
        ("train mnist --optimizer ", ["adam", "sgd", "momentum", "adagrad", "nesterov", "nadam"]),
        ("train mnist --optimizer ad", ["adam", "adagrad"]),
        ("train mnist --optimizer=ad", ["--optimizer=adam", "--optimizer=adagrad"]),
        ("train mnist --optimizer = ad", ["adam", "adagrad"]),  # as bash takes the same line apart
        ("train mnist --optimizer =", ["adam", "sgd", "momentum", "adagrad", "nesterov", "nadam"]),
        ("train mnist --optimizer = adam --wei", ["--weights", "--weight-decay"]),
        ("train mnist --epochs 3 --quiet --wei", ["--weights", "--weight-decay"]),
        ("train mnist --live --opt", ["--optimizer"]),
        ("train mnist --live 8000 --opt", ["--optimizer"]),
        ("train mnist --save ", []),  # names of files, by the shell
        ("data get qm", ["qm9"]),
        ("draw --cell gr", ["gru"]),
        ("draw list-reduction --cell ", ["relu", "gru", "lstm"]),
        ("evaluate mod", []),
        ("completion ", ["bash", "zsh"]),
        ("--ver", ["--version"]),
        ("nothing at all", []),
    ],
)
def test_what_the_last_word_may_become(line: str, found: list[str]) -> None:
    assert sorted(completions(make_parser(), line.split(" "))) == sorted(found)


def test_the_words_are_printed_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash", "--", "train", "mnist", "--we"]) == 0
    assert sorted(capsys.readouterr().out.split()) == ["--weight-decay", "--weights"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_script_in_bash(tmp_path: Path) -> None:
    command = tmp_path / "ampnet"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ampnet "$@"\n')
    command.chmod(0o755)
    script = """
        set -eu
        eval "$(ampnet completion bash)"
        complete -p ampnet
        try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _ampnet; echo "${COMPREPLY[*]}"; }
        try ampnet train sent
        try ampnet train mnist --optimizer ad
        try ampnet train mnist --save ''
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "PATH": path})
    assert done.returncode == 0, done.stderr
    registered, *found = done.stdout.splitlines()
    assert "-F _ampnet ampnet" in registered
    assert found == ["sentiment", "adam adagrad", ""]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_the_script_is_zsh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    file = tmp_path / "_ampnet"
    file.write_text(capsys.readouterr().out)
    subprocess.run(["zsh", "-n", str(file)], check=True)
