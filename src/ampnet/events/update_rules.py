"""Rules over the event log about updates: honest staleness (P7) and the update rule (P8).

A node's counter is kept here a second time, from what the node received:

    unit "messages"     Backward: + gradients             full at min_update_frequency: the update comes next
    unit "instances"    Retire (training): + instances    if a gradient is there; full at min_update_frequency
    both                Updated: back to zero             Epoch (training): no gradient may be left

Instances are told to have retired after the updates that this led to, so such an update waits here for the retirement.

The log does not say which nodes are frozen: a node that never updates in the whole log counts as frozen. What speaks
against a node before its first update is therefore held back until there is one.
"""

from __future__ import annotations

import math
from collections import Counter

from ampnet.events.log import Backward, Begin, Epoch, Event, Forward, Rest, Retire, Updated
from ampnet.events.rules import Rule, Violation
from ampnet.events.staleness import Recount


class HonestStaleness(Rule):
    """P7: the staleness that a backward reports is the number of updates since its forward; versions count updates."""

    def __init__(self, found: list[Violation], complete: bool = True) -> None:
        super().__init__(found, complete)
        self._recount = Recount()
        self._versions: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        counted = self._recount(event)
        match event:
            case Forward(version=int()) | Backward(version=int()):
                self._check_version(event)
                if counted is not None and isinstance(event, Backward):
                    self._check_lags(event, *counted)
            case Updated():
                if event.node in self._versions:
                    self._versions[event.node] += 1
            case Begin():
                self._versions.clear()  # weights may have been loaded in between
            case _:
                pass

    def _check_version(self, event: Forward | Backward) -> None:
        assert event.version is not None
        known = self._versions.setdefault(event.node, event.version)
        if known != event.version:
            self.report(
                "P7",
                f"node '{event.node}' says version {event.version} at {event.received.describe()}; by its updates it "
                f"is {known}",
            )
            self._versions[event.node] = event.version

    def _check_lags(self, event: Backward, counted: Counter[int], unknown: int) -> None:
        reported: Counter[int] = Counter()
        for lag, messages in event.lags:
            reported[lag] += messages
        # A message that was never forwarded has no staleness; pairing reports it.
        if not unknown and reported != counted:
            self.report(
                "P7",
                f"node '{event.node}' reports staleness {_histogram(reported)} for {event.received.describe()}; the "
                f"log has {_histogram(counted)}",
            )


