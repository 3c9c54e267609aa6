"""A language model with tied weights (Press and Wolf 2017): the table of tokens is also the last layer's weight.

The two layers become one node, which gets the gradients of both and makes one update. The text counts up modulo 12 in
steps that the first two tokens tell, so it can be learnt.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Seq
from ampnet.lang import each, loss, scan

WORDS = 12


class TiedLanguageModel(ampnet.Model):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.hidden = hidden
        self.embedding, self.cell = nn.Embedding(WORDS, hidden), nn.GRUCell(hidden, hidden)
        self.out = nn.Linear(hidden, WORDS)
        self.out.weight = self.embedding.weight

    def forward(self, text: Seq) -> Any:
        states, _ = scan(lambda h, token: self.cell(self.embedding(token), h), text.token, self.zeros(self.hidden))
        scores = each(self.out, states)
        each(loss, scores, text.following)
        return scores


def make_model() -> ampnet.Model:
    return TiedLanguageModel()


def make_data(count: int, seed: int) -> list[tuple[Seq]]:
    random = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        start, step, n = (int(torch.randint(1, most, (), generator=random)) for most in (WORDS, 5, 12))
        tokens: Tensor = (start + step * torch.arange(n + 2)) % WORDS
        rows.append((Seq(token=tokens[:-1], following=tokens[1:]),))
    return rows


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(400, seed=1), make_data(100, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=20, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=60) as runtime:
        for epoch in range(1, 7):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} texts/s")
        tested = runtime.infer(graph.instances(test))
    print(f"tied language model: accuracy {tested.metrics['accuracy']:.2f} of the next token")


if __name__ == "__main__":
    main()
