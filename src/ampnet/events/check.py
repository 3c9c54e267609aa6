"""Check: finds broken promises in an event log, in one pass, after a run.

    P1   pairing      a training message sent out of a port comes back to it exactly once; so does a pumped one;
                      in a wave, a forward operation that wants a backward gets exactly one
    P5   no leak      a run ends at rest: nothing held, every pumped instance retired
    P6   throttle     never more than max_active_keys in flight; no work while a place is free and data waits
    P7   staleness    a backward reports the number of changes of the weights since its forward
    P8   update rule  an update holds all gradients since the one before: as many as configured, or an epoch's leftovers
    P9   replicas     after a synchronisation all replicas are equal; no message visits two of them
    P10  inference    nothing of an inference instance is ever answered

Each promise is a rule, in `ampnet.events.rules`, `wave_rules`, `staleness_rules`, `update_rules` and `replica_rules`. A
fault is reported where it first shows; an answer to inference is removed before the other rules, so that they do not
report it again.

Events are in the order in which the runtime emits them. The rules rely on this much of it:

    Wave, Played ...                    a wave begins before it is played; pieces of several waves are interleaved
    Played (collect), Updated           the update that a wave leads to comes before the node is played in another one
    Backward, Updated                   the batch that fills a counter comes before the update, at the old version
    Return, Updated ..., Retire         where instances are counted, a retirement comes after the updates it leads to
    Retire, Updated ..., Retire         of two streams at once: both say how many are in flight after the second
    Retire, Updated (flush) ..., Epoch  leftovers of an epoch are applied before it ends
    Updated (together), Synced          replicas that average gradients: the update that makes them equal comes first
    Synced, Updated (late)              an update that waited for a synchronisation comes after it; both may stand
                                        wherever an Updated may
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ampnet.events.log import Event
from ampnet.events.replica_rules import EqualReplicas, OneReplica
from ampnet.events.rules import Flight, Inference, Pairing, Rule, Violation
from ampnet.events.staleness_rules import HonestStaleness
from ampnet.events.update_rules import UpdateRule
from ampnet.events.wave_rules import WavePairing

__all__ = ["PromiseBroken", "Violation", "assert_kept", "check"]

SHOWN = 20
"""The number of violations in the message of `PromiseBroken`."""


class PromiseBroken(AssertionError):
    """A log breaks promises. ``violations`` holds all of them."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        lines = [f"\n  - {v.promise}, event {v.position}: {v.sentence}" for v in violations[:SHOWN]]
        if len(violations) > SHOWN:
            lines.append(f"\n  - ... and {len(violations) - SHOWN} more")
        plural = "" if len(violations) == 1 else "s"
        super().__init__(f"the log breaks its promises {len(violations)} time{plural}:" + "".join(lines))


def check(events: Iterable[Event], *, complete: bool = True) -> list[Violation]:
    """Returns every violation in a log (an `EventLog`, or `read_log(path)`), in order.

    With ``complete=False`` runs may be incomplete, because of an error or because they still go on: messages in flight
    are then no violation.
    """
    found: list[Violation] = []
    inference = Inference(found)
    rules: list[Rule] = [
        Pairing(found, complete),
        WavePairing(found, complete),
        Flight(found, complete),
        HonestStaleness(found),
        UpdateRule(found),
        EqualReplicas(found, complete),
        OneReplica(found, complete),
    ]
    for position, event in enumerate(events):
        inference.position = position
        seen = inference.without(event)
        if seen is not None:
            for rule in rules:
                rule.position = position
                rule(seen)
    for rule in rules:
        rule.close()
    return sorted(found, key=lambda v: v.position)


def assert_kept(events: Iterable[Event], *, complete: bool = True) -> None:
    """Raise `PromiseBroken` if `check` returns violations."""
    violations = check(events, complete=complete)
    if violations:
        raise PromiseBroken(violations)
