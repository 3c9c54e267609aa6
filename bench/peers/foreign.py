"""Foreign: a peer of another framework than torch, named without importing that framework.

A process that measures torch must not have JAX in it: both start thread pools. So a workload names such a peer as
``module:Class``, and only the process of its own turn imports it. A package that is missing, or that is installed and
cannot be imported here, is a reason to skip the row.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

FRAGILE = ("dgl",)
"""Packages with wheels that install beside a torch that they do not work with: these are imported once, to find out."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A peer by name."""

    place: str
    """``module:Class``, a `bench.peers.jax_peer.JaxPeer`."""
    needs: tuple[str, ...] = ("jax",)
    """Packages that must be installed."""

    def load(self) -> type[Any]:
        """Import it."""
        module, _, name = self.place.partition(":")
        found: type[Any] = getattr(importlib.import_module(module), name)
        return found


def missing(packages: Iterable[str]) -> str | None:
    """Why these packages cannot be used; None: they can."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
        if package in FRAGILE and (why := _broken(package)):
            return f"{package} is installed, but cannot be imported: {why}"
    return None


@cache
def _broken(package: str) -> str | None:
    """The last line of the error where importing fails, in a process of its own; None: it works."""
    done = subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return None if done.returncode == 0 else (lines[-1] if lines else f"ended with {done.returncode}")
