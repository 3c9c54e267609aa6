"""`import ampnet` imports nothing else; every public name and submodule is imported at its first use."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import ampnet


def names_for_type_checkers() -> dict[str, str]:
    """The names imported under TYPE_CHECKING, and the modules that they come from."""
    tree = ast.parse(Path(ampnet.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    lines = [line for line in block.body if isinstance(line, ast.ImportFrom) and line.module != "ampnet"]
    return {alias.name: str(line.module).removeprefix("ampnet.") for line in lines for alias in line.names}


def test_the_lazy_names_are_those_that_type_checkers_see() -> None:
    assert names_for_type_checkers() == ampnet._HOME


@pytest.mark.parametrize("name", ampnet.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert not isinstance(getattr(ampnet, name), ModuleType)
    assert name in dir(ampnet)


@pytest.mark.parametrize("name", ["lang", "testing", "runtime", "data", "nodes"])
def test_submodules_are_attributes(name: str) -> None:
    assert getattr(ampnet, name) is sys.modules[f"ampnet.{name}"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ampnet' has no attribute 'Inlined'"):
        ampnet.Inlined  # noqa: B018
    assert not hasattr(ampnet, "_nothing")


def test_a_function_with_the_name_of_its_module_stays_the_function() -> None:
    code = "import ampnet.tile, ampnet; from ampnet.tile import tile; assert ampnet.tile is tile"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, ampnet; print([m for m in ('torch', 'numpy', 'ampnet.lang') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"
