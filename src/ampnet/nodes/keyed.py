"""Keyed memory: a dict from packed keys that follows its packer when keys widen, and explains what goes wrong with it.

`Keyed` is the base of everything a node remembers under keys; `Marks` is its simplest form, a small number under each
key: which way a message came. `ampnet.nodes.store` keeps tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, repeat
from typing import NoReturn

import numpy as np

from ampnet.errors import PairingError
from ampnet.key import Packer
from ampnet.message import Messages
from ampnet.state import Column, Ints, States


class Keyed:
    """Something kept under packed keys."""

    def __init__(self, packer: Packer, what: str) -> None:
        self.what = what
        self.packer = packer
        packer.holders.append(self)

    def __len__(self) -> int:
        raise NotImplementedError

    def some_states(self, most: int = 3) -> States | None:
        """What the keys kept here say of the states, for error messages."""
        raise NotImplementedError

    def clear(self) -> None:
        raise NotImplementedError

    def drop_instances(self, instances: Column) -> None:
        """Forget the messages of these instances, where they may be left over after an inference."""

    def live_keys(self) -> Ints:
        raise NotImplementedError

    def rekey(self, rekey: Callable[[Ints], Ints]) -> None:
        raise NotImplementedError

    def _explain_clash(self, keys: Ints) -> str:
        values, counts = np.unique(keys, return_counts=True)
        again = values[counts > 1] if (counts > 1).any() else keys
        which = self.packer.unpack(again[:1]).describe()
        return (
            f"two messages with one key {which} at the same time in {self.what}. "
            f"Usual cause: the key leaves out a field that tells the messages apart, or one message was sent twice"
        )

    def _explain_missing(self, states: States, held: States | None, count: int) -> str:
        fields = ", ".join(self.packer.fields or ())
        shown = f": {held.describe()}" if held is not None else ""
        return (
            f"got a backward for {states.describe()} that it never forwarded; {self.what}, keyed by ({fields}), holds "
            f"{count} message(s){shown}. Usual cause: a wrong inverse in an Isu behind this node, or an answer that "
            f"was sent twice"
        )


class Marks(Keyed):
    """A small number under each key: which way a message came. Errors as in `Store`."""

    def __init__(self, packer: Packer, what: str) -> None:
        self._marks: dict[int, int] = {}
        super().__init__(packer, what)

    def __len__(self) -> int:
        return len(self._marks)

    def put(self, keys: Ints, mark: int) -> None:
        """``mark``: from 0 up."""
        marks = self._marks
        numbers = keys.tolist()
        before = len(marks)
        marks.update(zip(numbers, repeat(mark)))
        if len(marks) != before + len(numbers):
            raise PairingError(self._explain_clash(keys))

    def take(self, messages: Messages) -> Ints | int:
        """Remove and return the marks of these messages; one number where all have the same."""
        numbers = self.packer.pack(messages.states).tolist()
        marks = list(map(self._marks.pop, numbers, repeat(-1)))
        if -1 in marks:
            self._explain_take(messages, numbers, marks)
        if marks.count(marks[0]) == len(marks):
            return marks[0]
        return np.array(marks)

    def _explain_take(self, messages: Messages, numbers: list[int], marks: list[int]) -> NoReturn:
        """Put back what was taken, and say what was not there."""
        self._marks.update((n, m) for n, m in zip(numbers, marks, strict=True) if m >= 0)
        here = np.fromiter(map(self._marks.__contains__, numbers), dtype=bool, count=len(numbers))
        if here.all():
            raise PairingError(self._explain_clash(self.packer.pack(messages.states)))
        found = messages.states.take(np.flatnonzero(here))
        held = found if len(found) else self.some_states()
        lost = messages.states.take(np.flatnonzero(~here)[:1])
        raise PairingError(self._explain_missing(lost, held, len(self)))

    def some_states(self, most: int = 3) -> States | None:
        keys = np.array(list(islice(self._marks, most)), dtype=np.int64)
        return self.packer.unpack(keys) if len(keys) else None

    def clear(self) -> None:
        self._marks.clear()

    def live_keys(self) -> Ints:
        return np.fromiter(self._marks, dtype=np.int64, count=len(self._marks))

    def rekey(self, rekey: Callable[[Ints], Ints]) -> None:
        self._marks = dict(zip(rekey(self.live_keys()).tolist(), self._marks.values(), strict=True))
