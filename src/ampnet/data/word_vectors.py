"""Word vectors for the words of the Stanford Sentiment Treebank: the initial embedding of the Tree-LSTM.

    trees = load("sst")
    table = load("glove").rows(trees.vocabulary)             float32 [words, 50]; words without a vector: small noise
    with torch.no_grad():
        model.embedding.weight.copy_(torch.from_numpy(table))

Two sets. ``glove``: GloVe 6B (Pennington, Socher, Manning 2014), lower case, 50-d, and 300-d if it was downloaded from
its source. ``wordvec300``: 300-d, the pruned table of a spaCy pipeline, cased; not GloVe.

A file is an npz with ``tokens`` (as in the trees), ``found`` (whether there is a vector) and ``vectors`` (float16).
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ampnet.data import sst
from ampnet.data.dataset import Dataset, Split, load
from ampnet.data.entry import Entry, File, Remote, Source
from ampnet.data.files import arrays, broken, find, need, refuse_unsafe
from ampnet.data.places import locate
from ampnet.errors import DataError

ARCHIVE = Remote(
    "glove.6B.zip",
    sha256="617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
    size=862_182_613,
)
FIELDS = ("tokens", "found", "vectors")
FILES = {"glove": "glove_6B_{dim}d_sst.npz", "wordvec300": "spacy_md_{dim}d_sst.npz"}
NOISE = 0.05
"""Words without a vector get random numbers up to this, as in Tai et al. 2015."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word as written in the trees, and its vector, if any."""

    token: str
    vector: np.ndarray | None


@dataclass(frozen=True)
class WordVectors(Dataset[Word]):
    """A table of vectors. Its one split is ``words``; no model is trained on it alone."""

    tokens: np.ndarray
    found: np.ndarray
    vectors: np.ndarray
    scale: float

    @property
    def width(self) -> int:
        """The length of a vector."""
        return int(self.vectors.shape[1])

    def rows(self, vocabulary: Sequence[str], seed: int = 0) -> np.ndarray:
        """Returns a row for each word, float32, in the order of the vocabulary. The seed determines the rows of unknown
        words."""
        noise = np.random.default_rng(seed).uniform(-NOISE, NOISE, (len(vocabulary), self.width))
        table = noise.astype(np.float32)
        at = {token: i for i, token in enumerate(self.tokens.tolist()) if self.found[i]}
        known = [(row, at[word]) for row, word in enumerate(vocabulary) if word in at]
        if known:
            rows, sources = np.array(known).T
            table[rows] = self.vectors[sources].astype(np.float32) * self.scale
        return table


def read(folder: Path, *, name: str, dims: Sequence[int], scale: float, dim: int | None = None) -> WordVectors:
    """Read the file with ``dim`` dimensions (default: the first of ``dims``)."""
    dim = dims[0] if dim is None else dim
    if dim not in dims:
        raise DataError(f"{name}: there are no vectors of {dim} dimensions; there are {', '.join(map(str, dims))}")
    path = need(folder, FILES[name].format(dim=dim))
    got = arrays(path, FIELDS)
    tokens, found, vectors = got["tokens"], got["found"], got["vectors"]
    if vectors.shape != (len(tokens), dim) or found.shape != tokens.shape or tokens.dtype.kind != "U":
        raise broken(
            path, "", f"tokens {tokens.shape}, found {found.shape}, vectors {vectors.shape} do not belong together"
        )
    wrong = np.flatnonzero(~np.isfinite(vectors).all(1))
    if len(wrong):
        raise broken(path, f"word {wrong[0]} ({str(tokens[wrong[0]])!r})", "its vector has a number that is not finite")

    def word(i: int) -> Word:
        return Word(str(tokens[i]), vectors[i].astype(np.float32) * scale if found[i] else None)

    words = Split(f"{name} words", word, len(tokens))
    return WordVectors(name, {"words": words}, lambda w: (w.token, w.vector), tokens, found, vectors, scale)


def here(name: str, dim: int, data_dir: Path | None = None) -> Path | None:
    """Returns the file of these vectors, if it is on this machine. Reads nothing."""
    from ampnet.data.catalog import entry_of

    folder = locate(entry_of(name), data_dir)
    return None if folder is None else find(folder, FILES[name].format(dim=dim))


