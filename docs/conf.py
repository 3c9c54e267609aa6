"""The docs site: the pages of this folder, and a reference of the public names made from their docstrings.

    make docs            writes docs/_build/html; any warning is an error; nothing is fetched

    README.md ──> api/readme.md ──> index.rst ──┐
    docs/*.md ──────── MyST ────────────────────┼──> furo ──> _build/html
    __all__ of API ──> api/*.rst ───────────────┘          (api/ is generated)

The pages are read on a git host as well, so they hold plain Markdown only. Docstrings are Markdown-like too: an
indented block is a diagram or code, a name in single backticks is a reference where there is such a public name.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ampnet import __version__

HERE = Path(__file__).parent

project = "AMPNet"
author = "The AMPNet developers"
copyright = "The AMPNet developers, MIT licence"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "pictures", "api/readme.md"]
html_theme = "furo"
html_title = f"AMPNet {release}"
html_show_sourcelink = False
html_copy_source = False
highlight_language = "text"
default_role = "py:obj"
myst_heading_anchors = 3
add_module_names = False
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {name: name for name in ("ArrayLike", "Column", "Ints", "Function", "Reduction")}
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True

API = {
    "ampnet": "the front door: models, graphs, runtimes, updates, replicas, errors",
    "ampnet.lang": "combinators and compiled graphs",
    "ampnet.nodes": "the IR nodes, for graphs wired by hand",
    "ampnet.testing": "gradient oracle, scripted schedules, leak check",
    "ampnet.events": "event log, meters, traces",
    "ampnet.checkpoint": "checkpoints in a folder; files replaced whole or not at all",
    "ampnet.data": "data sets",
    "ampnet.models": "the models of the paper",
    "ampnet.profile": "where the time of a model goes",
    "ampnet.tune": "how many instances to have in flight",
}
"""The public modules. A name that several of them export is documented in the first."""

HEAD = "See the head of this file."
"""What a class says whose file explains it: the page shows that explanation."""

BASES = {"Direction", "Node", "Parameterised", "Program", "Ref", "Report", "Step", "Transform"}
"""Names of `ampnet.nodes` that are no nodes, but what nodes are written with."""


def write_reference() -> None:
    """One page for each package of `API`, with every public name that no earlier page has."""
    folder = HERE / "api"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    seen: dict[int, str] = {}
    heads: set[str] = set()
    for package, about in API.items():
        module = importlib.import_module(package)
        lines = [package, "=" * len(package), "", f"{about[0].upper()}{about[1:]}.", ""]
        lines += [f".. module:: {package}", ""]
        elsewhere = []
        for name in public_names(module):
            value = getattr(module, name)
            if id(value) in seen:
                elsewhere.append(f"`{seen[id(value)]}`")
                continue
            seen[id(value)] = f"{package}.{name}"
            kind = "autoclass" if isinstance(value, type) else "autofunction" if callable(value) else "autodata"
            if package == "ampnet.nodes" and isinstance(value, type) and value.__name__ not in BASES:
                # A node's interface is that of its base; its file's head says what it does forward and backward.
                lines += [name, "-" * len(name), ""]
                if value.__module__ not in heads:
                    lines += [f".. automodule:: {value.__module__}", "   :no-members:", "   :no-index:", ""]
                    heads.add(value.__module__)
                lines += [f".. {kind}:: {package}.{name}", "   :no-members:", ""]
            else:
                lines += [f".. {kind}:: {package}.{name}", ""]
        if elsewhere:
            lines += [f"Also here: {', '.join(elsewhere)}.", ""]
        (folder / f"{package}.rst").write_text("\n".join(lines), encoding="utf-8")
    names = "\n".join(f"   {package}" for package in API)
    head = "API reference\n=============\n\nThe public names, from their docstrings."
    toctree = f".. toctree::\n   :maxdepth: 2\n\n{names}"
    (folder / "index.rst").write_text(f"{head}\n\n{toctree}\n", encoding="utf-8")


def public_names(module: ModuleType) -> list[str]:
    """What a module exports, or, where it has no ``__all__``, defines; in alphabetical order, errors last."""
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    names = [name for name in getattr(module, "__all__", defined) if not name.startswith("_")]

    def order(name: str) -> tuple[bool, str]:
        value = getattr(module, name)
        return isinstance(value, type) and issubclass(value, BaseException), name.lower()

    return sorted(names, key=order)


def as_markdown(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Diagrams and code in a docstring become literal blocks, and characters that only RST knows lose their meaning.

    A block is literal if it is indented, stands behind ``::`` or has columns. (Python dedents a docstring that ends
    with its indented block.)
    """
    if what == "data" and value.__doc__ == type(value).__doc__:  # the text of `dict`, say
        lines.clear()
    if what == "class" and any(HEAD in line for line in lines):
        head = inspect.getdoc(sys.modules[value.__module__]) or ""
        lines[:] = [*(line.replace(HEAD, "") for line in lines), "", *head.split("\n")]
    out: list[str] = []
    announced = literal = False
    for block in re.split(r"\n[ ]*\n", "\n".join(lines)):
        indented = block.startswith("    ")
        literal = (indented and (literal or not _in_list(out))) or announced or _has_columns(block)
        if literal:
            out += [
                "" if announced else "::",
                "",
                *(line if indented else f"    {line}" for line in block.split("\n")),
                "",
            ]
        else:
            out += [re.sub(r"(?<=\w)_(?=\W|$)|\|", lambda m: "\\" + m.group(), block), ""]
        announced = not literal and block.rstrip().endswith("::")
    lines[:] = "\n".join(out).split("\n")


def _has_columns(block: str) -> bool:
    lines = block.rstrip().split("\n")
    return len(lines) > 1 and sum(bool(re.search(r"\S {2,}\S", line)) for line in lines) > len(lines) / 2


def plain_aliases(app: Any, what: str, name: str, value: Any, options: Any, signature: str, returns: str) -> Any:
    """Type aliases by their names."""

    def named(text: str | None) -> str | None:
        return text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text)

    return named(signature), named(returns)


def _in_list(above: list[str]) -> bool:
    """Whether the block before is a list, whose last point goes on."""
    last = [block for block in above if block.strip()][-1:]
    return bool(last) and bool(re.match(r"\s*([*-]|\d+\.) ", last[0]))


def write_front_page() -> None:
    """The README, its links seen from this folder; those that lead out of it become their texts."""
    text = (HERE.parent / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    text = re.sub(r"\[([^\]]+)\]\((?:examples|src|CHANGELOG|CONTRIBUTING|CITATION)[^)]*\)", r"`\1`", text)
    (HERE / "api" / "readme.md").write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    write_reference()
    write_front_page()
    app.connect("autodoc-process-docstring", as_markdown)
    app.connect("autodoc-process-signature", plain_aliases)
