"""Help is quick, in groups, and says the truth about defaults and choices; typos get the nearest name."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest

from ampnet.cli import main, make_parser
from ampnet.cli.data import NAMES
from ampnet.cli.models import CELLS, MODELS
from ampnet.cli.profile import OPTIMIZERS, SCHEDULES, SORTS
from ampnet.cli.train_options import MAIN
from ampnet.experiments.described import DESCRIBED
from ampnet.experiments.settings import GROUPS, Training, option_of

HEAVY = ("torch", "numpy", "matplotlib", "rich")
COMMANDS = (
    ["--help"],
    ["--version"],
    ["train", "--help"],
    *(["train", name, "--help"] for name in DESCRIBED),
    *([name, "--help"] for name in ("evaluate", "predict", "draw", "explain", "data", "report", "gantt", "check")),
    *([name, "--help"] for name in ("profile", "bench", "completion")),
    ["data", "get", "--help"],
    ["completion", "bash"],
    ["completion", "bash", "--", "train", ""],
    ["trian"],
    ["train", "sentiment", "--epoch", "3"],
)
ALL_IN_ONE = f"""
import contextlib, io, sys
from ampnet.cli import main
for argv in {COMMANDS!r}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(SystemExit):
            main(argv)
    found = [name for name in {HEAVY!r} if name in sys.modules]
    assert not found, (argv, found)
"""


def test_help_imports_neither_torch_nor_numpy() -> None:
    done = subprocess.run([sys.executable, "-c", ALL_IN_ONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_help_takes_a_fraction_of_the_time_to_import_torch() -> None:
    from bench.startup import seconds

    torch = seconds(["-c", "import torch"])
    assert seconds(["-m", "ampnet", "train", "sentiment", "--help"]) < torch / 3


def help_of(argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as end:
        main([*argv, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", DESCRIBED)
def test_ten_options_come_first_and_the_others_in_groups(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of(["train", name], capsys, monkeypatch)
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles == ["most important options", *GROUPS.values(), "checkpoints", "output and help"]
    first = text.partition("most important options:")[2].partition("model and data:")[0]
    wanted = [f"--{setting.replace('_', '-')}" for setting in MAIN]
    assert re.findall(r"^  (--[a-z-]+)", first, re.MULTILINE) == [*wanted, "--save", "--json"]
    assert len(wanted) + 2 == 10
    assert "{" not in re.sub(r"\{[a-z0-9,-]+\}|\{\"embedding\".*?\}", "", text), "a word was not filled in"


def test_every_setting_is_an_option_with_a_help_text() -> None:
    for workload in DESCRIBED.values():
        for item in fields(workload.settings):
            option = option_of(workload.settings, item.name)
            assert option.text
            assert option.group in GROUPS


def test_choices_are_those_of_the_library() -> None:
    """They are written down a second time where nothing imports torch."""
    from ampnet.data.catalog import ENTRIES
    from ampnet.experiments.sentiment import VECTORS
    from ampnet.models import registry
    from ampnet.models.list_reduction import HIDDEN, Cell
    from ampnet.nodes.products import Precision
    from ampnet.profile import SORTS as SORTED
    from ampnet.reference.schedule import ENOUGH_ROWS
    from ampnet.replicas.replicate import ROUTES
    from ampnet.replicas.sync import KINDS
    from ampnet.wave.schedule import WAVE_SCHEDULES

    def literals(of: Any, name: str) -> set[str]:
        hint = get_type_hints(of)[name]
        return {word for kind in (hint, *get_args(hint)) for word in get_args(kind) if isinstance(word, str)}

    assert literals(Training, "route") == set(ROUTES)
    assert literals(Training, "sync") == set(KINDS)
    assert literals(Training, "schedule") == set(WAVE_SCHEDULES) == set(SCHEDULES)
    assert literals(Training, "precision") == set(get_args(Precision))
    assert literals(DESCRIBED["sentiment"].settings, "vectors") == {*VECTORS, "auto"}
    assert set(CELLS) == set(get_args(Cell))
    assert set(MODELS) == set(registry.GRAPHS)
    assert set(SORTS) == set(SORTED)
    assert set(NAMES) == {*DESCRIBED, *(entry.called for entry in ENTRIES.values())}
    assert (Training().enough_rows, DESCRIBED["list-reduction"].settings().hidden) == (ENOUGH_ROWS, HIDDEN)
    from ampnet.cli.profiling import OPTIMIZERS as MADE

    assert set(OPTIMIZERS) == set(MADE)


@pytest.mark.parametrize("command", ["train", "draw", "explain", "profile", "data get", "data check", "bench"])
def test_every_command_takes_the_same_names(command: str) -> None:
    parser: Any = make_parser()
    for word in command.split():
        parser = next(a for a in parser._actions if a.dest in ("command", "action")).choices[word]
    (names,) = (a.choices for a in parser._actions if not a.option_strings)
    missing = {"bench": {"adaptive-depth"}}.get(command, set())
    assert set(DESCRIBED) - set(names) == missing
    assert not {"tree-lstm", "mlp", "sst"} & set(names)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("trian", "ampnet: COMMAND: invalid choice: 'trian'; did you mean 'train'?"),
        ("train sentimant", "ampnet train: WORKLOAD: invalid choice: 'sentimant'; did you mean 'sentiment'?"),
        ("draw list-reductoin", "did you mean 'list-reduction'?"),
        ("data get sentimet", "did you mean 'sentiment'?"),
        ("data gat mnist", "did you mean 'get'?"),
        ("profile qm8", "did you mean 'qm9'?"),
        ("train mnist --epoch 3", "ampnet train mnist: unknown option --epoch; did you mean --epochs?"),
        ("train mnist --optimizer adm", "--optimizer: invalid choice: 'adm'; did you mean 'adam'?"),
        ("train mnist --optimizer lion", "there are: adam, sgd, momentum, adagrad"),
        ("train list-reduction --limit 9 --rate-of cel=1", "with parameters is called 'cel'; did you mean 'cell'?"),
        ("train list-reduction --limit 9 --replicas 2 --replicate embeding", "did you mean 'embedding'?"),
        ("train list-reduction --limit 9 --workers 2 --tile cel=2", "did you mean 'cell'?"),
    ],
)  # fmt: skip
def test_a_typo_gets_the_nearest_name(argv: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv.split()) == 2
    assert said in capsys.readouterr().err
