"""SMILES as molecular graphs. That all graphs of QM9 come out as RDKit made them is in `test_official`."""

from __future__ import annotations

import pytest

from ampnet.data.smiles import AROMATIC, molecule


def orders(text: str) -> list[int]:
    """Of the bonds between heavy atoms."""
    atoms, _, bonds = molecule(text)
    return [order for a, b, order in bonds if atoms[b] != 1]


def test_hydrogens_and_charges() -> None:
    atoms, charges, bonds = molecule("[NH3+]CC([O-])=O")
    assert atoms == [7, 6, 6, 8, 8, 1, 1, 1, 1, 1]
    assert charges == [1, 0, 0, -1, 0, 0, 0, 0, 0, 0]
    assert bonds == [(0, 1, 1), (1, 2, 1), (2, 3, 1), (2, 4, 2), *((0, h, 1) for h in (5, 6, 7)), (1, 8, 1), (1, 9, 1)]


def test_rings_are_closed_after_the_chain_in_the_order_of_their_digits() -> None:
    _, _, bonds = molecule("C1C2C1C1=CN=NN21")
    assert [bond[:2] for bond in bonds[:10]] == [*((i, i + 1) for i in range(7)), (0, 2), (3, 7), (1, 7)]


def test_nitro_groups_have_charges() -> None:
    atoms, charges, bonds = molecule("CN(=O)=O")
    assert charges[:4] == [0, 1, -1, 0] and bonds[:3] == [(0, 1, 1), (1, 2, 1), (1, 3, 2)] and len(atoms) == 7


@pytest.mark.parametrize(
    ("text", "aromatic"),
    [
        pytest.param("C1=CC=CC=C1", 6, id="benzene"),
        pytest.param("C1=CC=CN1", 5, id="pyrrole"),
        pytest.param("C1=COC=C1", 5, id="furan"),
        pytest.param("C1C=CC=C1", 0, id="cyclopentadiene: an atom that gives nothing"),
        pytest.param("C1=CC=C1", 0, id="cyclobutadiene: four electrons"),
        pytest.param("O=C1C=CC=CN1", 6, id="pyridone: the oxygen outside takes the carbon's electron"),
        pytest.param("C1=CC2=CN=CN2N=C1", 10, id="two rings, both aromatic"),
        pytest.param("C1=CC2=CC=CC2=C1", 0, id="pentalene: eight electrons"),
        pytest.param("N1C=CC=CC=CC=C1", 9, id="azonine: ten electrons"),
        pytest.param("O1C=CC=CC=CC=C1", 0, id="oxonine: oxygen in a large ring"),
        pytest.param("C#CC1CC1", 0, id="no double bond in a ring"),
    ],
)
def test_aromatic_bonds(text: str, aromatic: int) -> None:
    assert orders(text).count(AROMATIC) == aromatic


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no atom"),
        ("CS", "character 2: 'S' is not in the SMILES of QM9"),
        ("c1ccccc1", "character 1"),
        ("1CC1", "character 1"),
        ("C1CC", "not closed"),
        ("C(C", "not closed"),
        ("CC)C", "character 3: .* without"),
        ("C(C)(C)(C)(C)C", "atom 1 has too many bonds"),
    ],
)
def test_what_is_not_read(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        molecule(text)
