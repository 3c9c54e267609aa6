"""A transformer encoder (Vaswani and others 2017) reads a sequence of tokens: how often is the first of them there?

Each `nn.TransformerEncoderLayer` is one node, which reads whole sequences of any length. Dropout inside of it must be
off (``dropout=0.0``, or ``.eval()``); an `nn.Dropout` of the model before or behind it has a mask for each message.
"""

from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Seq
from ampnet.lang import each, loss, reduce

WORDS, LONGEST = 4, 10


class TransformerEncoder(ampnet.Model):
    def __init__(self, hidden: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, hidden), nn.Embedding(LONGEST, hidden)
        layer = partial(nn.TransformerEncoderLayer, hidden, heads, 2 * hidden, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList([layer(), layer()])
        self.out = nn.Linear(hidden, LONGEST)

    def forward(self, tokens: Seq, label: Tensor) -> Tensor:
        xs = each(lambda token: self.word(token.word) + self.place(token.place), tokens)
        for layer in self.layers:
            xs = layer(xs)
        scores = self.out(reduce(xs, "mean"))
        loss(scores, label)
        return scores


def make_model() -> ampnet.Model:
    return TransformerEncoder()


def make_data(count: int, seed: int) -> list[tuple[Seq, Tensor]]:
    random = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        n = int(torch.randint(2, LONGEST + 1, (), generator=random))
        words = torch.randint(0, WORDS, (n,), generator=random)
        rows.append((Seq(word=words, place=torch.arange(n)), (words[1:] == words[0]).sum()))
    return rows


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(600, seed=1), make_data(100, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.005), min_update_frequency=20, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=60) as runtime:
        for epoch in range(1, 8):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} sequences/s")
        tested = runtime.infer(graph.instances(test))
    print(f"transformer encoder: accuracy {tested.metrics['accuracy']:.2f}, counting a token")


if __name__ == "__main__":
    main()
