"""Archives as the official sources have them, made from what they hold."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

SYMBOLS = {1: "H", 6: "C", 7: "N", 8: "O", 9: "F"}


def xyz(number: int, smiles: str, atoms: Iterable[int], dipole: str) -> str:
    """A file of QM9. What nobody reads of it is zero."""
    rows = [f"{SYMBOLS[z]}\t 0.\t-2.1997*^-6\t 0.\t 0." for z in atoms]
    properties = "\t".join(["0.", "0.", "0.", dipole, *(["0."] * 11)])
    head = [str(len(rows)), f"gdb {number}\t{properties}\t"]
    return "\n".join([*head, *rows, "0.\t0.", f"{smiles}\tC@H?\t", "InChI=1S\tInChI=1S", ""])


def write_qm9(path: Path, files: Iterable[tuple[str, str]], extra: Collection[tarfile.TarInfo] = ()) -> None:
    """A tar.bz2 of texts by name, and members without contents."""
    with tarfile.open(path, "w:bz2", compresslevel=1) as archive:
        for name, text in files:
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
        for member in extra:
            archive.addfile(member)


def qm9_list(numbers: Iterable[int]) -> str:
    """The list of molecules that failed the consistency check."""
    rows = "".join(f"{number:>10}   C1CC1   CC=C   0.0   0.0\n" for number in numbers)
    return f"Consistency check\n=================\n\n Index   SMILES\n ---------\n{rows} ---------\n"


def write_zip(path: Path, files: Mapping[str, str]) -> None:
    """A zip of texts by name."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
