"""Seats: the worker processes that Ray keeps for a run: a placement group with one bundle for each worker.

    placement group   bundle 0        bundle 1        bundle 2        one processor each, spread over the machines
    machine           head            node-a          (lost)
    actor             RemoteWorker    RemoteWorker    -               a bundle that has a machine can have an actor

If a machine leaves, Ray looks for another place for its bundles: at once if there is a free processor, later if a
machine joins. `fill` makes actors where they are missing, and waits for them; `invite` makes them without waiting, so
that training goes on meanwhile, and `arrived` takes in those that are ready. The group and its actors belong to this
process: they end with it, or with `close`.

No handle outlives its connection: Ray numbers actors and calls alike in every session, and would take a handle of an
earlier one for its own. So a seat that is given up has no handle, and lists of calls are cleared, also if an error's
traceback still refers to them.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampnet.errors import AmpnetError
from ampnet.runtime.cluster.connection import Connection, first_line

_NAP = 0.05
"""Seconds between two looks at what Ray has placed."""
_START = 120.0
"""Seconds that a process has to start."""
_ENDING = 5.0
"""Seconds to wait for processes that were killed."""
_QUESTIONS = 5
"""How often a machine is asked for its clock."""


@dataclass(slots=True)
class Seat:
    """A worker process on some machine."""

    place: int
    """The number of its bundle."""
    actor: Any
    pid: int = 0
    machine: str = "?"
    offset: float = 0.0
    """Seconds to add to its clock to get this process's."""
    prepared: bool = False
    """Whether it has the graph and the data."""


class Seats:
    """See the head of this file."""

    def __init__(self, connection: Connection, workers: int, patience: float, env: dict[str, Any] | None) -> None:
        """``patience``: seconds to wait for processors that are in use."""
        from ampnet.runtime.cluster.actor import RemoteWorker

        ray = connection.ray
        self.connection, self.workers = connection, workers
        self._class = ray.remote(RemoteWorker)
        self._env = env if connection.joined else None  # else the connection has it
        self._seats: dict[int, Seat] = {}
        self.why = "no machine is left"
        """Why an actor was dropped last, if that is known."""
        self._coming: dict[int, tuple[Seat, Any]] = {}
        """Actors that were made and are not ready yet, with their first call."""
        total = sum(one["Resources"].get("CPU", 0.0) for one in connection.live())
        if total < workers:
            machines = len(connection.live())
            raise AmpnetError(
                f"{workers} workers need {workers} processors, and the Ray cluster has {total:g} on {machines} "
                f"machine{'s' * (machines != 1)}: use workers={max(1, int(total))}, or add machines "
                f"(ray start --address)"
            )
        self._group = ray.util.placement_group([{"CPU": 1.0}] * workers, strategy="SPREAD")
        if not ray.wait([self._group.ready()], timeout=patience)[0]:
            free = ray.available_resources().get("CPU", 0.0)
            self.close()
            raise AmpnetError(
                f"{workers} workers need {workers} processors; {free:g} of {total:g} in the Ray cluster were free for "
                f"{patience:g} s: use fewer workers, or end what uses them ('ray status' shows it)"
            )

    def __len__(self) -> int:
        return len(self._seats)

    def __iter__(self) -> Any:
        return iter([self._seats[place] for place in sorted(self._seats)])

    def _placed(self) -> list[int]:
        """Returns the bundles that have a machine that is alive."""
        nodes = self.connection.nodes()
        table = self.connection.ray.util.placement_group_table(self._group)
        return [place for place, node in table.get("bundles_to_node_id", {}).items() if node in nodes]

    def machines(self) -> set[str]:
        """Returns the addresses of the machines with an actor."""
        table = self.connection.ray.util.placement_group_table(self._group)
        addresses = {one["NodeID"]: one["NodeManagerAddress"] for one in self.connection.live()}
        nodes = table.get("bundles_to_node_id", {})
        return {addresses.get(nodes.get(place, ""), "?") for place in self._seats}

    def fill(self, patience: float) -> None:
        """Make actors where they are missing, and wait for them; wait up to ``patience`` seconds for processors."""
        until = time.monotonic() + patience
        while True:
            self.invite()
            if len(self._seats) + len(self._coming) == self.workers or time.monotonic() >= until:
                break
            time.sleep(_NAP)
        self.arrived(_START)

    def invite(self) -> None:
        """Make actors where they are missing, without waiting for them."""
        if len(self._seats) + len(self._coming) < self.workers:
            for place in self._placed():
                if place not in self._seats and place not in self._coming:
                    seat = self._made(place)
                    self._coming[place] = seat, seat.actor.hello.remote()

    def arrived(self, patience: float = 0.0) -> list[Seat]:
        """Returns the new actors that are ready: they have their seats now. Others are given up after ``patience``
        seconds, if it is not 0."""
        ray = self.connection.ray
        new = []
        for place, (seat, call) in list(self._coming.items()):
            if not ray.wait([call], timeout=patience)[0] and not patience:
                continue
            del self._coming[place]
            self._seats[place] = seat
            try:
                ray.get(call, timeout=0)
                found, seat.offset = self._met(seat)
                seat.pid, seat.machine = found["pid"], found["machine"]
                new.append(seat)
            except ray.exceptions.RuntimeEnvSetupError as error:
                raise AmpnetError(f"workers cannot be started with this runtime_env: {error}") from error
            except ray.exceptions.RayError as error:
                self.drop(seat, f"a process could not be started: {first_line(error)}")
        return new

    def _met(self, seat: Seat) -> tuple[dict[str, Any], float]:
        """Returns where an actor is, and the offset of its clock: of several questions, by the one that was answered
        soonest. (A log is ordered by time, so workers of this machine must have none.)"""
        from ampnet.runtime.cluster.actor import boot_of_this_machine

        ray, found = self.connection.ray, dict[str, Any]()
        soonest, offset = float("inf"), 0.0
        for _ in range(_QUESTIONS):
            before = time.perf_counter()
            found = ray.get(seat.actor.hello.remote(), timeout=_START)
            took = time.perf_counter() - before
            if found["boot"] == boot_of_this_machine():
                return found, 0.0
            if took < soonest:
                soonest, offset = took, before + took / 2 - found["clock"]
        return found, offset

    def _made(self, place: int) -> Seat:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place)
        options: dict[str, Any] = {"runtime_env": self._env} if self._env else {}
        actor = self._class.options(
            num_cpus=1, max_restarts=0, max_concurrency=4, scheduling_strategy=strategy, **options
        ).remote()
        return Seat(place, actor)

    def drop(self, seat: Seat, why: str = "") -> None:
        """End an actor, whatever it does."""
        self.why = why or self.why
        self._seats.pop(seat.place, None)
        actor, seat.actor = seat.actor, None
        with suppress(Exception):  # it may be gone, and Ray too
            self.connection.ray.kill(actor)

    def close(self) -> None:
        """End all actors, and give their processors back."""
        seats = [*self, *(seat for seat, _ in self._coming.values())]
        for seat in seats:
            self.drop(seat)
        self._coming = {}
        _await_ends([seat.pid for seat in seats if seat.pid and seat.machine == socket.gethostname()])
        with suppress(Exception):
            self.connection.ray.util.remove_placement_group(self._group)


def _await_ends(pids: list[int]) -> None:
    """Wait for processes of this machine that were killed, so that nothing is left when a runtime is closed."""
    until = time.monotonic() + _ENDING
    while time.monotonic() < until and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(_NAP)
