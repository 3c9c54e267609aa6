"""Every snippet and command of README and docs runs, and prints what the page shows.

    ```python                          run by `tests.pages.run_page`, all of a page in one namespace
    ```py                              run by itself, with small data sets in the place of the real ones
    ``` with commands in it            run one after the other in an empty folder, with small data and short settings:
      ampnet ...                         `shortened` says how; PARSED are only parsed by the real parser
      make ..., python ...               the target, module or file exists; nothing is started
    ``` with anything else             what the block before it prints, or an excerpt of a longer run

`make docs` builds the pages. That the files they name exist is tested here too.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

from ampnet._version import __version__
from ampnet.cli import main, make_parser
from tests.cli.test_workloads import SMALL
from tests.data.conftest import root
from tests.pages import ROOT, run_page

__all__ = ["root"]

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "examples/README.md",
    *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")),
]
ELSEWHERE = {
    "README.md": "tests/test_readme.py",
    "docs/tutorial.md": "tests/test_tutorial.py",
    "docs/data.md": "tests/data/test_page.py",
    "docs/train.md": "tests/experiments/test_page.py",
    "docs/pictures.md": "tests/events/test_pictures_page.py",
    "docs/profile.md": "tests/test_profile.py",
    "docs/library.md": "tests/test_library.py",
}
"""Pages whose examples are run by a test that also looks at what they made."""
PARSED = {
    "bench": "takes minutes; tests/bench runs it with few batches",
    "profile": "tests/test_profile.py runs it",
    "simulate": "trials of some seconds; tests/cli/test_simulate.py runs it",
    "plan": "trials of some seconds; tests/cli/test_plan.py runs it",
    "serve": "runs until a signal; tests/serve runs it",
    "data": "fetches, or reads whole data sets; tests/data runs it against a local server",
    "--device": "needs a GPU",
    "--cluster": "needs several machines; tests/runtime/cluster runs it on one",
    "auto": "trials of a second each; tests/cli/test_choosing.py runs them",
    "glove300": "vectors that the small data do not have",
}
"""Commands that are parsed and not run: by their name or by a word in them, and why."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
COMMAND = re.compile(r"^(?:\$ )?((?:ampnet|make|python) .*)", re.M)
INLINE = re.compile(r"`(ampnet \w[\w-]* [^`A-Z\[.]+)`")
"""Commands inside of a text, but for those with a placeholder in capitals."""
BEFOREHAND = {
    "digits.safetensors": "mnist",
    "lists.safetensors": "list-reduction",
    "trees.safetensors": "sentiment",
    "facts.safetensors": "babi15",
}
"""Files that pages ask: models of these workloads."""


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def commands_of(page: str) -> list[list[str]]:
    """The words of every command in the blocks of a page."""
    plain = [body for kind, body in FENCE.findall(text_of(page)) if kind in ("", "sh", "console")]
    lines = [line.partition(" > ")[0] for body in plain for line in COMMAND.findall(body)]
    return [shlex.split(line, comments=True) for line in lines]


def shown_after(page: str, words: list[str]) -> list[str]:
    """The lines that a page shows under ``$ ampnet train ...``. (Answers of a model depend on its training.)"""
    if words[0] != "train":
        return []
    blocks = [body for kind, body in FENCE.findall(text_of(page)) if kind in ("", "console") and body.startswith("$ ")]
    parts = [part.splitlines() for body in blocks for part in body.removeprefix("$ ").split("\n$ ")]
    lines = [line for command, *lines in parts if shlex.split(command)[1:] == words for line in lines]
    return [re.sub("^(placement: .* expected).*", r"\1...", line) for line in lines]  # the rest depends on the cores


def form(line: str) -> str:
    """A line without its numbers, as a pattern; "..." stands for anything."""
    return (
        re.escape(re.sub(r"\d[\d,]*(?:\.\d+)?", "#", line)).replace(re.escape("..."), ".*").replace("epochs", "epochs?")
    )


def inline_of(page: str) -> list[list[str]]:
    """The words of commands inside of a text."""
    found = [shlex.split(line) for line in INLINE.findall(FENCE.sub("", text_of(page)))]
    return [words for words in found if words != ["ampnet", "data", "get"]]


def shortened(words: list[str]) -> list[str]:
    """The arguments of a command, made a matter of a moment by options that overrule the page's."""
    if words[0] != "train":
        return words
    return [*words, *SMALL[words[1]].split(), "--epochs", "1", "--limit", "60"]


WITH_CODE = [page for page in PAGES if "```python" in text_of(page)]
WITH_COMMANDS = [page for page in PAGES if commands_of(page) or inline_of(page)]


def test_the_pages_with_tests_of_their_own_are_run_by_them() -> None:
    for page, test in ELSEWHERE.items():
        assert page in WITH_CODE
        assert "run_page(" in text_of(test)


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
@pytest.mark.parametrize("page", [page for page in WITH_CODE if page not in ELSEWHERE])
def test_the_examples_run_and_print_what_is_shown(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        run_page(ROOT / page, f"{Path(page).stem.lower()}_page.py")


@pytest.mark.parametrize("page", [page for page in PAGES if "```py\n" in text_of(page)])
def test_the_examples_with_real_data_run(page: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPNET_DATA", str(root))
    for kind, body in FENCE.findall(text_of(page)):
        if kind == "py":
            exec(compile(body, page, "exec"), {"__name__": "with_data"})


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_are_commands(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    makefile = text_of("Makefile")
    for program, *words in commands_of(page) + inline_of(page):
        if program == "ampnet":
            for file in (word for word in words if re.fullmatch(r"[\w-]+\.\w+", word)):
                Path(file).touch()  # files to be read are looked for when the command is parsed
            make_parser().parse_args([word.replace("NAME", "mnist").strip("[]") for word in words])
        elif program == "make":
            assert re.search(rf"^{re.escape(words[0])}:", makefile, re.M), words
        elif words[0] == "-m":
            assert words[1] == "pip" or importlib.util.find_spec(words[1]) is not None, words
        else:
            assert (ROOT / words[0]).exists(), words


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_run(
    page: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the page, in one folder: what one writes, the next reads."""
    ours = [words for program, *words in commands_of(page) if program == "ampnet"]
    run = [words for words in ours if not PARSED.keys() & set(words)]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AMPNET_DATA", str(root))
    for file, workload in BEFOREHAND.items():
        if any(file in words for words in run):
            assert main([*shortened(["train", workload]), "--quiet", "--save", file]) == 0
    matplotlib.image.imsave("seven.png", np.zeros((28, 28)), cmap="gray")
    for words in run:
        code = main(shortened(words))
        said = capsys.readouterr()
        assert code in (0, 3), f"ampnet {shlex.join(words)}\n{said.err}"  # 3: the target was not reached
        printed = [re.sub(r"\d[\d,]*(?:\.\d+)?", "#", line) for line in said.out.splitlines()]
        for line in shown_after(page, words):
            assert any(re.fullmatch(form(line), one) for one in printed), f"shown, not printed: {line}\n{said.out}"


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_is_named_exists(page: str) -> None:
    text = text_of(page)
    for path in re.findall(r"`(?:python )?((?:docs|src|bench|examples|tests)/[\w/.]*)(?:::\w*\*?)?`", text):
        assert (ROOT / path).exists(), path
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_the_version_is_the_same_everywhere() -> None:
    version, released = re.findall(r"^version: (\S+)\ndate-released: (\S+)$", text_of("CITATION.cff"), re.M)[0]
    assert version == __version__
    assert re.search(rf"^## \[?{re.escape(version)}\]? - {released}$", text_of("CHANGELOG.md"), re.M)
