"""QM9 from its official archive: the 133,885 xyz files of the figshare deposit become the graphs of `ampnet.data.qm9`.

    5                                           atoms
    gdb 1   157.7118 157.70997 157.70699 0. ... number, rotational constants A B C, dipole moment (Debye), and more
    C  -0.0126981359  1.0858041578 ...          one atom per line: element, coordinates, charge
    H  ...
    1341.307  1341.3284 ...                     frequencies
    C   C                                       SMILES: of GDB-17, and of the relaxed geometry
    InChI=1S/CH4/h1H4   InChI=1S/CH4/h1H4

The files have no bonds. Ours are those of the first SMILES (`ampnet.data.smiles`), the molecule that the geometry was
calculated for. Its atoms must be those of the file. Molecules listed in ``uncharacterized.txt`` are left out: their
relaxed geometry is another molecule than that of the SMILES.
"""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ampnet.data import smiles
from ampnet.data.entry import Remote
from ampnet.data.files import BadFile, broken

ARCHIVE = Remote(
    "dsgdb9nsd.xyz.tar.bz2",
    "3195389",
    "3a63848ac80691bdb8d41834b575afad345b9300d7a2db0c38adb7f6eaa8360c",
    86_144_227,
)
LEFT_OUT = Remote(
    "uncharacterized.txt",
    "3195404",
    "3aa5115d540b356de94791d4a74c3bf1ed91c469ecf52a4f5d7cc0506fe02e24",
    486_752,
)
NAME = re.compile(r"dsgdb9nsd_\d{6}\.xyz")
LARGEST = 1 << 16
"""The maximal number of bytes of an xyz file."""
SYMBOLS = {"H": 1, **smiles.NUMBERS}

Graph = tuple[list[int], list[int], list[smiles.Bond], float]
"""Atomic numbers, formal charges, bonds, dipole moment."""


def convert(fetched: Path, out: Path, data_dir: Path | None) -> None:
    """Write ``qm9_graphs.npz``."""
    path = fetched / ARCHIVE.name
    left_out = _left_out(fetched / LEFT_OUT.name)
    graphs: dict[int, Graph] = {}
    seen = set()
    try:
        with tarfile.open(path, "r|bz2") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() and member.size <= LARGEST else None
                if file is None or not NAME.fullmatch(member.name):
                    raise broken(path, f"member {member.name!r}", "not an xyz file of QM9; nothing was unpacked")
                try:
                    index, text = _numbered(file.read().decode("ascii"))
                    if index in seen:
                        raise ValueError(f"molecule {index} is there twice")
                    seen.add(index)
                    if index not in left_out:
                        graphs[index] = _graph(text)
                except ValueError as error:
                    raise broken(path, member.name, str(error)) from error
    except (tarfile.TarError, OSError, EOFError) as error:
        raise broken(path, "", f"not the archive of QM9, or cut short ({error})") from error
    if strange := left_out - seen:
        raise broken(path, "", f"it lacks {len(strange):,} molecules of {LEFT_OUT.name}, first number {min(strange)}")
    np.savez_compressed(out / "qm9_graphs.npz", **packed(graphs))


def _left_out(path: Path) -> set[int]:
    """Returns the numbers in the list of molecules, from the lines that begin with one."""
    rows = map(str.split, path.read_text(encoding="utf-8", errors="replace").splitlines())
    found = {int(row[0]) for row in rows if row and row[0].isdecimal()}
    if not found:
        raise BadFile(f"{path}: no line begins with the number of a molecule")
    return found


def _numbered(text: str) -> tuple[int, list[str]]:
    """Returns the number of a molecule, and the lines of its file."""
    rows = text.splitlines()
    head = rows[1].split() if len(rows) > 1 else []
    if len(head) != 17 or head[0] != "gdb" or not head[1].isdecimal() or not rows[0].strip().isdecimal():
        raise ValueError("it does not begin with the number of atoms and a line of 'gdb', a number and 15 properties")
    if len(rows) != int(rows[0]) + 5:
        raise ValueError(f"{len(rows)} lines; {rows[0].strip()} atoms make {int(rows[0]) + 5}")
    return int(head[1]), rows


def _graph(rows: list[str]) -> Graph:
    count = int(rows[0])
    atoms, charges, bonds = smiles.molecule(rows[count + 3].split()[0])
    listed = Counter(SYMBOLS.get(row.split()[0], 0) for row in rows[2 : count + 2])
    if listed != Counter(atoms):
        raise ValueError(f"its SMILES has other atoms ({len(atoms)}) than it lists ({count})")
    return atoms, charges, bonds, float(rows[1].split()[5].replace("*^", "e"))


def packed(graphs: dict[int, Graph]) -> dict[str, Any]:
    """Returns the arrays of `ampnet.data.qm9` for molecules by number, sorted."""
    order = sorted(graphs)
    bonds = np.array([bond for i in order for bond in graphs[i][2]], dtype=np.uint8).reshape(-1, 3)
    return {
        "index": np.array(order, dtype=np.int32),
        "node_offset": np.cumsum([0, *(len(graphs[i][0]) for i in order)], dtype=np.int32),
        "edge_offset": np.cumsum([0, *(len(graphs[i][2]) for i in order)], dtype=np.int32),
        "atomic_number": np.array([z for i in order for z in graphs[i][0]], dtype=np.uint8),
        "formal_charge": np.array([c for i in order for c in graphs[i][1]], dtype=np.int8),
        "edge_src": bonds[:, 0],
        "edge_dst": bonds[:, 1],
        "edge_type": bonds[:, 2] - 1,
        "mu": np.array([graphs[i][3] for i in order], dtype=np.float32),
    }
