"""Beside: predictions while a runtime trains, and between its runs.

    the loop of a run        turn ── turn ── [a batch of predictions] ── turn ── [...] ── turn ──
    at rest                  another thread plays batches; the next run begins when the batch in progress has ended

The predictions have a graph and a player of their own, in the process of the controller, so the waves, caches and
accumulated gradients of training are not touched. They run to their end between two turns, and take at most half of
the loop's time (`SHARE`).

**Weights.** A batch sees one version of each node's weights:

    weights here (Inline)            the model's own: between two turns nothing changes them
    weights elsewhere (workers)      a copy. Workers change their weights at any time, so each worker is asked to send
                                     those of its nodes (note PEEK), which it does between two operations. The copy is
                                     used for `FRESH` seconds, or ten times as long as it took to get

The replicas of a node differ between two synchronisations: predictions use the first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ampnet.errors import AmpnetError
from ampnet.instance import Instance
from ampnet.runtime.inline import Inline
from ampnet.runtime.predicting import predict

if TYPE_CHECKING:
    from ampnet.runtime.runtime import Runtime
    from ampnet.runtime.transport import Note

SHARE = 0.5
"""The maximal share of a run's time that predictions take."""
FRESH = 0.25
"""Seconds for which a copy of the weights is used."""
LOST = 2.0
"""Seconds after which workers are asked for their weights again: the notes were dropped with an era."""


class Beside:
    """Plays predictions beside a runtime. See the head of this file."""

    def __init__(self, owner: Runtime, most: int, due: Callable[[], bool], play: Callable[[], None]) -> None:
        """``most``: the maximal wave size. In a run, ``play`` is called at a turn if ``due()``; it calls `predict`."""
        if owner._inside:
            raise AmpnetError("predictions beside a run are set up before the run; this one has begun")
        if owner.beside is not None:
            raise AmpnetError("this runtime is served already; close the other server first")
        self._owner, self._due, self._play = owner, due, play
        model: Any = owner.graph
        self._elsewhere = owner.weights_elsewhere
        self.graph: Any = model.another_prediction(deepcopy(model.model) if self._elsewhere else model.model)
        self._inner = Inline(self.graph, max_active_keys=most, seed=owner.settings["seed"])
        if not self._inner.engine.waves:
            raise AmpnetError(f"predictions beside a run are played in waves: {self._inner.engine.reason}")
        self.rest = threading.Condition()
        """Its lock is held while a batch is played at rest; notified at the end of a run."""
        self.inside = False
        """Whether a run is in progress."""
        self._again = 0.0
        """The time when predictions may be played again, by `time.monotonic`."""
        self._updates = 0
        self._runs = 0
        self._copied: object = None
        """The weights at rest that were copied last: the number of runs, and of writes to each parameter."""
        self._views = self._make_views() if self._elsewhere else {}
        self._token, self._asked, self._fresh = 0, 0.0, 0.0
        self._answers: dict[int, Note] | None = None
        """The answers of workers to the last question, until all are there; None: nothing was asked."""
        owner.beside = self

    def close(self) -> None:
        """Stop playing."""
        with self.rest:
            self._owner.beside = None
        self._inner.close()

    def predict(self, instances: Sequence[Instance]) -> list[Any]:
        """Returns the results of instances of `graph`, in order."""
        return predict(self._inner, instances)

    def updates(self) -> int:
        """Returns the largest number of updates of a node, in the weights used last."""
        return self._updates

    # -- at rest

    def at_rest(self) -> bool:
        """Play a batch, if no run is in progress; returns whether none is."""
        with self.rest:
            if self.inside or self._owner.beside is not self:
                return False
            if self._elsewhere:
                self._copy()
            self._updates = self._version()
            self._play()
            return True

    def _version(self) -> int:
        nodes = self._owner.graph.parameterised().values()
        return max((node.updater.version for node in nodes), default=0)

    def _copy(self) -> None:
        given = self._owner.graph.model.parameters()  # type: ignore[attr-defined]
        pairs = list(zip(self.graph.model.parameters(), given, strict=True))
        now = (self._runs, [parameter._version for _, parameter in pairs])
        if now != self._copied:
            with torch.no_grad():
                for mine, theirs in pairs:
                    mine.copy_(theirs)
            self._copied = now

    # -- in a run

    def begin(self) -> None:
        """Called at the start of a run. Waits for the end of a batch at rest."""
        with self.rest:
            self.inside, self._answers, self._copied = True, None, None
            self._runs += 1
            self._again = self._fresh = 0.0

    def end(self) -> None:
        """Called at the end of a run."""
        with self.rest:
            self.inside = False
            self.rest.notify_all()

    def turn(self) -> None:
        """Called at the turns of a run: play a batch, if one is due."""
        if not self._due():
            return
        now = time.monotonic()
        if now < self._again or (self._elsewhere and not self._has_weights(now)):
            return
        if not self._elsewhere:
            self._updates = self._version()
        self._play()
        ended = time.monotonic()
        self._again = ended + (ended - now) * (1 - SHARE) / SHARE

    # -- weights of workers

    def _make_views(self) -> dict[str, list[Tensor]]:
        """Returns, by node, the parts of the copied parameters that its weights are copied to."""
        ours, theirs = self.graph.model, self._owner.graph.model  # type: ignore[attr-defined]
        pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
        out: dict[str, list[Tensor]] = {}
        for name, node in self._owner.graph.parameterised().items():
            views = [view for p in node.updater.parameters if (view := _view(p, pairs)) is not None]
            if len(views) == len(node.updater.parameters):  # else a replica other than the first
                out[name] = views
        return out

    def _has_weights(self, now: float) -> bool:
        """Whether the copy is fresh; if not, ask for another one."""
        if now < self._fresh:
            return True
        if self._answers is None or now - self._asked > LOST:
            self._token, self._asked, self._answers = self._token + 1, now, {}
            self._owner._ask_weights(self._token, list(self._views))
        return False

    def hear(self, sender: int, note: Note, workers: int) -> None:
        """Called with a worker's weights. When all have come, they are copied."""
        if self._answers is None or note.data["token"] != self._token:
            return
        self._answers[sender] = note
        if len(self._answers) == workers:
            answers, self._answers = self._answers, None
            self._updates = 0
            for answer in answers.values():
                self._take(answer.data["versions"], answer.arrays)
            now = time.monotonic()
            self._fresh = now + max(FRESH, 10 * (now - self._asked))

    def _take(self, versions: Mapping[str, int], arrays: Mapping[str, Any]) -> None:
        for name, version in versions.items():
            self._updates = max(self._updates, version)
            for i, view in enumerate(self._views[name]):
                view.copy_(arrays[f"{name}/{i}"])


def _view(parameter: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor | None:
    """Returns the part of our copy that belongs to a parameter of a node: a parameter of the model, or a part of one
    (a tile). None if it is of no parameter of the model."""
    for mine, theirs in pairs:
        apart = parameter.data_ptr() - theirs.data_ptr()
        if 0 <= apart < max(1, theirs.numel() * theirs.element_size()) and parameter.dtype == theirs.dtype:
            offset = apart // theirs.element_size()
            return mine.detach().as_strided(parameter.size(), parameter.stride(), offset)
    return None
