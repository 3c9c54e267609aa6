"""Molecules as people have them: a mol file (V2000), or SMILES where RDKit is installed.

    water                                             line 1 to 3: a name and remarks
      ...
                                                      line 4: how many atoms and bonds
      1  0  0  0  0  0  0  0  0  0999 V2000
        0.0000    0.0000    0.0000 O   0  0           an atom: three coordinates, the element
    M  END                                            bonds: two atoms, counted from 1, and a type (4: aromatic)

QM9's molecules have all their hydrogens. Files often leave them out: a hydrogen is added for every bond that an atom of
its element and charge lacks. At an aromatic nitrogen that cannot be told, and the hydrogen must be written down. Bonds
are taken as they are written; in the data, rings of single and double bonds in turn are aromatic, so a file should say
so too (type 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np

from ampnet.data.qm9 import Molecule
from ampnet.errors import DataError

SYMBOLS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}
BONDS = {1: 4, 6: 4, 7: 3, 8: 2, 9: 1, 0: 0}
"""The valence of an atom, by atomic number."""
ORDERS = (1.0, 2.0, 3.0, 1.5)
"""Bond orders of single, double, triple and aromatic bonds."""
CHARGES = {1: 3, 2: 2, 3: 1, 5: -1, 6: -2, 7: -3}
"""Charges by the code in an atom line."""

Bond = tuple[int, int, int]


def of_file(path: Path) -> Molecule:
    """The first molecule of a .mol or .sdf file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a mol file: it is not text") from error
    return of_molfile(text, str(path))


def of_molfile(text: str, name: str) -> Molecule:
    """Parse a mol block. A fault is a `DataError` that names the line."""
    lines = text.splitlines()
    at = next((i for i, line in enumerate(lines) if "V2000" in line or "V3000" in line), None)
    if at is None:
        raise DataError(f"{name}: no line says V2000; a mol file has its counts there")
    if "V3000" in lines[at]:
        raise DataError(f"{name}, line {at + 1}: this is a V3000 file; write it as V2000")
    number = at + 1
    try:
        atoms, bonds = int(lines[at][:3]), int(lines[at][3:6])
        symbols, charges = [], []
        for i in range(atoms):
            number = at + 2 + i
            symbols.append(_element(lines[number - 1][31:34].strip()))
            charges.append(CHARGES.get(int(lines[number - 1][36:39].strip() or 0), 0))
        joined = []
        for i in range(bonds):
            number = at + 2 + atoms + i
            joined.append(_bond(lines[number - 1], atoms))
        for line in lines[at + 1 + atoms + bonds :]:
            number += 1
            if line.startswith(("M  END", "$$$$")):
                break
            if line.startswith("M  CHG"):
                pairs = [int(word) for word in line[9:].split()]
                for atom, charge in zip(pairs[::2], pairs[1::2], strict=True):
                    charges[atom - 1] = charge
    except IndexError:
        raise DataError(f"{name}, line {number}: the file ends here, or the line does; it says {atoms} atoms") from None
    except ValueError as error:
        raise DataError(f"{name}, line {number}: {error}") from error
    if not symbols:
        raise DataError(f"{name}, line {at + 1}: a molecule without atoms")
    return _whole(symbols, charges, joined)


def _element(symbol: str) -> int:
    if symbol not in SYMBOLS:
        raise ValueError(f"the element is {symbol!r}; QM9 has {', '.join(SYMBOLS)} only")
    return SYMBOLS[symbol]


def _bond(line: str, atoms: int) -> Bond:
    a, b, kind = int(line[:3]), int(line[3:6]), int(line[6:9])
    if not (1 <= a <= atoms and 1 <= b <= atoms and a != b):
        raise ValueError(f"a bond between atoms {a} and {b}; there are {atoms}, from 1")
    if not 1 <= kind <= 4:
        raise ValueError(f"a bond of type {kind}; known are 1 (single), 2 (double), 3 (triple) and 4 (aromatic)")
    return a - 1, b - 1, kind - 1


def _whole(symbols: Sequence[int], charges: Sequence[int], bonds: Sequence[Bond]) -> Molecule:
    """Add implicit hydrogens."""
    have = [0.0] * len(symbols)
    for a, b, kind in bonds:
        have[a] += ORDERS[kind]
        have[b] += ORDERS[kind]
    atoms, charge, joined = list(symbols), list(charges), list(bonds)
    for atom, (symbol, of_atom) in enumerate(zip(symbols, charges, strict=True)):
        for _ in range(int(_valence(symbol, of_atom) - have[atom])):
            joined.append((atom, len(atoms), 0))
            atoms.append(1)
            charge.append(0)
    return _molecule(atoms, charge, joined)


def _valence(symbol: int, charge: int) -> int:
    """The valence of an atom with its charge: N+ four, O- one, C+ and C- three."""
    if symbol == 1:
        return 1 - abs(charge)
    return BONDS[symbol] + (-abs(charge) if symbol == 6 else charge)


def of_smiles(text: str) -> Molecule:
    """By RDKit, as the data were made: with hydrogens, and aromatic bonds as it sees them."""
    try:
        chem = import_module("rdkit.Chem")
    except ImportError:
        raise DataError(
            f"{text!r}: SMILES are read by RDKit, which is not installed ('pip install rdkit'); a .mol file needs no "
            f"package"
        ) from None
    found = chem.MolFromSmiles(text)
    if found is None or not found.GetNumAtoms():
        raise DataError(f"{text!r}: RDKit cannot read it as SMILES; write a molecule like CCO, or name a .mol file")
    found = chem.AddHs(found)
    kinds = {"SINGLE": 0, "DOUBLE": 1, "TRIPLE": 2, "AROMATIC": 3}
    atoms = list(found.GetAtoms())
    for atom in atoms:
        if atom.GetSymbol() not in SYMBOLS:
            known = ", ".join(SYMBOLS)
            raise DataError(
                f"{text!r}, atom {atom.GetIdx() + 1}: the element is {atom.GetSymbol()!r}; QM9 has {known} only"
            )
    bonds = [(b.GetBeginAtomIdx(), b.GetEndAtomIdx(), kinds[str(b.GetBondType())]) for b in found.GetBonds()]
    return _molecule([a.GetAtomicNum() for a in atoms], [a.GetFormalCharge() for a in atoms], bonds)


def _molecule(atoms: Sequence[int], charges: Sequence[int], bonds: Sequence[Bond]) -> Molecule:
    return Molecule(0, np.array(atoms), np.array(charges), np.array(bonds, dtype=np.int64).reshape(-1, 3), 0.0)
