"""A variational autoencoder of sets: two named losses, one of them without a label, and noise that comes with the data.

A set of points around a hidden centre. The encoder reads the set (deep sets), the decoder says where its points are. A
model may not draw random numbers: the noise is an argument, drawn anew for each instance in each epoch.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Seq
from ampnet.lang import each, loss, reduce

WIDTH, HIDDEN, CODE = 3, 24, 2


class SetVae(ampnet.Model):
    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN))
        self.mean, self.log_variance = nn.Linear(HIDDEN, CODE), nn.Linear(HIDDEN, CODE)
        self.decode = nn.Sequential(nn.Linear(CODE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, points: Seq, noise: Tensor) -> Any:
        summary = torch.relu(reduce(each(self.point, points), "mean"))
        mean, log_variance = self.mean(summary), self.log_variance(summary)
        centre = self.decode(mean + torch.exp(log_variance / 2) * noise)
        each(lambda x: loss(centre, x, "squared_error", name="reconstruction"), points)
        loss((mean**2 + log_variance.exp() - log_variance - 1).sum() / 2, name="divergence", weight=0.01)
        return {"mean": mean, "centre": self.decode(mean)}


def make_model() -> ampnet.Model:
    return SetVae()


def make_data(count: int, seed: int) -> list[tuple[Seq, Tensor]]:
    random = torch.Generator().manual_seed(seed)

    def sets() -> Iterator[tuple[Seq, Tensor]]:
        for _ in range(count):
            angle = torch.rand((), generator=random) * 6.28
            centre = 2 * torch.stack((angle.cos(), angle.sin(), angle.cos() * angle.sin()))
            n = int(torch.randint(1, 9, (), generator=random))
            yield Seq(centre + 0.1 * torch.randn(n, WIDTH, generator=random)), torch.randn(CODE, generator=random)

    return list(sets())


def with_new_noise(rows: list[tuple[Seq, Tensor]]) -> Iterator[tuple[Seq, Tensor]]:
    return ((points, torch.randn(CODE)) for points, _ in rows)


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(400, seed=1), make_data(100, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=20, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=60) as runtime:
        for epoch in range(1, 11):
            trained = runtime.train(graph.instances(with_new_noise(train)))
            named = ", ".join(f"{name} {value:.3f}" for name, value in trained.losses.items())
            print(f"epoch {epoch}: {named}; {trained.records_per_second:,.0f} sets/s")
        found = runtime.predict([(points,) for points, _ in test])
    means = [torch.stack(points.value.values).mean(0) for points, _ in test]
    errors = [(one["centre"] - mean).norm() for one, mean in zip(found, means, strict=True)]
    print(f"set vae: centres are {torch.stack(errors).mean():.2f} off, on a curve of radius 2")


if __name__ == "__main__":
    main()
