"""The suite of a machine: its parts are commands that exist; what they end with is told; results name their commit."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path

import pytest
from bench.gemm import rate
from bench.machine import code, describe, processor
from bench.standing import standings
from bench.table import _reasons
from bench.workloads import WORKLOADS

from ampnet.cli import main
from bench import first_run, suite


@pytest.mark.parametrize("machine", suite.PARTS)
def test_parts_are_commands(machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [part.name for part in suite.PARTS[machine]]
    assert len(set(names)) == len(names)
    assert set(WORKLOADS) <= set(names)
    assert suite.main([machine, "--list", "--out", str(tmp_path / "new")]) == 0
    assert not (tmp_path / "new").exists()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(names) + 1
    for line in lines[:-1]:
        words = shlex.split(line)
        module = words[words.index("-m") + 1]
        assert importlib.util.find_spec(module) is not None
        assert str(tmp_path / "new") in line


def test_a_part_that_misses_a_bound_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = "import json, sys; json.dump({'machine': {'commit': sys.argv[1]}}, open(sys.argv[2], 'w')); sys.exit(%d)"
    parts = [suite.Part(f"part{i}", (write % i, f"c{i // 2}", f"OUT/{i}.json"), 1.0) for i in range(3)]
    monkeypatch.setattr(
        suite.Part,
        "command",
        lambda part, out: [sys.executable, "-c", *(w.replace("OUT", str(out)) for w in part.words)],
    )
    monkeypatch.setitem(suite.PARTS, "2-cores", parts)  # type: ignore[misc]
    assert suite.main(["2-cores", "--out", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert [word in out for word in ("ok    part0", "MISS  part1", "FAIL  part2")] == [True] * 3
    assert "commit c0: 0.json, 1.json\ncommit c1: 2.json" in out
    assert suite.main(["2-cores", "--only", "part0", "--out", str(tmp_path)]) == 0
    assert "1.json" not in capsys.readouterr().out  # it was not written by this run


def test_the_commit_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["commit"]) == 0
    assert capsys.readouterr().out.strip() == code()


def test_the_machine_is_described() -> None:
    found = describe()
    assert {"processor", "cores", "usable_cores", "torch", "commit"} <= set(found)
    assert processor()
    json.dumps(found)


def test_the_command_of_the_first_run_is_the_makefile_s() -> None:
    assert first_run.command()[:2] == ["train", "list-reduction"]
    assert callable(main)


def test_the_peak_is_that_of_the_faster_library() -> None:
    assert rate(8, 8, 8, seconds=0.01) > 0


def _line(row: str, kind: str, cores: int, best: float) -> dict[str, object]:
    return {"row": row, "kind": kind, "cores": cores, "best": best}


def test_ours_stands_beside_the_fastest_on_as_many_cores() -> None:
    lines = [
        _line("ours", "ours", 1, 10.0),
        _line("ours by messages", "ours", 1, 2.0),
        _line("ours 2 replicas", "ours", 2, 18.0),
        _line("torch sparse 1 thread", "peer", 1, 8.0),
        _line("torch sparse 2 threads", "peer", 2, 6.0),
        _line("jax 1 thread", "peer", 1, 20.0),
        _line("torch_manual 1 thread", "external", 1, 16.0),
        _line("torch_manual hogwild2", "external", 2, 36.0),
    ]
    found = {one.name: (one.ours, one.than, one.ratio) for one in standings(lines)}
    assert found == {
        "one core, torch": ("ours", "torch sparse 1 thread", 1.25),
        "one core, torch or PyG": ("ours", "torch sparse 1 thread", 1.25),
        "one core, framework": ("ours", "jax 1 thread", 0.5),
        "one core, torch_manual": ("ours", "torch_manual 1 thread", 0.625),
        "two cores, torch": ("ours 2 replicas", "torch sparse 1 thread", 2.25),
        "two cores, torch or PyG": ("ours 2 replicas", "torch sparse 1 thread", 2.25),
        "two cores, framework": ("ours 2 replicas", "jax 1 thread", 0.9),
        "two cores, hogwild2": ("ours 2 replicas", "torch_manual hogwild2", 0.5),
    }
    on_gpu = standings([_line("ours", "ours", 1, 3.0), _line("pyg", "peer", 1, 2.0)], "cuda")
    assert [(one.name, one.ratio) for one in on_gpu] == [("cuda, torch or PyG", 1.5), ("cuda, framework", 1.5)]


def test_a_reason_is_said_once() -> None:
    why = "jax is not installed"
    assert _reasons({"jax 1 thread": why, "jax 2 threads": why}) == {why: ["jax 1 thread", "jax 2 threads"]}
