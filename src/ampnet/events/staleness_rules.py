"""The rule over the event log about staleness (P7): the versions and staleness that nodes report agree with the log.

    reported   Forward, Backward, Played: version         Backward, Played: lags, the staleness of each message
    counted    updates and new weights from the others    changes of the weights between forward and backward

Updates change the weights of a node. For a replica, so does a synchronisation that replaces them by a mean. If replicas
share their weights, a version counts the updates of the node or those of all of them.
"""

from __future__ import annotations

from collections import Counter

from ampnet.events.log import Backward, Begin, Event, Forward, Played, Restart, Synced, Updated
from ampnet.events.rules import Rule, Violation
from ampnet.events.staleness import Counted, Recount
from ampnet.events.waves import key_of, words_of_wave


class HonestStaleness(Rule):
    """P7: the staleness that a backward reports is the number of updates since its forward; versions count updates."""

    def __init__(self, found: list[Violation], complete: bool = True) -> None:
        super().__init__(found, complete)
        self._recount = Recount()
        self._versions: dict[str, int] = {}
        self._apart = False
        """Whether nodes are on worker processes."""

    def __call__(self, event: Event) -> None:
        counted = self._recount(event)
        match event:
            case Forward(version=int()) | Backward(version=int()):
                assert event.version is not None
                self._check_version(event.node, event.version, event.received.describe())
                if isinstance(event, Backward):
                    self._check_lags(counted[0], event.lags, event.received.describe())
            case Played():
                self._check_wave(event, counted)
            case Updated() | Synced(moved=True):
                for counter in self._counters(event.node):
                    if counter in self._versions:
                        self._versions[counter] += 1
            case Restart():
                self._versions.clear()
            case Begin():
                self._versions.clear()  # weights may have been loaded in between
                self._apart = event.settings.get("runtime") not in ("inline", None)
            case _:
                pass

    def _check_wave(self, event: Played, counted: list[Counted]) -> None:
        wave = words_of_wave(key_of(event))
        for op in event.operations():
            if op.version is not None:
                self._check_version(op.node, op.version, f"port {op.port}, round {op.round}, {wave}")
        for found in counted:
            assert found.operation is not None
            op = found.operation
            self._check_lags(found, ((op.lag, op.messages),), f"port {op.port}, round {op.round}, {wave}")

    def _counters(self, node: str) -> tuple[str, ...]:
        """Returns the counters of a node's versions: itself, or all nodes that share its weights."""
        shared = self._recount.shared.get(node)
        return (node,) if shared is None else (node, f"all of {shared}")

    def _check_version(self, node: str, version: int, where: str) -> None:
        counters = self._counters(node)
        if self._apart and len(counters) > 1:
            return  # see `_check_lags`
        known = [self._versions.setdefault(counter, version) for counter in counters]
        if version not in known:
            self.report("P7", f"node '{node}' says version {version} at {where}; by its updates it is {known[0]}")
            self._versions.update(dict.fromkeys(counters, version))

    def _check_lags(self, found: Counted, lags: tuple[tuple[int, int], ...], where: str) -> None:
        reported: Counter[int] = Counter()
        for lag, messages in lags:
            reported[lag] += messages
        counted = found.lags
        if self._apart and found.node in self._recount.shared:
            # Other processes update the same weights at the same time, in an unknown order.
            counted = Counter({lag: n for lag, n in reported.items() if lag >= 0})
        # A message that was never forwarded has no staleness; pairing reports it.
        if not found.unknown and reported != counted:
            self.report(
                "P7",
                f"node '{found.node}' reports staleness {_histogram(reported)} for {where}; the log has "
                f"{_histogram(counted)}",
            )


def _histogram(counts: Counter[int]) -> str:
    return "{" + ", ".join(f"{lag}: {messages}" for lag, messages in sorted(counts.items())) + "}"
