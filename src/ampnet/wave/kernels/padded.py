"""Padded: kernels that never ask the device for a number, and give rows of padding no part in anything.

A captured graph (`ampnet.wave.programs`) can hold no decision of the host, so here

    a loss          judges all rows, then counts the real ones; its sums stay on the device until somebody wants them
    a label, or an index, that is out of range      is replaced by one that is not, and marked: the update is not made
    reductions      work on the links of a wave, whatever their number

Kernels that are not here compute padded waves as they compute others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ampnet.errors import PayloadError
from ampnet.message import Messages
from ampnet.nodes.embedding import Embedding
from ampnet.nodes.loss import Loss
from ampnet.nodes.metrics import chosen
from ampnet.nodes.reduce import Reduce
from ampnet.plan.layout import Operation
from ampnet.plan.padded import PaddedLayout
from ampnet.state import States
from ampnet.wave.kernels.kernel import Kernel
from ampnet.wave.kernels.sums import add_up

_NOBODY = States(("instance",), [[]])


def _layout(kernel: Kernel) -> PaddedLayout:
    assert isinstance(kernel.layout, PaddedLayout)
    return kernel.layout


class PaddedLoss(Kernel):
    """`Loss` nodes."""

    answers = True

    def begin(self) -> None:
        assert isinstance(self.site.node, Loss)
        self.node = self.site.node

    def forward(self, op: Operation) -> None:
        prediction, label = self.rows(op, 0), self.rows(op, 1)
        node, (share, scale, *others) = self.node, _layout(self).judged[op.site.number, op.round]
        share = share.to(prediction.dtype)
        if node.selects:
            losses, g, metrics, real = self._select(prediction, label, share, others)
        else:
            losses, g, metrics = self._judge(prediction, label, share)
            real = share.sign()
        if node.weight != 1:
            losses, g = losses * node.weight, g * node.weight
        op.kept = (g,)
        columns = torch.stack([losses, *(values.to(losses.dtype) for values in metrics.values())])
        columns.masked_fill_(real == 0, 0)  # padding may overflow; what is reported does not depend on it
        _layout(self).marks.append(columns.mv(real).mul_(scale))

    def _judge(self, prediction: Tensor, label: Tensor, share: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        node = self.node
        if node.function == "cross_entropy":
            losses, g, label = self._cross_entropy(prediction, label, share)
        else:
            losses, found = node._rows(prediction, label, Messages.trusted(prediction, _NOBODY, None, True))
            assert found is not None
            g = found * share.view(-1, *[1] * (found.dim() - 1))
        return losses, g, node._measure(prediction, label)

    def _cross_entropy(self, prediction: Tensor, label: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Loss and gradient of every row, by torch's own kernels for both; labels that are in range."""
        classes = prediction.shape[-1]
        if label.dtype != torch.int64 or label.shape != prediction.shape[:-1] or prediction.dim() != 2:
            raise PayloadError(
                f"cross entropy needs rows of class scores and int64 labels, got {tuple(prediction.shape)} "
                f"{prediction.dtype} and {tuple(label.shape)} {label.dtype}"
            )
        clipped = label.clamp(0, classes - 1)
        _layout(self).faults.append((clipped != label).any())
        logs = torch.log_softmax(prediction, 1)
        losses, weight = torch.ops.aten.nll_loss_forward(logs, clipped, None, 0, -1)
        g = torch.ops.aten.nll_loss_backward(share, logs, clipped, None, 0, -1, weight)
        return losses, torch.ops.aten._log_softmax_backward_data(g, logs, 1, logs.dtype), clipped

    def _select(
        self, prediction: Tensor, label: Tensor, share: Tensor, judged: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
        owners, sizes, starts = judged
        scores, label = prediction.reshape(-1), label.reshape(-1)
        if len(scores) != len(prediction) or label.dtype != torch.int64 or len(label) != len(sizes):
            raise PayloadError(
                f"selection needs one score a row and one int64 label a message, got {tuple(prediction.shape)} and "
                f"{tuple(label.shape)} {label.dtype}"
            )
        real, many = sizes > 0, len(sizes) + 1  # the last message has the rows of padding
        clipped = torch.minimum(label.clamp(min=0), (sizes - 1).clamp(min=0))
        _layout(self).faults.append(((clipped != label) & real).any())
        top = scores.new_full((many,), -torch.inf).scatter_reduce_(0, owners, scores, "amax")
        highest = top.index_select(0, owners)
        top = torch.where(top.isinf(), 0, top)
        sums = torch.zeros_like(top).index_add_(0, owners, (scores - top.index_select(0, owners)).exp_())
        total = sums.log_().add_(top)
        g = torch.where(share > 0, (scores - total.index_select(0, owners)).exp_(), 0)
        picked = starts + clipped
        mask = real.to(g.dtype)
        losses = torch.where(real, total[:-1] - scores.index_select(0, picked), 0)
        g.index_add_(0, picked, mask, alpha=-1)
        places = torch.arange(len(scores), device=scores.device)
        places = torch.where(scores == highest, places, len(scores))
        first = places.new_full((many,), len(scores)).scatter_reduce_(0, owners, places, "amin")[:-1]
        metrics = {name: chosen(first - starts, clipped) for name in self.node.metrics}
        return losses, g.view(prediction.shape), metrics, mask

    def backward(self, op: Operation) -> None:
        (g,) = op.kept
        assert g is not None
        self.add(op, 0, g)


class PaddedEmbedding(Kernel):
    """`Embedding` nodes. Where nothing else is in the arena, a small table is read in place."""

    def begin(self) -> None:
        node, sites = self.site.face, self.layout.sites
        assert isinstance(node, Embedding)
        self.node = node
        self._alone = sites.arena_sites[self.site.arena] == 1 and len(sites.order[self.site.component]) == 1
        self._tokens: list[Tensor] = []
        self._whole = False

    def forward(self, op: Operation) -> None:
        given = self.rows(op, 0)
        self.node.check(given)
        table = self.passage.weights(self.node)[0]
        tokens = given.clamp(0, self.node.size - 1)
        _layout(self).faults.append((tokens != given).any())
        self._tokens.append(tokens.reshape(-1))
        self._whole = self._alone and tokens.dim() == 1 and self.node.size <= len(tokens)
        if self._whole:
            self.out.data, self.out.inverse, self.out.table = table, tokens, True
            return
        rows = table.index_select(0, self._tokens[-1])
        self.out.put(op.start, op.stop, rows.view(*tokens.shape, -1))

    def backward(self, op: Operation) -> None:
        pass

    def collect(self) -> None:
        if self.out.grad is None:
            return
        total, padding = self.passage.sums(self.node)[0], self.node.padding
        if self._whole:
            g = self.out.grad
            if padding is not None:
                g[padding] = 0
            total.add_(g)
            return
        for op, tokens in zip(self.whole.operations, self._tokens, strict=True):
            g = self.out.grad[op.start : op.stop].reshape(len(tokens), -1)
            if padding is not None:
                g = g.masked_fill((tokens == padding).unsqueeze(1), 0)
            total.index_add_(0, tokens, g.to(total.dtype))


class PaddedSegments(Kernel):
    """Reductions other than a sum. Rows of padding may have no links."""

    def forward(self, op: Operation) -> None:
        node, x, bag = self.site.node, self.rows(op, 0), op.bags[0]
        assert isinstance(node, Reduce)
        owners, offsets, many = bag.targets(), bag.offsets, op.stop - op.start
        wide = (-1, *[1] * (x.dim() - 1))
        if node.how == "mean":
            share = (offsets[1:] - offsets[:-1]).clamp(min=1).to(x.dtype).reciprocal().view(wide)
            y = x.new_empty(many, *x.shape[1:])
            add_up(y, x, torch.arange(len(x), device=x.device), offsets)
            op.kept = (share,)
            self.out.put(op.start, op.stop, y.mul_(share))
            return
        spread = owners.view(wide).expand_as(x)
        top = x.new_full((many, *x.shape[1:]), -torch.inf).scatter_reduce_(0, spread, x, "amax")
        if node.how == "max":
            places = torch.arange(len(x), device=x.device).view(wide).expand_as(x)
            places = torch.where(x == top.index_select(0, owners), places, len(x))
            winner = torch.full_like(top, len(x), dtype=torch.int64).scatter_reduce_(0, spread, places, "amin")
            starts = offsets[:-1].clamp(max=len(x) - 1).view(wide).expand_as(winner)
            op.kept = (torch.where(winner == len(x), starts, winner),)  # NaN equals nothing: blame the first row
            empty = (offsets[1:] == offsets[:-1]).view(wide)
            self.out.put(op.start, op.stop, torch.where(empty, 0, top))
            return
        top = torch.where(top.isinf(), 0, top)
        sums = torch.zeros_like(top).index_add_(0, owners, (x - top.index_select(0, owners)).exp_())
        sums = torch.where((offsets[1:] == offsets[:-1]).view(wide), 1, sums)
        y = sums.log_().add_(top)
        op.kept = ((x - y.index_select(0, owners)).exp_(),)
        self.out.put(op.start, op.stop, y)

    def backward(self, op: Operation) -> None:
        node, g, kept, owners = self.site.node, self.gradient(op), op.kept[0], op.bags[0].targets()
        assert isinstance(node, Reduce)
        assert kept is not None
        if node.how == "mean":
            dx = (g * kept).index_select(0, owners)
        elif node.how == "max":
            dx = g.new_zeros(len(op.reads[0]), *g.shape[1:]).scatter_add_(0, kept, g)  # padding may share a winner
        else:
            dx = kept * g.index_select(0, owners)
        op.reads[0].add(dx)
