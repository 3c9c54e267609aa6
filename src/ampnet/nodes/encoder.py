"""Encoder: `nn.TransformerEncoderLayer` on sequences of different lengths, padded for the attention alone.

    rows    ──> queries, keys, values ──> padded ──> attention ──> rows ──> projection, norms, feed-forward
    [n, d]                                [messages, longest, 3 d]          [n, d]

Everything but the attention is computed row by row, so padding is never multiplied there. The layer's own forward is
given padded sequences and computes all of it on padding too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from ampnet.nodes.lengths import Lengths


def has_rows(module: nn.Module) -> bool:
    """Whether `encoder_layer` computes what the module's own forward does."""
    if type(module) is not nn.TransformerEncoderLayer or type(module.self_attn) is not nn.MultiheadAttention:
        return False
    a = module.self_attn
    if a.in_proj_weight is None or a.bias_k is not None or a.add_zero_attn:
        return False
    skipped = (module, a, a.out_proj, module.dropout, module.dropout1, module.dropout2)
    return not any(m._forward_hooks or m._forward_pre_hooks for m in skipped)


def encoder_layer(module: nn.TransformerEncoderLayer, x: Tensor, lengths: Lengths, worth: int, causal: bool) -> Tensor:
    """The layer's output rows. ``worth``: see `Lengths.parts`. ``causal``: no row looks at later ones."""
    if module.norm_first:
        x = x + _attended(module.self_attn, module.norm1(x), lengths, worth, causal)
        return x + _forward(module, module.norm2(x))
    x = module.norm1(x + _attended(module.self_attn, x, lengths, worth, causal))
    out: Tensor = module.norm2(x + _forward(module, x))
    return out


def _forward(module: nn.TransformerEncoderLayer, x: Tensor) -> Tensor:
    out: Tensor = module.linear2(module.activation(module.linear1(x)))
    return out


def _attended(a: nn.MultiheadAttention, x: Tensor, lengths: Lengths, worth: int, causal: bool) -> Tensor:
    assert a.in_proj_weight is not None
    both = linear(x, a.in_proj_weight, a.in_proj_bias)
    pieces = []
    for part in lengths.parts(worth):
        padded, beyond = lengths.pad(both, part)
        q, k, v = padded.unflatten(-1, (3, a.num_heads, -1)).permute(2, 0, 3, 1, 4)
        seen = None if beyond is None else ~beyond[:, None, None, :]
        if causal:
            earlier = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=x.device).tril()
            seen = earlier if seen is None else seen & earlier
        read = scaled_dot_product_attention(q, k, v, attn_mask=seen)
        pieces.append((part, lengths.unpad(read.transpose(1, 2).flatten(2), part)))
    return linear(lengths.put_together(pieces), a.out_proj.weight, a.out_proj.bias)
