"""Gated graph networks and the Tree-LSTM with DGL, where it is installed and can be imported.

Graph networks send along the edges of a block, from (source, kind) to target, with the package's sparse products. Trees
are one graph of edges from child to parent, and go level by level: `prop_nodes` with a message and a reduce function.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.batch import Batch
from bench.peers.ggsnn import Qm9Sparse
from bench.peers.peer import Collated
from bench.peers.tree_lstm import Level


class Qm9Dgl(Qm9Sparse):
    """A gated sum over the atoms of each molecule, with the package's message passing and pooling."""

    needs = "dgl"

    def collate(self, batch: Batch) -> Collated:
        import dgl

        plain = super().collate(batch)
        x, _, picked, target, owner, graphs = plain.inputs
        block = dgl.create_block((picked, target), num_src_nodes=self.kinds * len(x), num_dst_nodes=len(x))
        return Collated(plain.count, (x, block, torch.bincount(owner, minlength=graphs)), plain.label)

    def forward(self, x: Tensor, block: Any, sizes: Tensor) -> Tensor:  # type: ignore[override]
        import dgl

        h = x
        for _ in range(self.steps):
            h = self.cell(dgl.ops.copy_u_sum(block, self.along(h).view(-1, self.width)), h)
        both = torch.cat((h, x), 1)
        atoms = self.gate(both).sigmoid() * self.value(both).tanh()
        out: Tensor = self.out(dgl.ops.segment_reduce(sizes, atoms, "sum").tanh())
        return out


class TreeDgl(Level):
    """Level by level, each branch's children in its mailbox."""

    needs = "dgl"

    def collate(self, batch: Batch) -> Collated:
        import dgl

        plain = super().collate(batch)
        words, levels = plain.inputs
        first, fronts = len(words), []
        for pairs in levels:
            fronts.append(torch.arange(first, first + len(pairs) // 2))
            first += len(pairs) // 2
        parents = torch.cat(fronts).repeat_interleave(2)
        graph = dgl.graph((torch.cat(levels), parents), num_nodes=first)
        return Collated(plain.count, (words, graph, fronts), plain.label)

    def forward(self, words: Tensor, graph: Any, fronts: list[Tensor]) -> Tensor:  # type: ignore[override]
        h, c = self.leaf_state(self.embedding(words))
        branches = (0, 0, 0, graph.num_nodes() - len(words))
        with graph.local_scope():
            graph.ndata["h"], graph.ndata["c"] = functional.pad(h, branches), functional.pad(c, branches)
            graph.prop_nodes(fronts, _send, self._receive)
            out: Tensor = self.classify(self.dropout(graph.ndata["h"]))
        return out

    def _receive(self, nodes: Any) -> dict[str, Tensor]:
        h, c = nodes.mailbox["h"], nodes.mailbox["c"]
        upper, cell = self.branch_state(h.reshape(len(h), -1), c[:, 0], c[:, 1])
        return {"h": upper, "c": cell}


def _send(edges: Any) -> dict[str, Tensor]:
    return {"h": edges.src["h"], "c": edges.src["c"]}
