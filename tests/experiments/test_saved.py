"""`ampnet.experiments.saved`: a model file is read as it was written, or refused by name."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ampnet._version import __version__
from ampnet.checkpoint.tensors import decode, digest, encode
from ampnet.errors import CheckpointError, OutputError
from ampnet.experiments.catalog import WORKLOADS
from ampnet.experiments.saved import read, save
from tests.checkpoint.samples import bits

FACTS: dict[str, dict[str, Any]] = {
    "sentiment": {"vocabulary": ["good", "ä"], "width": 300},
    "qm9": {"mean": 2.5, "std": 1.5},
}
REACHED = {"metric": "accuracy", "value": 0.5, "epoch": 3}


def written(path: Path, name: str = "adaptive-depth", **settings: Any) -> Path:
    """Saves a model that was not trained."""
    workload = WORKLOADS[name]
    chosen, facts = replace(workload.settings(), **settings), FACTS.get(name, {})
    save(path, workload, chosen, facts, workload.model(chosen, facts).state_dict(), REACHED)
    return path


def forged(path: Path, *, honest: bool = True, state: Any = None, **metadata: Any) -> None:
    """Changes the metadata (None: leaves out) as somebody would who can compute the digest."""
    tensors, found = decode(path.read_bytes(), path)
    found.pop("digest", None)
    found = {name: value for name, value in {**found, **metadata}.items() if value is not None}
    tensors = tensors if state is None else state
    if honest:
        found["digest"] = digest(tensors, found)
    path.write_bytes(encode(tensors, found))


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read(path).graph()
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text
    return text


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_was_saved_is_read(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "model", name, target=0.75, clip_norm=None, replicate=("a", "b"), rate_of={"a": 0.5})
    saved = read(path)
    assert saved.workload is WORKLOADS[name]
    wanted = replace(WORKLOADS[name].settings(), target=0.75, clip_norm=None, replicate=("a", "b"), rate_of={"a": 0.5})
    assert saved.settings == wanted
    assert (saved.facts, saved.reached) == (FACTS.get(name, {}), REACHED)
    again = tmp_path / "again"
    save(again, saved.workload, saved.settings, saved.facts, saved.state, saved.reached)
    (state, metadata), (theirs, same) = (decode(file.read_bytes(), file) for file in (path, again))
    assert metadata == same
    assert {n: bits(t) for n, t in state.items()} == {n: bits(t) for n, t in theirs.items()}


def test_the_graph_has_its_weights(tmp_path: Path) -> None:
    saved = read(written(tmp_path / "model"))
    for name, mine in saved.graph().model.state_dict().items():
        assert bits(mine) == bits(saved.state[name])


def test_every_flipped_byte_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "model", hidden=2)
    good, state, reasons = path.read_bytes(), {n: bits(t) for n, t in read(path).state.items()}, []
    for i in range(len(good)):
        path.write_bytes(good[:i] + bytes([good[i] ^ (1 << i % 8)]) + good[i + 1 :])
        try:
            saved = read(path)
        except CheckpointError as error:
            reasons.append(str(error))
        else:
            assert {name: bits(tensor) for name, tensor in saved.state.items()} == state
    assert all(reason.startswith(f"{path}: ") for reason in reasons)
    assert len(good) - 8 <= len(reasons) <= len(good), "the header ends with up to 7 spaces, which mean nothing"


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, -1])
def test_cut_short(length: int, tmp_path: Path) -> None:
    path = written(tmp_path / "model")
    path.write_bytes(path.read_bytes()[:length])
    assert "not a model that 'ampnet train ... --save' wrote, or damaged" in refusal(path)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    for new in (True, False):
        path = tmp_path / "model.pt"
        torch.save({"kind": "ampnet model", "format": 1}, path, _use_new_zipfile_serialization=new)
        text = refusal(path)
        assert "a pickle, as torch.save and earlier versions of ampnet wrote them" in text
        assert "train again, with --save model.safetensors" in text


def test_other_files(tmp_path: Path) -> None:
    other, fifo = tmp_path / "other", tmp_path / "fifo"
    other.write_bytes(encode({"a": torch.zeros(1)}))
    assert refusal(other).endswith("not a model that 'ampnet train ... --save' wrote")
    os.mkfifo(fifo)
    assert "not a regular file" in refusal(fifo)
    assert "cannot be read: Is a directory" in refusal(tmp_path) or "not a regular file" in refusal(tmp_path)
    assert "there is no such file" in refusal(tmp_path / "none")


def settings_with(path: Path, **more: Any) -> str:
    _, found = decode(path.read_bytes(), path)
    return json.dumps({**json.loads(found["settings"]), **more})


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"format": "3", "ampnet": "9.1"}, "a model in format '3', written by ampnet '9.1'; this is"),
        ({"kind": "other"}, "not a model that"),
        ({"kind": None}, "not a model that"),
        ({"workload": "chess"}, "a model of 'chess', which is not known; there are mnist, "),
        ({"workload": None}, "its metadata have no 'workload'"),
        ({"settings": None}, "its metadata have no 'settings'"),
        ({"settings": "{"}, "not JSON"),
        ({"settings": "[" * 100_000}, "nested deeper than"),
        ({"settings": "[1]"}, "the settings are [1] and no JSON object"),
        ({"facts": "[]"}, "facts are [], and not: none"),
        ({"facts": '{"a": 1}'}, "facts are {'a': 1}, and not: none"),
        ({"reached": '{"metric": 1, "value": 1, "epoch": 1}'}, "reached: 'metric' is 1 and no str"),
        ({"reached": "{}"}, "reached are {}, and not: metric, value, epoch"),
    ],
)
def test_metadata_of_other_contents(metadata: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "model")
    forged(path, **metadata)
    assert said in refusal(path)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"zzz": "red"}, "unknown setting 'zzz'; there are: epochs"),
        ({"hiden": 3}, "unknown setting 'hiden'; did you mean 'hidden'?"),
        ({"repli" + "9" * 5000 + "cas": 1}, "unknown setting 'repli99999"),
        ({"hidden": "3"}, "setting 'hidden' is '3' and no int"),
        ({"hidden": True}, "setting 'hidden' is True and no int"),
        ({"hidden": 2.0}, "setting 'hidden' is 2.0 and no int"),
        ({"hidden": 0}, "setting 'hidden' is 0, which is out of range"),
        ({"hidden": -(2**70)}, "and no int"),
        ({"learning_rate": None}, "setting 'learning_rate' is None and no float"),
        ({"learning_rate": float("inf")}, "setting 'learning_rate' is inf and no float"),
        ({"weight_decay": 1.0}, "setting 'weight_decay' is 1.0, which is out of range"),
        ({"optimizer": "magic"}, "setting 'optimizer' is 'magic' and no 'adam' or 'sgd'"),
        ({"barrier": 1}, "setting 'barrier' is 1 and no bool"),
        ({"workers": "many"}, "setting 'workers' is 'many' and no int or 'auto' or None"),
        ({"rate_of": {"a": "b"}}, "setting 'rate_of' is 'b' and no float"),
        ({"update_after": {"a": 0}}, "setting 'update_after' is {'a': 0}, which is out of range"),
        ({"replicate": [1]}, "setting 'replicate' is [1] and no list of str or object of int or None"),
        ({"hidden": 7}, "its weights are not those of the adaptive-depth model: "),
        ({"hidden": 10**9}, "its weights are not those of the adaptive-depth model: "),
        ({"hidden": 2**62}, "model can be made of its settings and weights"),
    ],
)
def test_settings_of_other_types(setting: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "model")
    forged(path, settings=settings_with(path, **setting))
    text = refusal(path)
    assert said in text
    assert len(text) < 1000


def test_settings_that_are_missing_have_their_defaults(tmp_path: Path) -> None:
    path = written(tmp_path / "model")
    forged(path, settings="{}")
    assert read(path).settings == WORKLOADS["adaptive-depth"].settings()


@pytest.mark.parametrize(
    ("name", "facts", "said"),
    [
        ("sentiment", {}, "facts are {}, and not: vocabulary, width"),
        ("sentiment", {"vocabulary": "good", "width": 300}, "facts: 'vocabulary' is 'good' and no list of str"),
        ("sentiment", {"vocabulary": ["good", 1], "width": 300}, "facts: 'vocabulary' is 1 and no str"),
        ("sentiment", {"vocabulary": ["good"], "width": 300}, "its weights are not those of the sentiment model"),
        ("sentiment", {"vocabulary": ["a", "b"], "width": 10**12}, "its weights are not those of the sentiment model"),
        ("qm9", {"mean": None, "std": 1}, "facts: 'mean' is None and no float"),
        ("qm9", {"mean": 1}, "and not: mean, std"),
    ],
)
def test_facts_of_other_types(name: str, facts: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "model", name)
    forged(path, facts=json.dumps(facts))
    assert said in refusal(path)


def test_weights_of_another_model(tmp_path: Path) -> None:
    path = written(tmp_path / "model")
    state = read(path).state
    name = next(iter(state))
    for changed, said in (
        ({}, "is missing, and float32"),
        ({**state, "more": torch.zeros(1)}, "'more' is float32 [1], and missing in the model"),
        ({**state, name: state[name].double()}, f"'{name}' is float64"),
        ({**state, name: state[name][None]}, f"'{name}' is float32 [1, "),
    ):
        forged(path, state=changed)
        assert said in refusal(path)


def test_contents_without_their_digest(tmp_path: Path) -> None:
    path = written(tmp_path / "model")
    forged(path, honest=False)
    assert refusal(path).endswith("damaged: its contents do not have the digest they were written with")
    forged(path)
    assert read(path).settings.seed == 0
    forged(path, digest="0" * 64, honest=False, ampnet=__version__)
    assert "digest" in refusal(path)


def test_it_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "model")
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=f"^{path} cannot be written: No space left on device$"):
        written(path, hidden=3)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
