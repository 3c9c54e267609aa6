"""Concat: joins messages of one key from several ports and concatenates their rows.

    forward    [x | h] under the state of the first port, when every port's message is there
    backward   the columns of each port go back to it, under the state it came with

States that are equal on all ports (same fields, all of them in the key) need not be remembered; others are kept under
the key until the gradient comes. With ``same_states=True`` the caller asserts that they are equal although the key
omits some fields, and nothing is stored either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ampnet.errors import PayloadError
from ampnet.key import Packer
from ampnet.message import Messages
from ampnet.nodes.join import Join, Joined
from ampnet.nodes.kept import gather_states
from ampnet.nodes.keyed import Keyed
from ampnet.nodes.node import Node, Output, Outputs, Piece, backward_to, forward_to
from ampnet.nodes.store import Store
from ampnet.state import States


class Concat(Node):
    """``Concat(("x", "h"))``: concatenates rows. ``key``: default, the fields that all ports share.

    ``same_states``: a promise that states that meet under one key are equal on all ports.
    """

    role = "rows"
    kind = "aggregate"

    def __init__(
        self, ports: Sequence[str] = ("a", "b"), key: Sequence[str] | None = None, *, same_states: bool = False
    ) -> None:
        self.inputs = tuple(ports)
        self.key = Packer(key)
        self.join = Join(self.inputs, self.key, keep_states=not same_states)
        self.origins = [Store(self.key, f"its memory of port '{p}'") for p in self.inputs]
        self._widths: list[int] | None = None
        self._kinds: list[tuple[torch.Size, torch.dtype]] = []
        self._same_states: bool | None = True if same_states else None
        """None: not known before the first messages meet."""

    def forward(self, port: int, messages: Messages) -> Outputs:
        return [self._side_by_side(joined) for joined in self.join.arrive(port, messages)]

    def _side_by_side(self, joined: Joined) -> Output:
        payloads = [p for p in joined.payloads if p is not None]
        self._check(payloads)
        last = joined.last
        if self.states_agree(joined):
            return forward_to(0, last.with_payload(torch.cat(payloads, -1)))
        given = [joined.states(i) for i in range(len(self.inputs))]
        if last.train:
            keys = self.key.pack(last.states)
            for store, states in zip(self.origins, given, strict=True):
                store.put(keys, (), states)
        return forward_to(0, Messages.trusted(torch.cat(payloads, -1), given[0], last.offsets, last.train))

    def _check(self, payloads: list[Tensor]) -> None:
        if len(payloads) < len(self.inputs):
            raise PayloadError("got a forward message without a payload")
        kinds = [(p.shape[1:], p.dtype) for p in payloads]
        if kinds == self._kinds:
            return
        if any(p.dim() < 2 for p in payloads):
            raise PayloadError(f"expects rows of some width, got payloads of {[tuple(p.shape) for p in payloads]}")
        widths = [p.shape[-1] for p in payloads]
        if self._widths is not None and widths != self._widths:
            raise PayloadError(f"got rows of widths {widths} after rows of widths {self._widths}")
        self._widths, self._kinds = widths, kinds
        if any(p.dtype != payloads[0].dtype for p in payloads):
            found = ", ".join(f"'{n}' {p.dtype}" for n, p in zip(self.inputs, payloads, strict=True))
            raise PayloadError(f"ports carry different dtypes: {found}")

    def states_agree(self, joined: Joined) -> bool:
        """Whether messages that meet have the same state on all ports."""
        if self._same_states is None:
            fields = {joined.states(i).fields for i in range(len(self.inputs))}
            self._same_states = len(fields) == 1 and set(self.key.fields or ()) == set(fields.pop())
        return self._same_states

    def states_of(self, joined: Joined) -> States:
        """The states under which rows that met leave."""
        return joined.last.states if self.states_agree(joined) else joined.states(0)

    def backward(self, port: int, messages: Messages) -> Outputs:
        keys = None if self._same_states else self.key.pack(messages.states)
        out, start = [], 0
        for i, width in enumerate(self._widths or ()):
            batch, states = messages, messages.states
            if keys is not None:
                batch, parts = self.origins[i].take(messages, keys)
                states = gather_states(parts)
            piece = None if batch.payload is None else batch.payload[..., start : start + width]
            start += width
            out.append(backward_to(i, Messages.trusted(piece, states, batch.offsets, batch.train)))
        return out

    def view(self, port: int) -> list[Piece]:
        return [(i, None) for i in range(len(self.inputs))]

    def stores(self) -> Iterator[tuple[str, Keyed]]:
        yield from self.join.stores()
        yield from ((f"origins of '{p}'", s) for p, s in zip(self.inputs, self.origins, strict=True))

    def fields_out(self, port: int, arriving: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
        return arriving[0]

    def waits(self) -> list[str]:
        return self.join.waits()
