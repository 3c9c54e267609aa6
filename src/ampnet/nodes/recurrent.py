"""Recurrent: a layer of `nn.GRU` over packed sequences, forward and backward, in fewer calls than torch makes.

torch computes a GRU on a CPU cell by cell with autograd: some forty calls for a step of each direction, and in its
backward a product for the weights at every step. Here both directions are computed together, the second one on
sequences that are turned round, so both have equally many sequences at each step; and what does not depend on the step
before is computed for all steps at once.

    before the steps    x Wi' + bi                                                        all steps
    a step, forward     r, z = sigmoid(. + h Wh')     hn = h Whn' + bhn
                        n = tanh(. + r hn)            h' = (1 - z) n + z h
    before the steps    a = dz/dh' = (h - n) z (1 - z)     b = dn/dh' = (1 - z) (1 - n^2)     c = dr/dn = hn r (1 - r)
    a step, backward    dz = a dh'     dn = b dh'     dr = c dn     dhn = r dn     dh = z dh' + [dr dz dhn] Wh
    behind the steps    gradients of the weights and of x: products over all steps
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ampnet.nodes.lengths import Packing


def gru(
    x: Tensor, packing: Packing, first: Tensor, weights: Sequence[Tensor], layers: int, ways: int
) -> tuple[Tensor, Tensor]:
    """Every step's output, packed, and the last states: what `torch.gru` returns for packed sequences.

    ``first``: ``[layers * ways, sequences, width]``, the longest sequence first. ``weights``: in torch's order.
    """
    each = len(weights) // (layers * ways)
    last = []
    for layer in range(layers):
        some = weights[layer * ways * each : (layer + 1) * ways * each]
        stacked = [torch.stack(tuple(some[i::each])) for i in range(each)]
        if each == 2:  # without bias
            stacked += [x.new_zeros(ways, stacked[0].shape[1])] * 2
        both = x[None] if ways == 1 else torch.stack((x, x.index_select(0, packing.turned)))
        start = first[layer * ways : (layer + 1) * ways]
        out, h = _Layer.apply(both, start, packing, *stacked)  # type: ignore[no-untyped-call]
        x = out[0] if ways == 1 else torch.cat((out[0], out[1].index_select(0, packing.turned)), -1)
        last.append(h)
    return x, torch.cat(last)


class _Layer(torch.autograd.Function):
    """One layer, of rows ``[ways, rows, ...]``: its outputs, and its last states ``[ways, sequences, width]``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, first: Tensor, packing: Packing, wi: Tensor, wh: Tensor, bi: Tensor, bh: Tensor
    ) -> tuple[Tensor, Tensor]:
        n, sizes = wh.shape[-1], packing.sizes.tolist()
        bias = bi.clone()
        bias[:, : 2 * n] += bh[:, : 2 * n]
        wi_t, wh_t, bhn = wi.transpose(1, 2), wh.transpose(1, 2), bh[:, None, 2 * n :]
        rz = torch.baddbmm(bias[:, None, : 2 * n], x, wi_t[..., : 2 * n])
        new = torch.baddbmm(bias[:, None, 2 * n :], x, wi_t[..., 2 * n :])
        hn, out = torch.empty_like(new), torch.empty_like(new)
        w_rz, w_n = wh_t[..., : 2 * n].contiguous(), wh_t[..., 2 * n :].contiguous()
        h, ends = first, []
        steps = zip(*(t.split(sizes, 1) for t in (rz, rz[..., :n], rz[..., n:], new, hn, out)), sizes, strict=True)
        for gates, r, z, some, some_hn, to, size in steps:
            if size < h.shape[1]:
                ends.append(h[:, size:])
                h = h[:, :size]
            gates.baddbmm_(h, w_rz).sigmoid_()
            torch.baddbmm(bhn, h, w_n, out=some_hn)
            some.addcmul_(r, some_hn).tanh_()
            h = torch.lerp(some, h, z, out=to)
        ctx.packing = packing
        ctx.save_for_backward(x, first, wi, wh, rz, new, hn, out)
        return out, torch.cat([h, *reversed(ends)], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        g, g_last = given
        x, first, wi, wh, rz, new, hn, out = ctx.saved_tensors
        n, sizes = wh.shape[-1], ctx.packing.sizes.tolist()
        r, z = rz[..., :n], rz[..., n:]
        before = torch.cat((first, out), 1).index_select(1, ctx.packing.before)
        a = (before - new).mul_(z).mul_(1 - z)
        b = (1 - z).mul_(1 - new * new)
        c = torch.stack((hn.mul(r).mul_(1 - r), r), -2)
        d_gates = rz.new_empty(*rz.shape[:2], 3, n)
        d_new, dh = torch.empty_like(new), g_last.clone()
        flat = d_gates.flatten(-2)
        steps = (g, a, b, c, z, d_gates[..., 1, :], d_gates[..., ::2, :], flat, d_new)
        parts = [t.split(sizes, 1) for t in steps]
        for i in reversed(range(len(sizes))):
            some_g, some_a, some_b, some_c, some_z, d_z, d_others, d_all, d_n = (part[i] for part in parts)
            now = dh[:, : sizes[i]]
            now.add_(some_g)
            torch.mul(now, some_a, out=d_z)
            torch.mul(now, some_b, out=d_n)
            torch.mul(d_n.unsqueeze(-2), some_c, out=d_others)
            now.mul_(some_z).baddbmm_(d_all, wh)
        turned = flat.transpose(1, 2)
        dwh, dbh = turned @ before, flat.sum(1)
        d_gates[..., 2, :] = d_new
        dx = flat @ wi if ctx.needs_input_grad[0] else None
        return dx, dh, None, turned @ x, dwh, flat.sum(1), dbh
