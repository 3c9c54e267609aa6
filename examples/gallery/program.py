"""Programs: an instance names the layers that are applied to it, and their order.

``choose(order[i], layers, h)`` inside of `repeat`: ``order`` is a `Seq` of integers, so it decides which layer a round
uses. Each layer learns one operation, from programs of several.
"""

from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Seq
from ampnet.lang import choose, loss, repeat

OPERATIONS = 4
"""On a point: mirror it in x or in y, turn it by a quarter, or swap its coordinates."""


class Programs(ampnet.Model):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, hidden), nn.Linear(hidden, 2)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(OPERATIONS))

    def forward(self, point: Tensor, order: Seq, target: Tensor) -> Tensor:
        h = torch.tanh(self.first(point))
        h = repeat(lambda h, i: torch.tanh(choose(order[i], self.layers, h)), h, times=order.length)
        found = self.last(h)
        loss(found, target, "squared_error")
        return found


def make_model() -> ampnet.Model:
    return Programs()


def make_data(count: int, seed: int) -> list[tuple[Tensor, Seq, Tensor]]:
    random = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        point = torch.rand(2, generator=random, dtype=torch.get_default_dtype()) * 2 - 1
        length = int(torch.randint(1, 6, (), generator=random))
        order = torch.randint(0, OPERATIONS, (length,), generator=random).tolist()
        x, y = point
        for operation in order:
            x, y = [(-x, y), (x, -y), (-y, x), (y, x)][operation]
        rows.append((point, Seq(order), torch.stack((x, y))))
    return rows


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(500, seed=1), make_data(100, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=10, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=50) as runtime:
        for epoch in range(1, 7):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} programs/s")
        tested = runtime.infer(graph.instances(test))
    print(f"test: off by {tested.metrics['absolute_error']:.2f}")


if __name__ == "__main__":
    main()
