"""Attend: softmax and attention over a family, of any number of elements.

    weights = softmax(scores)                    a family of weights that add up to one
    read = attention(query, keys, values)        one value: the values' mean, weighted by how well keys match the query

Both are made of `each` and `reduce`, so they work wherever these do: over a `Seq`, over the children of a node
(``fold_tree(..., children="family")``), over the messages that arrive at a node (``messages(..., reduction=...)``), and
inside of loops.

    query      q                                     [heads x d]
    keys       k_1 ... k_n       s_i = q k_i / sqrt(d), for each head
    softmax    w_1 ... w_n       w_i = exp(s_i - log sum_j exp(s_j)): never overflows
    values     v_1 ... v_n       sum_i w_i v_i       [heads x e]
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch

from ampnet.errors import ModelError
from ampnet.lang.combinators import each, reduce
from ampnet.lang.line import here


def softmax(scores: Any) -> Any:
    """Returns the softmax over the elements of a family, as a family of weights. Each column of a row is separate."""
    total = reduce(scores, "logsumexp")
    return each(lambda score: torch.exp(score - total), scores)


def attention(query: Any, keys: Any, values: Any, *, heads: int = 1) -> Any:
    """Scaled dot-product attention of one query: a weighted mean of ``values``, a family over the elements of ``keys``.

    ::

        read = attention(self.ask(h), each(self.key, states), each(self.value, states), heads=4)

    With several heads, queries, keys and values are split into equal parts, one for each head. The results of all heads
    are concatenated, as in `torch.nn.MultiheadAttention` without its projections.
    """

    def score(key: Any) -> Any:
        _check(query, key, heads)
        product = query * key
        scale = sqrt(heads / key.shape[-1])
        return (product if heads == 1 else product.unflatten(-1, (heads, -1))).sum(-1) * scale

    def weighted(weight: Any, value: Any) -> Any:
        if heads == 1:
            return weight * value
        if value.shape[-1] % heads:
            raise ModelError(f"values of {value.shape[-1]} numbers cannot be shared by {heads} heads", here())
        return (weight.unsqueeze(-1) * value.unflatten(-1, (heads, -1))).flatten(-2)

    return reduce(each(weighted, softmax(each(score, keys)), values), "sum")


def _check(query: Any, key: Any, heads: int) -> None:
    if query.ndim != 1 or key.ndim != 1 or query.shape != key.shape or key.shape[-1] % heads:
        raise ModelError(
            f"attention with {heads} head(s) takes a query and keys that are rows of the same width, a multiple of the "
            f"number of heads; got a query of {tuple(query.shape)} and keys of {tuple(key.shape)}",
            here(),
        )
