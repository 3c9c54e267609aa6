"""MNIST: handwritten digits, 28 by 28 pixels (LeCun, Cortes, Burges). 60,000 for training, 10,000 for testing.

The idx format is a header of big-endian integers, then bytes:

    images   00 00 08 03   count   28   28   pixels ...          labels   00 00 08 01   count   labels ...
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ampnet.data.dataset import Dataset, Split
from ampnet.data.entry import Entry, File, Remote, Source
from ampnet.data.files import broken, need, unpack

SIDE, CLASSES = 28, 10
MEAN, STD = 0.1307, 0.3081
"""Mean and standard deviation of the training pixels, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Digit:
    """An image: ``pixels`` [784], 0 (white) to 255, and its ``label``."""

    pixels: np.ndarray
    label: int


def arguments(digit: Digit) -> tuple[Tensor, Tensor]:
    """Returns the arguments of `Mlp`: pixels with mean 0 and standard deviation 1, and the class."""
    pixels = digit.pixels.astype(np.float32)
    pixels *= 1 / (255 * STD)
    pixels -= MEAN / STD
    return torch.from_numpy(pixels), torch.tensor(digit.label)


def read(folder: Path) -> Dataset[Digit]:
    """Read the four files."""
    return Dataset("mnist", {"train": _split(folder, "train"), "test": _split(folder, "t10k")}, arguments)


def _split(folder: Path, part: str) -> Split[Digit]:
    images = need(folder, f"{part}-images-idx3-ubyte")
    pixels = _idx(images, "image", (SIDE, SIDE))
    path = need(folder, f"{part}-labels-idx1-ubyte")
    labels = _idx(path, "label", ())
    if len(labels) != len(pixels):
        raise broken(path, f"label {min(len(labels), len(pixels))}", f"{len(labels)} labels for {len(pixels)} images")
    wrong = np.flatnonzero(labels >= CLASSES)
    if len(wrong):
        raise broken(path, f"label {wrong[0]}", f"it is {labels[wrong[0]]}; there are {CLASSES} classes")
    return Split(f"mnist {part}", lambda i: Digit(pixels[i], int(labels[i])), len(labels))


def _idx(path: Path, unit: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the rows of an idx file of bytes, each flattened."""
    data, fault = unpack(path)
    header = 8 + 4 * len(shape)
    if len(data) < header:
        raise broken(path, "", fault or "it ends within its header")
    magic, count, *sizes = np.frombuffer(data, ">u4", 2 + len(shape)).tolist()
    if magic != 0x801 + len(shape) or tuple(sizes) != shape:
        raise broken(path, "", f"not an idx file of {unit}s (it begins with {bytes(data[:4]).hex(' ')}, sizes {sizes})")
    width = int(np.prod(shape))
    have = len(data) - header
    if have < count * width:
        raise broken(path, f"{unit} {have // width} of {count}", fault or "the file ends before it does")
    if fault is not None:
        raise broken(path, "", fault)
    if have > count * width:
        raise broken(
            path, f"{unit} {count}", f"it says that it holds {count}, and goes on for {have - count * width} bytes"
        )
    return (
        np.frombuffer(data, np.uint8, offset=header).reshape(count, width)
        if shape
        else np.frombuffer(data, np.uint8, offset=header)
    )


ENTRY = Entry(
    name="mnist",
    about="handwritten digits, 28 x 28 pixels",
    read=read,
    folder="mnist",
    files=(
        File("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        File("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        File("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        File("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
    counts={"train": 60_000, "test": 10_000},
    source=Source(
        tuple(
            Remote(f"{part}-{what}-ubyte.gz") for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")
        ),
        bases=("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    ),
    licence="copyright Y. LeCun and C. Cortes; commonly given as CC BY-SA 3.0",
)
