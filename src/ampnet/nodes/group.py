"""Group: many messages become one of several rows, when all of them are there.

    state(s)   the state of the group a message belongs to          (instance, step, node) of an edge's target
    size(s)    how many messages that group has                     the in-degree of the target
    order(s)   by what they are ordered in it                       the edge number; default: the whole state

    in    e1 e4 | e2 | e7 ..........         groups fill up in any order of arrival
    out   [x_1 x_4 x_7] under state(e1)      rows always in the order of order(s), whatever the schedule
    back  the gradient's rows go back to e1, e4, e7, under the states they came with

A group of no messages never exists, so nothing comes out for it: a graph node without in-edges needs a way of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch

from ampnet.errors import PairingError, StateError
from ampnet.key import Packer
from ampnet.message import Messages, offsets_of
from ampnet.nodes.kept import gather
from ampnet.nodes.keyed import Keyed
from ampnet.nodes.node import Node, Outputs, StateFunction, backward_to, forward_to
from ampnet.nodes.store import Store
from ampnet.state import Column, Ints, States


class _Waiting:
    """A batch of members, some of which still wait."""

    __slots__ = ("groups", "keys", "messages")

    def __init__(self, messages: Messages, groups: States, keys: Ints) -> None:
        self.messages, self.groups, self.keys = messages, groups, keys

    def take(self, where: Column) -> _Waiting:
        return _Waiting(self.messages.take(where), self.groups.take(where), self.keys[where])


class Group(Node):
    """``Group(state=..., size=..., order=...)``: see the head of this file. The key is the group's whole state."""

    kind = "aggregate"

    def __init__(
        self, state: Callable[..., States], size: Callable[..., Any], order: Callable[..., Any] | None = None
    ) -> None:
        self.state, self.size = StateFunction(state), StateFunction(size)
        self.order = StateFunction(order) if order is not None else None
        self.key = Packer()
        self.members = Store(self.key, "its memory of members")
        self._whole_state = Packer()
        self._waiting: list[_Waiting] = []
        self._missing: dict[int, int] = {}
        self._member_fields: tuple[str, ...] = ()
        self.key.on_widen.append(self._rekey)

    def forward(self, port: int, messages: Messages) -> Outputs:
        groups = self.state(messages.states, shelf=self.shelf)
        if not isinstance(groups, States) or len(groups) != len(messages):
            raise StateError(f"state must give {len(messages)} States, one a message, got {groups!r}")
        sizes = np.broadcast_to(np.asarray(self.size(messages.states, shelf=self.shelf)), (len(messages),))
        keys = self.key.pack(groups)
        unique, first, counts = np.unique(keys, return_index=True, return_counts=True)
        known = np.fromiter(map(self._missing.get, unique.tolist(), repeat(-1)), dtype=np.int64, count=len(unique))
        missing = np.where(known < 0, sizes[first], known) - counts
        if (missing < 0).any():
            at = first[np.flatnonzero(missing < 0)[:1]]
            raise PairingError(
                f"the group {groups.take(at).describe()} has size {int(sizes[at][0])} and got more messages than that, "
                f"the last for {messages.states.take(at).describe()}"
            )
        arrived = _Waiting(messages, groups, keys)
        full = unique[missing == 0]
        if len(full) < len(unique):
            short = missing > 0
            self._missing.update(zip(unique[short].tolist(), missing[short].tolist(), strict=True))
        if not len(full):
            self._waiting.append(arrived)
            return []
        for key in full.tolist():
            self._missing.pop(key, None)
        return [forward_to(0, self._assemble(self._leave(full, arrived)))]

    def _leave(self, full: Ints, arrived: _Waiting) -> _Waiting:
        """Take the members of full groups out of all that wait."""
        leaving, staying = [], []
        for batch in (*self._waiting, arrived):
            out = np.isin(batch.keys, full)
            if out.all():
                leaving.append(batch)
            elif out.any():
                leaving.append(batch.take(np.flatnonzero(out)))
                staying.append(batch.take(np.flatnonzero(~out)))
            else:
                staying.append(batch)
        self._waiting = staying
        return _Waiting(
            Messages.merge([b.messages for b in leaving]),
            States.merge([b.groups for b in leaving]),
            np.concatenate([b.keys for b in leaving]),
        )

    def _assemble(self, members: _Waiting) -> Messages:
        states = members.messages.states
        if self.order is None:
            # Not the packed key: its value depends on what other states came by before.
            rank = np.lexsort((*reversed(states.columns), members.keys))
        else:
            rank = np.lexsort((np.asarray(self.order(states, shelf=self.shelf)), members.keys))
        if (np.diff(rank) == 1).all():
            ordered, keys, groups = members.messages, members.keys, members.groups
        else:
            ordered, keys, groups = members.messages.take(rank), members.keys[rank], members.groups.take(rank)
        starts = np.concatenate(([0], np.flatnonzero(np.diff(keys)) + 1, [len(keys)]))
        rows = ordered.row_counts()
        out_states = groups.take(starts[:-1])
        if ordered.train:
            self._member_fields = states.fields
            kept = torch.from_numpy(np.vstack([ordered.states.columns, rows]).T.copy())
            self.members.put(keys[starts[:-1]], (kept,), None, starts)
        offsets = starts if ordered.offsets is None else offsets_of(np.add.reduceat(rows, starts[:-1]))
        return Messages.trusted(ordered.payload, out_states, offsets, ordered.train)

    def backward(self, port: int, messages: Messages) -> Outputs:
        messages, parts = self.members.take(messages)
        kept = gather(parts, 0)
        assert kept is not None
        columns = kept.numpy().T
        states = States.trusted(self._member_fields, np.ascontiguousarray(columns[:-1]))
        rows = columns[-1]
        offsets = None if (rows == 1).all() else offsets_of(rows)
        return [backward_to(0, Messages.trusted(messages.payload, states, offsets, messages.train))]

    def _rekey(self, rekey: Callable[[Ints], Ints]) -> None:
        for batch in self._waiting:
            batch.keys = rekey(batch.keys)
        if self._missing:
            keys = np.fromiter(self._missing, dtype=np.int64, count=len(self._missing))
            self._missing = dict(zip(rekey(keys).tolist(), self._missing.values(), strict=True))

    def stores(self) -> Iterator[tuple[str, Keyed]]:
        yield "members", self.members

    def forget(self) -> None:
        self.members.clear()
        self._waiting.clear()
        self._missing.clear()

    def held(self) -> dict[str, int]:
        return {"members": len(self.members), "waiting": sum(len(b.messages) for b in self._waiting)}

    def waits(self) -> list[str]:
        lines = []
        for batch in self._waiting:
            _, first = np.unique(batch.keys, return_index=True)
            for at in first[:5].tolist():
                key = int(batch.keys[at])
                here = int(sum((b.keys == key).sum() for b in self._waiting))
                lines.append(
                    f"group {batch.groups.take(np.array([at])).describe()} has {here} message(s) and waits for "
                    f"{self._missing.get(key, 0)} more"
                )
        return lines

    def state_functions(self) -> dict[str, StateFunction]:
        named = {"state": self.state, "size": self.size}
        return named if self.order is None else {**named, "order": self.order}

    def fields_out(self, port: int, arriving: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
        return None
