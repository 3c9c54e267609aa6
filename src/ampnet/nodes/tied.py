"""Tied: one set of parameters that several modules use, in as many ways: tied weights.

    token ──> emb: Embedding ──┐          ┌──> row of the table           faces of one node: each computes in its own
                               ├── W, b ──┤                               way, all with the same W
    h ──────> out: Linear ─────┘          └──> scores                     dW = dW of emb + dW of out, one update

Each **face** is a node of its own kind with one site. What is shared is the updater: a face sees those of the weights,
and of their sums, that its module has. As it is one node, it is hosted by one worker and copied as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ampnet.message import Messages
from ampnet.nodes.keyed import Keyed
from ampnet.nodes.node import Output, Outputs, Report, Role
from ampnet.nodes.transform import Arrived, Parameterised
from ampnet.update.sums import Sums
from ampnet.update.updater import Updater


class Tied(Parameterised):
    """``Tied({"emb": Embedding(module), "out": Linear(other)})``, where ``other.weight is module.weight``.

    A module that is called several times has a face for each call.
    """

    role: Role = "rows"

    def __init__(self, faces: Sequence[tuple[str, Parameterised]]) -> None:
        """``faces``: names of modules, and their nodes."""
        self.faces = [face for _, face in faces]
        self.names = list(dict.fromkeys(name for name, _ in faces))
        """The names of the modules."""
        self._first = [sum(len(f.inputs) for f in self.faces[:i]) for i in range(len(faces) + 1)]
        super().__init__(module_dict({name: face.module for name, face in faces}))
        self.inputs = tuple(self._port(i, name) for i, face in enumerate(self.faces) for name in face.inputs)
        self.outputs = tuple(self._port(i, face.outputs[0]) for i, face in enumerate(self.faces))
        self.keys = [face.key for face in self.faces]
        self.caches = [face.caches[0] for face in self.faces]
        self.saturates = any(face.saturates for face in self.faces)
        for face in self.faces:
            face.updater = Share(self, face)  # type: ignore[assignment]

    def _set_sites(self, keys: Sequence[Sequence[str] | None]) -> None:
        """The faces have them."""

    def _port(self, face: int, name: str) -> str:
        return f"use{face + 1}_{name}"

    def leads_to(self, port: int) -> Sequence[int]:
        return (self._of(port)[0],)

    def _of(self, port: int) -> tuple[int, int]:
        """The face that an input port belongs to, and which of its ports it is."""
        face = next(i for i in range(len(self.faces)) if port < self._first[i + 1])
        return face, port - self._first[face]

    def fields_out(self, port: int, arriving: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
        return arriving[self._first[port]]

    def face(self, site: int) -> Parameterised:
        face = self.faces[site]
        face.name, face.shelf, face.input_is_data = self.name, self.shelf, self.input_is_data
        return face

    def arrive(self, port: int, messages: Messages) -> list[Arrived]:
        face, own = self._of(port)
        return [arrived._replace(site=face) for arrived in self.face(face).arrive(own, messages)]

    def forward(self, port: int, messages: Messages) -> Outputs:
        face, own = self._of(port)
        return [self._from(face, output) for output in self.face(face).forward(own, messages)]

    def backward(self, port: int, messages: Messages) -> Outputs:
        return [self._from(port, output) for output in self.face(port).backward(0, messages)]

    def _from(self, face: int, output: Output) -> Output:
        assert not isinstance(output, Report)
        direction, port, messages = output
        return direction, self._first[face] + port if direction else face, messages

    def live_versions(self) -> set[int]:
        return set().union(*(face.live_versions() for face in self.faces))

    def probe(self, messages: Messages) -> bool:
        return False

    def stores(self) -> Iterator[tuple[str, Keyed]]:
        for face in self.faces:
            yield from face.stores()

    def waits(self) -> list[str]:
        return [line for face in self.faces for line in face.waits()]

    def describe(self) -> str:
        return " and ".join(dict.fromkeys(face.describe() for face in self.faces)) + ", tied"


def module_dict(modules: Mapping[str, nn.Module]) -> nn.ModuleDict:
    """Returns the modules as one, also under names that `nn.ModuleDict` refuses: "keys", "values"."""
    made = nn.ModuleDict()
    made._modules.update(modules)
    return made


class Share:
    """A node's updater as one of its faces sees it: with the weights of the face's own module."""

    def __init__(self, node: Tied, face: Parameterised) -> None:
        self._node = node
        places = {id(p): i for i, p in enumerate(node.parameters.values())}
        self._picks = [places[id(p)] for p in face.parameters.values()]
        self.touched = self.direct = None
        """Other faces may have changed any row; and none may add to the weights by itself."""

    @property
    def weights(self) -> list[Tensor]:
        return self._pick(self._node.updater.weights)

    def weights_of(self, version: int) -> list[Tensor]:
        return self._pick(self._node.updater.weights_of(version))

    def forward_weights(self) -> list[Tensor]:
        return self._pick(self._node.updater.forward_weights())

    def pinned(self, version: int) -> list[Tensor]:
        return self._pick(self._node.updater.pinned(version))

    def hold(self, version: int) -> list[Tensor]:
        return self._pick(self._node.updater.hold(version))

    def _pick(self, found: Sequence[Tensor]) -> list[Tensor]:
        return [found[i] for i in self._picks]

    @property
    def whole(self) -> Updater:
        return self._node.updater

    def own(self, weights: list[Tensor]) -> list[Tensor]:
        return self._pick(weights)

    @property
    def adding(self) -> Some:
        return self.picked(self._node.updater.adding)

    def picked(self, sums: Sums) -> Some:
        """Those of some sums of the whole node that are of this face."""
        return Some(sums, self._picks)

    @property
    def all_sums(self) -> Sums:
        return self._node.updater.adding

    def touch(self, rows: Tensor) -> None:
        """Does nothing: changed rows are not tracked."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is being copied
            raise AttributeError(name)
        return getattr(self._node.updater, name)


class Some(Sums):
    """Some of the sums of a node, renumbered."""

    def __init__(self, whole: Sums, picks: Sequence[int]) -> None:
        list.__init__(self, [list.__getitem__(whole, i) for i in picks])
        self._whole, self._picks = whole, list(picks)

    def __getitem__(self, i: int) -> Tensor:  # type: ignore[override]
        return self._whole[self._picks[i]]

    def add_whole(self, g: Tensor, x: Tensor, weight: int = 0) -> None:
        self._whole.add_whole(g, x, self._picks[weight])

    def add_rows(self, g: Tensor, weight: int) -> None:
        self._whole.add_rows(g, self._picks[weight])

    def add_each(self, pieces: Sequence[Tensor | None]) -> None:
        for i, piece in enumerate(pieces):
            if piece is not None:
                self[i].add_(piece)
