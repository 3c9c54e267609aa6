"""RunStats: which engine a runtime has used, and how much it has played."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunStats:
    """What a runtime has done so far, in all its runs."""

    engine: str
    """"waves", or "messages": passed one batch at a time, which is slower."""
    reason: str | None
    """Why the engine is "messages"; None with waves."""
    waves: int
    """Waves played. With the engine "waves" every instance is played in one."""
    instances: int
    """Instances played in waves."""
    in_flight: int
    """Waves in flight at once at a worker, at most."""
    busy: tuple[float, ...] = ()
    """Of each worker: the share of the time of all runs in which it computed."""

    def words(self) -> str:
        """One line for people."""
        if self.engine != "waves":
            return f"engine: {self.engine}" + ("" if self.reason is None else f" ({self.reason})")
        shares = f"; busy: {', '.join(f'{100 * share:.0f} %' for share in self.busy)}" if len(self.busy) > 1 else ""
        return f"engine: waves, {self.waves:,} played, at most {self.in_flight} in flight{shares}"
