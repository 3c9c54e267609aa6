"""Two tasks on one sentence: its mood (two classes, few are angry) and how loud it is (a number).

The instances are dicts, as rows of a data set are. The losses have names, so that each is reported by itself, with its
own metrics; the F1 of angry sentences is reported beside the accuracy.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Seq
from ampnet.lang import Ratio, fold, loss

WORDS, ANGRY, LOUD = 40, 5, 10
"""Words 0 to 4 make a sentence angry, words 5 to 9 make it louder by one."""


def said(scores: Tensor, label: Tensor) -> Tensor:
    return (scores.argmax(-1) == 1).float()


f1 = Ratio(lambda s, y: 2 * said(s, y) * (y == 1), lambda s, y: said(s, y) + (y == 1))


class MultiTask(ampnet.Model):
    def __init__(self, hidden: int = 24) -> None:
        super().__init__()
        self.hidden = hidden
        self.embedding, self.cell = nn.Embedding(WORDS, hidden), nn.GRUCell(hidden, hidden)
        self.mood, self.loudness = nn.Linear(hidden, 2), nn.Linear(hidden, 1)

    def forward(self, tokens: Seq, mood: Tensor, loudness: Tensor) -> tuple[Tensor, Tensor]:
        h = fold(lambda h, word: self.cell(self.embedding(word), h), tokens, self.zeros(self.hidden))
        moods, louder = self.mood(h), self.loudness(h)
        loss(moods, mood, name="mood", metrics={"f1": f1})
        loss(louder, loudness, "squared_error", name="loudness", weight=0.3)
        return moods, louder


def make_model() -> ampnet.Model:
    return MultiTask()


def make_data(count: int, seed: int) -> list[dict[str, Any]]:
    random = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        words = torch.randint(0, WORDS, (int(torch.randint(1, 9, (), generator=random)),), generator=random)
        mood, loud = (words < ANGRY).any().long(), ((words >= ANGRY) & (words < LOUD)).sum()
        rows.append({"tokens": Seq(words), "mood": mood, "loudness": loud.to(torch.get_default_dtype()).view(1)})
    return rows


def main() -> None:
    torch.manual_seed(0)
    model, train, test = make_model(), make_data(400, seed=1), make_data(100, seed=0)
    graph = ampnet.compile(model, train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=10, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=50) as runtime:
        for epoch in range(1, 7):
            trained = runtime.train(graph.instances(train, shuffle=True, seed=epoch))
            losses = ", ".join(f"{name} {value:.3f}" for name, value in trained.losses.items())
            print(f"epoch {epoch}: loss {trained.loss:.3f} ({losses})")
        tested = runtime.infer(test)
    for name, value in tested.metrics.items():
        print(f"test: {name} {value:.3f}")


if __name__ == "__main__":
    main()
