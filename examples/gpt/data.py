"""Text to read: the sources of Python's own standard library, which are there wherever this runs.

    files in order     abc.py  aifc.py  antigravity.py ... zipimport.py       every 20th is held out for validation
    train              |import os↵import sys↵ ... |                           one long text of bytes
    a sequence         position 71,204:  |mport o|   targets  |port os|       any ``context`` bytes, and the next ones

A character is a byte. Folders that are not the same everywhere (tests, installed packages) are left out. The order of
sequences depends on the seed alone.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}
_HELD_OUT = 20
"""One of so many files is held out."""


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """A text to train on and a held-out one, as bytes."""

    train: Tensor
    valid: Tensor

    def microbatches(self, count: int, sequences: int, context: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields ``count`` microbatches of random training sequences: tokens and targets, both [sequences, context]."""
        random = torch.Generator().manual_seed(seed)
        for _ in range(count):
            starts = torch.randint(len(self.train) - context, (sequences,), generator=random)
            yield windows(self.train, starts, context)

    def held_out(self, sequences: int, context: int) -> tuple[Tensor, Tensor]:
        """Returns tokens and targets of held-out sequences at equal distances."""
        starts = torch.linspace(0, len(self.valid) - context - 1, sequences).long()
        return windows(self.valid, starts, context)


def windows(text: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Returns the sequences of a text that begin at ``starts``, and the same one character later."""
    places = starts.unsqueeze(1) + torch.arange(context + 1)
    found = text[places].long()
    return found[:, :-1].contiguous(), found[:, 1:].contiguous()


def library(folder: Path | None = None) -> Corpus:
    """Returns the sources of the running Python's standard library, or of another folder."""
    root = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    files = sorted(_sources(root), key=lambda path: path.relative_to(root).as_posix())
    texts: tuple[list[bytes], list[bytes]] = [], []
    for number, path in enumerate(files):
        texts[number % _HELD_OUT == _HELD_OUT - 1].append(path.read_bytes())
    train, valid = (torch.frombuffer(bytearray(b"".join(some) or b"\n"), dtype=torch.uint8) for some in texts)
    return Corpus(train, valid)


def _sources(root: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in _LEFT_OUT]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))
