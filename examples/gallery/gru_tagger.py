"""A tagger with a whole `nn.GRU`, in both directions and two layers, over sequences of any length.

Brackets in a row; the tag of each says how deep it is, or that no other belongs to it. The GRU is one node and one call
of torch for all sequences that travel together.
"""

from functools import partial
from typing import Any

import torch
from torch import nn

import ampnet
from ampnet import Seq
from ampnet.lang import each, loss

SIGNS, DEEPEST = 2, 4


class GruTagger(ampnet.Model):
    def __init__(self, hidden: int = 24) -> None:
        super().__init__()
        self.sign = nn.Embedding(SIGNS, hidden)
        self.gru = nn.GRU(hidden, hidden, num_layers=2, bidirectional=True)
        self.tag = nn.Linear(2 * hidden, DEEPEST + 1)

    def forward(self, brackets: Seq) -> Any:
        states, _ = self.gru(each(self.sign, brackets.sign))
        scores = each(self.tag, states)
        each(loss, scores, brackets.tag)
        return scores


def make_model() -> ampnet.Model:
    return GruTagger()


def tags(signs: list[int]) -> list[int]:
    found, open_at = [DEEPEST] * len(signs), list[int]()
    for i, sign in enumerate(signs):
        if not sign:
            open_at.append(i)
        elif open_at:
            depth = min(len(open_at), DEEPEST) - 1
            found[open_at.pop()] = found[i] = depth
    return found


def make_data(count: int, seed: int) -> list[tuple[Seq]]:
    random = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        n = int(torch.randint(1, 16, (), generator=random))
        signs = torch.randint(0, SIGNS, (n,), generator=random)
        rows.append((Seq(sign=signs, tag=torch.tensor(tags(signs.tolist()))),))
    return rows


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(300, seed=1), make_data(100, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=20, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=60) as runtime:
        for epoch in range(1, 8):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} sequences/s")
        tested = runtime.infer(graph.instances(test))
    print(f"gru tagger: accuracy {tested.metrics['accuracy']:.2f} of the tags")


if __name__ == "__main__":
    main()
