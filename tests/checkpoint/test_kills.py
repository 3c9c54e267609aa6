"""Promise P14: a writer that is killed at any call leaves the old checkpoint or the new one, whole."""

from __future__ import annotations

import os
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampnet.checkpoint import Checkpoints, folder
from tests.checkpoint.samples import data, put, same, tensors

CALLS = ("open", "write", "fsync", "close", "mkdir", "rename", "unlink", "rmdir", "listdir")


def killed(work: Callable[[], object], at: int | None, half: bool = False) -> list[str]:
    """Runs the work in a child that is killed before its at-th system call on files; ``half``: amid that write.

    Returns the names of the calls, if the child comes to its end. It flushes nothing: a killed process loses nothing
    that it has written, so only the place of the call matters.
    """
    out, into = os.pipe()
    if (child := os.fork()) == 0:
        made: list[str] = []
        write = os.write

        def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, **settings: Any) -> Any:
                made.append(name)
                if len(made) == at:
                    if half:
                        write(args[0], args[1][: len(args[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return None if name == "fsync" else call(*args, **settings)

            return wrapped

        try:
            for name in CALLS:
                setattr(os, name, counted(name, getattr(os, name)))
            work()
            write(into, " ".join(made).encode())
        finally:
            os._exit(1)
    os.close(into)
    _, status = os.waitpid(child, 0)
    with open(out) as pipe:
        told = pipe.read().split()
    assert os.WIFSIGNALED(status) == (at is not None) == (not told)
    return told


@pytest.mark.parametrize(
    ("before", "number"), [((), 0), ((1, 2), 3), ((1, 2), 2)], ids=["the first", "another", "again"]
)
def test_killed_at_every_write(
    before: tuple[int, ...], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards the last checkpoint is the old one or the new one, whole; the next writer leaves nothing else."""
    monkeypatch.setattr(folder, "CHUNK", 600)
    seed, start, case = 9, tmp_path / "start", tmp_path / "case"
    start.mkdir()
    put(start, *before, keep=2)

    def work() -> None:
        Checkpoints(case, keep=2).write(number, tensors(seed), data(seed))

    shutil.copytree(start, case)
    calls = killed(work, None)
    assert {"open", "write", "fsync", "rename"} < set(calls)
    found = set()
    halves = [(i, True) for i, name in enumerate(calls, 1) if name == "write"]
    for at, half in [*((i, False) for i in range(1, len(calls) + 1)), *halves]:
        shutil.rmtree(case)
        shutil.copytree(start, case)
        killed(work, at, half)
        checkpoints = Checkpoints(case, keep=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing is there that looks like a checkpoint and is none
            loaded = checkpoints.latest()
        new = loaded is not None and loaded.number == number and same(loaded, seed)
        old = loaded is None if not before else loaded is not None and same(loaded, before[-1])
        assert old or new, (at, half)
        found.add(new)
        put(case, 4, keep=2)
        seeds = {path.name: int(path.name[-6:]) for path in case.iterdir()}
        if new and f"checkpoint-{number:06d}" in seeds:
            seeds[f"checkpoint-{number:06d}"] = seed
        assert "checkpoint-000004" in seeds and len(seeds) <= 2
        assert all(same(checkpoints.read(case / name), seeds[name]) for name in seeds)
    assert found == {False, True}
