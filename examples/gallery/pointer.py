"""Pointers: a linked list is walked from cell to cell, and the digits on the way are added up.

``states[at]`` is one element of a family, by an integer of the instance; ``memory.next[at]`` is the index of the next
cell. The loop carries a tensor and the index of the present cell.
"""

from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Seq
from ampnet.lang import each, loss, repeat

DIGITS, CLASSES = 5, 5


class Pointer(ampnet.Model):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.hidden = hidden
        self.embedding, self.cell = nn.Embedding(DIGITS, hidden), nn.GRUCell(hidden, hidden)
        self.value, self.answer = nn.Linear(hidden, hidden), nn.Linear(hidden, CLASSES)

    def forward(self, memory: Seq, start: int, steps: int, label: Tensor) -> Tensor:
        states = each(lambda cell: torch.tanh(self.value(self.embedding(cell.digit))), memory)

        def step(carry: tuple[Tensor, int]) -> tuple[Tensor, int]:
            h, at = carry
            return self.cell(states[at], h), memory.next[at]

        h, _ = repeat(step, (self.zeros(self.hidden), start), times=steps)
        scores = self.answer(h)
        loss(scores, label)
        return scores


def make_model() -> ampnet.Model:
    return Pointer()


def make_data(count: int, seed: int) -> list[tuple[Seq, int, int, Tensor]]:
    """Digits are 0 to 4; the answer is the sum of those on the way, modulo 5."""
    random = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        n = int(torch.randint(3, 12, (), generator=random))
        digit, follow = (torch.randint(0, high, (n,), generator=random) for high in (DIGITS, n))
        start, steps = int(torch.randint(0, n, (), generator=random)), int(torch.randint(1, 4, (), generator=random))
        at, total = start, 0
        for _ in range(steps):
            at, total = int(follow[at]), total + int(digit[at])
        rows.append((Seq(digit=digit, next=follow.tolist()), start, steps, torch.tensor(total % CLASSES)))
    return rows


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(500, seed=1), make_data(100, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=10, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=50) as runtime:
        for epoch in range(1, 9):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} walks/s")
        tested = runtime.infer(graph.instances(test))
    print(f"test: accuracy {tested.metrics['accuracy']:.2f}")


if __name__ == "__main__":
    main()
