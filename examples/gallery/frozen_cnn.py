"""A convolutional network as a pretrained one is used: BatchNorm in eval mode, its first layers frozen.

`whole` makes one node of the network. Its running statistics are read and never changed; BatchNorm's weight and bias
train unless they are frozen, as the first convolution is. The network is written for a batch, so it is given one of 1.
"""

from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet.lang import loss, whole

SHAPES = 4


class FrozenCnn(ampnet.Model):
    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.backbone(make_images(torch.arange(200) % SHAPES, 7))  # as if it had been trained: it has statistics
        self.backbone.eval()
        self.backbone[0].requires_grad_(False)
        self.head = nn.Linear(16 * channels, SHAPES)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        scores = self.head(whole(self.backbone, image[None])[0])
        loss(scores, label)
        return scores


def make_model() -> ampnet.Model:
    return FrozenCnn()


def make_images(labels: Tensor, seed: int) -> Tensor:
    """A line across, a line down, a diagonal, a square: somewhere, with noise."""
    random = torch.Generator().manual_seed(seed)
    images = 0.3 * torch.randn(len(labels), 1, 8, 8, generator=random)
    for image, label in zip(images, labels.tolist(), strict=True):
        y, x = torch.randint(0, 4, (2,), generator=random).tolist()
        steps = torch.arange(5)
        if label == 3:
            image[0, y : y + 4, x : x + 4] += 1
        else:
            image[0, y + steps * (label != 0), x + steps * (label != 1)] += 2
    return images


def make_data(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    labels = torch.randint(0, SHAPES, (count,), generator=torch.Generator().manual_seed(seed))
    return list(zip(make_images(labels, seed), labels, strict=True))


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(600, seed=1), make_data(200, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.003), min_update_frequency=20, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=60) as runtime:
        for epoch in range(1, 7):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} images/s")
        tested = runtime.infer(graph.instances(test))
    print(f"frozen cnn: accuracy {tested.metrics['accuracy']:.2f}")


if __name__ == "__main__":
    main()
