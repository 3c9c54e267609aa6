"""Wave counts: the counters of the update rule (P8) for nodes whose gradients come by waves.

    cell       wave 17   forward ... backward, collect port 0 (8 messages), collect port 1 (4)  | update: 12 >= 10
    readout    wave 17   forward ... backward, collect (4)                                      | 4 of 10
    other      wave 17   nothing with a gradient                                                | its end counts, too

A node checks its counter after its last collect of a wave, and updates at once if it is full:

    unit "messages"     collect: + messages
    unit "instances"    last collect of the wave: + its instances
                        end of the wave: likewise, for a node that had no gradient in it and holds some from before
    both                Updated: it holds all that was counted, at least min_update_frequency; back to zero

A node with a full counter must update before it is played in another wave. Nor may a full update come before the node's
last collect of a wave.

The log does not contain the number of skipped instances of a wave (their loss was not finite). They do not count, so an
update that counts fewer instances than the waves had is accepted, if it is full; and an overdue update is reported only
if the node's next update counts all of them. The end of a wave is known exactly if its ``operations`` is the number of
forwards that this worker plays of it, and no other worker plays it (rows may be sent after the last logged operation);
otherwise waves that may have ended count in favour of the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ampnet.events.log import BACKWARD, COLLECT, FORWARD, Operation, Played, Updated, Wave
from ampnet.events.replicas import ReplicaGroup
from ampnet.events.waves import Key, WavesUnderWay, key_of, words_of_wave

Policy = tuple[str, int]
"""(unit, frequency) of a node's updates."""


@dataclass(slots=True)
class _Share:
    """The work of a node with parameters in a wave."""

    open: int = 0
    """Forwards without a backward so far."""
    due: set[int] = field(default_factory=set)
    """Ports with a backward that are not collected."""
    collected: bool = False
    """Whether it had a gradient."""
    counted: int = 0
    """Instances of the wave that it has counted."""


@dataclass(slots=True)
class _Passage:
    """The operations played of a wave in training."""

    instances: tuple[int, ...] = ()
    operations: int | None = None
    forwards: int = 0
    open: int = 0
    due: int = 0
    shares: dict[str, _Share] = field(default_factory=dict)
    ended: bool = False

    @property
    def over(self) -> bool:
        """Whether nothing is open: it has ended, or pauses."""
        return self.open <= 0 and self.due <= 0 and (self.forwards > 0 or not self.operations)


@dataclass(slots=True)
class _Overdue:
    """An update that seems to be overdue, until the end of the wave after which it was due."""

    wave: Key
    sentence: str
    position: int
    counted: int
    sure: bool
    """Whether no skipped instance can explain it."""


@dataclass(slots=True)
class _Account:
    """The counters of a node."""

    worker: str
    gradients: int = 0
    """Messages since its last update."""
    instances: int = 0
    """Instances counted since its last update."""
    last: Key | None = None
    """The wave of its last collect."""
    full: Key | None = None
    """The wave after which its update is due."""
    updated: Key | None = None
    """The wave after which it made a full update."""
    overdue: _Overdue | None = None
    loose: bool = False
    """Whether its last update had leftovers that are not in the log."""
    maybe: int = 0
    """Instances of finished waves that it may have counted since its last update."""


