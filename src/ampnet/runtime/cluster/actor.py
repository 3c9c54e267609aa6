"""RemoteWorker: the Ray actor of one worker: a process on some machine that hosts a part of the graph.

    controller ──Ray──> hello, prepare      once: make the graph and the data here; compare digests
                        open ──> address    once for each generation: an endpoint with new keys
                        serve ··········>   connect, begin with the given states, run the loop (`Host`) until STOP
                        beat                is it alive? answered by another thread
                        stop, states        end of a generation: leave the loop; states of the nodes of this worker
    worker    <──tcp──> worker, controller  notes and slices of rows: parsed, never unpickled

`serve` returns when its generation is over. If the process dies, Ray reports that as the result of the call.
"""

from __future__ import annotations

import importlib
import os
import platform
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from ampnet._version import __version__
from ampnet.errors import AmpnetError
from ampnet.events.log import Announcer
from ampnet.graph import Graph, Wiring
from ampnet.instance import Instance
from ampnet.nodes.loss import Loss
from ampnet.recipe import digest, unpacked
from ampnet.replicas.group import Table
from ampnet.runtime.cluster.assignment import Assignment, Beat, Generation, Refusal
from ampnet.runtime.cluster.data import check_same, fingerprints
from ampnet.runtime.cluster.reach import Timings
from ampnet.runtime.host import Host, make_quiet
from ampnet.runtime.parcel import inputs_of
from ampnet.runtime.runtime import fewer_collections
from ampnet.runtime.teams import teams_of
from ampnet.runtime.transport.keys import Keys
from ampnet.runtime.transport.tcp import TcpEndpoint
from ampnet.runtime.watch import BEAT, NODE, PULSE
from ampnet.update.state import UpdaterState, state_of

T = TypeVar("T")


def versions() -> dict[str, str]:
    """Returns the versions that all machines must have."""
    return {"python": platform.python_version(), "torch": torch.__version__, "ampnet": __version__}


