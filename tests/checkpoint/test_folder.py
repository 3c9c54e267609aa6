"""`ampnet.checkpoint.folder`: what is written, read, kept and removed. Kills and damage have files of their own."""

from __future__ import annotations

import errno
import os
import secrets
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from ampnet._version import __version__
from ampnet.checkpoint import Checkpoints, Loaded, folder
from ampnet.errors import CheckpointError, OutputError
from tests.checkpoint.samples import data, latest, names, put, same, tensors


def test_what_was_written_is_read_to_the_bit(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "new" / "folder")
    assert checkpoints.latest() is None
    path = checkpoints.write(7, tensors(7), data(7))
    assert path == tmp_path / "new" / "folder" / "checkpoint-000007"
    assert names(path) == ["data.json", "manifest.json", "tensors.safetensors"]
    for loaded in (checkpoints.read(path), latest(checkpoints)):
        assert same(loaded, 7) and not same(loaded, 8)
        assert (loaded.path, loaded.number) == (path, 7)
        assert loaded.versions == {"ampnet": __version__, "torch": str(torch.__version__), "format": 1}
        assert loaded.time.endswith("+00:00")


def test_the_last_are_kept(tmp_path: Path) -> None:
    checkpoints = put(tmp_path, 1, 2, 3, 4, 1_000_000, 3, keep=2)
    assert names(tmp_path) == ["checkpoint-000003", "checkpoint-000004", "checkpoint-1000000"], "and the new one"
    assert checkpoints.numbers() == [3, 4, 1_000_000]
    assert latest(checkpoints).number == 1_000_000, "by number, and not by name"
    with pytest.raises(ValueError, match="keep=0: at least the last"):
        Checkpoints(tmp_path, 0)
    with pytest.raises(ValueError, match="0 or more"):
        checkpoints.write(-1, {}, {})


def test_the_same_number_again(tmp_path: Path) -> None:
    checkpoints = put(tmp_path, 1, 2)
    checkpoints.write(2, tensors(5), data(5))
    assert same(latest(checkpoints), 5)
    assert names(tmp_path) == ["checkpoint-000001", "checkpoint-000002"]


def test_the_same_number_over_a_damaged_one(tmp_path: Path) -> None:
    checkpoints = put(tmp_path, 1)
    (tmp_path / "checkpoint-000001" / "manifest.json").write_bytes(b"{")
    put(tmp_path, 1)
    assert same(latest(checkpoints), 1)


def test_what_is_not_ours_is_not_touched(tmp_path: Path) -> None:
    """Other names, folders with other files, damaged ones, links."""
    checkpoints = put(tmp_path, 1, 2)
    (tmp_path / "checkpoint-000001" / "notes.txt").write_text("good one")
    (tmp_path / "checkpoint-000002" / "data.json").write_text("")
    for name in ("mine", ".checkpoint-000003.tmp", "checkpoint-12", "checkpoint-0000012", ".checkpoint-x.1-2.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.json").write_text("mine")
    (tmp_path / "checkpoint-000009").write_text("a file")
    before = names(tmp_path)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert latest(checkpoints).number == 1
    assert [str(one.message).partition(":")[2].split("/")[-1] for one in seen] == [
        "checkpoint-000009: not a folder",
        "data.json: 0 bytes instead of 139; cut short",
    ]
    put(tmp_path, 3, 4, keep=1)
    assert names(tmp_path) == sorted([*before, "checkpoint-000004"])
    for number in (1, 9):
        with pytest.raises(OutputError, match=f"checkpoint-{number:06d} is in the way"):
            put(tmp_path, number)
    assert names(tmp_path) == sorted([*before, "checkpoint-000004"])


def test_leftovers_of_killed_writers_are_removed_and_of_others_not(tmp_path: Path) -> None:
    if (dead := os.fork()) == 0:
        os._exit(0)
    os.waitpid(dead, 0)
    for process in (dead, os.getpid(), os.getppid()):
        for ending in ("tmp", "old"):
            left = tmp_path / f".checkpoint-000001.{process}-{secrets.token_hex(8)}.{ending}"
            left.mkdir()
            (left / "data.json").write_text("{")
    (tmp_path / f".checkpoint-000001.{dead}-{secrets.token_hex(8)}.tmp" / "sub").mkdir(parents=True)
    put(tmp_path, 1, 2)
    left_over = [name for name in names(tmp_path) if name.startswith(".")]
    assert len(left_over) == 3
    assert sum(f".{os.getppid()}-" in name for name in left_over) == 2, "its writer is alive"
    assert sum(f".{dead}-" in name for name in left_over) == 1, "holds what no writer of ours makes"


@pytest.mark.parametrize("call", ["open", "write", "fsync", "mkdir", "rename"])
def test_a_full_disk_names_the_checkpoint_and_changes_nothing(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = put(tmp_path, 1, 2)

    def full(*args: object, **settings: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for number in (2, 3):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(OutputError, match="checkpoint-00000.: the checkpoint cannot be written: No space left"):
                checkpoints.write(number, tensors(9), data(9))
        assert names(tmp_path) == ["checkpoint-000001", "checkpoint-000002"]
        assert same(latest(checkpoints), 2)


def test_ctrl_c_while_a_number_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, rename = put(tmp_path, 1), os.rename

    def interrupted(old: Path, new: Path) -> None:
        if new.name == "checkpoint-000001" and old.name.endswith(".tmp"):
            raise KeyboardInterrupt
        rename(old, new)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.write(1, tensors(2), data(2))
    assert names(tmp_path) == ["checkpoint-000001"]
    assert same(latest(checkpoints), 1)


@pytest.mark.parametrize(
    ("more", "plain", "said"),
    [
        ({"a": [1.0]}, {}, "'a' is a list and no tensor"),
        ({"__metadata__": torch.zeros(1)}, {}, "a tensor cannot be called '__metadata__'"),
        ({"a": torch.zeros(1, dtype=torch.complex64)}, {}, "'a' is a complex64 strided tensor"),
        ({"a": torch.zeros(2, 2).to_sparse()}, {}, "'a' is a float32 sparse_coo tensor"),
        ({"a": torch.zeros(1, device="meta")}, {}, "'a' is a meta tensor"),
        ({}, {"nodes": {"cell": [1, torch.zeros(1)]}}, r"data.nodes.cell\[1\]: a Tensor cannot be written"),
        ({}, {"nodes": {3: 1}}, "data.nodes: the key 3 is an int; keys are texts"),
        ({}, {"digits": 10**5000}, "data: .*4300"),
    ],
)
def test_what_cannot_be_written_is_named_before_anything_is(
    more: dict[str, Any], plain: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=said):
        Checkpoints(tmp_path).write(1, more, plain)
    assert names(tmp_path) == []


def test_a_reader_while_the_folder_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader has found may be removed before it is read: then there is a later one."""
    checkpoints = put(tmp_path, 1, keep=1)
    load, writes = folder._loaded, iter([2, 3])

    def slow(path: Path) -> Loaded:
        if (number := next(writes, None)) is not None:
            put(tmp_path, number, keep=1)
        return load(path)

    monkeypatch.setattr(folder, "_loaded", slow)
    assert same(latest(checkpoints), 3)
