"""A small GPT (Radford and others 2019): characters in, scores of the next character out. Pre-norm blocks, taken whole.

A stage of a pipeline is a few of its parts. The same modules run here, in plain torch and in `torch.distributed`:

    tokens ──> embed ──> block 0 ──> block 1 ──│──> block 2 ──> block 3 ──│── ... ──│──> block 7 ──> head ──> loss
               worker 0                        │    worker 1              │         │    worker 3
                                               rows [sequences, context, width], one contiguous slice for each crossing

The model is written for one sequence. Training gives it microbatches: ``graph.bucket(2, tokens, targets)`` is one
instance whose messages have a row for each of two sequences. One instance for each microbatch, not for each sequence,
is the faster choice: the controller handles one number, a worker plays one operation for each block, and a crossing is
one slice either way. Every module computes a row alone as it does among others, so they are called with all rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ampnet
from ampnet.lang import Compiled, loss, whole


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a GPT."""

    blocks: int = 8
    width: int = 256
    heads: int = 4
    context: int = 128
    """Characters of a sequence."""
    characters: int = 256
    """Scores of a position: a character is a byte."""


class Embed(nn.Module):
    """The sum of a vector for each character and a vector for each position."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.character = nn.Embedding(sizes.characters, sizes.width)
        self.position = nn.Parameter(torch.zeros(sizes.context, sizes.width))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.character(tokens) + self.position


class Block(nn.Module):
    """Causal self-attention, then a perceptron; each is added to what it reads."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.heads = sizes.width, sizes.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.attention(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).transpose(-4, -2)
        query, key, value = heads.unbind(-3)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(found.transpose(-3, -2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Head(nn.Module):
    """The scores of the next character at each position."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm, self.scores = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, sizes.characters)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.norm(x))


def next_character(scores: Tensor, targets: Tensor) -> Tensor:
    """The loss of each sequence: the mean cross entropy over its positions."""
    each = F.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction="none")
    return each.view(targets.shape).mean(-1)


class Gpt(ampnet.Model):
    """See the head of this file."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embed, self.head = Embed(sizes), Head(sizes)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.blocks))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = whole(self.embed, tokens)
        for block in self.blocks:
            x = whole(block, x)
        scores = whole(self.head, x)
        loss(scores, targets, next_character)
        return scores

    def parts(self) -> list[tuple[str, nn.Module]]:
        """The modules in the order of the pipeline, by the names of their nodes."""
        blocks = [(f"blocks_{i}", block) for i, block in enumerate(self.blocks)]
        return [("embed", self.embed), *blocks, ("head", self.head)]

    def plain(self) -> nn.Sequential:
        """The model in plain torch: scores of a batch of sequences."""
        return nn.Sequential(*(module for _, module in self.parts()))


def stages(model: Gpt, count: int) -> list[list[tuple[str, nn.Module]]]:
    """Cuts the parts into stages with equally many blocks; the first has `Embed` too, the last has `Head`."""
    if model.sizes.blocks % count:
        raise ValueError(f"{model.sizes.blocks} blocks cannot be cut into {count} equal stages")
    first, *blocks, last = model.parts()
    each = len(blocks) // count
    cut = [blocks[i * each : (i + 1) * each] for i in range(count)]
    return [[*([first] if i == 0 else []), *some, *([last] if i == count - 1 else [])] for i, some in enumerate(cut)]


def microbatch(graph: Compiled, tokens: Tensor, targets: Tensor) -> ampnet.Instance:
    """Returns one instance for all sequences of a microbatch."""
    if len(tokens) == 1:
        return graph.instance(tokens[0], targets[0])
    return graph.bucket(len(tokens), tokens, targets)


def affinity(model: Gpt, workers: int) -> dict[str, int]:
    """Returns the worker of each node: a stage for each worker, and the loss beside the head."""
    placed = {name: worker for worker, some in enumerate(stages(model, workers)) for name, _ in some}
    return {**placed, "loss": workers - 1}
