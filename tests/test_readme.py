"""What README.md shows is what is there: the table of speed, the picture, the line that `make train` ends with.

Its snippets are run here; its commands are run by `tests/test_docs.py`.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
import torch

from ampnet.cli import main
from bench import readme, wave_picture
from tests.pages import ROOT, run_page

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def closing_line() -> str:
    """What README says that `make train` ends with."""
    (shown,) = re.findall(r"`make train` ends like this:\n\n```\n(.*)\n```", TEXT)
    return str(shown)


def form(line: str) -> str:
    """A line without its numbers."""
    return NUMBER.sub("#", line).replace("epochs", "epoch")


def train(*more: str) -> list[str]:
    """The command of `make train`."""
    (command,) = re.findall(r"^train:.*\n\t\$\(BIN\)/ampnet (.*)", (ROOT / "Makefile").read_text(), re.M)
    return [*shlex.split(command), *more]


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
def test_the_snippets_run_on_one_core_and_on_several() -> None:
    with torch.random.fork_rng():
        names = run_page(ROOT / "README.md", "readme_page.py")
    trained, copied, model = names["trained"], names["copied"], names["model"]
    assert trained.instances == 1000
    assert trained.loss < 0.1
    assert copied.nodes["middle#2"].module.weight.equal(model.middle.weight)


def test_the_table_is_made_from_the_committed_results() -> None:
    assert readme.written(TEXT) == TEXT, "python -m bench.readme writes it again"


def test_the_picture_is_what_its_script_draws(tmp_path: Path) -> None:
    wave_picture.draw(tmp_path / "wave.svg")
    drawn, shown = (
        re.findall(r"<text[^>]*>([^<]*)", path.read_text(encoding="utf-8"))
        for path in (tmp_path / "wave.svg", wave_picture.PICTURE)
    )
    assert drawn == shown
    assert shown


def test_the_closing_line_has_the_form_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(train("--target", "0.01", "--train-size", "400", "--valid-size", "100", "--epochs", "1")) == 0
    assert form(capsys.readouterr().out.splitlines()[-1]) == form(closing_line())


@pytest.mark.slow
def test_the_closing_line_has_the_numbers_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Accuracy, target, epochs and waves: in both directions. Seconds and rates are the machine's."""
    assert main(train()) == 0
    printed, shown = (
        [found.replace(",", "") for found in NUMBER.findall(line)]
        for line in (capsys.readouterr().out.splitlines()[-1], closing_line())
    )
    assert len(printed) == len(shown)
    accuracy, target, epochs = range(3)
    assert abs(float(printed[accuracy]) - float(shown[accuracy])) < 0.01
    assert printed[target] == shown[target]
    assert abs(int(printed[epochs]) - int(shown[epochs])) <= 3
    assert [int(n) for n in printed[-2:]] == pytest.approx([int(n) for n in shown[-2:]], rel=0.4)
