"""Fanout: one message becomes several children, and answers when all their gradients have come back.

Flatmap (children are copies of the whole payload) and Ungroup (children are its rows) differ only in which rows of the
parent a child stands for. Gradients of children are added into the rows they stand for; a parent leaves when its last
child is in. A parent without children is answered at once, with a gradient of zero.

    parents         p0            p1      p2             children c0 c1 of p0, none of p1, c2 of p2
    still out       2             0       1              p1 answered at once
    c2 comes back   2             -       0              p2 answered
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ampnet.key import Packer
from ampnet.message import Messages, index_tensor, ranges
from ampnet.nodes.keyed import Keyed
from ampnet.nodes.node import Node, Outputs, backward_to
from ampnet.nodes.store import Store
from ampnet.state import Column, Ints, States


class Family:
    """The parents of one forward batch, while their children are out."""

    __slots__ = ("child_count", "child_owner", "child_start", "moved", "out", "parents", "total")

    def __init__(self, parents: Messages, owner: Ints, start: Ints, count: Ints) -> None:
        self.parents = parents.with_payload(None)
        self.child_owner, self.child_start, self.child_count = owner, start, count
        self.out = np.bincount(owner, minlength=len(parents))
        self.moved = np.zeros(len(parents), dtype=bool)
        """Parents of which a child brought a gradient; the others are answered without one."""
        self.total: Tensor | None = None

    def add(self, children: Column, messages: Messages) -> list[Messages]:
        """Add the gradients of these children; return the parents that are complete now."""
        g, owner = messages.payload, self.child_owner[children]
        self.out -= np.bincount(owner, minlength=len(self.out))
        if g is not None:
            self.moved[owner] = True
            rows = ranges(self.child_start[children], self.child_count[children])
            at_once = self.total is None and not self.out.any() and len(rows) == self.parents.rows
            if at_once and (np.diff(rows) == 1).all():
                self.total = g  # all of it at once, in order: nothing will be added to it
            else:
                if self.total is None:
                    self.total = g.new_zeros(self.parents.rows, *g.shape[1:])
                self.total.index_add_(0, index_tensor(rows, g), g)
        touched = np.unique(owner)
        done = touched[self.out[touched] == 0]
        moved, still = done[self.moved[done]], done[~self.moved[done]]
        answers = []
        if len(moved):
            whole = self.parents.with_payload(self.total)
            answers.append(whole if len(moved) == len(self.out) else whole.take(moved))
        if len(still):
            answers.append(self.parents.take(still))
        return answers


class Fanout:
    """The families of a node, and its children under their keys."""

    def __init__(self, packer: Packer) -> None:
        self.packer = packer
        self.children = Store(packer, "its children")
        self._families: dict[int, Family] = {}
        self._next = 0

    def send(self, parents: Messages, children: States, owner: Ints, start: Ints, count: Ints) -> Messages | None:
        """Note the children of a batch. Returns the parents that have none, to be answered at once."""
        family = Family(parents, owner, start, count)
        if len(children):
            numbers = torch.arange(len(children))
            self.children.put(self.packer.pack(children), (numbers,), tag=self._next, alone=True)
            self._families[self._next] = family
            self._next += 1
        childless = np.flatnonzero(family.out == 0)
        if not len(childless):
            return None
        payload = parents.payload
        zero = payload.new_zeros(payload.shape) if payload is not None and payload.is_floating_point() else None
        return parents.with_payload(zero).take(childless)

    def returned(self, messages: Messages) -> Iterator[Messages]:
        """Gradients of children came back: the parents that are complete now."""
        messages, parts = self.children.take(messages)
        start = 0
        for part in parts:
            family = self._families[part.record.tag]
            numbers = part.rows(0)
            assert numbers is not None
            some = messages if len(parts) == 1 else messages.slice(start, start + len(part))
            start += len(part)
            complete = family.add(numbers.numpy(), some)
            if not family.out.any():
                del self._families[part.record.tag]
            yield from complete

    def held(self) -> dict[str, int]:
        return {"children": len(self.children), "families": len(self._families)}

    def clear(self) -> None:
        self.children.clear()
        self._families.clear()


class FansOut(Node):
    """Base of Flatmap and Ungroup."""

    role = "route"
    fans_out = True
    kind = "aggregate"

    def __init__(self, key: Sequence[str] | None = None) -> None:
        self.key = Packer(key)
        self.fanout = Fanout(self.key)

    def backward(self, port: int, messages: Messages) -> Outputs:
        return [backward_to(0, parents) for parents in self.fanout.returned(messages)]

    def stores(self) -> Iterator[tuple[str, Keyed]]:
        yield "children", self.fanout.children

    def forget(self) -> None:
        self.fanout.clear()

    def held(self) -> dict[str, int]:
        return self.fanout.held()

    def fields_out(self, port: int, arriving: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
        return None
