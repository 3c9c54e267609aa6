"""Promise P14: a checkpoint that is torn, foreign or newer is refused by name, and the last good one is offered."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ampnet._version import __version__
from ampnet.checkpoint import Checkpoints, folder, manifest
from ampnet.errors import CheckpointError, CheckpointWarning
from tests.checkpoint.samples import latest, put, same


@pytest.fixture
def two(tmp_path: Path) -> Checkpoints:
    return put(tmp_path, 1, 2)


def refused(checkpoints: Checkpoints, said: str = "") -> str:
    """Checkpoint 2 is refused with the first one offered, and left out by `latest`. Returns the reason."""
    path = checkpoints.folder / "checkpoint-000002"
    with pytest.raises(CheckpointError) as caught:
        checkpoints.read(path)
    text = str(caught.value)
    assert text.startswith(str(path)), text
    assert text.endswith(f"; the last good checkpoint is {checkpoints.folder / 'checkpoint-000001'}")
    assert said in text, text
    with pytest.warns(CheckpointWarning) as seen:
        assert same(latest(checkpoints), 1)
    (warned,) = (str(one.message) for one in seen)
    assert warned.startswith(f"a checkpoint is skipped: {path}")
    return text


@pytest.mark.parametrize("name", sorted(folder.FILES))
def test_cut_short_at_any_length_or_longer(name: str, two: Checkpoints) -> None:
    file = two.folder / "checkpoint-000002" / name
    whole = file.read_bytes()
    for length in {*range(0, len(whole), max(1, len(whole) // 100)), 1, 7, 8, 9, len(whole) - 1}:
        file.write_bytes(whole[:length])
        assert name in refused(two)
    file.write_bytes(whole + b"\n")
    assert name in refused(two)


@pytest.mark.parametrize("name", sorted(folder.FILES))
def test_any_byte_flipped(name: str, two: Checkpoints) -> None:
    """Every byte of the manifest, of the data and of the tensors, header and all, with one bit flipped."""
    file = two.folder / "checkpoint-000002" / name
    whole = file.read_bytes()
    for i in range(len(whole)):
        file.write_bytes(whole[:i] + bytes([whole[i] ^ (1 << i % 8)]) + whole[i + 1 :])
        with pytest.raises(CheckpointError, match=name):
            two.read(file.parent)
    refused(two)


@pytest.mark.parametrize("name", sorted(folder.FILES))
def test_a_file_that_is_missing_or_no_file(name: str, two: Checkpoints) -> None:
    file = two.folder / "checkpoint-000002" / name
    file.unlink()
    assert name in refused(two)
    os.mkfifo(file)
    assert f"{name}: not a regular file" in refused(two)
    file.unlink()
    file.mkdir()
    assert name in refused(two)


def test_a_folder_that_is_no_checkpoint(two: Checkpoints) -> None:
    good = two.folder / "checkpoint-000002"
    for path, said in (
        (two.folder, "not a checkpoint, or one that was not finished: it has no manifest.json"),
        (two.folder / "none", "none: there is no such folder"),
        (good / "data.json", "data.json: not a folder"),
    ):
        with pytest.raises(CheckpointError, match=said) as caught:
            two.read(path)
        assert str(caught.value).endswith(f"; the last good checkpoint is {good}")
    with pytest.raises(CheckpointError, match="there is no good checkpoint in"):
        Checkpoints(good).read(good / "none")


def test_a_checkpoint_under_the_name_of_another(two: Checkpoints) -> None:
    shutil.rmtree(two.folder / "checkpoint-000002")
    shutil.copytree(two.folder / "checkpoint-000001", two.folder / "checkpoint-000002")
    refused(two, "its manifest is that of checkpoint 1; it was renamed or copied")
    shutil.copytree(two.folder / "checkpoint-000001", two.folder / "best")
    assert same(two.read(two.folder / "best"), 1), "a copy with a name of its own"


def rewritten(two: Checkpoints, **fields: Any) -> None:
    """A manifest with other fields, as a program that means it would write it."""
    file = two.folder / "checkpoint-000002" / "manifest.json"
    found = {**json.loads(file.read_bytes()), **fields}
    del found["digest"]
    digest = manifest.hashlib.sha256(manifest._text(found)).hexdigest()
    file.write_bytes(manifest._text(found | {"digest": digest}))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"format": 2, "ampnet": "9.1"}, f"written by ampnet 9.1, format 2; this is ampnet {__version__}, which reads"),
        ({"format": 2, "files": [], "number": None}, "format 2; this is ampnet"),
        ({"format": True}, "does not have the digest"),
        ({"format": 0}, "does not have the digest"),
        ({"kind": "other"}, "not the manifest of an ampnet checkpoint"),
        ({"number": "2"}, "'number' is '2'"),
        ({"number": -1}, "'number' is -1"),
        ({"number": 10**30}, "its manifest is that of checkpoint 1000"),
        ({"torch": None}, "'torch' is None and no text"),
        ({"time": ["x"]}, "'time' is ['x'] and no text"),
        ({"files": {"../data.json": {}}}, "'files' does not list tensors.safetensors and data.json"),
        ({"files": {"data.json": 3, "tensors.safetensors": {}}}, "size or sha256 of data.json"),
        ({"more": 1}, "does not have the digest"),
    ],
)
def test_a_manifest_of_other_contents(fields: dict[str, Any], said: str, two: Checkpoints) -> None:
    rewritten(two, **fields)
    refused(two, said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[" * 100_000, "65,536"),
        (b"[" * 60_000, "nested deeper than 64 levels"),
        (b"[" * 65 + b"]" * 65, "nested deeper than 64 levels"),
        (b"[]", "not the manifest of an ampnet checkpoint"),
        (b"\xff", "not JSON"),
        (b'{"kind":' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_a_manifest_that_is_no_manifest(text: bytes, said: str, two: Checkpoints) -> None:
    (two.folder / "checkpoint-000002" / "manifest.json").write_bytes(text)
    refused(two, said)


HUGE = 1 << 60


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("data.json", b"[1]", "data.json: no JSON object"),
        ("data.json", b'{"a":' + b"[" * 100_000, "nested deeper than 64"),
        ("data.json", b'{"a":1', "not JSON"),
        ("tensors.safetensors", b"", "not a whole safetensors file"),
        ("tensors.safetensors", HUGE.to_bytes(8, "little") + b"{}", "not a whole safetensors file"),
        ("tensors.safetensors", b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,%d]}}' % HUGE, "not a whole"),
        ("tensors.safetensors", b'{"a":{"dtype":"F32","shape":[%d],"data_offsets":[0,4]}}' % HUGE, "not a whole"),
        (
            "tensors.safetensors",
            b'{"a":{"dtype":"F32","shape":[%d,0],"data_offsets":[0,0]}}' % (1 << 63),
            "not a whole",
        ),
        ("tensors.safetensors", b'{"a":{"dtype":"F9","shape":[1],"data_offsets":[0,4]}}' + bytes(4), "not a whole"),
        ("tensors.safetensors", b'{"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}\x02', "bytes than 0 and 1"),
        ("tensors.safetensors", b'{"a":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}}' + bytes(8), "complex64"),
    ],
)
def test_contents_that_are_none_with_good_hashes(name: str, content: bytes, said: str, two: Checkpoints) -> None:
    """Written by somebody who can compute hashes. Sizes that are claimed are not allocated."""
    if content.startswith(b'{"a":{'):
        header, rest = content[: content.rindex(b"}") + 1], content[content.rindex(b"}") + 1 :]
        content = len(header).to_bytes(8, "little") + header + rest
    file = two.folder / "checkpoint-000002" / name
    file.write_bytes(content)
    files = json.loads((file.parent / "manifest.json").read_bytes())["files"]
    entry = manifest.entry(content)
    rewritten(two, files={**files, name: {"size": entry.size, "sha256": entry.sha256}})
    refused(two, said)
