"""Small models, and requests to them without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import torch
from torch import nn

from ampnet import Edges, Inline, Model, Seq, Tree, Update, compile, serve
from ampnet.lang import Compiled, choose, each, fold, fold_tree, loss, messages, reduce, repeat
from ampnet.serve.serving import Serving


class Reader(Model):
    """A sequence of tokens, read in a fold."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell, self.classify = nn.Embedding(20, 8), nn.GRUCell(8, 8), nn.Linear(8, 5)

    def forward(self, tokens: Any, label: Any) -> Any:
        h = fold(lambda h, token: self.cell(self.embedding(token), h), tokens, torch.zeros(8))
        scores = self.classify(h)
        loss(scores, label)
        return scores


class Trees(Model):
    """Words at the leaves of a tree, a label at each node."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.both, self.classify = nn.Embedding(20, 6), nn.Linear(12, 6), nn.Linear(6, 3)

    def forward(self, tree: Any) -> Any:
        states, _ = fold_tree(
            tree,
            leaf=lambda node: self.embedding(node.word),
            branch=lambda left, right: torch.tanh(self.both(torch.cat((left, right), -1))),
        )
        scores = each(lambda state: self.classify(state), states)
        each(loss, scores, tree.label)
        return {"scores": scores, "classes": 3}


class Rounds(Model):
    """A layer applied as many times as an integer says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, point: Any, rounds: Any, target: Any) -> Any:
        out = repeat(lambda h: self.layer(h), point, times=rounds)
        loss(out, target, "squared_error")
        return out


class Molecules(Model):
    """Atoms and bonds of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(10, 4), nn.Linear(4, 1)
        self.bonds = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, atoms: Any, bonds: Any, dipole: Any) -> Any:
        states = each(lambda atom: self.embedding(atom.element), atoms)
        heard = messages(lambda h, bond: choose(bond.kind, self.bonds, h), bonds, states)
        out = self.out(reduce(heard))
        loss(out, dipole, "squared_error")
        return out


def reader(seed: int = 0) -> Compiled:
    torch.manual_seed(seed)
    return compile(Reader(), Seq(torch.tensor([1, 2, 3])), torch.tensor(1))


class Odd(Model):
    """A dict, tensors of any number, sequences of sequences; several results."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(9, 3), nn.Linear(3, 3)

    def forward(self, batch: Any, text: Any, **more: Any) -> Any:
        sentences = each(lambda s: fold(lambda h, w: h + self.embedding(w), s.words, torch.zeros(3)), text)
        out = self.layer(batch["x"].sum(0) + reduce(sentences) + more["shift"])
        loss(out, batch["y"], "squared_error")
        return out, [sentences, 1.5]


def graphs() -> dict[str, Compiled]:
    """A graph of each kind of arguments."""
    torch.manual_seed(0)
    atoms = Seq(element=torch.tensor([6, 1, 1]))
    bonds = Edges(atoms, [0, 1, 0, 2], [1, 0, 2, 0], kind=[0, 0, 1, 1])
    tree = Tree([2, 2, -1], leaves={"word": torch.tensor([17, 4])}, label=torch.tensor([0, 1, 2]))
    text = Seq(words=[torch.tensor([4, 8, 1]), torch.tensor([7, 7])])
    batch = {"x": torch.rand(2, 3), "y": torch.rand(3)}
    return {
        "sequence": reader(),
        "tree": compile(Trees(), tree),
        "rounds": compile(Rounds(), torch.tensor([0.5, 1.0]), 3, torch.zeros(2)),
        "edges": compile(Molecules(), atoms, bonds, torch.tensor([0.3])),
        "odd": compile(Odd(), batch=batch, text=text, shift=torch.rand(3)),
    }


def update() -> Update:
    return Update(lambda parameters: torch.optim.SGD(parameters, lr=0.05))


@contextmanager
def served(graph: Compiled | None = None, **settings: Any) -> Iterator[Serving]:
    """An application without a server, beside a runtime at rest."""
    with (
        Inline(graph or reader(), update=update(), max_active_keys=4) as runtime,
        serve(runtime, port=None, **{"rate": None, **settings}) as serving,
    ):
        yield serving


def asked(app: Any, requests: Sequence[dict[str, Any]], client: str = "127.0.0.1") -> list[httpx.Response]:
    """The responses to requests that come at the same time."""

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app, client=(client, 1), raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            return await asyncio.gather(*(http.request(**{"url": "/predict", "method": "POST", **r}) for r in requests))

    return asyncio.run(ask())


def ask(serving: Serving, *instances: Any, **more: Any) -> httpx.Response:
    """The response to one request."""
    return asked(serving.app.asgi, [{"json": {"instances": list(instances)}, **more}])[0]


def post(serving: Serving, body: bytes | str, **headers: str) -> httpx.Response:
    """The response to a body as it is."""
    named = {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
    return asked(serving.app.asgi, [{"content": body, "headers": named}])[0]
