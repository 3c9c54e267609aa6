"""Stanford Sentiment Treebank (Socher et al. 2013): sentences from film reviews as binary trees, a label on every node.

    (3 (2 It) (4 (2 's) (4 good)))                  line of a file: labels 0 (very negative) to 4 (very positive)

          4: 3                                      nodes are numbered children first, so the words stand in order:
         /    \\
      0: 2     3: 4                                 parents  [4 3 3 4 -1]
      It      /    \\                               labels   [2 2 4 4 3]
           1: 2    2: 4                             words    [It 's good]
            's     good

Tokens of a line are separated by the ASCII space only: three words of the treebank contain a no-break space, at which
``str.split()`` would split as well.
"""

from __future__ import annotations

import lzma
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ampnet.data.dataset import Dataset, Split
from ampnet.data.entry import Entry, File, Remote, Source
from ampnet.data.files import broken, lines, need, refuse_unsafe
from ampnet.lang.tree import Tree
from ampnet.state import Ints

ARCHIVE = Remote(
    "trainDevTestTrees_PTB.zip",
    sha256="5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc",
    size=789_539,
)
LARGEST = 1 << 24
"""The maximal number of bytes of a file of trees."""
CLASSES = 5
FILES = {"train": "train", "valid": "dev", "test": "test"}


@dataclass(frozen=True, slots=True)
class Sentence:
    """A tree: the ``parents`` of its nodes (-1: the root), a label for each, and the words of its leaves in order."""

    parents: Ints
    labels: Ints
    words: Ints
    """Indices into `Treebank.vocabulary`."""


@dataclass(frozen=True)
class Treebank(Dataset[Sentence]):
    """The sentences, and their words."""

    vocabulary: tuple[str, ...]
    """All words as they are written in the trees (``-LRB-``, ``\\/``), sorted."""


def arguments(sentence: Sentence) -> tuple[Tree]:
    """Returns the arguments of `TreeLstm`."""
    words, labels = torch.from_numpy(sentence.words), torch.from_numpy(sentence.labels)
    return (Tree(sentence.parents, leaves={"word": words}, label=labels),)


def read(folder: Path) -> Treebank:
    """Read the three files of trees."""
    numbers: dict[str, int] = {}
    packed = {split: _Trees(need(folder, f"{part}.txt"), numbers) for split, part in FILES.items()}
    vocabulary = tuple(sorted(numbers))
    rank = np.empty(len(numbers), dtype=np.int64)
    rank[[numbers[word] for word in vocabulary]] = np.arange(len(vocabulary))
    for trees in packed.values():
        trees.words = rank[trees.words]
    splits = {split: Split(f"sst {split}", trees.sentence, len(trees)) for split, trees in packed.items()}
    return Treebank("sst", splits, arguments, vocabulary)


class _Trees:
    """All trees of a file, concatenated. ``nodes`` and ``leaves`` hold the index of each tree's first node and word."""

    def __init__(self, path: Path, numbers: dict[str, int]) -> None:
        parents: list[int] = []
        labels: list[int] = []
        words: list[int] = []
        nodes, leaves = [0], [0]
        for number, line in enumerate(lines(path), start=1):
            try:
                _parse(line, parents, labels, words, numbers)
            except ValueError as error:
                raise broken(path, f"line {number}", str(error)) from error
            nodes.append(len(labels))
            leaves.append(len(words))
        self.parents, self.labels = np.array(parents, dtype=np.int64), np.array(labels, dtype=np.int64)
        self.words = np.array(words, dtype=np.int64)
        self.nodes, self.leaves = nodes, leaves

    def __len__(self) -> int:
        return len(self.nodes) - 1

    def sentence(self, i: int) -> Sentence:
        nodes, leaves = slice(*self.nodes[i : i + 2]), slice(*self.leaves[i : i + 2])
        return Sentence(self.parents[nodes], self.labels[nodes], self.words[leaves])


def _parse(line: str, parents: list[int], labels: list[int], words: list[int], numbers: dict[str, int]) -> None:
    """Append a tree. Raises ValueError for an invalid line."""
    first = len(labels)
    opened: list[int] = []  # labels of the nodes that are not closed yet
    held: list[list[int]] = [[]]  # the contents of each so far: its children; -1 for a word
    for piece in line.split(" "):
        if piece[:1] == "(":
            label = ord(piece[1]) - 48 if len(piece) == 2 else -1
            if not 0 <= label < CLASSES:
                raise ValueError(f"a node begins with {piece!r}; it must be '(' and a label from 0 to {CLASSES - 1}")
            opened.append(label)
            held.append([])
            continue
        word = piece.rstrip(")")
        if word:
            held[-1].append(-1)
            words.append(numbers.setdefault(word, len(numbers)))
        for _ in range(len(piece) - len(word)):
            children = held.pop()
            if not opened or (children != [-1] and (len(children) != 2 or -1 in children)):
                raise ValueError(f"near {piece!r}: a node has one word or two children; every bracket has its partner")
            node = len(labels) - first
            labels.append(opened.pop())
            parents.append(-1)
            for child in children:
                if child >= 0:
                    parents[first + child] = node
            held[-1].append(node)
    if opened or len(held[0]) != 1 or held[0] == [-1]:
        raise ValueError("not one whole tree: the line is cut, or brackets are missing")


def convert(fetched: Path, out: Path, data_dir: Path | None) -> None:
    """Extract the trees from Stanford's archive."""
    path = fetched / ARCHIVE.name
    try:
        with zipfile.ZipFile(path) as archive:
            refuse_unsafe(path, archive.namelist())
            for part in FILES.values():
                member = archive.getinfo(f"trees/{part}.txt")
                if member.file_size > LARGEST:
                    raise broken(path, member.filename, f"{member.file_size:,} bytes are too many for it")
                with lzma.open(out / f"{part}.txt.xz", "wb") as file:
                    file.write(archive.read(member))
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise broken(path, "", f"not the archive of trees ({error})") from error


ENTRY = Entry(
    name="sst",
    workload="sentiment",
    about="Stanford Sentiment Treebank: binary trees, a label on every node",
    read=read,
    folder="sst",
    files=(
        File("train.txt", "e2f3f41b0b1e6d4dddc0effe3bfc2d27ed8928079aa9a03d652311614fc5feb7"),
        File("dev.txt", "0e9336aed6e4730e19f58d00a77b3f0297efdb755f7b5e598c98a05e3f97ea40"),
        File("test.txt", "6e54806dee95cf80cd918e7dfb3f6770f6df24bf826f289a4d1f709e1c8f6761"),
    ),
    counts={"train": 8_544, "valid": 1_101, "test": 2_210},
    source=Source((ARCHIVE,), ("https://nlp.stanford.edu/sentiment/",), convert, exact=False),
    licence="none stated; Stanford distributes it for research (sentences from Rotten Tomatoes, Pang & Lee 2005)",
)
