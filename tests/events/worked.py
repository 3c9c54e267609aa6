"""What nodes did, in sum, for logs that are written by hand; and for any log, by node, one by one and in sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ampnet.events.log import BACKWARD, Backward, Begin, Epoch, Event, Played, Rest, Updated, Worked


@dataclass
class Done:
    """By one node."""

    worker: str = ""
    messages: int = 0
    lags: Counter[int] = field(default_factory=Counter)
    updates: int = 0


def one_by_one(events: Iterable[Event]) -> dict[str, Done]:
    """By the batches, operations and updates of a log."""
    out: dict[str, Done] = {}
    for event in events:
        if isinstance(event, Updated) or (isinstance(event, Backward) and event.version is not None):
            done = out.setdefault(event.node, Done(event.worker))
            if isinstance(event, Updated):
                done.updates += 1
            else:
                done.messages += len(event.received)
                for lag, messages in event.lags:
                    done.lags[lag] += messages
        elif isinstance(event, Played):
            for op in event.operations():
                if op.direction == BACKWARD and op.version is not None:
                    done = out.setdefault(op.node, Done(event.worker))
                    done.messages += op.messages
                    done.lags[op.lag] += op.messages
    return out


def in_sum(events: Iterable[Event]) -> dict[str, Done]:
    """By its sums."""
    out: dict[str, Done] = {}
    for event in events:
        if isinstance(event, Worked):
            done = out.setdefault(event.node, Done(event.worker))
            done.messages += event.messages
            done.lags.update(dict(event.lags))
            done.updates += event.updates
    return out


def told(events: Iterable[Event]) -> list[Event]:
    """The log with the sums in it: before the end of each epoch and of each run, as workers tell them."""
    out: list[Event] = []
    since = 0
    for event in events:
        if isinstance(event, Epoch | Rest):
            work = one_by_one(out[since:])
            out += [
                Worked(event.time, did.worker, node, did.messages, tuple(sorted(did.lags.items())), did.updates)
                for node, did in work.items()
            ]
        if isinstance(event, Epoch | Rest | Worked | Begin):  # of a run cut short the rest is never told
            since = len(out)
        out.append(event)
    return out
