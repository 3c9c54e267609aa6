"""Mutated files of data sets: loaded, or refused by name; never another error."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampnet.data import load
from ampnet.data.entry import Entry
from ampnet.errors import DataError
from tests.data.small import know, write_all
from tests.events.mutated import PIECES

PACKING = {".gz": (gzip.compress, gzip.decompress), ".xz": (lzma.compress, lzma.decompress)}


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Entry]]:
    folder = tmp_path_factory.mktemp("mutated") / "data"
    write_all(folder)
    patch = pytest.MonkeyPatch()
    found = know(folder, patch)
    yield folder, found  # type: ignore[misc]
    patch.undo()


def torn(data: bytes, rng: Random) -> bytes:
    """The data with 1 to 3 changes of bytes, numbers or lengths."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(data) + 1)
        length = rng.choice((0, 1, 1, 4, 30))
        piece = rng.choice((*PIECES, bytes([rng.randrange(256)]), b"-1", b"99999999999999999999", b"(", b")", b" "))
        data = data[:at] + piece + data[at + length :] * (rng.random() < 0.9)
    return data


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1))
def test_a_mutated_file_is_loaded_or_refused(seed: int, entries: tuple[Path, dict[str, Entry]]) -> None:
    folder, known = entries
    rng = Random(seed)
    name, entry = rng.choice([pair for pair in sorted(known.items()) if (folder / pair[1].folder).is_dir()])
    path = rng.choice(sorted(one for one in (folder / entry.folder).rglob("*") if one.is_file()))
    data = path.read_bytes()
    pack, unpack = PACKING.get(path.suffix, (bytes, bytes))
    inside = rng.random() < 0.7
    path.write_bytes(pack(torn(unpack(data), rng)) if inside else torn(data, rng))
    try:
        load(name, folder)
    except DataError as error:
        said = str(error)
        assert said.startswith(name) and "\n" not in said and len(said) < 1500, said
    finally:
        path.write_bytes(data)
