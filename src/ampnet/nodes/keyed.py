"""Keyed memory: a dict from packed keys that follows its packer when keys widen, and explains what goes wrong with it.

`Keyed` is the base of everything a node remembers under keys; `Marks` is its simplest form, a small number under each
key: which way a message came. `ampnet.nodes.store` keeps tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

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
        """Some of the stored states, as text for error messages."""
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
    """A small number under each key: which way a message came. Errors as in `Store`.

    A set of keys for each number: sets take in and give back whole batches at about half the cost of a dict.
    """

    def __init__(self, packer: Packer, what: str, count: int) -> None:
        """Numbers from 0 to ``count - 1``."""
        self._sets: list[set[int]] = [set() for _ in range(count)]
        super().__init__(packer, what)

    def __len__(self) -> int:
        return sum(map(len, self._sets))

    def put(self, keys: Ints, mark: int) -> None:
        numbers = keys.tolist()
        mine = self._sets[mark]
        before = len(mine)
        mine.update(numbers)
        clash = len(mine) != before + len(numbers)
        if clash or any(other and not other.isdisjoint(numbers) for other in self._sets if other is not mine):
            raise PairingError(self._explain_clash(keys))

    def take(self, messages: Messages) -> Ints | int:
        """Remove and return the marks of these messages; one number where all have the same."""
        numbers = self.packer.pack(messages.states).tolist()
        for mark, mine in enumerate(self._sets):
            if numbers and numbers[0] in mine:
                if len(numbers) == 1:
                    mine.remove(numbers[0])
                    return mark
                before = len(mine)
                mine.symmetric_difference_update(numbers)
                if before - len(mine) == len(numbers):
                    return mark
                mine.symmetric_difference_update(numbers)  # not all were here: the same again undoes it
        return self._take_mixed(messages, numbers)

    def _take_mixed(self, messages: Messages, numbers: list[int]) -> Ints:
        marks = np.full(len(numbers), -1)
        for mark, mine in enumerate(self._sets):
            marks[np.fromiter(map(mine.__contains__, numbers), dtype=bool, count=len(numbers))] = mark
        lost = np.flatnonzero(marks < 0)
        if len(lost):
            found = messages.states.take(np.flatnonzero(marks >= 0))
            held = found if len(found) else self.some_states()
            raise PairingError(self._explain_missing(messages.states.take(lost[:1]), held, len(self)))
        before = len(self)
        for mine in self._sets:
            mine.difference_update(numbers)
        if before - len(self) != len(numbers):
            raise PairingError(self._explain_clash(self.packer.pack(messages.states)))
        return marks

    def some_states(self, most: int = 3) -> States | None:
        keys = np.array([k for mine in self._sets for k in itertools.islice(mine, most)], dtype=np.int64)
        return self.packer.unpack(keys[:most]) if len(keys) else None

    def clear(self) -> None:
        for mine in self._sets:
            mine.clear()

    def live_keys(self) -> Ints:
        return np.fromiter(itertools.chain(*self._sets), dtype=np.int64, count=len(self))

    def rekey(self, rekey: Callable[[Ints], Ints]) -> None:
        for i, mine in enumerate(self._sets):
            self._sets[i] = set(rekey(np.fromiter(mine, dtype=np.int64, count=len(mine))).tolist())
