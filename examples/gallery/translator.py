"""An encoder and a decoder with attention: two sequences of different lengths, teacher forcing, tied embeddings.

The target is the source backwards, with every digit raised by one. The decoder is given the digit before (`scan` over
the second sequence); each of its states reads the encoder's states (`attention` inside of `each`).
"""

from functools import partial
from typing import Any

import torch
from torch import nn

import ampnet
from ampnet import Seq
from ampnet.lang import attention, each, loss, scan

END, DIGITS = 0, 10  # digits are the numbers from 1 up


class Translator(ampnet.Model):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.digit = nn.Embedding(DIGITS + 1, hidden)
        self.encoder, self.decoder = nn.GRU(hidden, hidden), nn.GRUCell(hidden, hidden)
        self.merge, self.out = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, DIGITS + 1, bias=False)
        self.out.weight = self.digit.weight

    def forward(self, source: Seq, target: Seq) -> Any:
        memory, last = self.encoder(each(self.digit, source))
        states, _ = scan(lambda h, t: self.decoder(self.digit(t.before), h), target, last[0])

        def read(h: Any) -> Any:
            return self.out(torch.tanh(self.merge(torch.cat((h, attention(h, memory, memory)), -1))))

        scores = each(read, states)
        each(loss, scores, target.digit)
        return scores


def make_model() -> ampnet.Model:
    return Translator()


def make_data(count: int, seed: int) -> list[tuple[Seq, Seq]]:
    random = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        n = int(torch.randint(1, 6, (), generator=random))
        source = torch.randint(1, DIGITS + 1, (n,), generator=random)
        answer, end = source.flip(0) % DIGITS + 1, torch.tensor([END])
        rows.append((Seq(source), Seq(before=torch.cat((end, answer)), digit=torch.cat((answer, end)))))
    return rows


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(600, seed=1), make_data(100, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.02), min_update_frequency=20, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=60) as runtime:
        for epoch in range(1, 11):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} pairs/s")
        tested = runtime.infer(graph.instances(test))
    print(f"translator: accuracy {tested.metrics['accuracy']:.2f} of the digits")


if __name__ == "__main__":
    main()
