"""Member: one replica's part in the synchronisation of its group. A token runs round the group, twice:

    first round     1 ──> 2 ──> 3 ──┐     each puts its weights (or gradients) on the table, and passes the token on
                    ^               │
                    └───────────────┘     the first makes the mean of them
    second round    1 ──> 2 ──> 3 ──┐     each takes the mean
                    ^               │
                    └───────────────┘     the first may start again

[1] The first replica starts, when its policy says so. [2] A replica keeps the token until it is ready: at once
("ring"), when it has made its own updates ("updates"), when it has enough gradients ("gradients"), or at the end of the
training stream (the synchronisation at its end, under every policy). [3] From giving until taking it continues with its
messages; an update that falls due meanwhile waits, and is made "late". So no replica ever stops for the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from ampnet.events.log import Announcer, Synced
from ampnet.nodes.transform import Parameterised
from ampnet.replicas.group import Replicas, digest
from ampnet.update.updater import Applied


@dataclass(frozen=True, slots=True)
class Token:
    """The token that passes through all members of a group."""

    group: str
    to: int
    """The number of the member that it is for."""
    round: int
    """The number of the group's synchronisation, from 1."""
    last: bool
    """Whether it is the one at the end of a training stream."""
    ended: int
    """The number of training streams that had ended for the first member when it started."""
    taking: bool = False
    """Whether it is on its second round."""
    digest: int = 0
    """Of shared weights, by the first: they are one memory, which goes on changing while the token runs."""


