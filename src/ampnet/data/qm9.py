"""QM9 (Ramakrishnan et al. 2014): 130,831 small organic molecules as graphs, and their dipole moment.

All molecules are concatenated in flat arrays; molecule i is a slice of each:

    node_offset    [0    5    9 ...]           atoms of molecule i:  node_offset[i] : node_offset[i + 1]
    atomic_number  [6 1 1 1 1 | 7 1 1 1 | ...]
    edge_offset    [0    4    7 ...]           bonds, each once; types: single, double, triple, aromatic

The file, which `ampnet.data.qm9_archive` makes, is in the original order, small molecules first, so the split is
random: 117,000 for training, the other 13,831 for validation. The seed of the split is an option (``load("qm9",
seed=1)``), independent of that of a run. The target is the norm of the dipole moment, in Debye.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ampnet.data import qm9_archive
from ampnet.data.dataset import Dataset, Split
from ampnet.data.entry import Entry, File, Source
from ampnet.data.files import arrays, broken, need
from ampnet.lang.edges import Edges
from ampnet.lang.spaces import Seq
from ampnet.state import Ints

ELEMENTS = (1, 6, 7, 8, 9)
KINDS = 4
FEATURES = len(ELEMENTS) + 1 + KINDS + 2
"""Element (one of five), atomic number / 10, bonds of each type, hydrogens at it, formal charge."""
CHEMICAL_ACCURACY = 0.1
"""Debye. Gilmer et al. 2017 and the paper report errors as multiples of it: 4.6 is 0.46 D."""
ALL, TRAIN = 130_831, 117_000
FIELDS = (
    "index",
    "node_offset",
    "edge_offset",
    "atomic_number",
    "formal_charge",
    "edge_src",
    "edge_dst",
    "edge_type",
    "mu",
)


@dataclass(frozen=True, slots=True)
class Molecule:
    """Atoms and bonds, and the target."""

    index: int
    """Its number in the original QM9, from 1."""
    atoms: np.ndarray
    """Atomic numbers."""
    charges: np.ndarray
    """Formal charges."""
    bonds: Ints
    """[bonds, 3]: two atoms, and the type. There may be none."""
    dipole: float
    """Norm of the dipole moment, Debye."""


@dataclass(frozen=True)
class Molecules(Dataset[Molecule]):
    """The molecules, and the statistics of the training targets."""

    mean: float
    std: float
    """Mean and standard deviation of the training molecules' dipole moments, Debye."""


def arguments(
    molecule: Molecule, mean: float = 0.0, std: float = 1.0, hydrogens: Literal["atoms", "counts"] = "atoms"
) -> tuple[Seq, Edges, Tensor]:
    """Returns the arguments of `Qm9` with ``features=FEATURES``. The target is in Debye, or ``(dipole - mean) / std``.

    ``hydrogens="counts"`` leaves hydrogens out of the graph: the features of every other atom hold their number, so
    nothing is lost, and the graph has half the atoms. A molecule of hydrogen alone keeps its atoms.
    """
    z, (a, b, kind) = molecule.atoms, molecule.bonds.T
    n = len(z)
    source, target = np.concatenate((a, b)), np.concatenate((b, a))
    kinds = np.concatenate((kind, kind))
    x = np.zeros((n, FEATURES), dtype=np.float32)
    x[:, :5] = z[:, None] == ELEMENTS
    x[:, 5] = z / 10
    x[:, 6:10] = np.bincount(target * KINDS + kinds, minlength=n * KINDS).reshape(n, KINDS)
    x[:, 10] = np.bincount(target, z[source] == 1, minlength=n)
    x[:, 11] = molecule.charges
    if hydrogens == "counts" and (heavy := z != 1).any():
        place, kept = np.cumsum(heavy) - 1, heavy[source] & heavy[target]
        x, source, target, kinds = x[heavy], place[source[kept]], place[target[kept]], kinds[kept]
    atoms = Seq(x=torch.from_numpy(x))
    value = torch.tensor([(molecule.dipole - mean) / std], dtype=torch.float32)
    return atoms, Edges(atoms, source, target, kind=kinds), value


