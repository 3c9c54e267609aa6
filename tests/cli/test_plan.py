"""``ampnet plan``: a plan, its files, and the command line to use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ampnet.cli import main
from ampnet.cli.planning import hosts_of
from ampnet.placement.place import place
from ampnet.replicas.replicate import replicate
from ampnet.simulate.plan import Candidate, Plan
from tests.cli.test_simulate import MODEL
from tests.simulate.made import machine, pipeline, study


def test_a_plan_with_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, box, where, plan = (tmp_path / name for name in ("small.py", "box.toml", "where.json", "plan.json"))
    model.write_text(MODEL)
    box.write_text("[[hosts]]\ncores = 3\nworkers = 2\ncrowd = 0.0\n")
    options = ["--trial", "0.02", "--machine", str(box), "-o", str(where), "--json", str(plan)]
    assert main(["plan", f"{model}:with_update", *options]) == 0
    found = capsys.readouterr()
    last = found.out.splitlines()[-1]
    data = json.loads(plan.read_text())
    assert last.startswith("options: --") and data["options"] in last
    assert data["result"]["throughput"] >= data["one process"]["throughput"] > 0
    assert data["speedup"] >= 1
    assert {name.partition("#")[0] for name in json.loads(where.read_text())} >= {"first", "second", "loss"}
    assert " x one process" in found.err


def test_copies_of_the_model_are_on_workers_of_their_own() -> None:
    """Once the file named the nodes of one copy, and training placed all copies on its workers."""
    graph = pipeline()
    replicate(graph, None, 2, route="shortest", sync="shared")
    hosts = {"linear1": 0, "linear2": 1, "loss": 1}
    result = study().simulate(machine(), workers=4, replicas=2, affinity=hosts, seconds=0.1)
    best = Candidate(4, 2, {}, {}, 4, None, result)
    found = hosts_of(Plan(best, result, (), (), 1))
    assert found == {
        "linear1#1": 0,
        "linear2#1": 1,
        "loss#1": 1,
        "linear1#2": 2,
        "linear2#2": 3,
        "loss#2": 3,
    }
    assert found.items() <= place(graph, 4, found).items()


def test_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, box = tmp_path / "small.py", tmp_path / "box.toml"
    model.write_text(MODEL)
    box.write_text("[[hosts]]\ncores = 2\nmemory = '1MB'\n")
    try:
        code: object = main(["plan", f"{model}:make", "--trial", "0.02", "--machine", str(box)])
    except SystemExit as end:
        code = end.code
    found = capsys.readouterr()
    assert "nothing fits on machine 'box'" in found.err, found.out
    assert code


def test_help_does_not_import_torch() -> None:
    code = """
import contextlib, io, sys
from ampnet.cli import main
for name in ("simulate", "plan"):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([name, "--help"])
assert not {"torch", "numpy", "matplotlib"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