class Member:
    """One replica. The worker reports events to it; it responds with tokens and updates."""

    def __init__(
        self,
        group: Replicas,
        node: Parameterised,
        *,
        send: Callable[[Token], None],
        update: Callable[[str, int | None], None],
        over: Callable[[str, int], None],
        announce: Announcer,
        worker: str,
        clock: Callable[[], float],
    ) -> None:
        """``update`` makes an update with a reason; ``over`` is called after a synchronisation at a stream's end."""
        assert group.table is not None
        self.group, self.node, self.table = group, node, group.table
        self.number = group.members.index(node.name)
        self._kind, self._every = group.sync.when, group.sync.every
        self._send, self._update, self._over = send, update, over
        self._announce, self._worker, self._clock = announce, worker, clock
        node.updater.together = self._kind == "gradients"
        # A memoryview is quicker than an array, for a few numbers.
        self._versions = memoryview(self.table.versions.numpy())  # type: ignore[arg-type]
        if self._kind == "shared":
            node.updater.of_all = partial(sum, self._versions)
        self._given_count = 0
        self.reset()

    def reset(self) -> None:
        """Reset after an error: no synchronisation is in progress."""
        self._token: Token | None = None
        self._running = False
        self.node.updater.waiting = False
        self._rounds = self._updates = self._ended = self._lasts = self._flushes = 0

    _COUNTS = ("_rounds", "_updates", "_ended", "_lasts", "_flushes", "_given_count")

    def state(self) -> dict[str, Any]:
        """Returns its part in a synchronisation, which may be in progress, as plain data."""
        token = None if self._token is None else asdict(self._token)
        counts = {name: getattr(self, name) for name in self._COUNTS}
        return {"token": token, "running": self._running, "waiting": self.node.updater.waiting, **counts}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self._token = None if state["token"] is None else Token(**state["token"])
        self._running, self.node.updater.waiting = state["running"], state["waiting"]
        for name in self._COUNTS:
            setattr(self, name, state[name])

    def waits(self) -> str | None:
        """What is in progress, as text."""
        if self._token is None and not self.node.updater.waiting:
            return None
        what = "keeps the token until it is ready" if self._token is not None else "waits for the mean"
        return f"node '{self.node.name}' {what}, in synchronisation {self._rounds + 1} of '{self.group.name}'"

    # -- what happens

    def updated(self) -> None:
        """Called after the replica's own update."""
        self._updates += 1
        self._versions[self.number] += 1
        if self._token is not None or self._kind not in ("epoch", "shared"):  # these start at a stream's end only
            self.poke()

    def flush(self) -> None:
        """At the end of a training stream: apply leftover gradients, and take part in the final synchronisation."""
        updater = self.node.updater
        if updater.waiting:
            self._flushes += 1  # [3]
            return
        if self._kind != "gradients":
            self._update("flush", None)
            updater.adding.settle()
            updater.end_epoch()
        self._ended += 1
        self.poke()

    def take(self, token: Token) -> None:
        """Receive the token."""
        assert self._token is None
        self._token = token
        self.poke()

    def poke(self) -> None:
        """Continue the synchronisation as far as possible."""
        if self.number == 0 and not self._running and not self.node.updater.waiting:
            self._start()
        token = self._token
        if token is not None and (token.taking or self.number == 0 or self._is_ready(token)):
            self._token = None
            self._pass(token)

    # -- the protocol

    def _start(self) -> None:
        """[1]"""
        last = self._ended > self._lasts
        if not last and not self._is_due():
            return
        self._running = True
        self._lasts = self._ended
        self._give()
        self._on(Token(self.group.name, 0, self._rounds + 1, last, self._ended))

    def _is_due(self) -> bool:
        if self._kind in ("updates", "ring"):
            return self._updates >= self._every
        return self._kind == "gradients" and self.node.updater.full()

    def _is_ready(self, token: Token) -> bool:
        """[2]"""
        if token.last:
            return self._ended >= token.ended
        return self._kind == "ring" or self._ended > token.ended or self._is_due()

    def _pass(self, token: Token) -> None:
        if token.taking and self.number == 0:
            self._running = False
            if token.last:
                self._over(self.group.name, token.ended)
            self.poke()
        elif token.taking:
            self._on(token, self._take)
        elif self.number == 0:
            if self._kind != "gradients":
                self.table.divide(len(self.group.members))
            self._on(replace(token, taking=True), self._take)
        else:
            self._give()
            self._on(token)

    def _on(self, token: Token, first: Callable[[Token], Token] | None = None) -> None:
        """Pass it on, after the mean was taken if it was: what that leads to may want the token again."""
        if first is not None:
            token = first(token)
        self._send(replace(token, to=(self.number + 1) % len(self.group.members)))
        if first is not None:
            self._after()

    def _give(self) -> None:
        updater = self.node.updater
        if self._kind == "gradients":
            self._given_count = self.table.add_gradients(updater, self.number == 0)
        else:
            self.table.add_weights(updater, self.number == 0)
        updater.waiting = True  # [3]

    def _take(self, token: Token) -> Token:
        updater, table = self.node.updater, self.table
        noted = self._announce.wants(Synced)
        moved = self._kind not in ("shared", "gradients")
        updater.waiting = False
        if self._kind == "gradients":
            self._update("together", self._given_count)
            if token.last and self.number == 0:
                updater.end_epoch()
        began = self._clock() if noted else 0.0
        drift = table.drift(updater) if noted and moved else 0.0
        if moved:
            updater.replace(table.sums)
        if self._kind != "gradients":
            table.take_memory(updater)
        self._rounds, updates, self._updates = token.round, self._updates, 0
        if noted:
            if self._kind != "shared" or self.number == 0:
                token = replace(token, digest=digest(updater))
            self._announce(
                Synced(
                    began,
                    self._clock() - began,
                    self._worker,
                    self.node.name,
                    self.group.name,
                    token.round,
                    updater.version,
                    moved,
                    updates,
                    drift,
                    token.digest,
                )
            )
        return token

    def together(self, own: int) -> Applied | None:
        """Update the replica with the gradients of all. ``own``: how many of them are its own.

        The first makes the step, and leaves its weights on the table; the others take them. So they are equal whatever
        their optimizers remember, which may be of a run that was cut short at different points.
        """
        sums, count = self.table.gradients()
        if not count:
            return None
        if self.number == 0:
            applied = self.node.updater.apply_together(sums, count, own)
            self.table.put(self.node.updater)
            return applied
        self.node.updater.replace(sums)
        return Applied(self.node.updater.version, own, "together")

    def _after(self) -> None:
        """After the mean: make the updates that were delayed."""
        if self.node.updater.due():
            self._update("late", None)
        flushes, self._flushes = self._flushes, 0
        for _ in range(flushes):
            self.flush()
        self.poke()
