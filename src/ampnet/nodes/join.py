"""Join: the rendezvous of messages that arrive on several ports under one key.

Concat and Loss join forward messages; Bcast and Split join the gradients that come back from all their outputs. Early
messages wait in their port's store; the last one leaves with all payloads, in the order of the last batch.

    port 0   k1 k2 k3       k1 k2 k3 wait
    port 1      k2          leaves with k2 = (rows of port 0, rows of port 1);  k1 and k3 go on waiting
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from ampnet.errors import PayloadError
from ampnet.key import Packer
from ampnet.message import Messages, offsets_of
from ampnet.nodes.kept import gather, gather_counts, gather_states
from ampnet.nodes.store import Part, Record, Store
from ampnet.state import Ints, States


class Joined:
    """Messages of which every port's part has arrived, in the order of ``last``, the batch that completed them."""

    __slots__ = ("_parts", "last", "payloads", "port")

    def __init__(self, port: int, last: Messages, parts: Mapping[int, list[Part]]) -> None:
        self.port, self.last, self._parts = port, last, parts
        self.payloads: tuple[Tensor | None, ...] = tuple(
            last.payload if p == port else gather(parts[p], 0) for p in range(len(parts) + 1)
        )
        """One payload per port; None for a gradient that is not there."""

    def offsets(self, port: int) -> Ints | None:
        """The row offsets of the messages as they came in on a port."""
        if port == self.port:
            return self.last.offsets
        counts = gather_counts(self._parts[port])
        return None if counts is None else offsets_of(counts)

    def states(self, port: int) -> States:
        """The states under which the messages came in on a port."""
        return self.last.states if port == self.port else gather_states(self._parts[port])


class Join:
    """Holds the messages of several ports until all of one key are there.

    They must agree in their number of rows, unless told otherwise (``same_rows``).
    """

    def __init__(self, ports: Sequence[str], packer: Packer, *, keep_states: bool, same_rows: bool = True) -> None:
        self.ports, self.packer, self.keep_states, self.same_rows = tuple(ports), packer, keep_states, same_rows
        self._rest = [[i for i in range(len(self.ports)) if i != port] for port in range(len(self.ports))]
        self.waiting = [Store(packer, f"the messages waiting at port '{p}'") for p in self.ports]

    def arrive(self, port: int, messages: Messages) -> list[Joined]:
        """Take a batch in; return what it completes (messages that lack a payload on some port apart from others)."""
        rest = self._rest[port]
        if any(self.waiting[i].may_hold_empty for i in rest):
            keys = self.packer.pack(messages.states)
            lacking = sum(self.waiting[i].empty(keys).astype(np.int64) << i for i in rest)
            kinds = np.unique(lacking)
            if len(kinds) > 1:
                return [j for kind in kinds for j in self._arrive(port, messages.take(np.flatnonzero(lacking == kind)))]
        return self._arrive(port, messages)

    def _arrive(self, port: int, messages: Messages) -> list[Joined]:
        keys = self.packer.pack(messages.states)
        if len(self.ports) != 2:
            return self._arrive_of_many(port, messages, keys)
        found, others, parts = self.waiting[1 - port].match(messages, keys)
        if others is not None:
            self._wait(port, others)
        return [] if found is None else [self._complete(port, found, {1 - port: parts})]

    def _arrive_of_many(self, port: int, messages: Messages, keys: Ints) -> list[Joined]:
        rest = self._rest[port]
        absent = np.unique(np.concatenate([self.waiting[i].missing(keys) for i in rest]))
        if len(absent):
            self._wait(port, messages.take(absent))
            messages = messages.take(np.setdiff1d(np.arange(len(keys)), absent, assume_unique=True))
        if not len(messages):
            return []
        return [self._complete(port, messages, {i: self.in_order(i, messages) for i in rest})]

    def in_order(self, port: int, messages: Messages) -> list[Part]:
        """Returns the messages waiting at a port, in the order of a batch. (A store returns its own order: fine for one
        port.)"""
        sorted_batch, parts = self.waiting[port].take(messages)
        if sorted_batch is messages:
            return parts
        given, keys = self.packer.pack(sorted_batch.states), self.packer.pack(messages.states)
        place = np.empty(len(keys), dtype=np.int64)
        place[np.argsort(keys)] = np.argsort(given)
        counts = gather_counts(parts)
        offsets = None if counts is None else offsets_of(counts)
        states = gather_states(parts) if self.keep_states else None
        return [Part(Record(-1, given, (gather(parts, 0),), states, offsets, 0), place)]

    def _wait(self, port: int, messages: Messages) -> None:
        states = messages.states if self.keep_states else None
        self.waiting[port].put(self.packer.pack(messages.states), (messages.payload,), states, messages.offsets)

    def _complete(self, port: int, messages: Messages, parts: Mapping[int, list[Part]]) -> Joined:
        if self.same_rows:
            for other, found in parts.items():
                self._check_rows(port, other, messages, found)
        mine = self.waiting[port]
        if len(mine) and len(mine.missing(self.packer.pack(messages.states))) < len(messages):
            self._wait(port, messages)  # raises: this port has sent one of these keys already
        return Joined(port, messages, parts)

    def _check_rows(self, port: int, other: int, messages: Messages, parts: list[Part]) -> None:
        if messages.offsets is None and all(p.record.offsets is None for p in parts):
            return
        theirs = gather_counts(parts)
        if messages.payload is None or parts[0].record.rows[0] is None:
            return  # what is not there has no rows to count
        ours = messages.row_counts()
        theirs = theirs if theirs is not None else np.ones(len(messages), dtype=np.int64)
        if not (theirs == ours).all():
            bad = int(np.flatnonzero(theirs != ours)[0])
            raise PayloadError(
                f"the message {messages.states.take(np.array([bad])).describe()} has {int(ours[bad])} rows at port "
                f"'{self.ports[port]}' and {int(theirs[bad])} at port '{self.ports[other]}'"
            )

    def waits(self) -> list[str]:
        """Returns what waits for which port, as text."""
        lines = []
        for port, store in zip(self.ports, self.waiting, strict=True):
            if len(store):
                others = " and ".join(f"'{p}'" for p in self.ports if p != port)
                some = store.some_states()
                shown = "" if some is None else f": {some.describe(len(some))}"
                lines.append(f"{len(store)} message(s) of port '{port}' wait for port {others}{shown}")
        return lines

    def stores(self) -> list[tuple[str, Store]]:
        return [(f"waiting at '{p}'", s) for p, s in zip(self.ports, self.waiting, strict=True)]
