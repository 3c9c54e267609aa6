"""Ledger: whether all numbers of a wave were finite, written by the device, read by the host some waves later.

    device    wave 7: all finite        wave 8: a NaN, found = 1        waves 9, 10: updates are left out
    host      plays wave 9 ...          plays wave 10 ...               reads: 8 was the first; goes back to it

Once ``found`` is 1 no guarded update is made any more (`ampnet.update.guard`), so weights are as they were before wave
8 when the host gets to know of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

_EVERY = 8
"""Waves between two copies to the host."""
_BEHIND = 4
"""Copies under way at most: the host is no more than this many copies ahead of the device."""


class Ledger:
    """See the head of this file."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.found = torch.zeros((), dtype=torch.float32, device=device)
        """1 from the first wave on that had a number that is not finite."""
        self._bad = torch.zeros((), dtype=torch.bool, device=device)
        self._since = torch.zeros((), dtype=torch.int64, device=device)
        """Waves from the first bad one on, including it."""
        self.waves = 0
        """Waves entered so far, by the host."""
        self._under_way: deque[tuple[Tensor, torch.cuda.Event, int]] = deque()
        self.sure = 0
        """Waves that are known to be good: all before this one."""

    def enter(self, evidence: Sequence[Tensor], faults: Sequence[Tensor]) -> None:
        """On the device: one more wave. ``evidence`` (vectors) is finite if the wave is good, and ``faults`` false."""
        kinds = {one.dtype for one in evidence}
        numbers = torch.cat([one if len(kinds) == 1 else one.to(torch.float64) for one in evidence])
        bad = (numbers * 0).sum().isnan()
        for fault in faults:
            bad.logical_or_(fault)
        self._bad.logical_or_(bad)
        self.found.copy_(self._bad)
        self._since.add_(self._bad)

    def entered(self) -> int | None:
        """On the host: one more wave was launched. Returns the number of the first bad wave, if it is known by now."""
        self.waves += 1
        if self.waves % _EVERY:
            return None
        if self.device.type != "cuda":
            return self.read()
        copied = torch.empty((), dtype=torch.int64, pin_memory=True)
        copied.copy_(self._since, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._under_way.append((copied, event, self.waves))
        while self._under_way and (len(self._under_way) > _BEHIND or self._under_way[0][1].query()):
            copied, event, waves = self._under_way.popleft()
            event.synchronize()
            if int(copied):
                return waves - int(copied)
            self.sure = waves
        return None

    def read(self) -> int | None:
        """Wait for all waves. Returns the number of the first bad one."""
        self._under_way.clear()
        if self.sure == self.waves:
            return None
        since = int(self._since)
        if not since:
            self.sure = self.waves
            return None
        return self.waves - since

    def clear(self) -> None:
        """Start anew: nothing is under way, nothing was found."""
        self._under_way.clear()
        for one in (self.found, self._bad, self._since):
            one.zero_()
        self.waves = self.sure = 0
