"""bAbI task 15 as graphs, as gated graph networks are usually trained on it: five folds of newly generated stories.

    3 1 4            an edge of type 1 from node 3 to node 4; nodes are numbered from 1
    4 2 5
    ? 1 3 5          a question of type 1 about node 3; node 5 is the answer
                     an empty line ends a graph

Which number is ``is`` and which ``has_fear`` differs between folds; `15_edge_types.txt` of each says so (``is=2``). The
files of all folds lie in one archive, as ``fold_K/{train,test}/15_*.txt``. A record is one question with its graph;
every answer is checked to follow from the facts.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np

from ampnet.data.babi15 import HAS_FEAR, IS, Deduction, arguments, deduced
from ampnet.data.dataset import Dataset, Split
from ampnet.data.entry import Entry, File, Remote, Source
from ampnet.data.files import broken, need, unpack
from ampnet.errors import DataError

FOLDS = 5
PARTS = ("train", "test")
WHAT = ("graphs", "edge_types")
ARCHIVE = "ggnn_symbolic_folds_1-5.tar"
NAMES = {"is": IS, "has_fear": HAS_FEAR}


def read(folder: Path, fold: int = 1) -> Dataset[Deduction]:
    """Read one of the five folds."""
    if fold not in range(1, FOLDS + 1):
        raise DataError(f"babi15-symbolic: there is no fold {fold}; there are 1 to {FOLDS}")
    path = need(folder, ARCHIVE)
    data, fault = unpack(path)
    if fault is not None:
        raise broken(path, f"byte {len(data):,} of its contents", fault)
    splits = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for part in PARTS:
                records = _deductions(path, archive, f"fold_{fold}/{part}/15")
                splits[part] = Split(f"babi15-symbolic {part}", records.__getitem__, len(records))
    except tarfile.TarError as error:
        raise broken(path, f"fold {fold}", f"the archive is cut short or damaged ({error})") from error
    return Dataset("babi15-symbolic", splits, arguments)


def _text(path: Path, archive: tarfile.TarFile, name: str) -> list[str]:
    for spelt in (name, f"./{name}"):
        if spelt in archive.getnames() and (file := archive.extractfile(spelt)) is not None:
            *whole, last = file.read().decode("ascii", errors="replace").split("\n")
            if last:
                raise broken(path, f"{name}, line {len(whole) + 1}", "the file ends in the middle of it")
            return whole
    raise broken(path, name, "not in the archive")


def _deductions(path: Path, archive: tarfile.TarFile, stem: str) -> list[Deduction]:
    kinds: dict[str, int] = {}
    for line in filter(None, _text(path, archive, f"{stem}_edge_types.txt")):
        name, _, kind = line.partition("=")
        kinds[kind] = NAMES.get(name, -1)
    if sorted(kinds.values()) != [IS, HAS_FEAR]:
        raise broken(path, f"{stem}_edge_types.txt", f"it names {kinds}; edge types are 'is' and 'has_fear'")
    records: list[Deduction] = []
    edges: list[tuple[int, int, int]] = []
    questions: list[tuple[int, int]] = []
    text = _text(path, archive, f"{stem}_graphs.txt")
    for number, line in enumerate(text, start=1):
        pieces = line.split(" ")
        try:
            if line == "":
                records += _questions(edges, questions)
                edges, questions = [], []
            elif pieces[0] == "?":
                _, _, asked, answer = pieces
                questions.append((int(asked) - 1, int(answer) - 1))
            else:
                source, kind, target = pieces
                edges.append((int(source) - 1, kinds[kind], int(target) - 1))
        except (ValueError, KeyError) as error:
            raise broken(
                path, f"{stem}_graphs.txt, line {number}", f"not a fact, a question or the end of a graph ({error})"
            ) from error
    if edges or questions:
        raise broken(path, f"{stem}_graphs.txt, line {len(text)}", "the last graph has no end")
    return records


def _questions(edges: list[tuple[int, int, int]], questions: list[tuple[int, int]]) -> list[Deduction]:
    facts = np.array(edges, dtype=np.int64).reshape(-1, 3)
    nodes = int(facts[:, [0, 2]].max()) + 1 if edges else 0
    if edges and facts.min() < 0:
        raise ValueError("nodes are numbered from 1")
    for asked, answer in questions:
        if deduced(facts, asked) != answer:
            raise ValueError(f"node {answer + 1} does not follow from the facts for node {asked + 1}")
    return [Deduction(nodes, facts, asked, answer) for asked, answer in questions]


def convert(fetched: Path, out: Path, data_dir: Path | None) -> None:
    """Pack the files of all folds into one archive."""
    with tarfile.open(out / f"{ARCHIVE}.xz", "w:xz") as archive:
        for fold in range(1, FOLDS + 1):
            for part in PARTS:
                for what in WHAT:
                    path = fetched / f"processed_{fold}/{part}/15_{what}.txt"
                    archive.add(path, f"fold_{fold}/{part}/15_{what}.txt")


ENTRY = Entry(
    name="babi15-symbolic",
    about="basic deduction, symbolic graphs of 8 nodes, five folds",
    read=read,
    folder="babi15",
    files=(File(ARCHIVE, "37512d3d97dda4ea775e3cbbb89e8fd7650cafc4bfc5d76abf0765928ee749ba"),),
    counts={"train": 4_000, "test": 4_000},
    source=Source(
        tuple(
            Remote(f"processed_{k}/{part}/15_{what}.txt")
            for k in range(1, FOLDS + 1)
            for part in PARTS
            for what in WHAT
        ),
        (
            "https://raw.githubusercontent.com/chingyaoc/ggnn.pytorch/9825b0440ef0805ca11092a9e331897c40982cc5/"
            "babi_data/",
        ),
        convert,
        exact=False,
    ),
    licence="MIT (repository chingyaoc/ggnn.pytorch)",
    variants=tuple({"fold": fold} for fold in range(1, FOLDS + 1)),
)