class UpdateRule(Rule):
    """P8: when a node updates, and with how much.

    Where nodes are in processes of their own, they hear of retirements and of the end of an epoch later than the
    controller tells of them: then an update must not count more instances than have retired, and what is left over is
    looked at when the run is over.
    """

    def __init__(self, found: list[Violation], complete: bool = True) -> None:
        super().__init__(found, complete)
        self._gradients: Counter[str] = Counter()
        """Since the node's last update."""
        self._retired = 0
        self._retired_at: Counter[str] = Counter()
        """How many instances had retired when the first gradient since the node's last update came in."""
        self._policy: dict[str, tuple[str, int]] = {}
        """(unit, frequency) of every node that has updated."""
        self._doubts: dict[str, list[Violation]] = {}
        """What speaks against nodes that may be frozen."""
        self._overdue: set[str] = set()
        """Nodes reported as overdue, until they update."""
        self._awaiting: list[tuple[int, Updated]] = []
        """(position, update) of which the retirement has yet to be told."""
        self._versions: dict[str, tuple[int, int]] = {}
        """(counted, claimed) version of each node, in this run."""
        self._apart = False
        """Whether nodes are in processes of their own."""
        self._counted: Counter[str] = Counter()
        """Instances in the updates of each node, where they are."""

    def __call__(self, event: Event) -> None:
        if self._awaiting and not isinstance(event, Updated | Retire | Begin):
            self._retire(0)  # nobody did
        match event:
            case Backward(version=int(), gradients=gradients) if gradients:
                self._backward(event)
            case Updated():
                self._updated(event)
            case Retire(train=True):
                self._retire(len(event.instances))
            case Epoch(train=True) if not self._apart:
                self._left_over(f"the epoch of stream '{event.stream}'", event)
            case Rest() if self._apart:
                self._left_over("the run", None)
            case Begin():
                self._apart = event.settings.get("runtime") not in ("inline", None)
                self._versions.clear()
                self._awaiting.clear()  # where the run before was cut short
            case _:
                pass

    def _backward(self, event: Backward) -> None:
        node = event.node
        unit, frequency = self._policy.get(node, ("", 0))
        before = self._gradients[node]
        if not before:
            self._retired_at[node] = self._retired
        retired = self._since(node)
        self._gradients[node] += event.gradients
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
        if event.unit == "messages":
            self._check_messages(event, gradients)
        elif not gradients:
            self._wrong(event, "no gradient came in since the one before")
        elif self._apart:
            self._check_apart(event)
        elif event.reason == "full" and not self._since(node) == event.count >= event.frequency:
            self._awaiting.append((self.position, event))
            return
        elif event.count != max(1, self._since(node)):  # gradients of the next epoch's first instances may be in it
            self._wrong(event, f"{self._since(node)} retired since the one before")
        self._retired_at[node] = self._retired

    def _check_apart(self, event: Updated) -> None:
        self._counted[event.node] += event.count
        if self._counted[event.node] > self._retired and event.reason == "full":
            self._wrong(event, f"with those before it, {self._counted[event.node]}; {self._retired} have retired")
        elif event.reason == "full" and event.count < event.frequency:
            self._wrong(event, f"a full one holds at least min_update_frequency={event.frequency}")

    def _check_messages(self, event: Updated, gradients: int) -> None:
        full = event.reason == "full"
        if event.count != gradients:
            self._wrong(event, f"{gradients} came in since the one before")
        elif full and event.count != event.frequency:
            self._wrong(event, f"a full one holds min_update_frequency={event.frequency}")
        elif not full and not 0 < event.count < event.frequency:
            self._wrong(event, f"a flush holds at least 1 and fewer than min_update_frequency={event.frequency}")

    def _check_version(self, event: Updated) -> None:
        known = self._versions.get(event.node)
        counted = event.version if known is None else known[0] + 1
        if known is not None and event.version != counted:
            if event.version == known[1] + 1:  # goes on from a step that was reported
                counted = event.version
            else:
                self.report("P8", f"node '{event.node}' calls its update {event.version}; it is number {counted}")
        self._versions[event.node] = (counted, event.version)

    def _retire(self, instances: int) -> None:
        """Instances retired. The updates that this led to were told before it."""
        self._retired += instances
        for position, event in self._awaiting:
            if event.count != self._since(event.node):
                self._wrong(event, f"{self._since(event.node)} retired since the one before", position)
            elif event.count < event.frequency:
                self._wrong(event, f"a full one holds at least min_update_frequency={event.frequency}", position)
            self._retired_at[event.node] = self._retired
        self._awaiting.clear()

    def _since(self, node: str) -> int:
        """Instances retired since gradients began to come in after the node's last update."""
        return self._retired - self._retired_at[node]

    def _left_over(self, after: str, event: Epoch | None) -> None:
        if event is not None and math.isnan(event.loss) and not event.metrics:
            return  # a stream without instances: it had nothing to flush
        for node, gradients in self._gradients.items():
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

    def _wrong(self, event: Updated, sentence: str, position: int | None = None) -> None:
        what = f"node '{event.node}', update {event.version} ({event.reason}) counts {event.count} {event.unit}"
        self.report("P8", f"{what}; {sentence}", position)


def _histogram(counts: Counter[int]) -> str:
    return "{" + ", ".join(f"{lag}: {messages}" for lag, messages in sorted(counts.items())) + "}"
