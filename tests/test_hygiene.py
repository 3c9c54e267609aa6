"""What the source may not do: unpickle or execute anything, start a shell, or write a user's file by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import ampnet

SOURCE = Path(ampnet.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "xmlrpc", "telnetlib"}
"""Modules that execute what they read, or may."""
CALLS = {"eval", "exec", "__import__", "os.system", "os.popen", "torch.load", "torch.save", "np.save"}
ALLOWED = {
    ("lang/ints.py", "eval"): "code made of a model's own integer expressions, which are Python already",
    ("recipe.py", "pickle"): "the user's model code, for the actors of a cluster: only through Ray's control plane",
}
"""(file, call or module) and the reason."""


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(node: ast.expr) -> str:
    """``np.load`` of a called expression."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield name_of(node.func), node


def option(call: ast.Call, name: str) -> object:
    for one in call.keywords:
        if one.arg == name:
            return one.value.value if isinstance(one.value, ast.Constant) else one.value
    return None


def test_nothing_is_unpickled_or_executed() -> None:
    for path in files():
        check_reading(path)


def check_reading(path: Path) -> None:
    where = str(path.relative_to(SOURCE))
    for node in ast.walk(tree(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert name.partition(".")[0] not in MODULES or (where, name) in ALLOWED, f"{where} imports {name}"
            assert name != "multiprocessing.reduction", f"{where} imports {name}"
    for name, call in calls(path):
        assert name not in CALLS or (where, name) in ALLOWED, f"{where} calls {name}"
        if name in ("np.load", "numpy.load"):
            assert option(call, "allow_pickle") is False, f"{where} may unpickle"
        if name.startswith("subprocess."):
            assert option(call, "shell") is None, f"{where} starts a shell"
        assert not name.endswith((".extractall", ".extract")), f"{where} writes names of an archive"


def test_files_of_the_user_are_written_by_one_function() -> None:
    """`ampnet.checkpoint.output`; other folders are the package's own."""
    for path in files():
        check_writing(path)


def check_writing(path: Path) -> None:
    where = str(path.relative_to(SOURCE))
    if where.startswith(("checkpoint/", "data/")):
        return
    for name, call in calls(path):
        last = name.rpartition(".")[2]
        assert last not in ("write_text", "write_bytes"), f"{where} calls {name}"
        if last == "open" and name != "os.open":
            given = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            mode = option(call, "mode") or next((one for one in given if set(one) <= set("rwxab+t")), "r")
            target = call.args[0] if call.args else None
            nowhere = isinstance(target, ast.Attribute) and target.attr == "devnull"
            assert mode in ("r", "rb") or nowhere, f"{where} opens a file to write"
