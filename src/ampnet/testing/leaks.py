"""Leak check: count lives, not bytes. At rest every keyed cache, queue and pending group is empty."""

from __future__ import annotations

from typing import Protocol


class Holds(Protocol):
    """Anything with a ``held()`` method: a runtime, a worker, a graph."""

    def held(self) -> dict[str, int]: ...


def assert_at_rest(holder: Holds) -> None:
    """Fail, naming every queue and cache that is not empty."""
    held = holder.held()
    if held:
        raise AssertionError("not at rest:" + "".join(f"\n  - {what}: {count}" for what, count in held.items()))
