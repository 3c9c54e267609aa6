"""A memory network (Sukhbaatar and others 2015): facts are pairs of a name and a colour, a question is a name.

`attention` weighs the facts by how well they match the question, twice. There may be any number of facts.
"""

from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Seq
from ampnet.lang import attention, each, loss, repeat

NAMES, COLOURS = 20, 5


class AttentionReader(ampnet.Model):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.name, self.colour = nn.Embedding(NAMES, hidden), nn.Embedding(COLOURS, hidden)
        self.key, self.value = nn.Linear(hidden, hidden), nn.Linear(2 * hidden, hidden)
        self.ask, self.answer = nn.Linear(hidden, hidden), nn.Linear(hidden, COLOURS)

    def forward(self, facts: Seq, question: Tensor, label: Tensor) -> Tensor:
        keys = each(lambda fact: self.key(self.name(fact.name)), facts)
        both = each(lambda fact: torch.cat((self.name(fact.name), self.colour(fact.colour)), -1), facts)
        values = each(lambda pair: torch.tanh(self.value(pair)), both)
        h = repeat(lambda h: h + attention(self.ask(h), keys, values, heads=4), self.name(question), times=2)
        scores = self.answer(h)
        loss(scores, label)
        return scores


def make_model() -> ampnet.Model:
    return AttentionReader()


def make_data(count: int, seed: int) -> list[tuple[Seq, Tensor, Tensor]]:
    random = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        n = int(torch.randint(1, 9, (), generator=random))
        names = torch.randperm(NAMES, generator=random)[:n]
        colours = torch.randint(0, COLOURS, (n,), generator=random)
        asked = int(torch.randint(0, n, (), generator=random))
        rows.append((Seq(name=names, colour=colours), names[asked], colours[asked]))
    return rows


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(500, seed=1), make_data(100, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.005), min_update_frequency=10, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=50) as runtime:
        for epoch in range(1, 9):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} questions/s")
        tested = runtime.infer(graph.instances(test))
    print(f"test: accuracy {tested.metrics['accuracy']:.2f}")


if __name__ == "__main__":
    main()
