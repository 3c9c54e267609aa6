"""Data sets. `load` returns one by name; `ampnet data list` lists them and their folders."""

from ampnet.data.dataset import Dataset, Split, load

__all__ = ["Dataset", "Split", "load"]
