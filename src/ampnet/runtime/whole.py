"""Whole: the training instances of a worker that does all of an instance, from the first message to the last answer.

Such a worker hosts a replica of the whole model, so it can tell by itself when an instance is done. It retires it there
and then (an update that this makes due is made before the next instance starts), and tells the controller later, of
several at once:

    controller ──> [1] staged     complete, not started: something to go on with, while the controller hears of others
                   [2] started    half of the worker's share of max_active_keys; of a few (buckets) one at a time
                   [3] done       all answers are there; told as soon as nothing is staged any more (in waves: little)

So the controller has little to do for an instance, nobody waits for it, and no more instances than needed see weights
change under them. All of them are in flight: pumped, and not yet known to the controller as done.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator

import numpy as np

from ampnet.graph import End
from ampnet.message import Messages

_FEW = 4
"""Of so few instances, buckets most likely, one is started at a time."""


class Whole:
    """The instances of one worker, by where they are."""

    def __init__(self, share: int) -> None:
        """``share``: how many instances are in flight here at most."""
        self.most = 1 if share <= _FEW else -(-share // 2)
        self._parts: dict[int, list[tuple[End, Messages]]] = {}
        self._staged: deque[list[tuple[End, Messages]]] = deque()
        self._due: dict[int, int] = {}
        """Of started instances: how many answers are missing."""
        self._done: list[int] = []
        self.untold: list[int] = []
        """Retired, and the controller does not know yet."""

    def stage(self, end: End, messages: Messages, last: bool) -> None:
        """[1] Messages have come in. With the ``last``, all instances that they came with are complete."""
        numbers = messages.states.columns[0]
        first = int(numbers[0])
        if numbers[-1] == first and (numbers == first).all():
            self._parts.setdefault(first, []).append((end, messages))
        else:
            cuts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
            for start, stop in itertools.pairwise(cuts):
                self._parts.setdefault(int(numbers[start]), []).append((end, messages.slice(start, stop)))
        if last:
            self._staged.extend(self._parts.values())
            self._parts = {}

    @property
    def has_done(self) -> bool:
        """Whether an instance is done."""
        return bool(self._done)

    def waiting(self) -> bool:
        """Whether there is an instance to go on with."""
        return bool(self._staged)

    def start(self) -> Iterator[tuple[End, Messages]]:
        """[2] The messages of instances that may be started now."""
        while self._staged and len(self._due) < self.most:
            parts = self._staged.popleft()
            number = int(parts[0][1].states.columns[0, 0])
            self._due[number] = sum(len(messages) for _, messages in parts)
            yield from parts

    def answered(self, answers: Messages) -> None:
        """Answers have come out."""
        due = self._due
        for number in answers.states.columns[0].tolist():
            left = due[number] = due[number] - 1
            if not left:
                del due[number]
                self._done.append(number)

    def done(self) -> list[int]:
        """[3] Instances that are done, to be retired now."""
        done, self._done = self._done, []
        self.untold += done
        return done

    def tell(self) -> list[int]:
        """Those that the controller is to be told of now."""
        told, self.untold = self.untold, []
        return told

    def forget(self) -> None:
        """After an error."""
        self._parts.clear()
        self._staged.clear()
        self._due.clear()
        self._done, self.untold = [], []