def boot_of_this_machine() -> str:
    """Returns a text that differs from machine to machine, and from start to start of one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return f"{uuid.getnode()}"


class RemoteWorker:
    """See the head of this file."""

    def __init__(self) -> None:
        self._graph: Graph | None = None
        self._wiring: Wiring | None = None
        self._told: Assignment | None = None
        self._instances: list[Instance] = []
        self._endpoint: TcpEndpoint | None = None
        self._host: Host | None = None
        self._pulse = np.zeros(PULSE, dtype=np.int64)
        self._thread = 0
        self._stopped = False
        """Whether the generation is over, also if its loop has not begun."""

    def hello(self) -> dict[str, Any]:
        """Returns where and what this process is. Processes with one ``boot`` have one clock."""
        now = time.perf_counter()
        return {"pid": os.getpid(), "machine": socket.gethostname(), "boot": boot_of_this_machine(), "clock": now}

    def prepare(self, given: tuple[bytes, bytes]) -> Refusal | None:
        """Make the graph and the data; compare them with the controller's. ``given``: an `Assignment`, and further
        instances (`packed`)."""
        return _refusing(lambda: self._prepare(*given))

    def _prepare(self, assignment: bytes, further: bytes) -> None:
        make_quiet()
        told: Assignment = unpacked(assignment)
        self._told = told
        for name, version in versions().items():
            if told.versions[name] != version:
                raise AmpnetError(f"it has {name} {version}, and the controller {told.versions[name]}")
        torch.set_num_threads(told.settings.threads)
        self._graph = graph = told.recipe.make()
        for name, node in graph.nodes.items():
            if isinstance(node, Loss) and name in told.on_nan:
                node.on_nan = told.on_nan[name]
        if digest(graph) != told.digest:
            raise AmpnetError(
                "the graph that was made there differs from the controller's. Usual causes: other versions of the "
                "model's code, a model that is built at random, or from the machine's environment"
            )
        self._wiring = graph.validate()
        if told.data is not None:
            self._instances = told.data.instances(graph)
            check_same(fingerprints(self._instances), told.fingerprints, socket.gethostname())
        self._instances += unpacked(further) if further else []

    def open(self, keys: Keys, host: str | None, timings: Timings) -> str | Refusal:
        """Make the endpoint of the next generation, which others reach at ``host`` (None: this machine's address).
        ``timings``: when it gives up connections. Returns its address."""
        if self._endpoint is not None:
            self._endpoint.close()
        self._stopped = False

        def make() -> str:
            ray: Any = importlib.import_module("ray")
            self._endpoint = TcpEndpoint(keys, host or ray.util.get_node_ip_address(), **timings)
            return self._endpoint.address

        return _refusing(make)

    def serve(self, given: Generation) -> Refusal | None:
        """Run the loop of a worker until it is told to stop."""
        return _refusing(lambda: self._serve(given))

    def _serve(self, given: Generation) -> None:
        told, graph, endpoint = self._told, self._graph, self._endpoint
        assert told is not None
        assert graph is not None
        assert endpoint is not None
        self._thread = threading.get_native_id()
        torch.set_num_threads(told.settings.threads)
        endpoint.connect(given.addresses)
        try:
            self._begin(given)
            self._host = host = self._make_host(given)
            host.over = self._stopped
            if told.on_worker is not None:
                told.on_worker(host)
            with fewer_collections():  # forked workers inherit that
                host.serve()
        finally:
            endpoint.close()

    def _begin(self, given: Generation) -> None:
        """Give the nodes their weights, policies and states."""
        told, graph = self._told, self._graph
        assert told is not None
        assert graph is not None
        nodes = graph.parameterised()
        with torch.no_grad():
            for name, node in nodes.items():
                node.updater.adopt(told.policies[name])
                for weight, value in zip(node.updater.weights, given.weights.get(name, ()), strict=False):
                    weight.copy_(value)
            for group in graph.replicas.values():
                updaters = [nodes[name].updater for name in group.members]
                frozen = any(updater.policy is None for updater in updaters)
                group.table = None if frozen else Table.of(updaters[0], group.sync, len(updaters))
            for name, node in nodes.items():
                if given.hosts[name] != given.number:
                    node.updater.leave()
                else:
                    given.beginning.give(node, 0)

    def _make_host(self, given: Generation) -> Host:
        told, graph, wiring = self._told, self._graph, self._wiring
        assert told is not None
        assert graph is not None
        assert wiring is not None
        assert self._endpoint is not None
        settings = told.settings
        teams = teams_of(graph, wiring, given.hosts)
        self._pulse[:] = 0

        def clock() -> float:
            return time.perf_counter() + given.offset

        host = Host(
            given.number,
            f"worker{given.number}",
            graph,
            wiring,
            teams,
            self._endpoint,
            controller=given.workers,
            places=settings.places(len(teams)),
            instances=self._instances,
            inputs=inputs_of(graph),
            wanted=Announcer(told.wishes, clock),
            pulse=memoryview(self._pulse),  # type: ignore[arg-type]
            parent=os.getppid(),
            clock=clock,
            schedule=settings.schedule,
            wave_size=settings.wave_size,
            seed=settings.seed,
            precision=settings.precision,
            prediction=graph.prediction if told.predicts else None,
            shared=False,
        )
        host.rehearse([self._instances[place] for place in given.rehearsed], None)
        host.player.first = given.beginning.waves
        return host

    def beat(self) -> Beat:
        """Returns what the loop of this worker does."""
        host, at, endpoint = self._host, int(self._pulse[NODE]), self._endpoint
        names = [] if host is None else list(host.player.names)
        node = names[at] if 0 <= at < len(names) else ""
        missing = () if endpoint is None else tuple(endpoint.unconnected())
        return Beat(int(self._pulse[BEAT]), _ticks(self._thread), str(node), missing)

    def stop(self) -> None:
        """Leave the loop after the current step."""
        self._stopped = True
        if self._host is not None:
            self._host.over = True

    def states(self) -> tuple[dict[str, UpdaterState], int]:
        """Returns the states of the nodes of this worker, weights included, and the number of training streams of this
        generation that have ended for them. Only when no loop runs."""
        host, self._host = self._host, None
        if host is None:
            return {}, 0
        return {node.name: state_of(node.updater, weights=True) for node in host.player.updates.trains}, host.ended


def _refusing(work: Callable[[], T]) -> T | Refusal:
    try:
        return work()
    except Exception as error:
        return Refusal(type(error).__name__, str(error), traceback.format_exc())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()


def _ticks(thread: int) -> int:
    """Returns the processor time of a thread of this process, in clock ticks; -1: unknown."""
    try:
        fields = Path(f"/proc/self/task/{thread}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, IndexError):
        return -1
