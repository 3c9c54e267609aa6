"""The rule over the event log about updates (P8): when a node updates, and with how many gradients.

The rule keeps its own copy of each node's counter, from the messages that the node received:

    unit "messages"     Backward: + gradients             full at min_update_frequency: the update comes next
    unit "instances"    Retire (training): + instances    if a gradient is there; full at min_update_frequency
    both                Updated: back to zero             Epoch (training): no gradient may be left

A retirement is logged after the updates that it caused, so such an update waits here for the retirement.

Nodes whose gradients come by waves are counted in `ampnet.events.wave_counts`. A node gets its gradients by messages or
by waves for a whole run, not by both.

A replica may have to defer an update until it is synchronised. So it is never overdue, and it has further reasons for
updates:

    "late"        as "full", but it may hold more than min_update_frequency
    "together"    all replicas update at once; it holds the gradients this one contributed, the rest stays for the next

If an instance goes to one replica as a whole, only that one counts its retirement.

The log does not say which nodes are frozen: a node that never updates in the whole log counts as frozen. So violations
of a node before its first update are withheld until there is one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ampnet.events.log import Backward, Begin, Epoch, Event, Played, Pump, Rest, Restart, Retire, Synced, Updated, Wave
from ampnet.events.replicas import ReplicaGroup, groups_of
from ampnet.events.rules import Rule, Violation
from ampnet.events.wave_counts import WaveCounts


class UpdateRule(Rule):
    """P8: when a node updates, and with how many gradients.

    Nodes on worker processes receive retirements and the end of an epoch later than the controller logs them: then an
    update must not count more instances than have retired, and leftovers are checked at the end of the run. A worker
    that computes whole instances may complete them before the controller knows: then it must not count more than were
    pumped.
    """

    def __init__(self, found: list[Violation], complete: bool = True) -> None:
        super().__init__(found, complete)
        self._gradients: Counter[str] = Counter()
        """Gradients since the node's last update."""
        self._retired = 0
        self._own: Counter[str] = Counter()
        """Retired instances that belonged to one replica."""
        self._pumped: Counter[str] = Counter()
        """Pumped instances, likewise."""
        self._replicas: dict[str, ReplicaGroup] = {}
        """The group of each node that is in one."""
        self._owners: list[tuple[str, ...]] = []
        """The members of each group that has whole instances."""
        self._loose: set[str] = set()
        """Replicas that count instances, after an update whose leftovers are not in the log."""
        self._retired_at: Counter[str] = Counter()
        """The number of retired instances at the first gradient since the node's last update."""
        self._policy: dict[str, tuple[str, int]] = {}
        """(unit, frequency) of every node that has updated."""
        self._doubts: dict[str, list[Violation]] = {}
        """Withheld violations of nodes that may be frozen."""
        self._overdue: set[str] = set()
        """Nodes reported as overdue, until they update."""
        self._awaiting: list[tuple[int, Updated]] = []
        """(position, update) whose retirement is not logged yet."""
        self._versions: dict[str, tuple[int, int]] = {}
        """(counted, claimed) version of each node, in this run."""
        self._apart = False
        """Whether nodes are on worker processes."""
        self._running = False
        """Whether a run is in progress, or was interrupted."""
        self._counted: Counter[str] = Counter()
        """Instances in the updates of each node, on worker processes."""
        self._restarted = False
        """Whether workers were started again in this run: instances computed again may be in two updates of a node."""
        self._waves = WaveCounts(self._report_wave)

    def __call__(self, event: Event) -> None:
        if self._awaiting and not isinstance(event, Updated | Synced | Retire | Begin):
            self._retire(())  # no instance retired
        self._waves.position = self.position
        match event:
            case Backward(version=int(), gradients=gradients) if gradients:
                self._backward(event)
            case Wave():
                self._waves.begin(event)
            case Played():
                self._waves.played(event)
            case Updated():
                self._updated(event)
            case Synced():
                self._check_version(event)
            case Pump(train=True):
                self._count_own(self._pumped, event.instances)
            case Retire():
                self._waves.retire(event.instances)
                if event.train:
                    self._retire(event.instances)
            case Epoch(train=True) if not self._apart:
                self._left_over(f"the epoch of stream '{event.stream}'", event)
            case Rest():
                self._waves.rest()
                if self._apart:
                    self._left_over("the run", None)
                self._running = False
            case Restart():
                for some in (self._gradients, self._loose, self._overdue, self._versions, self._awaiting):
                    some.clear()
                self._waves.run(self._replicas, self._apart)
                self._restarted = True
            case Begin():
                self._restarted = False
                if self._running:  # the run before was interrupted, and its gradients were dropped
                    self._gradients.clear()
                    self._loose.clear()
                    self._overdue.clear()
                self._running = True
                self._apart = event.settings.get("runtime") not in ("inline", None)
                groups = groups_of(event.settings)
                self._replicas = {member: group for group in groups for member in group.members}
                self._waves.run(self._replicas, self._apart)
                self._owners = [group.members for group in groups if group.by_instance]
                self._versions.clear()
                self._awaiting.clear()  # of an interrupted run before
            case _:
                pass

    def _backward(self, event: Backward) -> None:
        node = event.node
        unit, frequency = self._policy.get(node, ("", 0))
        before = self._gradients[node]
        if not before and node not in self._loose:
            self._retired_at[node] = self._retired_for(node)
        retired = self._since(node)
        self._gradients[node] += event.gradients
        if node in self._replicas:
            return
        if unit == "messages":
            overdue = before >= frequency or self._gradients[node] > frequency
            came = f"{self._gradients[node]} gradients came in"
        else:
            overdue = unit == "instances" and retired >= frequency and before > 0 and not self._apart
            came = f"{retired} instances retired"
        if overdue and node not in self._overdue:
            self._overdue.add(node)
            self.report(
                "P8",
                f"node '{node}': {came} without an update, up to {event.received.describe()}; min_update_frequency is "
                f"{frequency}",
            )

    def _updated(self, event: Updated) -> None:
        node = event.node
        self._check_version(event)
        self._policy[node] = (event.unit, event.frequency)
        self.found += self._doubts.pop(node, ())
        gradients = self._gradients.pop(node, 0)
        self._overdue.discard(node)
        if event.reason in ("late", "together") and node not in self._replicas:
            self._wrong(event, "only a replica may")
        elif node in self._waves:
            sentence = self._waves.judge(event)
            if sentence is not None:
                self._wrong(event, sentence)
        elif event.unit == "messages":
            self._check_messages(event, gradients)
        else:
            self._check_instances(event, gradients)

    def _check_messages(self, event: Updated, gradients: int) -> None:
        if event.reason == "together":
            if event.count > gradients:
                self._wrong(event, f"{gradients} came in since the one before")
            self._gradients[event.node] = max(0, gradients - event.count)
        elif event.count != gradients:
            self._wrong(event, f"{gradients} came in since the one before")
        elif event.reason == "full" and event.count != event.frequency:
            self._wrong(event, f"a full one holds min_update_frequency={event.frequency}")
        elif event.reason == "late" and event.count < event.frequency:
            self._wrong(event, f"a late one holds at least min_update_frequency={event.frequency}")
        elif event.reason == "flush" and not 0 < event.count < event.frequency:
            self._wrong(event, f"a flush holds at least 1 and fewer than min_update_frequency={event.frequency}")

    def _check_instances(self, event: Updated, gradients: int) -> None:
        node, full = event.node, event.reason == "full"
        loose = event.reason in ("late", "together")
        if not gradients and not loose and node not in self._loose:
            self._wrong(event, "no gradient came in since the one before")
        elif self._apart:
            self._check_apart(event)
        elif (full or loose) and not self._agrees(event):
            self._awaiting.append((self.position, event))
            return
        elif not full and not self._agrees(event):
            self._wrong(event, f"{self._since(node)} retired since the one before")
        self._settle(event)

    def _agrees(self, event: Updated) -> bool:
        """Whether an update that counts instances agrees with the retirements so far."""
        since = self._since(event.node)
        some = max(1, since)  # gradients without a retirement: of the next epoch's first instances
        if event.reason in ("late", "together") or event.node in self._loose:
            fits = event.count <= some
        elif event.reason == "flush":
            fits = event.count == some
        else:
            fits = event.count == since
        return fits and (event.reason != "full" or event.count >= event.frequency)

    def _settle(self, event: Updated) -> None:
        """Restart the counts after an update that counts instances."""
        node, since = event.node, self._since(event.node)
        if event.reason in ("late", "together"):
            self._loose.add(node)
        else:
            self._loose.discard(node)
        left = max(0, since - event.count) if event.reason == "together" else 0
        self._retired_at[node] = self._retired_for(node) - left

    def _check_apart(self, event: Updated) -> None:
        node = event.node
        alone = event.count == 1 and event.reason in ("flush", "together")  # maybe of an instance yet to retire
        self._counted[node] += 0 if alone else event.count
        whole = node in self._replicas and self._replicas[node].by_instance
        most, known = (self._pumped[node], "were pumped") if whole else (self._retired, "have retired")
        if self._counted[node] > most and not self._restarted and event.reason != "flush":
            self._wrong(event, f"with those before it, {self._counted[node]}; {most} {known}")
        elif event.reason == "full" and event.count < event.frequency:
            self._wrong(event, f"a full one holds at least min_update_frequency={event.frequency}")

    def _check_version(self, event: Updated | Synced) -> None:
        known = self._versions.get(event.node)
        grown = not isinstance(event, Synced) or event.moved
        counted = event.version if known is None else known[0] + grown
        if known is not None and event.version != counted:
            if event.version == known[1] + grown:  # continues from a step that was reported
                counted = event.version
            elif isinstance(event, Synced):
                self.report(
                    "P8",
                    f"node '{event.node}' says version {event.version} after its synchronisation; it is {counted}",
                )
            else:
                self.report("P8", f"node '{event.node}' calls its update {event.version}; it is number {counted}")
        self._versions[event.node] = (counted, event.version)

    def _retire(self, instances: Sequence[int]) -> None:
        """Check the updates before a retirement that it caused."""
        self._retired += len(instances)
        self._count_own(self._own, instances)
        for position, event in self._awaiting:
            if not self._agrees(event):
                since = self._since(event.node)
                if event.count == since or (event.count < since and event.node in self._loose):
                    self._wrong(event, f"a full one holds at least min_update_frequency={event.frequency}", position)
                else:
                    self._wrong(event, f"{since} retired since the one before", position)
            self._settle(event)
        self._awaiting.clear()

    def _count_own(self, counts: Counter[str], instances: Sequence[int]) -> None:
        for members in self._owners:
            counts.update(members[number % len(members)] for number in instances)

    def _retired_for(self, node: str) -> int:
        """Returns the number of retired instances that a node counts."""
        group = self._replicas.get(node)
        return self._own[node] if group is not None and group.by_instance else self._retired

    def _since(self, node: str) -> int:
        """Returns the number of instances retired since the first gradient after the node's last update."""
        return self._retired_for(node) - self._retired_at[node]

    def _left_over(self, after: str, event: Epoch | None) -> None:
        if event is not None and math.isnan(event.loss) and not event.metrics:
            return  # a stream without instances: it had nothing to flush
        for node, gradients in [*self._gradients.items(), *self._waves.gradients().items()]:
            if gradients:
                doubt = Violation(
                    "P8",
                    f"node '{node}' has {gradients} gradients left over after {after}",
                    self.position,
                )
                if node in self._policy:
                    self.found.append(doubt)
                else:
                    self._doubts.setdefault(node, []).append(doubt)

    def _report_wave(self, sentence: str, position: int | None) -> None:
        self.report("P8", sentence, position)

    def _wrong(self, event: Updated, sentence: str, position: int | None = None) -> None:
        what = f"node '{event.node}', update {event.version} ({event.reason}) counts {event.count} {event.unit}"
        self.report("P8", f"{what}; {sentence}", position)
