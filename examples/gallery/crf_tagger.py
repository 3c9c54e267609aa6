"""A bidirectional LSTM with a conditional random field on top: the loss is a number that the model computes itself.

Letters in a row; some begin a word, others go on with it or stand between words. The forward algorithm is a `fold`; the
transitions are a matrix of parameters, added to rows and looked up by tags. ``loss(value)`` has no label.
"""

from functools import partial
from typing import Any

import torch
from torch import nn

import ampnet
from ampnet import Seq
from ampnet.lang import each, fold, loss, reduce

LETTERS, TAGS = 12, 3  # begin, inside, outside


class CrfTagger(ampnet.Model):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.letter = nn.Embedding(LETTERS, hidden)
        self.lstm = nn.LSTM(hidden, hidden, bidirectional=True)
        self.emit = nn.Linear(2 * hidden, TAGS)
        self.moves = nn.Parameter(torch.zeros(TAGS, TAGS))

    def forward(self, text: Seq) -> Any:
        states, _ = self.lstm(each(self.letter, text.letter))
        scores = each(self.emit, states)
        all_paths = fold(lambda a, e: torch.logsumexp(a[:, None] + self.moves, 0) + e, scores, self.zeros(TAGS))
        path = each(lambda e, t: e[t.tag] + self.moves[t.before, t.tag], scores, text)
        loss(torch.logsumexp(all_paths, -1) - reduce(path), name="nll")
        return scores


def make_model() -> ampnet.Model:
    return CrfTagger()


def make_data(count: int, seed: int) -> list[tuple[Seq]]:
    """A letter below 6 opens a word, which goes on for as many letters as it says, modulo 3."""
    random = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        n = int(torch.randint(2, 14, (), generator=random))
        letters = torch.randint(0, LETTERS, (n,), generator=random)
        tags, left = [], 0
        for letter in letters.tolist():
            tags.append(1 if left else 0 if letter < 6 else 2)
            left = left - 1 if left else letter % 3 if letter < 6 else 0
        tag = torch.tensor(tags)
        rows.append((Seq(letter=letters, tag=tag, before=torch.cat((torch.tensor([2]), tag[:-1]))),))
    return rows


def best_path(scores: torch.Tensor, moves: torch.Tensor) -> list[int]:
    """The Viterbi algorithm, on predictions."""
    total, back = scores[0], list[torch.Tensor]()
    for row in scores[1:]:
        total, at = (total[:, None] + moves).max(0)
        total = total + row
        back.append(at)
    path = [int(total.argmax())]
    for at in reversed(back):
        path.append(int(at[path[-1]]))
    return path[::-1]


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(300, seed=1), make_data(100, seed=0)
    model = CrfTagger()
    graph = ampnet.compile(model, *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.02), min_update_frequency=20, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=60) as runtime:
        for epoch in range(1, 9):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} sequences/s")
        found = runtime.predict(test)
    paths = [best_path(scores, model.moves.detach()) for scores in found]
    right = sum(path == [int(tag) for tag in text.tag.values] for path, (text,) in zip(paths, test, strict=True))
    print(f"crf tagger: {right} of {len(test)} sequences are tagged without a mistake")


if __name__ == "__main__":
    main()
