"""MNIST: a perceptron of four layers, 784 wide, buckets of 100 images, SGD.

Generated images are noisy copies of ten prototypes with a fifth of their pixels set, scaled like the real ones.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from ampnet.data import load
from ampnet.data.mnist import CLASSES, MEAN, SIDE, STD
from ampnet.models import Mlp
from bench.batch import Bucket
from bench.peers import mnist as peers
from bench.peers.foreign import Foreign
from bench.peers.peer import compiled
from bench.workload import Bound, Data, Ours, Target, Wanted, Workload

WIDTH, LAYERS = SIDE * SIDE, 4
TRAIN, VALID = 60_000, 10_000
SET, FLIPPED = 0.19, 0.1
"""Of the pixels of a prototype, and of an image that is a copy of it."""


def generated(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images and labels. All draws have the same prototypes."""
    prototypes = np.random.default_rng(0).random((CLASSES, WIDTH)) < SET
    rng = np.random.default_rng((seed, 1))
    labels = rng.integers(0, CLASSES, count)
    pixels = (rng.random((count, WIDTH), dtype=np.float32) < FLIPPED) ^ prototypes[labels]
    images = (pixels.astype(np.float32) - np.float32(MEAN)) / np.float32(STD)
    return torch.from_numpy(images), torch.from_numpy(labels)


def data(wanted: Wanted) -> Data:
    if wanted.real("mnist"):
        found = load("mnist", wanted.folder)
        parts = []
        for split, most in ((found.train.shuffled(wanted.seed), TRAIN), (found.valid, VALID)):
            images, labels = zip(*map(found.arguments, split[: wanted.records(most)]), strict=True)
            parts.append((torch.stack(images), torch.stack(labels)))
        kind = "real"
    else:
        seeds = ((TRAIN, 2 * wanted.seed), (VALID, 2 * wanted.seed + 1))
        parts = [generated(wanted.records(most), seed) for most, seed in seeds]
        kind = "generated"
    train, valid = ([Bucket(len(y), (x, y)) for x, y in _split(part, wanted.batch)] for part in parts)
    return Data(kind, train, valid)


def _split(part: tuple[Tensor, Tensor], size: int) -> zip[tuple[Tensor, Tensor]]:
    images, labels = part
    whole = len(labels) // size * size
    return zip(images[:whole].split(size), labels[:whole].split(size), strict=True)


def flops(data: Data) -> float:
    """Three times the products of the forward, less the gradient of the pixels, which nobody needs."""
    forward = 2 * ((LAYERS - 1) * WIDTH * WIDTH + WIDTH * CLASSES)
    return 3 * forward - 2 * WIDTH * WIDTH


MNIST = Workload(
    name="mnist",
    about=f"perceptron, {LAYERS} layers of {WIDTH}, SGD, updates of 100 images",
    unit="images",
    batch=100,
    data=data,
    model=lambda data: Mlp(WIDTH, LAYERS, CLASSES),
    flops=flops,
    optimizer=partial(torch.optim.SGD, lr=0.1, fused=True),
    ours={
        "ours": Ours(in_flight=1, every=1),
        "ours 2 workers": Ours(in_flight=3, every=1, workers=2, settings={"pin": True}),
    },
    peers={"torch eager": peers.Eager, "torch compile": compiled(peers.Eager)},
    foreign={"jax": Foreign("bench.peers.jax_mnist:Perceptron")},
    base="torch eager 1 thread",
    each=64,
    target=Target("loss", 0.01, batches=20),
    rival="torch eager",
    bounds=(Bound("ours 16 replicas", "torch *", 4.0),),
    external="mnist_mlp.py",
)
