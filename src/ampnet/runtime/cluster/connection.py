"""Connection: this process's connection to Ray. Joins a cluster that runs already, or starts one on this machine.

    "local"               start Ray on this machine, for this run
    "auto"                join the Ray of this machine; if there is none, as "local"
    "10.0.0.5:6379"       join the cluster with this head (what ``ray start --head`` prints)
    "ray://10.0.0.5:10001"  join it from outside

One program should join one cluster: after a first one, Ray (2.60) may not start actors in another one.

A program that has called ``ray.init`` itself keeps its connection, whatever the address. `close` ends what was begun
here, and nothing else.

Ray prints warnings, forwards the output of other processes and changes environment variables and signal handlers of its
caller. None of that happens here: errors reach the caller as exceptions.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import threading
from contextlib import suppress
from types import ModuleType
from typing import Any

from ampnet.errors import AmpnetError

_PATIENCE = 5.0
"""Seconds to wait for a head node to accept a connection."""
_PORTS = {"ray://": 10001, "": 6379}


def check_installed() -> None:
    """Raise `AmpnetError` if a package that clusters need is missing."""
    missing = [name for name in ("ray", "zmq") if importlib.util.find_spec(name) is None]
    if missing:
        raise AmpnetError(
            f"a cluster needs {' and '.join({'ray': 'Ray', 'zmq': 'pyzmq'}[name] for name in missing)}, not installed "
            f"here: pip install 'ampnet[cluster]', on every machine"
        )


class Connection:
    """See the head of this file."""

    def __init__(self, address: str, workers: int, *, runtime_env: dict[str, Any] | None = None) -> None:
        """``workers``: the number of processors that a Ray started here offers, if the machine has fewer.
        ``runtime_env``: files and packages for the workers, as `ray.init` takes it."""
        check_installed()
        self._environment = dict(os.environ)
        import ray

        self.ray: Any = ray
        self.joined = ray.is_initialized()
        """Whether the caller had connected already."""
        if self.joined:
            return
        self._logger = logging.getLogger("ray")
        self._level, self._print = self._logger.level, _silenced(None)
        self._logger.setLevel(logging.CRITICAL)
        handler = signal.getsignal(signal.SIGTERM)
        common = {"log_to_driver": False, "configure_logging": False, "runtime_env": runtime_env}
        try:
            self._init(address, max(workers, os.cpu_count() or 1), common)
        except BaseException:
            self._restore()
            raise
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
        _set("PYTHONBREAKPOINT", self._environment.get("PYTHONBREAKPOINT"))

    def _init(self, address: str, processors: int, common: dict[str, Any]) -> None:
        if address == "auto":
            with suppress(ConnectionError):
                self._join("auto", common)
                return
        if address in ("auto", "local"):
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            self.ray.init(address="local", num_cpus=processors, include_dashboard=False, **common)
            return
        _check_reachable(address)
        try:
            self._join(address, common)
        except Exception as error:
            raise AmpnetError(f"the Ray cluster at {address} cannot be joined: {first_line(error)}") from error

    def _join(self, address: str, common: dict[str, Any]) -> None:
        self.ray.init(address=address, **common)

    @property
    def host(self) -> str:
        """The address of this machine, under which workers reach it."""
        return str(self.ray.util.get_node_ip_address())

    def nodes(self) -> dict[str, str]:
        """Returns the machines of the cluster that are alive: names by Ray's node id."""
        return {one["NodeID"]: f"{one['NodeManagerHostname']} ({one['NodeManagerAddress']})" for one in self.live()}

    def live(self) -> list[dict[str, Any]]:
        """Returns Ray's entries of the machines that are alive."""
        return [one for one in self.ray.nodes() if one["Alive"]]

    def close(self) -> None:
        """Disconnect, and end a Ray that was started here."""
        if not self.joined:
            self.joined = True
            self.ray.shutdown()
            self._restore()

    def _restore(self) -> None:
        self._logger.setLevel(self._level)
        _silenced(self._print)
        for name in {*os.environ, *self._environment}:
            if name.startswith(("RAY_", "PYTHONBREAKPOINT")):
                _set(name, self._environment.get(name))


def _set(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


def _silenced(before: Any) -> Any:
    """Ray prints messages about lost processes on stdout, which has no switch: print nothing, or as ``before``."""
    with suppress(ImportError, AttributeError):
        import ray._private.worker as worker

        module: ModuleType = worker
        printing = module.print_to_stdstream
        module.print_to_stdstream = before if before is not None else lambda *args, **kwargs: None  # type: ignore[attr-defined]
        return printing
    return None


def _check_reachable(address: str) -> None:
    """Raise `AmpnetError` if nothing listens at an address: Ray itself would try for a minute."""
    scheme = "ray://" if address.startswith("ray://") else ""
    name, _, port = address.removeprefix(scheme).rpartition(":")
    if not name:
        name, port = address.removeprefix(scheme), str(_PORTS[scheme])
    if not port.isdigit():
        raise AmpnetError(f"'{address}' is no address of a Ray cluster: give auto, local, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((name.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise AmpnetError(
            f"no Ray cluster answers at {address}: {error}. 'ray start --head' prints the address; a firewall must let "
            f"its port through"
        ) from error


def first_line(error: Exception) -> str:
    """Returns the first line of an error's text."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