def plain(token: str) -> str:
    """Returns a word of the trees in plain spelling: brackets and slashes without their escapes."""
    brackets = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
    return brackets.get(token, token.replace("\\/", "/").replace("\\*", "*"))


def convert(fetched: Path, out: Path, data_dir: Path | None) -> None:
    """Extract the vectors of the treebank's words from GloVe's archive. Requires the trees."""
    trees = load("sst", data_dir)
    assert isinstance(trees, sst.Treebank)
    tokens = np.array(trees.vocabulary)
    rows: dict[str, list[int]] = {}
    for i, token in enumerate(trees.vocabulary):
        rows.setdefault(plain(token).lower(), []).append(i)
    path = fetched / ARCHIVE.name
    try:
        with zipfile.ZipFile(path) as archive:
            refuse_unsafe(path, archive.namelist())
            for dim in (50, 300):
                found, vectors = np.zeros(len(tokens), bool), np.zeros((len(tokens), dim), np.float16)
                with archive.open(f"glove.6B.{dim}d.txt") as file:
                    for number, line in enumerate(file, start=1):
                        word, _, numbers = line.decode("utf-8").partition(" ")
                        if word in rows:
                            vector = np.array(numbers.split(), dtype=np.float32)
                            if len(vector) != dim:
                                raise broken(
                                    path, f"glove.6B.{dim}d.txt, line {number}", f"{len(vector)} numbers, not {dim}"
                                )
                            found[rows[word]], vectors[rows[word]] = True, vector
                target = out / f"glove_6B_{dim}d_sst.npz"
                np.savez_compressed(target, tokens=tokens, found=found, vectors=vectors)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, ValueError) as error:
        raise broken(path, "", f"not the archive of GloVe 6B ({error})") from error


GLOVE = Entry(
    name="glove",
    about="GloVe 6B vectors for the words of sst, 50-d (fetched: also 300-d)",
    read=partial(read, name="glove", dims=(50, 300), scale=1.0),
    folder="glove",
    files=(File("glove_6B_50d_sst.npz", "2e4b2f00e66bc4bdd2bf133cd5aef303a1c36d1dc92dfcd42a2cb1b0f0e6c7d7", FIELDS),),
    counts={"words": 21_701},
    source=Source(
        (ARCHIVE,),
        ("https://nlp.stanford.edu/data/", "https://downloads.cs.stanford.edu/nlp/data/"),
        convert,
        exact=False,
        needs=("sst",),
    ),
    by_hand="The archive (0.8 GB) is reduced to the words of the trees, so 'sst' must be here first.",
    licence="Public Domain Dedication and License v1.0",
)

WORDVEC300 = Entry(
    name="wordvec300",
    about="300-d vectors (spaCy, not GloVe) for the words of sst",
    read=partial(read, name="wordvec300", dims=(300,), scale=1 / 42),
    folder="wordvec300",
    files=(File("spacy_md_300d_sst.npz", "7242910bc0350e40794a475230c1b884fc809c3a2bdfd091d628513e9556226d", FIELDS),),
    counts={"words": 21_701},
    source=Source((Remote("spacy_md_300d_sst.npz"),)),
    by_hand="""\
The file is spacy_md_300d_sst.npz (numpy.load, no pickle):
  tokens   text [21701], the words of the sst trees as written there, sorted
  found    bool [21701], whether the table has the word
  vectors  float16 [21701, 300], zeros where it has not
It was made from the vector table of spaCy's English "md" pipeline (en_core_web_md 3.7; 20,000 distinct vectors), as the
Python package en-nligraphspacy 0.0.1 carries it (vocab/vectors, vocab/key2row): brackets, slashes and quotes of a word
unescaped, looked up as written, then in lower case. Vectors are long (mean norm 42); they are divided by 42 as they are
read. Vectors made by the same rule from another edition have another checksum, but can be read all the same.""",
    licence="the package states none; en_core_web_md is MIT and its vectors CC0",
)
