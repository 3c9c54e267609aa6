"""Group: many messages become one of several rows, when all of them are there.

    state(s)   the state of the group a message belongs to          (instance, step, node) of an edge's target
    size(s)    how many messages that group has                     the in-degree of the target
    order(s)   by what they are ordered in it                       the edge number; default: the whole state

    in    e1 e4 | e2 | e7 ..........         groups fill up in any order of arrival
    out   [x_1 x_4 x_7] under state(e1)      rows always in the order of order(s), whatever the schedule
    back  the gradient's rows go back to e1, e4, e7, under the states they came with

A group of no messages never exists, so it has no output: a graph node without in-edges needs a separate path.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch

from ampnet.errors import PairingError, StateError
from ampnet.key import Packer
from ampnet.message import Messages, consecutive, offsets_of
from ampnet.nodes.kept import gather
from ampnet.nodes.keyed import Keyed
from ampnet.nodes.node import Node, Outputs, StateFunction, backward_to, forward_to
from ampnet.nodes.store import Store
from ampnet.state import Column, Ints, States


class _Arrived:
    """A batch of members, some of which still wait."""

    __slots__ = ("groups", "live", "messages")

    def __init__(self, messages: Messages, groups: States) -> None:
        self.messages, self.groups, self.live = messages, groups, len(messages)


class Group(Node):
    """``Group(state=..., size=..., order=...)``: see the head of this file.

    ``key``: the fields of the group's state that tell it from others; default, all of them.
    """

    role = "route"
    kind = "aggregate"

    def __init__(
        self,
        state: Callable[..., States],
        size: Callable[..., Any],
        order: Callable[..., Any] | None = None,
        key: Sequence[str] | None = None,
    ) -> None:
        self.state, self.size = StateFunction(state), StateFunction(size)
        self.order = StateFunction(order) if order is not None else None
        self.key = Packer(key)
        self.members = Store(self.key, "its memory of members")
        self._missing: dict[int, int] = {}
        """How many messages a group that has begun still lacks, by its key."""
        self._arrived: dict[int, _Arrived] = {}
        self._next = 0
        self._keys = self._batch = self._place = np.zeros(0, dtype=np.int64)
        """Of every message that waits: the key of its group, the batch it came in, its place there."""
        self._member_fields: tuple[str, ...] = ()
        self.key.holders.append(self)

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
        short = missing > 0
        self._missing.update(zip(unique[short].tolist(), missing[short].tolist(), strict=True))
        full = unique[~short]
        deque(map(self._missing.pop, full.tolist(), repeat(None)), maxlen=0)
        if len(full) == len(unique) and not len(self._keys):
            return [forward_to(0, self._assemble(messages, groups, keys))]
        self._wait(messages, groups, keys)
        return [forward_to(0, self._assemble(*self._leave(full)))] if len(full) else []

    def _wait(self, messages: Messages, groups: States, keys: Ints) -> None:
        self._arrived[self._next] = _Arrived(messages, groups)
        self._keys = np.concatenate((self._keys, keys))
        self._batch = np.concatenate((self._batch, np.full(len(keys), self._next)))
        self._place = np.concatenate((self._place, np.arange(len(keys))))
        self._next += 1

    def _leave(self, full: Ints) -> tuple[Messages, States, Ints]:
        """Take the members of full groups out of the waiting messages."""
        leaving = np.isin(self._keys, full)
        where = np.flatnonzero(leaving)
        where = where[np.argsort(self._batch[where], kind="stable")]
        batch, place, keys = self._batch[where], self._place[where], self._keys[where]
        cuts = [0, *(np.flatnonzero(batch[1:] != batch[:-1]) + 1).tolist(), len(batch)]
        messages, groups = [], []
        for a, b in itertools.pairwise(cuts):
            came = self._arrived[int(batch[a])]
            messages.append(came.messages.take(place[a:b]))
            groups.append(came.groups.take(place[a:b]))
            came.live -= b - a
            if not came.live:
                del self._arrived[int(batch[a])]
        stay = np.flatnonzero(~leaving)
        self._keys, self._batch, self._place = self._keys[stay], self._batch[stay], self._place[stay]
        return Messages.merge(messages), States.merge(groups), keys

    def _assemble(self, members: Messages, groups: States, keys: Ints) -> Messages:
        states = members.states
        if self.order is None:
            # Not the packed key: its value depends on what other states came by before.
            rank = np.lexsort((*reversed(states.columns), keys))
        else:
            rank = np.lexsort((np.asarray(self.order(states, shelf=self.shelf)), keys))
        if not consecutive(rank):
            members, keys, groups = members.take(rank), keys[rank], groups.take(rank)
        starts = np.concatenate(([0], np.flatnonzero(keys[1:] != keys[:-1]) + 1, [len(keys)]))
        rows = members.row_counts()
        out_states = groups.take(starts[:-1])
        if members.train:
            self._member_fields = states.fields
            kept = torch.from_numpy(np.vstack([members.states.columns, rows]).T.copy())
            self.members.put(keys[starts[:-1]], (kept,), None, starts)
        offsets = starts if members.offsets is None else offsets_of(np.add.reduceat(rows, starts[:-1]))
        return Messages.trusted(members.payload, out_states, offsets, members.train)

    def backward(self, port: int, messages: Messages) -> Outputs:
        messages, parts = self.members.take(messages)
        kept = gather(parts, 0)
        assert kept is not None
        columns = kept.numpy().T
        states = States.trusted(self._member_fields, np.ascontiguousarray(columns[:-1]))
        rows = columns[-1]
        offsets = None if (rows == 1).all() else offsets_of(rows)
        return [backward_to(0, Messages.trusted(messages.payload, states, offsets, messages.train))]

    def live_keys(self) -> Ints:
        return self._keys

    def rekey(self, rekey: Callable[[Ints], Ints]) -> None:
        self._keys = rekey(self._keys)
        keys = np.fromiter(self._missing, dtype=np.int64, count=len(self._missing))
        self._missing = dict(zip(rekey(keys).tolist(), self._missing.values(), strict=True))

    def stores(self) -> Iterator[tuple[str, Keyed]]:
        yield "members", self.members

    def forget(self) -> None:
        self.members.clear()
        self._missing.clear()
        self._arrived.clear()
        self._keys = self._batch = self._place = np.zeros(0, dtype=np.int64)

    def forget_instances(self, instances: Column) -> None:
        states = self.key.unpack(self._keys) if len(self._keys) else None
        if states is not None and "instance" in states.fields:
            gone = np.unique(self._keys[np.isin(states.column("instance"), instances)])
            deque(map(self._missing.pop, gone.tolist(), repeat(None)), maxlen=0)
            if len(gone):
                self._leave(gone)

    def held(self) -> dict[str, int]:
        return {"members": len(self.members), "waiting": len(self._keys)}

    def waits(self) -> list[str]:
        unique, counts = np.unique(self._keys, return_counts=True)
        if not len(unique):
            return []
        groups = self.key.unpack(unique[:5])
        return [
            f"group {groups.slice(i, i + 1).describe()} has {int(counts[i])} message(s) and waits for "
            f"{self._missing.get(int(unique[i]), 0)} more"
            for i in range(len(groups))
        ]

    def state_functions(self) -> dict[str, StateFunction]:
        named = {"state": self.state, "size": self.size}
        return named if self.order is None else {**named, "order": self.order}

    def fields_out(self, port: int, arriving: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
        return None
