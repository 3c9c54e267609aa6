"""ClusterWorkers: one generation of workers on several machines: their keys, connections and loops.

    [1] every process has the graph and the data (`Assignment`)
    [2] new keys; every party opens an endpoint and tells its address, over Ray
    [3] every worker gets its nodes' weights and states, connects to all others and serves (`Generation`)

What `ampnet.runtime.workers` is for forked processes. `end` leaves the processes that are well in their seats, and
returns the states of their nodes: the next generation begins with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ampnet.errors import AmpnetError, DataError
from ampnet.graph import Graph, Wiring
from ampnet.plan.planner import Planner
from ampnet.plan.team import Team
from ampnet.runtime.cluster.assignment import Generation, Refusal
from ampnet.runtime.cluster.connection import first_line
from ampnet.runtime.cluster.crew import ClusterCrew
from ampnet.runtime.cluster.reach import Timings, timings
from ampnet.runtime.cluster.seats import Seat, Seats
from ampnet.runtime.events import InOrder
from ampnet.runtime.known import Known
from ampnet.runtime.parcel import inputs_of
from ampnet.runtime.post import Post
from ampnet.runtime.staging import Staging
from ampnet.runtime.teams import teams_of
from ampnet.runtime.transport import Note
from ampnet.runtime.transport.keys import make_keys
from ampnet.runtime.transport.tcp import TcpEndpoint
from ampnet.runtime.workers import Beginning, WorkerSettings
from ampnet.update.state import UpdaterState

_OPENING = 30.0
"""Seconds that a worker has to open its endpoint."""
_ENDING = 5.0
"""Seconds that a worker has to finish its operation, when its generation is over."""
LOOPBACK = "127.0.0.1"


class SeatLost(Exception):
    """A worker was lost before it served."""


class ClusterWorkers:
    """See the head of this file. Offers what `Workers` does."""

    prepared: Planner | None = None

    def __init__(
        self,
        graph: Graph,
        wiring: Wiring,
        hosts: Mapping[str, int],
        settings: WorkerSettings,
        events: InOrder,
        clock: Callable[[], float],
        known: Known,
        rehearsed: Sequence[int],
        prediction: Graph | None,
        beginning: Beginning,
        *,
        seats: Seats,
        generation: int,
        silence: float,
        hear: Callable[[int, Note], None],
        look: Callable[[], None],
    ) -> None:
        """``settings.workers``: as many as there are seats. ``rehearsed``: places of known instances to plan first.
        ``generation``: a number that no earlier one has. ``silence``: as in `ClusterCrew`."""
        self.seats, self._ray = seats, seats.connection.ray
        self._sitting = list(seats)
        self.prediction = prediction
        self.ended: dict[str, int] = {}
        """After `end`, by node: the training streams of this generation that had ended for it."""
        self.teams = teams_of(graph, wiring, hosts)
        count = len(self._sitting)
        assert count == settings.workers
        self.endpoint = self._open(generation, timings(silence))  # [2]
        self.post = Post(self.endpoint, count, events, clock, hear, look)
        self.crew = self._begin(graph, hosts, beginning, rehearsed, settings, silence)  # [3]
        places = settings.places(len(self.teams))
        teams = [team for team, _ in self.teams]
        self.staging = Staging(teams, graph.copies, places, settings.wave_size, known, inputs_of(graph), self.post.send)
        nodes, inputs = ({}, {}) if prediction is None else (prediction.nodes, inputs_of(prediction))
        self.predicting = Staging(
            [Team.alone(nodes, number) for number in range(count)],
            {},
            settings.places(count),
            settings.wave_size,
            Known(),
            inputs,
            self.post.send,
            predicts=True,
        )

    def _open(self, generation: int, when: Timings) -> TcpEndpoint:
        keys = make_keys(len(self._sitting) + 1, generation)
        here = self.seats.connection.host
        alone = self.seats.machines() == {here}
        bind = LOOPBACK if alone else None
        calls = [seat.actor.open.remote(keys[i], bind, when) for i, seat in enumerate(self._sitting)]
        try:
            addresses = [answer_of(self._ray, seat, calls[i], _OPENING) for i, seat in enumerate(self._sitting)]
        finally:
            calls.clear()
        endpoint = TcpEndpoint(keys[-1], LOOPBACK if alone else here, **when)
        self._addresses: dict[int, str] = {**dict(enumerate(addresses)), len(self._sitting): endpoint.address}
        endpoint.connect(self._seen_by(len(self._sitting)))
        return endpoint

    def _seen_by(self, party: int) -> dict[int, str]:
        """Returns the addresses at which a party reaches the others."""
        return {other: address for other, address in self._addresses.items() if other != party}

    def _begin(
        self,
        graph: Graph,
        hosts: Mapping[str, int],
        beginning: Beginning,
        rehearsed: Sequence[int],
        settings: WorkerSettings,
        silence: float,
    ) -> ClusterCrew:
        calls = []
        nodes = graph.parameterised()
        for number, seat in enumerate(self._sitting):
            mine = [name for name in nodes if hosts[name] == number]
            given = Generation(
                number,
                len(self._sitting),
                dict(hosts),
                self._seen_by(number),
                {name: [weight.clone() for weight in nodes[name].updater.weights] for name in mine},
                replace(
                    beginning,
                    states={n: without_weights(beginning.states[n]) for n in mine if n in beginning.states},
                    epochs={n: beginning.epochs.get(n, 0) for n in mine},
                ),
                rehearsed,
                seat.offset,
            )
            calls.append(seat.actor.serve.remote(given))
        return ClusterCrew(self._ray, self._sitting, calls, self.endpoint, settings.stuck_after, silence)

    def end(self, *, lost: bool = False) -> dict[str, UpdaterState]:
        """End this generation. Returns the states of nodes on workers that are well; others lose their seats."""
        states: dict[str, UpdaterState] = {}
        self.crew.end()
        gone = self.crew.lost
        well = [seat for i, seat in enumerate(self._sitting) if gone is None or i != gone.worker]
        for seat in self._sitting:
            if seat in well:
                with suppress(Exception):  # of Ray
                    seat.actor.stop.remote()
            else:
                self.seats.drop(seat)
        for number, seat in enumerate(self._sitting):
            if seat in well:
                try:
                    if not self.crew.ended(number, _ENDING):
                        raise SeatLost
                    found, ended = self._ray.get(seat.actor.states.remote(), timeout=_OPENING)
                    states |= found
                    self.ended |= dict.fromkeys(found, ended)
                except Exception:  # it was lost as well
                    self.seats.drop(seat)
        self.crew.forget()
        self.endpoint.close(0.0)
        return states


def without_weights(state: UpdaterState) -> UpdaterState:
    """Returns a state without its weights, which are given apart."""
    tensors = {name: tensor.contiguous() for name, tensor in state.tensors.items() if not name.startswith("weight/")}
    return replace(state, tensors=tensors)


def answer_of(ray: Any, seat: Seat, call: Any, patience: float | None) -> Any:
    """Returns the answer of a worker. Raises `SeatLost` if it is gone, and a named error if it refuses."""
    try:
        found = ray.get(call, timeout=patience)
    except ray.exceptions.RayError as error:
        raise SeatLost(f"machine {seat.machine}: {first_line(error)}") from error
    finally:
        del call
    if not isinstance(found, Refusal):
        return found
    if found.kind in ("ModuleNotFoundError", "ImportError"):
        text = (
            f"machine {seat.machine} cannot import what the model needs: {found.text}. Remedy: install it there, or "
            f"give Cluster(..., runtime_env={{'working_dir': '.'}}), which sends the files of a folder"
        )
        raise _noted(AmpnetError(text), found)
    if found.kind == "DataError":
        named = found.text if seat.machine in found.text else f"machine {seat.machine}: {found.text}"
        raise _noted(DataError(f"{named}. Data are read on every machine, where it computes"), found)
    raise _noted(AmpnetError(f"machine {seat.machine} cannot take part: {found.kind}: {found.text}"), found)


def _noted(error: Exception, refusal: Refusal) -> Exception:
    error.add_note(f"there:\n{refusal.trace}")
    return error
