"""A module with several inputs and outputs becomes one node: an image, a question and a sequence of facts meet in it.

`Gate` is an ordinary `nn.Module` with parameters of its own, written for one instance: tensors of different shapes and
dtypes in, also in a tuple and by name, and a dictionary out. The facts come in as one tensor, however many there are.
"""

from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Seq
from ampnet.lang import each, loss

ASKED, HIDDEN = 3, 16


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.told = nn.Linear(16, HIDDEN), nn.Linear(2, HIDDEN)
        self.question, self.scale = nn.Embedding(ASKED, HIDDEN), nn.Parameter(torch.ones(HIDDEN))

    def forward(self, facts: Tensor, given: tuple[Tensor, Tensor], *, sharp: float = 1.0) -> dict[str, Tensor]:
        image, question = given
        asked = self.question(question) * self.scale
        told = torch.tanh(self.told(facts))
        share = torch.softmax(sharp * told @ asked, 0)
        return {"relevant": share.log(), "mixed": share @ told * asked + torch.tanh(self.seen(image.flatten()))}


class Fusion(ampnet.Model):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = Gate(), nn.Linear(HIDDEN, 1)

    def forward(self, image: Tensor, facts: Seq, question: Tensor, answer: Tensor) -> Tensor:
        made = self.gate(facts.row, (image, question), sharp=2.0)
        each(lambda score, right: loss(score, right, nothing_wrong, name="relevance"), made["relevant"], facts.right)
        found = self.out(made["mixed"])
        loss(found, answer, "squared_error", name="answer")
        return found


def nothing_wrong(scores: Tensor, right: Tensor) -> Tensor:
    return -(scores * right)


def make_model() -> ampnet.Model:
    return Fusion()


def make_data(count: int, seed: int) -> list[tuple[Tensor, Seq, Tensor, Tensor]]:
    """The answer is the number of the fact that the question names, and how bright the image is."""
    random = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        image, n = torch.rand(4, 4, generator=random), int(torch.randint(1, 6, (), generator=random))
        kinds, values = torch.randint(0, ASKED, (n,), generator=random), torch.rand(n, generator=random)
        at = int(torch.randint(0, n, (), generator=random))
        right = (kinds == kinds[at]).float() / (kinds == kinds[at]).sum()
        facts = Seq(row=torch.stack([kinds - 1.0, values], 1), right=right)
        rows.append((image, facts, kinds[at], ((values * right).sum() + image.mean()).view(1)))
    return rows


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(500, seed=1), make_data(100, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=20, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=60) as runtime:
        for epoch in range(1, 7):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} questions/s")
        tested = runtime.infer(graph.instances(test))
    print(f"fusion: loss {tested.loss:.3f} on new questions")


if __name__ == "__main__":
    main()
