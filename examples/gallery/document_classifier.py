"""A document of sentences of words (Yang and others 2016): a GRU reads each sentence, attention weighs the sentences.

A document is a `Seq` whose column `words` has a sequence for each sentence, of any length. `fold` over the words of a
sentence stands inside of `each` over the sentences of the document.
"""

from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Seq
from ampnet.lang import attention, each, fold, loss

WORDS, TOPICS = 60, 3


class DocumentClassifier(ampnet.Model):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.hidden = hidden
        self.embedding, self.cell = nn.Embedding(WORDS, hidden), nn.GRUCell(hidden, hidden)
        self.key, self.topic = nn.Linear(hidden, hidden), nn.Linear(hidden, TOPICS)
        self.query = nn.Parameter(torch.randn(hidden))

    def read(self, h: Tensor, word: Tensor) -> Tensor:
        return self.cell(self.embedding(word), h)

    def forward(self, document: Seq, label: Tensor) -> Tensor:
        sentences = each(lambda s: fold(self.read, s.words, self.zeros(self.hidden)), document)
        scores = self.topic(attention(self.query, each(self.key, sentences), sentences))
        loss(scores, label)
        return scores


def make_model() -> ampnet.Model:
    return DocumentClassifier()


def make_data(count: int, seed: int) -> list[tuple[Seq, Tensor]]:
    """Word w is about topic w % 3. One sentence of a document is about its topic, the others are about nothing much."""
    random = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=random))

    rows = []
    for _ in range(count):
        topic, length = number(0, TOPICS), number(1, 6)
        words = [torch.randint(0, WORDS, (number(2, 9),), generator=random) for _ in range(length)]
        telling = torch.randint(0, WORDS // TOPICS, (number(4, 12),), generator=random)
        words[number(0, length)] = TOPICS * telling + topic
        rows.append((Seq(words=words), torch.tensor(topic)))
    return rows


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(300, seed=1), make_data(100, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=10, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=50) as runtime:
        for epoch in range(1, 6):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} documents/s")
        tested = runtime.infer(graph.instances(test))
    print(f"test: accuracy {tested.metrics['accuracy']:.2f}")


if __name__ == "__main__":
    main()
