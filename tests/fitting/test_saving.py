"""Checkpoints when several things happen at once, and what a resume finds changed."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import Adam

from ampnet import Callback, CheckpointError, CSVLogger, Update
from ampnet.checkpoint import Checkpoints
from ampnet.checkpoint import lock as lock_module
from ampnet.checkpoint.lock import FolderLock
from ampnet.errors import CallbackError, CheckpointWarning, OutputError
from ampnet.fitting import Run
from ampnet.fitting.packed import pack, unpack
from ampnet.instance import StreamStats
from tests.fitting.resumed import TRAIN, assert_same, inline, lasting, sentences, train

ADAM = Update(partial(Adam, lr=0.02), 4, "instances")


class Interrupts(Callback):
    """Asks for the end of the run when the validation of its first epoch ends."""

    def on_begin(self, run: Run) -> None:
        self.run = run

    def on_valid_end(self, epoch: int, stats: StreamStats) -> None:
        if epoch == 1:
            self.run.interrupt()


@pytest.mark.parametrize("at", ["drained", "flying"])
@pytest.mark.parametrize("barrier", [False, True])
def test_an_interrupt_is_not_lost_if_a_checkpoint_is_due_too(at: str, barrier: bool, tmp_path: Path) -> None:
    """Once the pause for the epoch's checkpoint replaced that of the interrupt, and the run went on to its end."""
    with inline(ADAM) as runtime:
        whole = train(runtime, tmp_path / "whole", every="1 epoch", at=at, barrier=barrier)
    with inline(ADAM) as runtime:
        cut = train(runtime, tmp_path / "cut", every="1 epoch", at=at, barrier=barrier, callbacks=[Interrupts()])
    assert cut.epochs == 1
    found = Checkpoints(tmp_path / "cut").latest()
    assert found is not None
    assert not any(one["position"]["in_flight"] for one in found.data["fit"]["open"].values())
    with inline(ADAM) as runtime:
        result = train(runtime, tmp_path / "cut", every="1 epoch", at=at, barrier=barrier, resume=True)
    assert result.epochs == 3
    if at == "drained":
        assert_same(lasting(result), lasting(whole))


def test_two_runs_do_not_write_one_folder(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    with inline(ADAM) as runtime, pytest.raises(CheckpointError, match="another run writes"):
        train(runtime, tmp_path)
    lock.release()
    with inline(ADAM) as runtime:
        train(runtime, tmp_path, epochs=1)
    with inline(ADAM) as runtime:
        assert train(runtime, tmp_path, epochs=2, resume=True).epochs == 2


def test_a_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A worker process may outlive the run that was killed."""
    FolderLock(tmp_path)
    (begun, begins), (ended, ends) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(ends)
        os.write(begins, b".")
        os.read(ended, 1)
        os._exit(0)
    try:
        os.read(begun, 1)
        lock_module._close_copies()  # as the end of the process does
        FolderLock(tmp_path).release()
    finally:
        for end in (ends, begun, begins, ended):
            os.close(end)
        os.waitpid(child, 0)


def test_a_folder_that_cannot_be_made_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    began: list[int] = []
    with inline(ADAM) as runtime, pytest.raises(OutputError, match="no folder for checkpoints"):
        train(runtime, tmp_path / "file" / "runs", train=began.append)
    assert not began


def test_a_loader_that_changes_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    def moving(epoch: int) -> list[Any]:
        os.chdir(tmp_path / "elsewhere")
        return TRAIN

    with inline(ADAM) as runtime:
        train(runtime, Path("runs"), epochs=1, train=moving)
    assert Checkpoints(tmp_path / "runs").latest() is not None
    assert not list((tmp_path / "elsewhere").iterdir())


# -- data


def test_other_data_of_the_same_length_are_refused(tmp_path: Path) -> None:
    with inline(ADAM) as runtime:
        train(runtime, tmp_path, epochs=1)
    with inline(ADAM) as runtime, pytest.raises(CheckpointError, match=r"fingerprint of train examples differs \("):
        train(runtime, tmp_path, epochs=2, resume=True, train=sentences(len(TRAIN), seed=5))
    same = sentences(len(TRAIN))
    with inline(ADAM) as runtime:
        assert train(runtime, tmp_path, epochs=2, resume=True, train=same).epochs == 2


def test_another_order_of_a_stream_is_said(tmp_path: Path) -> None:
    order = random.Random(3)  # not among the generators that a checkpoint keeps

    def shuffled(epoch: int) -> list[Any]:
        return order.sample(TRAIN, len(TRAIN))

    with inline(ADAM) as runtime:
        train(runtime, tmp_path, every=20, train=shuffled, callbacks=[Interrupts()])
    with inline(ADAM) as runtime, pytest.warns(CheckpointWarning, match="'train 2' begins with another instance"):
        train(runtime, tmp_path, every=20, train=shuffled, resume=True)


# -- forged data: good hashes, and contents that no run writes


def _changed(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for name in path[:-1]:
            data = data[name] if name != "*" else next(iter(data.values()))
        if to is None:
            del data[path[-1]]
        else:
            data[path[-1]] = to

    return change


FORGED: dict[str, Callable[[dict[str, Any]], None]] = {
    "no fit": _changed("fit", to=None),
    "a list": _changed("fit", to=[]),
    "records": _changed("fit", "records", to=[{"epoch": 1}]),
    "a stream": _changed("fit", "open", to={"nothing": {}}),
    "a position": _changed("fit", "open", "*", "position", "in_flight", to=[5, 5]),
    "generators": _changed("generators", "torch", to="AAAA"),
    "generators of a stream": _changed("fit", "open", "*", "generators", "numpy", to=[]),
    "left": _changed("left", to=-5),
    "settings": _changed("settings", to=7),
    "free": _changed("free", to=None),
    "nodes": _changed("runtime", "nodes", to={}),
    "numbers": _changed("runtime", "numbers", to=None),
    "tensors of callbacks": _changed("callbacks", to={"X": {"tensor": "none"}}),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    with inline(ADAM) as runtime:
        train(runtime, folder, every=20, callbacks=[Interrupts()])
    return folder


@pytest.mark.parametrize("name", FORGED)
def test_forged_data_are_refused_by_name(name: str, written: Path, tmp_path: Path) -> None:
    found = Checkpoints(written).latest()
    assert found is not None
    data = json.loads(json.dumps(found.data))
    FORGED[name](data)
    path = Checkpoints(tmp_path).write(1, found.tensors, data)
    with inline(ADAM) as runtime, pytest.raises(CheckpointError) as refused:
        train(runtime, tmp_path, every=20, resume=True)
    assert str(refused.value).startswith(str(path))


# -- callbacks


def test_names_with_slashes_are_kept_apart() -> None:
    given = {"a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}, "c": [torch.tensor(3)], "c/0": torch.tensor(4)}
    tensors: dict[str, Any] = {}
    assert_same(unpack(pack(given, "x", tensors), tensors), given)


def test_a_csv_of_another_run_is_not_cut(tmp_path: Path) -> None:
    """Once a resumed run cut any file that it was given to the length that its own had."""
    with inline(ADAM) as runtime:
        train(runtime, tmp_path / "runs", epochs=1, callbacks=[CSVLogger(tmp_path / "own.csv")])
    other = tmp_path / "other.csv"
    text = (tmp_path / "own.csv").read_text().replace("\n1,", "\n9,") * 3
    other.write_text(text)
    with inline(ADAM) as runtime, pytest.raises(CallbackError, match="is not the file that this run began"):
        train(runtime, tmp_path / "runs", epochs=2, resume=True, callbacks=[CSVLogger(other)])
    assert other.read_text() == text
