"""``ampnet simulate``: a function, a run, several machines, files; faults in what is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ampnet.cli import main
from ampnet.events.run_file import read_run

MODEL = """
from functools import partial

import torch

from ampnet import Graph, Instance, Update, feed
from ampnet.nodes import Linear, Loss

WIDTH = 4

def make():
    torch.manual_seed(0)
    graph = Graph("small")
    graph.add("first", Linear(WIDTH, WIDTH))
    graph.add("second", Linear(WIDTH, WIDTH))
    graph.add("loss", Loss("squared_error"))
    graph.input("x", "first", ("t",))
    graph.input("y", "loss.label", ("t",))
    graph.chain("first", "second")
    graph.connect("second", "loss.prediction")
    return graph, (instance(i) for i in range(64))

def instance(i):
    x = torch.randn(1 + i % 3, WIDTH)
    t = list(range(len(x)))
    return Instance({"x": feed(x, t=t), "y": feed(x, t=t)})

def with_update():
    return *make(), Update(partial(torch.optim.SGD, lr=0.1), 4, "instances")

def none():
    return make()[0], []

def graph_alone():
    return make()[0]

def not_instances():
    return make()[0], 3

not_a_function = 3
"""
BOXES = """
name = "four boxes"
[[hosts]]
count = 4
cores = 4
"""
BRIEF = ("--trial", "0.02", "--seconds", "0.5")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.py"
    path.write_text(MODEL)
    return path


def test_a_function_on_two_machines_with_all_files(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "boxes.toml").write_text(BOXES)
    (tmp_path / "one.toml").write_text("[[hosts]]\ncores = 8\n")
    files = {name: tmp_path / f"out.{name}" for name in ("json", "html", "png")}
    trace = tmp_path / "trace.json"
    machines = [str(tmp_path / "boxes.toml"), str(tmp_path / "one.toml")]
    (tmp_path / "where.json").write_text('{"first": 0, "second": 1, "loss": 1}')
    options = ["--machine", *machines, "--workers", "4", "--replicas", "2", "--max-active-keys", "8"]
    options += ["--affinity", str(tmp_path / "where.json")]
    options += ["--json", str(files["json"]), "--gantt", str(files["html"]), "--trace", str(trace)]
    assert main(["simulate", f"{model}:make", *BRIEF, *options, "--picture", str(files["png"])]) == 0
    out = capsys.readouterr().out
    assert "make() returned no Update: Adam, an update after 16 instances" in out
    assert "four boxes: 2 replicas of 2 workers, 8 in flight" in out
    assert "\nmachine     way " in out
    found = json.loads(files["json"].read_text())
    first, second = found["results"]
    assert (first["machine"], second["machine"]) == ("four boxes", "one")
    assert first["throughput"] > 0
    assert (first["workers"], len(second["busy"])) == (4, 4)
    assert first["synchronisation"] == second["synchronisation"] == 0  # the first computer has room for all four
    assert set(first["staleness"]) == {"first", "second"}
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert "four boxes" in files["html"].read_text()
    assert {box.worker for box in read_run(trace).boxes} == {f"worker{i}" for i in range(4)}


def test_ways_to_run_it(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = tmp_path / "where.json"
    where.write_text('{"first#1": 0, "first#2": 1, "second": 1}')
    options = ("--workers", "2", "--replicate", "first=2", "--affinity", str(where), "--schedule", "fifo")
    assert main(["simulate", f"{model}:with_update", *BRIEF, *options]) == 0
    assert "2 workers, " in capsys.readouterr().out
    assert main(["simulate", f"{model}:with_update", *BRIEF, "--workers", "3", "--tile", "first=2"]) == 0
    assert main(["simulate", f"{model}:with_update", *BRIEF, "--wave-size", "2", "--min-update-frequency", "2"]) == 0


def test_a_run_is_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "run.json"
    small = ["--train-size", "60", "--epochs", "1", "--trace", str(trace)]
    assert main(["train", "adaptive-depth", *small, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["simulate", str(trace), "--replicas", "2", "--seconds", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "2 replicas, " in out
    assert "note: times of the controller, of crossings and of busy neighbours are assumed" in out


FAULTS = {
    "no-such-file.json": "is no file and no workload",
    "qm8": "did you mean 'qm9'?",
    "{model}": "say which function makes the model",
    "{model}:mak": "has no function 'mak'; did you mean 'make'?",
    "{model}:not_a_function": "has no function 'not_a_function'",
    "{model}:graph_alone": "return (graph, instances)",
    "{model}:not_instances": "int); return (graph, instances)",
    "{model}:none": "there is no instance to try",
    "none.py:make": "there is no file none.py",
    "{text}": "",
}


@pytest.mark.parametrize("source", FAULTS)
def test_sources_that_are_none(source: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.json"
    text.write_text("{}")
    try:
        code: object = main(["simulate", source.format(model=model, text=text), *BRIEF])
    except SystemExit as end:
        code = end.code
    assert code
    err = capsys.readouterr().err
    assert FAULTS[source] in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--workers", "3", "--replicas", "2"], "3 workers cannot be shared out evenly among 2 replicas"),
        (["--replicas", "2", "--tile", "first=2"], "are not simulated together"),
        (["--tile", "third=2"], "third"),
        (["--machine", "{box}", "--workers", "9"], "has room for 2 workers, and 9 are asked for"),
        (["--machine", "{bad}"], "bad.toml, entry hosts.core"),
        (["--picture", "x.gif"], "says no format"),
        (["--seconds", "0"], "--seconds"),
        (["--affinity", "{where}", "--workers", "2"], 'entry "frst": no node is called that'),
    ],
)
def test_options_that_do_not_go(
    options: list[str], fault: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"box": "[[hosts]]\ncores = 1\ncount = 2", "bad": "[[hosts]]\ncore = 1"}
    paths = {name: tmp_path / f"{name}.toml" for name in names}
    for name, text in names.items():
        paths[name].write_text(text)
    paths["where"] = tmp_path / "where.json"
    paths["where"].write_text('{"frst": 0}')
    try:
        code: object = main(["simulate", f"{model}:make", *BRIEF, *[one.format(**paths) for one in options]])
    except SystemExit as end:
        code = end.code
    assert code
    assert fault in capsys.readouterr().err