def read(folder: Path, seed: int = 0) -> Molecules:
    """Read the file; ``seed`` determines the split."""
    path = need(folder, "qm9_graphs.npz")
    got = arrays(path, FIELDS)
    _check(path, got)
    index, atoms, charges, mu = got["index"], got["atomic_number"], got["formal_charge"], got["mu"]
    node, edge = got["node_offset"].tolist(), got["edge_offset"].tolist()
    bonds = np.stack((got["edge_src"], got["edge_dst"], got["edge_type"]), axis=1)

    def molecule(i: int) -> Molecule:
        own = slice(node[i], node[i + 1])
        joined = bonds[edge[i] : edge[i + 1]].astype(np.int64)
        return Molecule(int(index[i]), atoms[own], charges[own], joined, float(mu[i]))

    order = np.random.default_rng(seed).permutation(len(mu))
    train, valid = np.split(order, [len(mu) * TRAIN // ALL])
    splits = {"train": Split("qm9 train", molecule, train), "valid": Split("qm9 valid", molecule, valid)}
    learnt = mu[train].astype(np.float64)
    mean, std = (float(learnt.mean()), float(learnt.std())) if len(learnt) else (0.0, 1.0)
    return Molecules("qm9", splits, arguments, mean, std)


def _check(path: Path, got: dict[str, np.ndarray]) -> None:
    """Raise `BadFile` for inconsistent arrays, or atoms, bonds or numbers out of range."""
    count, node, edge = len(got["mu"]), got["node_offset"], got["edge_offset"]
    for name, offsets, parts in (
        ("node_offset", node, ("atomic_number", "formal_charge")),
        ("edge_offset", edge, ("edge_src", "edge_dst", "edge_type")),
    ):
        if offsets.shape != (count + 1,) or offsets.dtype.kind not in "iu" or offsets[0] != 0:
            raise broken(
                path, f"field '{name}'", f"{offsets.dtype} {offsets.shape}; it must be {count + 1} integers from 0"
            )
        least = 1 if name == "node_offset" else 0
        if len(wrong := np.flatnonzero(np.diff(offsets.astype(np.int64)) < least)):
            raise broken(
                path, f"molecule {wrong[0]}", f"'{name}' goes from {offsets[wrong[0]]} to {offsets[wrong[0] + 1]}"
            )
        for part in parts:
            if got[part].shape != (offsets[-1],) or got[part].dtype.kind not in "iu":
                raise broken(
                    path, f"field '{part}'", f"{got[part].dtype} {got[part].shape}; it must be {offsets[-1]} integers"
                )
    if got["index"].shape != (count,):
        raise broken(path, "field 'index'", f"{len(got['index'])} numbers for {count} molecules")
    owner = np.repeat(np.arange(count), np.diff(edge))
    atoms = np.diff(node)[owner]
    src, dst, kind = got["edge_src"], got["edge_dst"], got["edge_type"]
    of_atom = np.repeat(np.arange(count), np.diff(node))
    for what, bad, place in (
        (
            "a bond joins an atom that is not there, or an atom with itself",
            (src >= atoms) | (dst >= atoms) | (src == dst),
            owner,
        ),
        (f"a bond has a type above {KINDS - 1}", kind >= KINDS, owner),
        ("an atom is none of H, C, N, O, F", ~np.isin(got["atomic_number"], ELEMENTS), of_atom),
        (
            "its dipole moment is no finite number of Debye, 0 or more",
            ~(np.isfinite(got["mu"]) & (got["mu"] >= 0)),
            np.arange(count),
        ),
    ):
        if bad.any():
            i = int(place[np.flatnonzero(bad)[0]])
            raise broken(path, f"molecule {i} (number {got['index'][i]} of the original)", what)


ENTRY = Entry(
    name="qm9",
    about="small organic molecules, and their dipole moment",
    read=read,
    folder="qm9",
    files=(File("qm9_graphs.npz", "193033a864c49d116d88eda00bd15b36b05dfcfbe8f85046a7cc8f28d6ed3552", FIELDS),),
    counts={"train": TRAIN, "valid": ALL - TRAIN},
    source=Source(
        (qm9_archive.ARCHIVE, qm9_archive.LEFT_OUT),
        ("https://ndownloader.figshare.com/files/", "https://springernature.figshare.com/ndownloader/files/"),
        qm9_archive.convert,
        exact=False,
    ),
    licence="CC0 (figshare deposit of the paper)",
)
