"""Join: the rendezvous of messages that arrive on several ports under one key.

Concat and Loss join forward messages; Bcast and Split join the gradients that come back from all their outputs. Whoever
comes early waits in its port's store; whoever comes last leaves with all payloads, in the order of the last batch.

    port 0   k1 k2 k3       k1 k2 k3 wait
    port 1      k2          leaves with k2 = (rows of port 0, rows of port 1);  k1 and k3 go on waiting
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ampnet.errors import PayloadError
from ampnet.key import Packer
from ampnet.message import Messages
from ampnet.nodes.store import Part, Store, gather, gather_counts, gather_states
from ampnet.state import Column, Ints, States


@dataclass(slots=True)
class Joined:
    """Messages of which every port's part has arrived."""

    keys: Ints
    states: tuple[States, ...]
    """The states under which the messages came in, per port."""
    payloads: tuple[Tensor | None, ...]
    """One payload per port; None for a gradient that is not there."""
    offsets: Ints | None
    train: bool


class Join:
    """Holds the messages of several ports until all of one key are there. They must agree in their number of rows."""

    def __init__(self, ports: Sequence[str], packer: Packer) -> None:
        self.ports, self.packer = tuple(ports), packer
        self.waiting = [Store(packer, f"the messages waiting at port '{p}'") for p in self.ports]

    def arrive(self, port: int, messages: Messages) -> Joined | None:
        """Take a batch in; return what it completes."""
        keys = self.packer.pack(messages.states)
        absent: Column | None = None
        for other, store in enumerate(self.waiting):
            if other != port:
                _, missing = store.find(keys, remove=False)
                if missing is not None and len(missing):
                    absent = missing if absent is None else np.union1d(absent, missing)
        if absent is None:
            return self._complete(port, keys, messages)
        store = self.waiting[port]
        if len(absent) == len(keys):
            store.put(keys, (messages.payload,), messages.states, messages.offsets)
            return None
        late = messages.take(absent)
        store.put(keys[absent], (late.payload,), late.states, late.offsets)
        present = np.setdiff1d(np.arange(len(keys)), absent, assume_unique=True)
        return self._complete(port, keys[present], messages.take(present))

    def _complete(self, port: int, keys: Ints, messages: Messages) -> Joined:
        payloads: list[Tensor | None] = []
        states: list[States] = []
        for other, store in enumerate(self.waiting):
            if other == port:
                if len(store) and store.holds_any(keys):
                    store.put(keys, (), messages.states)  # raises: this port has sent the key already
                payloads.append(messages.payload)
                states.append(messages.states)
                continue
            parts = store.take(keys, messages.states)
            self._check_rows(port, other, messages, parts)
            payloads.append(gather(parts, 0))
            states.append(gather_states(parts))
        return Joined(keys, tuple(states), tuple(payloads), messages.offsets, messages.train)

    def _check_rows(self, port: int, other: int, messages: Messages, parts: list[Part]) -> None:
        theirs = gather_counts(parts)
        if theirs is None and messages.offsets is None:
            return
        ours = messages.row_counts()
        theirs = theirs if theirs is not None else np.ones(len(messages), dtype=np.int64)
        if not (theirs == ours).all():
            bad = int(np.flatnonzero(theirs != ours)[0])
            raise PayloadError(
                f"the message {messages.states.take(np.array([bad])).describe()} has {int(ours[bad])} rows at port "
                f"'{self.ports[port]}' and {int(theirs[bad])} at port '{self.ports[other]}'"
            )

    def waits(self) -> list[str]:
        """Who waits for which port."""
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
