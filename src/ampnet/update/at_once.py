"""At once: nodes whose updates are due at one moment, with the same optimizer and settings, take one step together.

Each node still has its own optimizer, state, version and learning rate; only the call of torch's fused kernel is one
for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ampnet.update.guard import recorded
from ampnet.update.steps import Stepper
from ampnet.update.updater import Updater


def apply_at_once(updaters: Sequence[Updater]) -> None:
    """Update all of these nodes, each of which is due, in one optimizer call."""
    groups: dict[object, list[Updater]] = {}
    for updater in updaters:
        groups.setdefault(updater.alike(), []).append(updater)
    for key, group in groups.items():
        if key is None or (len(group) == 1 and recorded() is None):
            for updater in group:
                updater.apply()
        else:
            _apply(group)


def _apply(updaters: Sequence[Updater]) -> None:
    first = updaters[0].stepper
    assert first is not None
    steppers: list[Stepper] = []
    gradients: list[Tensor] = []
    for updater in updaters:
        assert updater.stepper is not None
        steppers.append(updater.stepper)
        gradients += updater.begin_step()
    record = recorded()
    if record is not None:
        record.step(steppers, gradients, updaters[0].divisor())
    else:
        first.step_all(steppers, gradients, updaters[0].divisor())
    for updater in updaters:
        updater.end_step()
