"""Checkpoints and model files with bytes changed, cut out or doubled: equal to what was written, or refused by name.

No other exception, and the folder is as it was. 1,000 files, and 5,000 with the slow tests; Hypothesis draws the seed
of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampnet.checkpoint import folder, manifest
from ampnet.checkpoint.tensors import decode
from ampnet.errors import CheckpointError
from ampnet.experiments.saved import read
from tests.checkpoint.samples import bits, names, put, same
from tests.events.mutated import DEEP, NASTY, PIECES
from tests.experiments.test_saved import forged, written

SHORT = [piece for piece in PIECES if piece]


pytestmark = pytest.mark.fuzz


def mutated(data: bytes, rng: Random) -> bytes:
    """Returns the bytes with 1 to 4 changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        i, length, piece = rng.randrange(len(data) + 1), rng.choice((1, 1, 8, 40)), rng.choice(SHORT)
        data = rng.choice(
            (
                data[:i] + bytes([rng.randrange(256)]) + data[i + 1 :],
                data[:i] + piece + data[i + len(piece) :],
                data[:i] + piece + data[i:],
                data[:i] + data[i + length :],
                data[:i] + data[i : i + length] + data[i:],
                data[:i],
            )
        )
    return data


def counts(few: int) -> Callable[[Any], Any]:
    return pytest.mark.parametrize("count", [few, pytest.param(5 * few, marks=pytest.mark.slow)])


def drawn(count: int, test: Callable[[Random], None]) -> None:
    """Runs the test with so many generators."""

    @settings(max_examples=count, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**63))
    def one(seed: int) -> None:
        test(Random(seed))

    one()


def refused(said: str, path: Path) -> None:
    assert str(path) in said and "\n" not in said and len(said) < 1000, said


@counts(400)
def test_checkpoints(count: int, tmp_path: Path) -> None:
    path = put(tmp_path, 1, 2).folder / "checkpoint-000002"
    good = {name: (path / name).read_bytes() for name in sorted(folder.FILES)}

    def one(rng: Random) -> None:
        name = rng.choice(list(good))
        bad = mutated(good[name], rng)
        (path / name).write_bytes(bad)
        try:
            loaded = folder._loaded(path)
        except CheckpointError as error:
            refused(str(error), path)
            loaded = None
        assert (loaded is not None) == (bad == good[name]) and (loaded is None or same(loaded, 2))
        assert (path / name).read_bytes() == bad and set(names(path)) == folder.FILES
        (path / name).write_bytes(good[name])

    drawn(count, one)


@counts(100)
def test_checkpoints_with_good_hashes(count: int, tmp_path: Path) -> None:
    """Mutated by somebody who computes the hashes again: something is read, or it is refused."""
    path = put(tmp_path, 2).folder / "checkpoint-000002"
    good = {name: (path / name).read_bytes() for name in (manifest.DATA, manifest.TENSORS)}
    whole = json.loads((path / manifest.NAME).read_bytes())

    def one(rng: Random) -> None:
        name = rng.choice(list(good))
        files = good | {name: mutated(good[name], rng)}
        for file, content in files.items():
            (path / file).write_bytes(content)
        entries = {file: manifest.entry(content) for file, content in files.items()}
        text = manifest.Manifest(2, whole["time"], whole["torch"], entries).render()
        if rng.random() < 0.3:
            text = json.dumps({**json.loads(text), rng.choice([*whole, "other"]): rng.choice(NASTY)}).encode()
        (path / manifest.NAME).write_bytes(text)
        try:
            assert isinstance(folder._loaded(path).data, dict)
        except CheckpointError as error:
            refused(str(error), path)

    drawn(count, one)


@counts(400)
def test_model_files(count: int, tmp_path: Path) -> None:
    path = written(tmp_path / "model", hidden=2)
    good, state = path.read_bytes(), {n: bits(t) for n, t in read(path).state.items()}

    def one(rng: Random) -> None:
        path.write_bytes(bad := mutated(good, rng))
        try:
            saved = read(path)
        except CheckpointError as error:
            refused(str(error), path)
        else:  # only where nothing changed that means anything
            assert {name: bits(tensor) for name, tensor in saved.state.items()} == state
        assert path.read_bytes() == bad and names(tmp_path) == ["model"]

    drawn(count, one)


@counts(100)
def test_model_files_with_a_good_digest(count: int, tmp_path: Path) -> None:
    path = written(tmp_path / "model", "adaptive-depth", hidden=2)
    good = path.read_bytes()
    metadata = decode(good, path)[1]
    known = json.loads(metadata["settings"])

    def one(rng: Random) -> None:
        path.write_bytes(good)
        name, value = rng.choice([*metadata, "other"]), rng.choice(NASTY)
        if rng.random() < 0.5:
            name, text = "settings", json.dumps({**known, rng.choice([*known, "other"]): value})
        else:
            text = rng.choice(
                (json.dumps(value), mutated(metadata.get(name, "").encode(), rng).decode("latin-1"), DEEP)
            )
        forged(path, **{name: text})
        try:
            read(path)
        except CheckpointError as error:
            refused(str(error), path)

    drawn(count, one)
