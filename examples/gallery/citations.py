"""A graph whose nodes carry sequences: papers with titles, linked by citations. What is each paper about?

A title is read word by word at its own node (`fold` inside of `each`); then papers tell each other what they are about,
along the citations, two rounds long.
"""

from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Edges, Seq
from ampnet.lang import each, fold, loss, messages, repeat

WORDS, FIELDS = 40, 4


class Citations(ampnet.Model):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.hidden = hidden
        self.embedding, self.read = nn.Embedding(WORDS, hidden), nn.GRUCell(hidden, hidden)
        self.tell, self.hear = nn.Linear(hidden, hidden, bias=False), nn.GRUCell(hidden, hidden)
        self.field = nn.Linear(hidden, FIELDS)

    def title(self, words: Seq) -> Tensor:
        return fold(lambda h, word: self.read(self.embedding(word), h), words, self.zeros(self.hidden))

    def forward(self, papers: Seq, citations: Edges) -> Tensor:
        h = each(self.title, papers.title)
        h = repeat(lambda h: each(self.hear, messages(self.tell, citations, h, reduction="mean"), h), h, times=2)
        scores = each(self.field, h)
        each(lambda score, paper: loss(score, paper.field), scores, papers)
        return scores


def make_model() -> ampnet.Model:
    return Citations()


def make_data(count: int, seed: int) -> list[tuple[Seq, Edges]]:
    """Word w is of field w % 4. Half of the titles say nothing of their field; papers mostly cite their own field."""
    random = torch.Generator().manual_seed(seed)

    def numbers(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=random)

    rows = []
    for _ in range(count):
        n = 4 + int(numbers(6))
        field = numbers(2, n) + int(numbers(3))
        titles = []
        for i in range(n):
            words = numbers(WORDS, 2 + int(numbers(5)))
            titles.append(words if i % 2 else FIELDS * (words // FIELDS) + field[i])
        papers = Seq(title=titles, field=field)
        pairs = [(i, j) for i in range(n) for j in range(n) if i != j and field[i] == field[j]]
        rows.append((papers, Edges(papers, [i for i, _ in pairs], [j for _, j in pairs])))
    return rows


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(200, seed=1), make_data(50, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=10, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=40) as runtime:
        for epoch in range(1, 6):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} graphs/s")
        tested = runtime.infer(graph.instances(test))
    print(f"test: accuracy {tested.metrics['accuracy']:.2f}")


if __name__ == "__main__":
    main()
