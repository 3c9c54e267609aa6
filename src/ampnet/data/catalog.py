"""The catalogue: every data set by name, each as its own module describes it."""

from __future__ import annotations

from ampnet.data import babi15, babi15_symbolic, babi15_text, list_reduction, mnist, qm9, sst, word_vectors
from ampnet.data.entry import Entry
from ampnet.errors import DataError, nearest

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        mnist.ENTRY,
        list_reduction.ENTRY,
        sst.ENTRY,
        word_vectors.GLOVE,
        word_vectors.WORDVEC300,
        babi15.ENTRY,
        babi15_text.EN,
        babi15_text.EN_10K,
        babi15_symbolic.ENTRY,
        qm9.ENTRY,
    )
}


def entry_of(name: str) -> Entry:
    """Returns the entry of that name; raises `DataError` for an unknown name."""
    if name in ENTRIES:
        return ENTRIES[name]
    raise DataError(f"there is no data set '{name}'; {nearest(name, ENTRIES)}")
