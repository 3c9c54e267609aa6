"""Local updates: the nodes with parameters of one worker, the times of their updates, and the events of these.

Both ways of playing a graph (`ampnet.wave`, `ampnet.reference`) count gradients and retired instances at their nodes
and come here when a counter is full. An update is local: it depends on no other node and never waits. The copies of one
node are synchronised by their `Member`s, whose tokens are passed on here, to members of this worker or
to those of others.

    counter full ──> [1] update now               the node is by itself, or its replica may update by itself
                     [2] leave it to the member   updates wait for, or are made with, other replicas
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ampnet.errors import NodeError
from ampnet.events.log import Announcer, Updated, Worked
from ampnet.graph import Graph
from ampnet.nodes.node import Node
from ampnet.nodes.transform import Parameterised
from ampnet.replicas.member import Member, Token
from ampnet.state import Column
from ampnet.update.at_once import apply_at_once
from ampnet.update.updater import Applied

_TOLD = 64
"""Number of instances between two `Worked` events."""


@dataclass(slots=True)
class _Work:
    """The sums of a node since the last `Worked`."""

    lags: Counter[int] = field(default_factory=Counter)
    updates: int = 0


class LocalUpdates:
    """Counts, updates and synchronises the parameterised nodes of one worker. See the head of this file."""

    def __init__(
        self,
        graph: Graph,
        nodes: Mapping[str, Node],
        *,
        worker: str,
        announce: Announcer,
        clock: Callable[[], float],
        hand: Callable[[Token], None] | None = None,
        over: Callable[[str, int], None] = lambda group, ended: None,
    ) -> None:
        """``hand`` gets tokens for replicas of other workers; ``over`` gets the name of a group and the number of
        training streams after which it is synchronised."""
        self.worker, self.clock, self._announce = worker, clock, announce
        self.trains = [node for node in nodes.values() if isinstance(node, Parameterised)]
        self._copies = {name: graph.copies[name] for name in nodes if name in graph.copies}
        self._work: dict[str, _Work] | None = {} if announce.wants(Worked) else None
        self._retired = 0
        self._counted: tuple[Column, dict[tuple[int, int], int]] = (np.zeros(0, dtype=np.int64), {})
        """Of the instances that were asked for last: how many each copy sees, by the number of copies and its own."""
        self._hand = hand
        self.tokens: deque[Token] = deque()
        self.members: dict[str, Member] = {}
        """The replicas of this worker, by node."""
        for group in graph.replicas.values():
            for name in group.members if group.table is not None else ():
                node = nodes.get(name)
                if isinstance(node, Parameterised):
                    self.members[name] = Member(
                        group,
                        node,
                        send=partial(self._send_token, group.members),
                        update=partial(self.update, node),
                        over=over,
                        announce=announce,
                        worker=worker,
                        clock=clock,
                    )
        here = Counter(member.group.name for member in self.members.values())
        self._beside = {name for name, member in self.members.items() if here[member.group.name] > 1}
        """Replicas with another one of their group on this worker, which may have the same memory."""

    # -- tokens of replicas

    def _send_token(self, members: Sequence[str], token: Token) -> None:
        if members[token.to] in self.members:
            self.tokens.append(token)
        else:
            assert self._hand is not None
            self._hand(token)

    def take_token(self, token: Token, name: str) -> None:
        """A token has arrived for a replica of this worker."""
        self.members[name].take(token)

    def pass_token(self) -> bool:
        """Pass one token on. Returns False if there is none."""
        if not self.tokens:
            return False
        token = self.tokens.popleft()
        for member in self.members.values():
            if member.group.name == token.group and member.number == token.to:
                member.take(token)
                break
        return True

    # -- counting

    def own(self, node: Node, instances: Column) -> int:
        """The number of these instances that a node sees: all, or those routed to its replica."""
        found = self._copies.get(node.name)
        if found is None or not found.by_instance:
            return len(instances)
        if instances is not self._counted[0]:
            self._counted = instances, {}
        counts, which = self._counted[1], (found.count, found.number)
        if which not in counts:
            counts[which] = int(np.count_nonzero(instances % found.count == found.number))
        return counts[which]

    def note_lags(self, node: Parameterised, lags: Iterable[tuple[int, int]]) -> None:
        """Add (staleness, messages) pairs to the next `Worked` event."""
        if self._work is not None:
            counts = self._work_of(node.name).lags
            for lag, messages in lags:
                counts[lag] += messages

    def retired(self, instances: int) -> None:
        """Count retired instances. Emits `Worked` events at intervals."""
        self._retired += instances
        if self._work and self._retired >= _TOLD:
            self._retired = 0
            self.tell_work()

    # -- updates

    def all_full(self, nodes: Sequence[Parameterised]) -> None:
        """Counters of several nodes are full. Those that update by themselves take one step of the optimizer's kernel
        together; each is assigned an equal share of its time."""
        alone = [node for node in nodes if node.updater.due() and node.name not in self._beside]
        if len(alone) < 2:
            alone = []
        noted = self._announce.wants(Updated) and bool(alone)
        began, counts = self.clock() if noted else 0.0, [max(node.updater.counter, 1) for node in alone]
        try:
            apply_at_once([node.updater for node in alone])
        except Exception as error:
            raise NodeError(alone[0].name, "update", None, self.worker, error) from error
        if noted:
            share = (self.clock() - began) / len(alone)
            for i, (node, count) in enumerate(zip(alone, counts, strict=True)):
                self._tell(node, began + i * share, share, Applied(node.updater.version, count, "full"))
        if self._work is not None:
            for node in alone:
                self._work_of(node.name).updates += 1
        for node in alone:
            if (member := self.members.get(node.name)) is not None:
                member.updated()
        stepped = set(alone)
        for node in nodes:
            if node not in stepped:
                self.is_full(node)

    def is_full(self, node: Parameterised) -> None:
        """Called when the counter of a node is full: update it, or its group."""
        if node.updater.due():  # [1]
            self.update(node)
        elif node.updater.together:  # [2]
            self.members[node.name].poke()

    def update(self, node: Parameterised, reason: str = "full", own: int | None = None) -> None:
        """``own``: for an update together with other replicas, the number of gradients of this one."""
        noted = self._announce.wants(Updated)
        began = self.clock() if noted else 0.0
        try:
            applied = node.updater.apply(reason) if own is None else self.members[node.name].together(own)
        except Exception as error:
            raise NodeError(node.name, "update", None, self.worker, error) from error
        if applied is None:
            return
        if noted:
            self._tell(node, began, self.clock() - began, applied)
        if self._work is not None:
            self._work_of(node.name).updates += 1
        member = self.members.get(node.name)
        if member is not None:
            member.updated()

    def _tell(self, node: Parameterised, began: float, seconds: float, applied: Applied) -> None:
        policy = node.updater.policy
        if policy is not None:
            many = policy.min_update_frequency
            name, (version, count, reason) = node.name, (applied.version, applied.count, applied.reason)
            self._announce(Updated(began, seconds, self.worker, name, version, count, reason, policy.count, many))

    def flush(self) -> None:
        """At the end of a training stream: apply leftover gradients, and step the learning-rate schedules."""
        for node in self.trains:
            if node.name in self.members:
                self.members[node.name].flush()
                continue
            self.update(node, "flush")
            node.updater.adding.settle()  # where weights are frozen
            node.updater.end_epoch()

    # -- events

    def _work_of(self, name: str) -> _Work:
        assert self._work is not None
        return self._work.setdefault(name, _Work())

    def tell_work(self) -> None:
        """Emit `Worked` events for the time since the last call."""
        if self._work:
            work, self._work = self._work, {}
            now = self.clock()
            for name, did in work.items():
                lags = tuple(sorted(did.lags.items()))
                self._announce(Worked(now, self.worker, name, sum(did.lags.values()), lags, did.updates))

    def waits(self) -> list[str]:
        """What each replica waits for, as text."""
        return [line for member in self.members.values() if (line := member.waits()) is not None]

    def abandon(self) -> None:
        """After an error: drop tokens and pending events."""
        self.tokens.clear()
        if self._work is not None:
            self._work.clear()
        for member in self.members.values():
            member.reset()
