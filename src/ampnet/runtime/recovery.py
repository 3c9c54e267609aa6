"""Recovery: what a runtime does when one of its workers is lost.

    worker 1 dies or stops answering
      [1] the other workers end (in a cluster: their loops, not their processes); what they had sent to one another is
          dropped with them
      [2] new workers start. Weights are those in shared memory (in a cluster: the others keep theirs, and those of the
          lost one are those saved last). Optimizers begin with the states saved last
      [3] the instances in flight are computed again, under their old numbers. What was counted of them before is not
          counted again: each instance of an epoch counts once

States are saved in memory while a run goes on, without stopping it: every `EVERY` seconds, or less often if saving them
takes long. Schedules of learning rates that step at the end of an epoch make up for the steps since then. Gradients
that were not applied at the loss are dropped. The gradient of an instance in flight may reach a node twice: in an
update just before the loss, and when the instance is computed again.

After ``max_restarts`` losses the next one ends the run with `WorkerDied`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from ampnet.errors import WorkerDied
from ampnet.reference.worker import Counts
from ampnet.runtime.answers import Answers
from ampnet.update.state import UpdaterState

EVERY = 5.0
"""Seconds between two times that the states of nodes are saved."""
_SHARE = 0.01
"""The largest part of the time that may pass while states are saved."""


class Recovery:
    """The losses of a runtime, and what is kept for the next one."""

    def __init__(self, max_restarts: int, remedy: str = "All workers were started again") -> None:
        """``remedy``: what is done about a lost worker, for messages."""
        if not isinstance(max_restarts, int) or isinstance(max_restarts, bool) or max_restarts < 0:
            raise ValueError(f"max_restarts must be a whole number, 0 or more; got {max_restarts!r}")
        self.max_restarts, self.restarts, self.replayed, self._remedy = max_restarts, 0, 0, remedy
        self.states: dict[str, UpdaterState] = {}
        """The states saved last."""
        self.faults: Mapping[str, str] = {}
        """By node: why its state cannot be saved; its optimizer begins anew after a loss."""
        self.ended = self._asked_after = self._saved_after = 0
        """Training streams that have ended: so far, when states were asked for last, and in the states saved last."""
        self._kept_after: dict[str, int] = {}
        """By node: likewise, in a state that is newer than those."""
        self._earlier: list[Answers] = []
        """The last answers of the workers of each earlier generation."""
        self._began = self._due = time.monotonic() + EVERY
        self._saved, self._took = 0.0, 0.0
        """When states were saved last, and the seconds that it took."""

    @property
    def possible(self) -> bool:
        """Whether workers may be started again."""
        return self.restarts < self.max_restarts

    # -- saving

    def is_due(self) -> bool:
        """Whether the states of nodes are to be saved now."""
        return self.max_restarts > 0 and time.monotonic() >= self._due

    def is_cheap(self) -> bool:
        """Whether the states can be saved now without taking more than a small part of the time."""
        return self.max_restarts > 0 and time.monotonic() - self._saved >= self._took / _SHARE

    def begin(self) -> None:
        """Called when workers are asked for their states. The answers may be lost with an era: then it is due again."""
        self._began, self._asked_after = time.monotonic(), self.ended
        self._due = self._began + EVERY

    def save(
        self, states: dict[str, UpdaterState], faults: Mapping[str, str] | None = None, at: float | None = None
    ) -> None:
        """Keep these states of all nodes but those with ``faults``. ``at``: when they arrived; None: now."""
        self.states, self.faults, self._kept_after = states, faults or {}, {}
        now = time.monotonic() if at is None else at
        self._saved, self._took, self._saved_after = now, now - self._began, self._asked_after
        self._due = now + max(EVERY, self._took / _SHARE)

    def keep(self, states: Mapping[str, UpdaterState], missed: Mapping[str, int]) -> None:
        """Replace the states of some nodes by newer ones. ``missed``: by node, training streams whose end is not in
        its state."""
        self.states = {**self.states, **states}
        self._kept_after |= {name: self.ended - missed[name] for name in states}

    def epochs(self, nodes: Iterable[str]) -> dict[str, int]:
        """Returns for each node the training streams that have ended since its state was saved."""
        return {name: self.ended - self._kept_after.get(name, self._saved_after) for name in nodes}

    @property
    def generations(self) -> int:
        """The number of generations of workers that have ended."""
        return len(self._earlier)

    # -- a loss

    def lose(self, worker: str, how: str, in_flight: int, answers: Answers) -> str:
        """Count a loss; returns it in words. Raises `WorkerDied` if it was one too many. ``answers``: the last of the
        workers."""
        if not self.possible:
            raise WorkerDied(worker, how if not self.max_restarts else f"{how}; {self._words()} before")
        self.restarts += 1
        self.replayed += in_flight
        self._earlier.append(answers)
        self._due = time.monotonic() + EVERY
        again = f"{in_flight} instances in flight are computed again" if in_flight else "nothing was in flight"
        return (
            f"worker '{worker}' {how}. {self._remedy} (restart {self.restarts} of at most {self.max_restarts}); {again}"
            + "".join(f"; node '{node}' begins with a new optimizer: {why}" for node, why in self.faults.items())
        )

    def regroup(self, answers: Answers) -> None:
        """The next generation begins without a loss. ``answers``: the last of the workers."""
        self._earlier.append(answers)

    def _words(self) -> str:
        return f"workers were started again {self.restarts} times"

    # -- statistics over all generations of workers

    def total(self, count: str) -> int:
        """Returns the sum of a count over the workers of earlier generations, as far as known."""
        return sum(answers.total(count) for answers in self._earlier)

    def counts(self) -> Counts:
        return Counts(self.total("operations"), self.total("messages"))

    def busy(self, worker: int) -> float:
        """Returns the seconds that this worker's predecessors computed, as far as known."""
        return sum(float(answers[worker]["busy"]) for answers in self._earlier if worker in answers)
