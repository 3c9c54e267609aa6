"""The rule over the event log about staleness (P7): what a node says of its age is what the log says.

    says    Forward, Backward: version                 Backward: lags, the staleness of each message
    is      updates and new weights from the others    changes of the weights between forward and backward, recounted

Updates change the weights of a node. Where it is a replica, so does a synchronisation that replaces them by a mean.
"""

from __future__ import annotations

from collections import Counter

from ampnet.events.log import Backward, Begin, Event, Forward, Synced, Updated
from ampnet.events.rules import Rule, Violation
from ampnet.events.staleness import Recount


class HonestStaleness(Rule):
    """P7: the staleness that a backward reports is the number of updates since its forward; versions count updates."""

    def __init__(self, found: list[Violation], complete: bool = True) -> None:
        super().__init__(found, complete)
        self._recount = Recount()
        self._versions: dict[str, int] = {}
        self._apart = False
        """Whether nodes are in processes of their own."""

    def __call__(self, event: Event) -> None:
        counted = self._recount(event)
        match event:
            case Forward(version=int()) | Backward(version=int()):
                self._check_version(event)
                if counted is not None and isinstance(event, Backward):
                    self._check_lags(event, *counted)
            case Updated() | Synced(moved=True):
                if event.node in self._versions:
                    self._versions[event.node] += 1
            case Begin():
                self._versions.clear()  # weights may have been loaded in between
                self._apart = event.settings.get("runtime") not in ("inline", None)
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
        if self._apart and event.node in self._recount.shared:
            # Other processes update the same weights at the same time, in an order that nobody knows.
            counted = Counter({lag: n for lag, n in reported.items() if lag >= 0})
        # A message that was never forwarded has no staleness; pairing reports it.
        if not unknown and reported != counted:
            self.report(
                "P7",
                f"node '{event.node}' reports staleness {_histogram(reported)} for {event.received.describe()}; the "
                f"log has {_histogram(counted)}",
            )


def _histogram(counts: Counter[int]) -> str:
    return "{" + ", ".join(f"{lag}: {messages}" for lag, messages in sorted(counts.items())) + "}"