class WaveCounts:
    """Recounts the gradients that come by waves at each node.

    ``report`` is called with violations of operations (sentence, position or None for the current event); `judge`
    returns the violation of an update.
    """

    def __init__(self, report: Callable[[str, int | None], None]) -> None:
        self._report = report
        self._policy: dict[str, Policy] = {}
        """The policy of every node that has updated in this run."""
        self._waves = WavesUnderWay()
        self._passages: dict[Key, _Passage] = {}
        self._accounts: dict[str, _Account] = {}
        self._replicas: Mapping[str, ReplicaGroup] = {}
        self._apart = False
        self.position = -1
        """The position of the next event."""

    def __contains__(self, node: str) -> bool:
        """Whether a node has had a gradient by a wave in this run."""
        return node in self._accounts

    def run(self, replicas: Mapping[str, ReplicaGroup], apart: bool = False) -> None:
        """Begin a run, on one worker or (``apart``) several. Waves of an earlier run are dropped."""
        self._replicas, self._apart = replicas, apart
        self._waves.clear()
        self._passages.clear()
        self._accounts.clear()
        self._policy.clear()

    def begin(self, event: Wave) -> None:
        """Add a wave that begins."""
        self._waves.begin(event)
        if event.train and key_of(event) not in self._passages:
            self._passages[key_of(event)] = _Passage(event.instances, event.operations)

    def retire(self, instances: tuple[int, ...]) -> None:
        """Called when instances retire: waves without remaining instances end, and suspected faults are decided."""
        for wave in self._waves.retire(instances):
            passage = self._passages.get(key_of(wave))
            for node, account in self._accounts.items() if passage is not None and not passage.ended else ():
                assert passage is not None
                if account.worker == wave.worker and not self._had_gradient(passage, node):
                    account.maybe += self._own(node, passage.instances)
            self._forget(key_of(wave))

    def rest(self) -> None:
        """End the run, and all waves."""
        for key in list(self._passages):
            self._forget(key)
        for account in self._accounts.values():
            self._confirm(account)

    def played(self, event: Played) -> None:
        """Add operations of a wave."""
        key = key_of(event)
        passage = self._passages.setdefault(key, _Passage()) if event.train else None
        for op in event.operations():
            if op.version is not None:
                self._check_overdue(key, op)
            if passage is not None:
                self._count(key, passage, op)
        if passage is None:
            return
        if passage.over and not passage.ended and passage.operations is not None and not self._apart:
            passage.ended = passage.forwards >= passage.operations
            if passage.ended:
                self._end(key, passage)
        if key not in self._waves.waves and passage.over:
            self._forget(key)

    def _count(self, key: Key, passage: _Passage, op: Operation) -> None:
        passage.forwards += op.direction == FORWARD
        asked, answered = op.direction == FORWARD and op.wanted, op.direction == BACKWARD
        passage.open += asked - answered
        if op.version is None or (op.direction == FORWARD and not op.wanted):
            return
        share = passage.shares.setdefault(op.node, _Share())
        account = self._accounts.get(op.node)
        if account is not None:
            self._go_on(key, share, account, op)
        share.open += asked - answered
        if answered and op.port not in share.due:
            share.due.add(op.port)
            passage.due += 1
        if op.direction == COLLECT:
            if account is None:
                account = self._accounts[op.node] = _Account(key[0])
            if op.port in share.due:
                share.due.discard(op.port)
                passage.due -= 1
            account.gradients += op.messages
            account.last, share.collected = key, True
            if share.open <= 0 and not share.due:
                self._done(key, passage, share, account, op.node)

    def _done(self, key: Key, passage: _Passage, share: _Share, account: _Account, node: str) -> None:
        """Called when a node has finished a wave."""
        share.counted = self._own(node, passage.instances)
        account.instances += share.counted
        unit, frequency = self._policy.get(node, ("", 0))
        came = account.gradients if unit == "messages" else account.instances
        account.full = key if unit and came >= frequency else None

    def _go_on(self, key: Key, share: _Share, account: _Account, op: Operation) -> None:
        """Called for a further operation of a node that seemed to have finished the wave."""
        if account.overdue is not None and account.overdue.wave == key:
            account.overdue = None
        if account.full == key:
            account.full = None
        if account.updated == key:
            account.updated = None
            self._report(
                f"node '{op.node}' made a full update before its last collect of {words_of_wave(key)}, up to port "
                f"{op.port}, round {op.round}",
                None,
            )
        elif share.counted:
            account.instances -= share.counted
            share.counted = 0

    def _own(self, node: str, instances: tuple[int, ...]) -> int:
        """Returns the number of these instances that a node counts: a replica that gets whole instances counts its
        own."""
        group = self._replicas.get(node)
        if group is None or not group.by_instance:
            return len(instances)
        place, count = group.members.index(node), len(group.members)
        return sum(number % count == place for number in instances)

    def _end(self, key: Key, passage: _Passage) -> None:
        """End a wave: nodes that hold gradients count it, too, even without a gradient in it."""
        for node, account in self._accounts.items():
            holds = account.gradients or account.loose
            if holds and account.worker == key[0] and not self._had_gradient(passage, node):
                account.instances += self._own(node, passage.instances)
                unit, frequency = self._policy.get(node, ("", 0))
                if unit == "instances" and account.instances >= frequency:
                    account.full = key

    def _had_gradient(self, passage: _Passage, node: str) -> bool:
        share = passage.shares.get(node)
        return share is not None and share.collected

    def _check_overdue(self, key: Key, op: Operation) -> None:
        account = self._accounts.get(op.node)
        if account is None or account.full in (None, key) or account.overdue is not None or op.node in self._replicas:
            return
        assert account.full is not None
        unit, frequency = self._policy[op.node]
        came = f"{account.gradients} gradients" if unit == "messages" else f"{account.instances} instances"
        sentence = (
            f"node '{op.node}' is played in {words_of_wave(key)} (port {op.port}, round {op.round}) without an update "
            f"after {words_of_wave(account.full)}: {came} came in; min_update_frequency is {frequency}"
        )
        account.overdue = _Overdue(account.full, sentence, self.position, account.instances, unit == "messages")
        account.full = None

    def _forget(self, key: Key) -> None:
        passage = self._passages.get(key)
        if passage is None or not passage.over:
            return
        for node in passage.shares:
            account = self._accounts.get(node)
            if account is not None and account.overdue is not None and account.overdue.wave == key:
                self._confirm(account)
        del self._passages[key]

    def _confirm(self, account: _Account) -> None:
        """Decide about a suspected overdue update at the end of the wave; an uncertain one waits for the next
        update."""
        if account.overdue is not None and account.overdue.sure:
            self._report(account.overdue.sentence, account.overdue.position)
            account.overdue = None

    def judge(self, event: Updated) -> str | None:
        """Returns the violation of an update of a counted node, if any, and restarts its counts."""
        account = self._accounts[event.node]
        self._policy[event.node] = (event.unit, event.frequency)
        wrong = self._messages(event, account) if event.unit == "messages" else self._instances(event, account)
        if account.overdue is not None and event.unit == "instances":
            if event.count >= account.instances:
                account.overdue.sure = True
                if account.overdue.wave not in self._passages:
                    self._confirm(account)
            else:
                account.overdue = None
        part = event.reason == "together"
        account.gradients = max(0, account.gradients - event.count) if part and event.unit == "messages" else 0
        left = max(0, account.instances + account.maybe - event.count) if part else 0
        account.instances = max(0, account.instances - event.count) if part else 0
        account.maybe = left - account.instances
        account.loose = event.reason in ("late", "together")
        account.full = None
        account.updated = account.last if event.reason == "full" else None
        return wrong

    def gradients(self) -> dict[str, int]:
        """Returns the number of messages that are in no update yet, by node."""
        return {node: account.gradients for node, account in self._accounts.items() if account.gradients}

    def _messages(self, event: Updated, account: _Account) -> str | None:
        count, frequency, came = event.count, event.frequency, account.gradients
        if count > came if event.reason == "together" else count != came:
            return f"{came} came in since the one before"
        if event.reason in ("full", "late") and count < frequency:
            return f"a {event.reason} one holds at least min_update_frequency={frequency}"
        if event.reason == "flush" and not 0 < count < frequency and not (count and self._in_the_middle(event.node)):
            return f"a flush holds at least 1 and fewer than min_update_frequency={frequency}"
        return None

    def _instances(self, event: Updated, account: _Account) -> str | None:
        count, most = event.count, account.instances + account.maybe + self._maybe(event.node, account)
        if not account.gradients and not account.loose and event.reason in ("full", "flush"):
            return "no gradient came in since the one before"
        if event.reason == "full" and count < event.frequency:
            return f"a full one holds at least min_update_frequency={event.frequency}"
        if count > (most if event.reason == "full" else max(1, most)):
            return f"{most} were counted since the one before"
        return None

    def _maybe(self, node: str, account: _Account) -> int:
        """Returns the number of instances of waves that may have ended without a gradient of the node."""
        return sum(
            self._own(node, passage.instances)
            for key, passage in self._passages.items()
            if key[0] == account.worker and passage.over and not passage.ended and not self._had_gradient(passage, node)
        )

    def _in_the_middle(self, node: str) -> bool:
        """Whether a node has had a gradient in a wave that it has not finished."""
        shares = (passage.shares.get(node) for passage in self._passages.values())
        return any(s is not None and s.collected and (s.open > 0 or s.due) for s in shares)
