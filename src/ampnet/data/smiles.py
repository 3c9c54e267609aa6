"""Molecular graphs from SMILES, which hold the bonds in QM9's archive. Pure Python; equal to RDKit's graphs for QM9.

    NC1=CNC=N1      atoms in the order of the text, a digit opens and closes a ring, brackets hold charges: [NH3+]

    parse           heavy atoms, charges, hydrogens at each, bonds of order 1 to 3 (chain bonds, then ring bonds)
    aromatic        the bonds that are aromatic
    molecule        both, and an atom for every hydrogen

**Aromaticity** follows RDKit's default model, as its documentation (the RDKit Book, "Aromaticity") describes it. An
atom gives 0, 1 or 2 electrons to a ring, or cannot be part of an aromatic one. A ring, or several that share bonds, is
aromatic with 4n + 2 electrons; its outer bonds become aromatic.

Only the subset that QM9 uses is supported: C, N, O and F, with single, double and triple bonds. Anything else raises
ValueError.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

NUMBERS = {"C": 6, "N": 7, "O": 8, "F": 9}
VALENCE = {6: 4, 7: 3, 8: 2, 9: 1}
AROMATIC = 4
SMALL = 8
TOKEN = re.compile(r"\[([CNOF])(H?)(\d?)(\+|-|)\]|([CNOF])|([=#])|([()])|(\d)")

Bond = tuple[int, int, int]
"""Two atoms, the first before the second, and an order (1, 2, 3, or `AROMATIC`)."""


def molecule(text: str) -> tuple[list[int], list[int], list[Bond]]:
    """Returns atomic numbers, formal charges and bonds, hydrogens last."""
    atoms, charges, hydrogens, bonds = parse(text)
    ringed = aromatic(atoms, charges, hydrogens, bonds)
    bonds = [(a, b, AROMATIC if i in ringed else order) for i, (a, b, order) in enumerate(bonds)]
    for atom, count in enumerate(hydrogens):
        for _ in range(count):
            bonds.append((atom, len(atoms), 1))
            atoms.append(1)
            charges.append(0)
    return atoms, charges, bonds


def parse(text: str) -> tuple[list[int], list[int], list[int], list[Bond]]:
    """Returns atomic numbers, formal charges and hydrogen counts of the heavy atoms, and the bonds between them."""
    atoms: list[int] = []
    charges: list[int] = []
    given: list[int | None] = []  # hydrogens of an atom in brackets
    chain: list[Bond] = []
    rings: list[tuple[str, Bond]] = []
    opened: dict[str, tuple[int, int]] = {}
    branches: list[int] = []
    last, order, at = -1, 1, 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None or (match[8] and last < 0):
            raise ValueError(f"{text!r}, character {at + 1}: {text[at:]!r} is not in the SMILES of QM9")
        at = match.end()
        bracketed, h, count, charge, plain, sign, branch, digit = match.groups()
        if bracketed or plain:
            atoms.append(NUMBERS[bracketed or plain])
            charges.append({"+": 1, "-": -1}.get(charge, 0))
            given.append(int(count or bool(h)) if bracketed else None)
            if last >= 0:
                chain.append((last, len(atoms) - 1, order))
            last, order = len(atoms) - 1, 1
        elif sign:
            order = 2 if sign == "=" else 3
        elif branch == "(":
            branches.append(last)
        elif branch:
            if not branches:
                raise ValueError(f"{text!r}, character {at}: ')' without '('")
            last = branches.pop()
        elif digit in opened:
            first, before = opened.pop(digit)
            rings.append((digit, (first, last, max(order, before))))
            order = 1
        else:
            opened[digit] = last, order
            order = 1
    if not atoms or branches or opened:
        raise ValueError(f"{text!r}: no atom, or a branch or ring that is not closed")
    bonds = chain + [bond for _, bond in sorted(rings, key=lambda ring: ring[0])]
    _charge_nitro(atoms, charges, bonds)
    used = [0] * len(atoms)
    for a, b, order in bonds:
        used[a] += order
        used[b] += order
    hydrogens = [
        VALENCE[z] + (charge if z > 6 else 0) - n if h is None else h
        for z, charge, n, h in zip(atoms, charges, used, given, strict=True)
    ]
    if min(hydrogens) < 0:
        raise ValueError(f"{text!r}: atom {hydrogens.index(min(hydrogens)) + 1} has too many bonds")
    return atoms, charges, hydrogens, bonds


def _charge_nitro(atoms: Sequence[int], charges: list[int], bonds: list[Bond]) -> None:
    """Rewrite N(=O)=O, a nitrogen with five bonds, as [N+]([O-])=O: the first of its oxygens has the charge."""
    for n in (i for i, z in enumerate(atoms) if z == 7 and not charges[i]):
        own = [k for k, bond in enumerate(bonds) if n in bond[:2]]
        oxygens = [k for k in own if bonds[k][2] == 2 and atoms[sum(bonds[k][:2]) - n] == 8]
        if sum(bonds[k][2] for k in own) == 5 and oxygens:
            a, b, _ = bonds[oxygens[0]]
            bonds[oxygens[0]] = a, b, 1
            charges[n], charges[a + b - n] = 1, -1


def aromatic(atoms: Sequence[int], charges: Sequence[int], hydrogens: Sequence[int], bonds: Sequence[Bond]) -> set[int]:
    """Returns the indices of the aromatic bonds."""
    if len(bonds) < len(atoms) or all(order == 1 for *_, order in bonds):
        return set()
    rings = _rings(len(atoms), bonds)
    cyclic = frozenset().union(*rings)
    at: list[list[tuple[int, int, bool]]] = [[] for _ in atoms]
    for k, (a, b, order) in enumerate(bonds):
        at[a].append((atoms[b], order, k in cyclic))
        at[b].append((atoms[a], order, k in cyclic))
    electrons = list(map(_electrons, atoms, charges, hydrogens, at))
    corners = {ring: {i for k in ring for i in bonds[k][:2]} for ring in rings}

    def possible(ring: frozenset[int]) -> bool:
        """Whether a ring can be aromatic: an oxygen between single bonds counts in small rings only (RDKit 2026.09)."""
        return all(
            electrons[i] is not None and (len(ring) <= SMALL or atoms[i] != 8 or charges[i] or electrons[i] != 2)
            for i in corners[ring]
        )

    rings = list(filter(possible, rings))
    out: set[int] = set()
    for size in range(1, len(rings) + 1):
        for some in combinations(rings, size):
            if not _joined(some):
                continue
            shared = Counter(i for ring in some for i in corners[ring])
            total = sum(electrons[i] or 0 for i, n in shared.items() if n <= 2)
            if total % 4 == 2:
                times = Counter(k for ring in some for k in ring)
                out |= {k for k, n in times.items() if n == 1}
    return out


def _electrons(z: int, charge: int, hydrogens: int, bonds: Sequence[tuple[int, int, bool]]) -> int | None:
    """Returns an atom's electrons for an aromatic ring; None: it cannot be in one. A bond is (neighbour, order, in a
    ring)."""
    degree = len(bonds) + hydrogens
    valence = sum(order for _, order, _ in bonds) + hydrogens
    allowed = VALENCE.get(z - charge, 0) if charge else VALENCE[z]
    multiple = [(other, cyclic) for other, order, cyclic in bonds if order > 1]
    if VALENCE[z] < 2 or degree > 3 or len(multiple) > 1 or (allowed and valence > allowed):
        return None
    pairs = max({6: 0, 7: 2, 8: 4}[z] - charge, 0)
    free = VALENCE[z] - degree + pairs
    if free > 1 and valence - degree > 1:
        free = 1
    outside = [other for other, cyclic in multiple if not cyclic]
    if free < 0:
        return None
    if free == 0:
        return 0 if outside else 1 if multiple else None
    if free == 1:
        if outside:
            return 0 if outside[0] > z else 1
        return 1 if multiple else 0 if charge == 1 else None
    if outside and outside[0] > z:
        free -= 1
    return 1 if free % 2 else 2


def _rings(atoms: int, bonds: Sequence[Bond]) -> list[frozenset[int]]:
    """Returns the smallest rings, as sets of bonds: all simple cycles that are not a sum of shorter ones."""
    near: list[list[tuple[int, int]]] = [[] for _ in range(atoms)]
    for k, (a, b, _) in enumerate(bonds):
        near[a].append((b, k))
        near[b].append((a, k))

    def walk(first: int, at: int, seen: int, taken: int) -> Iterator[int]:
        for other, k in near[at]:
            if other == first and taken.bit_count() > 1 and not taken >> k & 1:
                yield taken | 1 << k
            elif other > first and not seen >> other & 1:
                yield from walk(first, other, seen | 1 << other, taken | 1 << k)

    cycles = sorted({c for first in range(atoms) for c in walk(first, first, 1 << first, 0)}, key=int.bit_count)
    out: list[frozenset[int]] = []
    basis: list[int] = []
    shorter: list[int] = []
    length = 0
    for cycle in cycles:
        if cycle.bit_count() > length:
            length, shorter = cycle.bit_count(), list(basis)
        if _reduced(cycle, shorter):
            out.append(frozenset(k for k in range(len(bonds)) if cycle >> k & 1))
            if left := _reduced(cycle, basis):
                basis.append(left)
    return out


def _reduced(vector: int, basis: Sequence[int]) -> int:
    """Returns the remainder of a vector over GF(2): 0 if it is a sum of the basis, whose leading bits differ."""
    for other in sorted(basis, reverse=True):
        vector = min(vector, vector ^ other)
    return vector


def _joined(rings: Sequence[frozenset[int]]) -> bool:
    """Whether rings are connected by shared bonds."""
    reached, rest = set(rings[0]), list(rings[1:])
    while more := [ring for ring in rest if ring & reached]:
        reached.update(*more)
        rest = [ring for ring in rest if ring not in more]
    return not rest
