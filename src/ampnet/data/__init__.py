"""Data sets. `load` gives one by its name; `ampnet data list` shows what there is and where it is."""

from ampnet.data.dataset import Dataset, Split, load

__all__ = ["Dataset", "Split", "load"]
