"""Molecules from mol files and SMILES."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from ampnet import DataError
from ampnet.data.qm9 import Molecule
from ampnet.experiments.molecules import of_file, of_molfile, of_smiles

HEAD = "name\n  remark\n\n"


def molfile(atoms: str, bonds: list[tuple[int, int, int]], *more: str, charges: str = "") -> str:
    """A mol block, of the symbols of its atoms."""
    codes = charges.split() or ["0"] * len(atoms.split())
    lines = [f"{len(codes):3d}{len(bonds):3d}  0  0  0  0  0  0  0  0999 V2000"]
    lines += [f"{0:10.4f}{0:10.4f}{0:10.4f} {s:3s}{0:2d}{c:>3s}" for s, c in zip(atoms.split(), codes, strict=True)]
    lines += [f"{a:3d}{b:3d}{kind:3d}  0" for a, b, kind in bonds]
    return HEAD + "\n".join([*lines, *more, "M  END", ""])


WATER = molfile("O H H", [(1, 2, 1), (1, 3, 1)])


def facts(molecule: Molecule) -> tuple[list[int], list[int], list[list[int]]]:
    return molecule.atoms.tolist(), molecule.charges.tolist(), molecule.bonds.tolist()


def test_a_file_with_all_its_atoms(tmp_path: Path) -> None:
    path = tmp_path / "water.mol"
    path.write_text(WATER)
    assert facts(of_file(path)) == ([8, 1, 1], [0, 0, 0], [[0, 1, 0], [0, 2, 0]])


@pytest.mark.parametrize(
    ("atoms", "bonds", "hydrogens"),
    [
        ("O", [], 2),
        ("C", [], 4),
        ("F", [], 1),
        ("C C O", [(1, 2, 1), (2, 3, 1)], 6),
        ("C N", [(1, 2, 3)], 1),
        ("C O", [(1, 2, 2)], 2),
        ("C C C C C C", [(1, 2, 4), (2, 3, 4), (3, 4, 4), (4, 5, 4), (5, 6, 4), (1, 6, 4)], 6),
        ("O H", [(1, 2, 1)], 1),
    ],
)
def test_hydrogens_that_are_not_written_down(atoms: str, bonds: list[tuple[int, int, int]], hydrogens: int) -> None:
    molecule = of_molfile(molfile(atoms, bonds), "it")
    written = len(atoms.split())
    assert molecule.atoms[written:].tolist() == [1] * hydrogens
    assert (molecule.bonds[len(bonds) :, 2] == 0).all()
    assert len(molecule.charges) == written + hydrogens


def test_charges_of_atoms() -> None:
    """Ammonium and hydroxide; in lines of their own they go before codes."""
    ammonium = of_molfile(molfile("N", [], charges="3"), "it")
    assert (ammonium.charges[0], len(ammonium.atoms)) == (1, 5)
    hydroxide = of_molfile(molfile("O", [], "M  CHG  1   1  -1"), "it")
    assert (hydroxide.charges[0], len(hydroxide.atoms)) == (-1, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing of it", "it: no line says V2000"),
        (HEAD + "  0  0  0     0  0            999 V3000\n", "it, line 4: this is a V3000 file"),
        (WATER.replace(" O  ", " Xe "), "it, line 5: the element is 'Xe'; QM9 has H, C, N, O, F only"),
        (WATER.replace("  1  3  1", "  1  4  1"), "it, line 9: a bond between atoms 1 and 4; there are 3, from 1"),
        (WATER.replace("  1  3  1", "  1  3  9"), "it, line 9: a bond of type 9; known are 1 (single)"),
        (WATER.replace("  1  3  1", "  1  x  1"), "it, line 9: invalid literal"),
        ("\n".join(WATER.splitlines()[:6]), "it, line 7: the file ends here, or the line does; it says 3 atoms"),
        (molfile("", []), "it, line 4: a molecule without atoms"),
    ],
)
def test_a_fault_has_its_line(text: str, said: str) -> None:
    with pytest.raises(DataError) as found:
        of_molfile(text, "it")
    assert str(found.value).startswith(said)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        of_file(tmp_path / "none.mol")
    (tmp_path / "binary.mol").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not a mol file: it is not text"):
        of_file(tmp_path / "binary.mol")


class _Rdkit:
    """As much of RDKit as is asked for: methanol without a hydrogen, or what a test says."""

    def __init__(self, symbols: str = "C O", numbers: tuple[int, ...] = (6, 8)) -> None:
        atoms = [
            SimpleNamespace(
                GetSymbol=lambda s=s: s, GetAtomicNum=lambda n=n: n, GetFormalCharge=lambda: 0, GetIdx=lambda i=i: i
            )
            for i, (s, n) in enumerate(zip(symbols.split(), numbers, strict=True))
        ]
        bond = SimpleNamespace(GetBeginAtomIdx=lambda: 0, GetEndAtomIdx=lambda: 1, GetBondType=lambda: "AROMATIC")
        self.found = SimpleNamespace(GetNumAtoms=lambda: 2, GetAtoms=lambda: atoms, GetBonds=lambda: [bond])

    def module(self) -> ModuleType:
        chem = ModuleType("rdkit.Chem")
        chem.MolFromSmiles = lambda text: None if text == "?" else self.found  # type: ignore[attr-defined]
        chem.AddHs = lambda found: found  # type: ignore[attr-defined]
        return chem


def test_smiles_by_rdkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", ModuleType("rdkit"))
    monkeypatch.setitem(sys.modules, "rdkit.Chem", _Rdkit().module())
    assert facts(of_smiles("co")) == ([6, 8], [0, 0], [[0, 1, 3]])
    with pytest.raises(DataError, match="'\\?': RDKit cannot read it as SMILES"):
        of_smiles("?")
    monkeypatch.setitem(sys.modules, "rdkit.Chem", _Rdkit("C Cl", (6, 17)).module())
    with pytest.raises(DataError, match="'CCl', atom 2: the element is 'Cl'"):
        of_smiles("CCl")


def test_smiles_by_the_real_rdkit() -> None:
    pytest.importorskip("rdkit")
    molecule = of_smiles("c1ccccc1O")
    assert np.bincount(molecule.atoms, minlength=9)[[1, 6, 8]].tolist() == [6, 6, 1]
    assert np.bincount(molecule.bonds[:, 2], minlength=4).tolist() == [7, 0, 0, 6]
