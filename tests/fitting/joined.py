"""P15 over the logs of a run and of its resumed continuation: each instance of an epoch counts once.

    first log     pumped and retired ............ checkpoint ..... lost
    second log                                    └ pumped and retired ............

What the first run did after the checkpoint is lost, and done again. So for each stream that was open:
instances retired in the checkpoint + those retired in the second log = all instances, and none of the second has a
number of one that had retired before (its gradient would be applied twice).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ampnet.checkpoint import Loaded
from ampnet.events.log import Event, Pump, Retire
from ampnet.position import Position


def faults(
    first: Iterable[Event], checkpoint: Loaded, second: Iterable[Event], lengths: Mapping[str, int]
) -> list[str]:
    """Returns every violation. ``lengths``: the instances of a stream, by the first word of its name."""
    state = checkpoint.data["fit"]
    opened = {name: Position.of(of["position"]) for name, of in state["open"].items()}
    before, after = _retired(first), _retired(second)
    pumped = _of(Pump, second)
    found: list[str] = []
    for name, stats in state["ended"].items():
        if name in after:
            found.append(f"'{name}' had ended, and is pumped again")
        if stats["instances"] != lengths[name.split()[0]]:
            found.append(f"'{name}' ended with {stats['instances']} instances")
    for name, numbers in after.items():
        position = opened.get(name)
        done = 0 if position is None else position.retired
        if done + len(numbers) != lengths[name.split()[0]]:
            found.append(f"'{name}': {done} instances before and {len(numbers)} after the checkpoint")
        if len(before.get(name, ())) < done:
            found.append(f"'{name}': the checkpoint counts {done} instances, the log {len(before.get(name, ()))}")
        if sorted(pumped[name]) != sorted(numbers):
            found.append(f"'{name}': what was pumped is not what retired")
    found += [f"'{name}' was open, and is not continued" for name in opened if name not in after]
    known = min(checkpoint.data["runtime"]["numbers"]["next"])
    used = {number for numbers in before.values() for number in numbers if number < known}
    twice = used.intersection(number for numbers in after.values() for number in numbers)
    if twice:
        found.append(f"instances {sorted(twice)} were applied before the checkpoint, and again")
    return found


def _retired(events: Iterable[Event]) -> dict[str, list[int]]:
    return _of(Retire, events)


def _of(kind: Any, events: Iterable[Event]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, kind):
            out.setdefault(event.stream, []).extend(event.instances)
    return out
