"""RunStats: the engine of a runtime, and the number of waves and instances it has played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunStats:
    """Statistics of a runtime, over all its runs."""

    engine: str
    """"waves", or "messages": passed one batch at a time, which is slower."""
    reason: str | None
    """Why the engine is "messages"; None with waves."""
    waves: int
    """Waves played. With the engine "waves" every instance is played in one."""
    instances: int
    """Instances played in waves."""
    in_flight: int
    """The maximal number of waves in flight at once at a worker."""
    busy: tuple[float, ...] = ()
    """For each worker: its computing time as a share of the time of all runs."""
    captured: int = 0
    """On a GPU: waves that were launched as one captured graph."""
    uncaptured: str | None = None
    """On a GPU: why waves, or some of them, are launched operation by operation, which is slower; None: none is, but
    the first of each kind, and those that somebody looks at; or it is no GPU."""
    kernels: str = ""
    """What computes waves on the CPU: like "native (avx512)", or "torch: ..." with the reason."""
    restarts: int = 0
    """How often workers were started again after one was lost."""
    replayed: int = 0
    """Instances in flight that were computed again after a loss."""
    workers: int = 0
    """The number of workers of a cluster now; 0: not in a cluster."""
    changes: tuple[str, ...] = ()
    """Each change of the number of workers of a cluster, as text."""
    ahead: int = 0
    """Waves that were planned while a device computed the wave before. On a processor there are none: planning would
    take the time of computing."""
    seconds: float = 0.0
    """Seconds of all runs."""

    def words(self) -> str:
        """Returns the statistics as one line of text."""
        if self.engine != "waves":
            return f"engine: {self.engine}" + ("" if self.reason is None else f" ({self.reason})")
        shares = f"; busy: {_percents(self.busy)}" if len(self.busy) > 1 else ""
        lost = f"; workers started again: {self.restarts}" if self.restarts else ""
        ahead = f", {self.ahead:,} of them planned ahead" if self.ahead else ""
        graphs = f", {self.captured:,} as captured graphs" if self.captured else ""
        graphs += "" if self.uncaptured is None else f" (not captured: {self.uncaptured})"
        played = f"{self.waves:,} played{ahead}{graphs}"
        kernels = f"; computed by {self.kernels}" if self.kernels.startswith("torch") else ""
        return f"engine: waves, {played}, at most {self.in_flight} in flight{shares}{lost}{kernels}"


def _percents(shares: Sequence[float]) -> str:
    """Returns ``92 %, 71 %``; of more than eight their range: ``0 to 31 %``."""
    if len(shares) > 8:
        return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %"
    return ", ".join(f"{100 * share:.0f} %" for share in shares)
