"""The recurrent network for list reduction, in three ways to write it. Tokens are [steps, sequences]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bench.batch import Batch, Bucket
from bench.peers.peer import Collated, Peer, State


class Concat(Peer):
    """As the paper draws it: every step multiplies the embedding and the state, concatenated."""

    def build(self, model: Any) -> None:
        self.width = model.width
        self.embedding = nn.Embedding(model.embedding.num_embeddings, self.width)
        self.cell = nn.Linear(2 * self.width, self.width)
        self.classify = nn.Linear(self.width, model.classify.out_features)

    def collate(self, batch: Batch) -> Collated:
        assert isinstance(batch, Bucket)
        tokens, labels = batch.arguments
        return Collated(batch.count, (tokens._column("value"),), labels)

    def forward(self, tokens: Tensor) -> Tensor:
        inputs = self.embedding(tokens)
        h = inputs.new_zeros(tokens.shape[1], self.width)
        for x in inputs:
            h = torch.relu(self.cell(torch.cat((x, h), 1)))
        out: Tensor = self.classify(h)
        return out


class Recurrent(Peer):
    """`nn.RNN`. It has two biases, of which one stays zero."""

    def build(self, model: Any) -> None:
        self.embedding = nn.Embedding(model.embedding.num_embeddings, model.width)
        self.rnn = nn.RNN(model.width, model.width, nonlinearity="relu")
        self.rnn.bias_hh_l0.requires_grad_(False)
        self.classify = nn.Linear(model.width, model.classify.out_features)

    @staticmethod
    def weights(state: State) -> State:
        inputs, recurrent = state["cell.weight"].chunk(2, 1)
        ours = {name: value for name, value in state.items() if not name.startswith("cell.")}
        return ours | {
            "rnn.weight_ih_l0": inputs,
            "rnn.weight_hh_l0": recurrent,
            "rnn.bias_ih_l0": state["cell.bias"],
            "rnn.bias_hh_l0": torch.zeros_like(state["cell.bias"]),
        }

    collate = Concat.collate

    def forward(self, tokens: Tensor) -> Tensor:
        _, last = self.rnn(self.embedding(tokens))
        out: Tensor = self.classify(last[0])
        return out


class Folded(Peer):
    """The input half of the product is applied to the whole vocabulary once, and looked up in every step."""

    def build(self, model: Any) -> None:
        self.embedding = nn.Embedding(model.embedding.num_embeddings, model.width)
        self.inputs = nn.Linear(model.width, model.width)
        self.recur = nn.Linear(model.width, model.width, bias=False)
        self.classify = nn.Linear(model.width, model.classify.out_features)

    @staticmethod
    def weights(state: State) -> State:
        inputs, recurrent = state["cell.weight"].chunk(2, 1)
        ours = {name: value for name, value in state.items() if not name.startswith("cell.")}
        return ours | {"inputs.weight": inputs, "inputs.bias": state["cell.bias"], "recur.weight": recurrent}

    collate = Concat.collate

    def forward(self, tokens: Tensor) -> Tensor:
        known = self.inputs(self.embedding.weight)
        steps = known.index_select(0, tokens.flatten()).view(*tokens.shape, -1)
        h = torch.relu(steps[0])
        weight = self.recur.weight.t()
        for t in range(1, tokens.shape[0]):
            h = torch.relu(torch.addmm(steps[t], h, weight))
        out: Tensor = self.classify(h)
        return out
